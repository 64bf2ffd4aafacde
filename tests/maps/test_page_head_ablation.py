"""What each head is worth, on the page in a real browser: the loss without the chosen head, and the two figures."""

import dataclasses
import json

import pytest

from tests.maps.test_page import browser, visit  # noqa: F401  fixtures
from tests.waiting import wait_until
from transformer.config import UserError
from transformer.maps.head_ablation_record import (
    CheckpointAblation,
    HeadAblationRecord,
    HeadKnockOut,
    LossDifference,
    PruningCurve,
    PruningOrder,
    read_head_ablation,
    write_head_ablation,
)
from transformer.maps.report.head_ablation import head_ablation_payload
from transformer.maps.report.page import write_report
from transformer.maps.store import MapStore
from transformer.runs.run_directory import RunDirectory

VIEW = "#site=encoder/self&layer=1&head=2&step="


def make_record(store: MapStore) -> HeadAblationRecord:
    """Two checkpoints of the store's heads, the loss difference of head h of layer l being l + h / 10."""

    def checkpoint(step: int, sign: float) -> CheckpointAblation:
        heads = tuple(
            HeadKnockOut(
                site.name,
                layer,
                head,
                LossDifference(
                    sign * (layer + head / 10), sign * (layer + head / 10) - 0.25, sign * (layer + head / 10) + 0.25
                ),
                LossDifference(-0.5),
                0.0625,
                0.03125,
            )
            for site in store.sites
            for layer in range(len(site.layers))
            for head in range(len(site.heads))
        )
        order = tuple(range(len(heads)))
        curves = [
            PruningCurve(kind, order, tuple(float(shift + number) for number in range(len(heads) + 1)))
            for kind, shift in ((PruningOrder.IMPORTANCE, 1), (PruningOrder.RANDOM, 2), (PruningOrder.RANDOM, 4))
        ]
        return CheckpointAblation(step, 1.5, 20, heads, 0.75, -0.25, (), tuple(curves))

    return HeadAblationRecord("loss", "validation", "examples", (checkpoint(0, 1), checkpoint(800, -1)))


@pytest.fixture(scope="module")
def store(run) -> MapStore:
    return MapStore.open_existing(run.directory / "maps")


@pytest.fixture(scope="module")
def report(run, store):
    write_head_ablation(RunDirectory(run.directory), make_record(store))
    path = write_report(run.directory, page=run.directory / "ablated.html")
    (run.directory / "head_ablation.json").unlink()
    return path


def test_a_record_is_read_as_it_was_written(run, store) -> None:
    directory, record = RunDirectory(run.directory), make_record(store)
    assert read_head_ablation(directory) is None
    assert head_ablation_payload(directory, store.sites) is None
    write_head_ablation(directory, record)
    try:
        assert read_head_ablation(directory) == record
        values = json.loads(directory.head_ablation_file.read_text())
        del values["checkpoints"][0]["loss"]
        directory.head_ablation_file.write_text(json.dumps(values))
        with pytest.raises(UserError, match=r"head_ablation\.json is not usable: checkpoints\[0\]\.loss is miss"):
            read_head_ablation(directory)
    finally:
        directory.head_ablation_file.unlink()


def test_modules_that_the_page_has_not_are_left_out(run, store) -> None:
    directory, record = RunDirectory(run.directory), make_record(store)
    first = record.checkpoints[0]
    renamed = dataclasses.replace(first.heads[0], site="elsewhere/self")
    changed = dataclasses.replace(first, heads=(renamed, *first.heads[1:]))
    write_head_ablation(directory, dataclasses.replace(record, checkpoints=(changed,)))
    try:
        payload = head_ablation_payload(directory, store.sites)
    finally:
        directory.head_ablation_file.unlink()
    assert payload is not None
    assert (
        payload["checkpoints"][0]["heads"]
        == [
            [
                number,
                layer,
                head,
                [layer + head / 10, layer + head / 10 - 0.25, layer + head / 10 + 0.25],
                [-0.5, None, None],
                0.0625,
            ]
            for number, site in enumerate(store.sites)
            for layer in range(len(site.layers))
            for head in range(len(site.heads))
        ][1:]
    )


@pytest.mark.browser
@pytest.mark.slow
def test_the_chosen_heads_loss_stands_beside_its_map(visit, report) -> None:  # noqa: F811
    page = visit(report, f"{VIEW}0")
    assert page.inner_text("#knock-out") == (
        "Without this head the loss changes by +1.2 (+0.95 to +1.45); with its mean output, by −0.5. "
        "Importance 0.0625. Step 0, validation."
    )
    page.locator("body").press("l")
    wait_until(page, "document.getElementById('knock-out').textContent.includes('+1.3 (')")
    page.evaluate(f"location.hash = '{VIEW}800'")
    wait_until(page, "document.getElementById('knock-out').textContent.includes('Step 800')")
    assert page.inner_text("#knock-out").startswith("Without this head the loss changes by −1.2 (−1.45 to −0.95);")


@pytest.mark.browser
@pytest.mark.slow
def test_figures_of_pruning_and_of_importance(visit, report, run) -> None:  # noqa: F811
    page = visit(report)
    note = page.inner_text("#head-ablation-note")
    assert "on validation, 20 examples" in note
    assert "At step 800 the loss is 1.5" in note
    assert "is 0.75 (−0.25 where a head's mean" in note
    titles = page.locator("#head-ablation .figure-head > strong").all_inner_texts()
    assert titles == ["Heads removed one after the other", "Importance and knock-out over training"]
    heads = page.locator("#head-ablation").inner_text()
    assert "least important first" in heads
    assert "random orders" in heads
    page.locator("#pruning").scroll_into_view_if_needed()
    wait_until(page, "document.querySelectorAll('#pruning path.band').length === 1")
    assert page.locator("#pruning path.stroke").count() == 2
    assert page.locator("#importance-correlation path.stroke").count() == 2
    bare = visit(write_report(run.directory))
    assert bare.locator("#head-ablation-panel").is_hidden()
    assert bare.locator("#knock-out").is_hidden()
