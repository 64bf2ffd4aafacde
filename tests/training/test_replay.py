"""A replay: every state, map and loss is that of a run that stored all of them, and nothing in the run changes."""

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.training import small_run
from tests.training.small_run import without_clock
from transformer.attention.capture import Capture
from transformer.config import UserError
from transformer.interpret.replayed_step import prepare_output, replay_step
from transformer.maps.store import MapStore
from transformer.models.model import leaves_by_path
from transformer.runs.checkpoint import Checkpoints
from transformer.runs.jsonl_reading import read_records
from transformer.runs.run_directory import RunDirectory
from transformer.training import build, driver, partitioning
from transformer.training.config import resolve_config
from transformer.training.replay import Replay, open_replay
from transformer.training.replay_comparison import (
    compare_state,
    is_bit_identical,
)

EXAMPLE = 5  # of a batch of 8
CONFIG: dict[str, Any] = {**small_run.CONFIG, "name": "replayed", "seed": 3, "permanent_checkpoint_every": 4}
EVERYTHING = {"log_every": 1, "maps_every": 1, "checkpoint_every": 1, "keep_checkpoints": 20}
NEITHER = ("step", "split", "flops_per_step")  # FLOPs are counted, not computed
EVERYTHING |= {"head_statistics_every": 1, "eval_every": 0}


@pytest.fixture(scope="module", autouse=True)
def one_device() -> Iterator[None]:
    """Sharding has its tests; eight fake devices would make these slow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "make_placement", lambda config: partitioning.single_device_placement())
        yield


@pytest.fixture(scope="module")
def workdirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def everything(workdirs: Path) -> Path:
    """A run that stored every step."""
    driver.train(resolve_config({**CONFIG, **EVERYTHING}), workdirs / "everything")
    return workdirs / "everything"


@pytest.fixture(scope="module")
def sparse(workdirs: Path) -> Path:
    """The same run as one has it: checkpoints of steps 4 and 8, maps of every second step."""
    driver.train(resolve_config(CONFIG), workdirs / "sparse")
    return workdirs / "sparse"


def files(folder: Path) -> dict[str, str]:
    """The digest and the time of every file below a folder."""
    return {
        str(path.relative_to(folder)): f"{hashlib.sha256(path.read_bytes()).hexdigest()} {path.stat().st_mtime_ns}"
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def saved_arrays(folder: Path, step: int, abstract: Any) -> dict[str, np.ndarray]:
    with Checkpoints.open_read_only(folder / "checkpoints") as checkpoints:
        return numbers(checkpoints.read(step).restore(abstract))


def numbers(state: Any) -> dict[str, np.ndarray]:
    return {
        name: np.asarray(leaf)
        for name, leaf in leaves_by_path(state._replace(key=jax.random.key_data(state.key))).items()
    }


@pytest.fixture(scope="module")
def replay(sparse: Path) -> Iterator[Replay]:
    with open_replay(sparse) as opened:
        yield opened


@pytest.mark.parametrize("step", [0, 1, 3, 4, 5, 7, 8])
def test_the_state_of_every_step_is_that_of_the_run(step: int, replay: Replay, everything: Path) -> None:
    start = replay.start_before(step)
    assert start.step == max(saved for saved in (0, 4, 8) if saved <= step)
    state = replay.train_on(start, step).state
    if step:
        expected = saved_arrays(everything, step, state)
        assert expected.keys() == numbers(state).keys()
        for name, array in numbers(state).items():
            assert array.tobytes() == expected[name].tobytes(), name
    assert int(state.step) == step


@pytest.mark.parametrize("step", [0, 3, 6])
def test_what_was_never_stored_is_what_a_run_stores_that_stores_everything(
    step: int, replay: Replay, sparse: Path, everything: Path, tmp_path: Path
) -> None:
    before = files(sparse)
    result = replay_step(replay, step, tmp_path)
    assert files(sparse) == before
    stored, ours = MapStore.open_existing(everything / "maps"), MapStore.open_existing(tmp_path / "maps")
    assert ours.steps == (step,)
    for site in stored.sites:
        for part, theirs in stored.read_quantized(site.name, step, "full")._asdict().items():
            assert np.array_equal(theirs, getattr(ours.read_quantized(site.name, step, "full"), part)), part
        assert np.array_equal(
            ours.statistics(site.name).values[0], stored.statistics(site.name).values[step], equal_nan=True
        )
    assert result.verdict.startswith("bit-identical to what ran: ")
    assert is_bit_identical(result.comparisons)
    written = json.loads((tmp_path / "replay.json").read_text())
    assert written["bit_identical"] is True
    assert written["step"] == step
    assert (tmp_path / "report.html").stat().st_size > 10_000
    if not step:
        assert result.metrics == {}
        assert not (tmp_path / "examples.jsonl").exists()
        return
    (logged,) = [record for record in without_clock(everything, "train") if record["step"] == step]
    assert result.metrics == {name: value for name, value in logged.items() if name not in NEITHER}
    # Of the checkpoint that comes next, every array was compared.
    assert f"arrays of the checkpoint of step {4 if step <= 4 else 8}" in result.verdict
    assert len((tmp_path / "examples.jsonl").read_text().splitlines()) == CONFIG["task"]["batch_size"]


def test_a_replay_without_verification_ends_at_its_step(replay: Replay, tmp_path: Path) -> None:
    result = replay_step(replay, 6, tmp_path, verify=False)
    assert max(record["step"] for record in read_records(tmp_path / "metrics.jsonl")) == 6
    assert "checkpoint" not in result.verdict
    assert "the maps of step 6" in result.verdict


def test_what_differs_is_measured_and_the_machine_named(sparse: Path, tmp_path: Path) -> None:
    changed = tmp_path / "changed"
    shutil.copytree(sparse, changed)
    lines = (changed / "metrics.jsonl").read_text().splitlines()
    for number, line in enumerate(lines):
        record = json.loads(line)
        if record["split"] == "train" and record["step"] == 6:
            record["loss"] *= 1.001
            lines[number] = json.dumps(record)
    (changed / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    starts = json.loads((changed / "environment.json").read_text())
    starts[0]["processor"] = "another processor"
    (changed / "environment.json").write_text(json.dumps(starts))
    (tmp_path / "out").mkdir()
    with open_replay(changed) as replay:
        result = replay_step(replay, 7, tmp_path / "out")
    assert result.verdict.startswith(
        "not bit-identical to what ran: 1 of 1 line of metrics.jsonl (step 8)"
    ) or result.verdict.startswith("not bit-identical to what ran: 1 of 2 lines of metrics.jsonl (steps 6 to 8) differ")
    assert "the first at step 6, by at most 0.001 relative (loss)" in result.verdict
    assert "processor another processor then, " in result.verdict
    assert "\n" not in result.verdict


def test_a_state_that_is_not_the_saved_one_is_measured(replay: Replay) -> None:
    checkpoint = replay.read_checkpoint(8)
    state = replay.train_on(replay.start_before(7), 8).state
    assert compare_state(checkpoint, state).num_different == 0
    params = dict(leaves_by_path(state.variables.params))
    name = next(name for name in params if name.endswith("kernel"))
    largest = float(np.abs(np.asarray(params[name])).max())
    wrong = jax.tree_util.tree_map_with_path(
        lambda path, leaf: (
            leaf.at[(0,) * leaf.ndim].add(0.5 * largest)
            if jax.tree_util.keystr(path, simple=True, separator="/") == name
            else leaf
        ),
        state.variables.params,
    )
    state = state._replace(variables=state.variables._replace(params=wrong))
    comparison = compare_state(checkpoint, state)
    assert comparison.num_different == 1
    assert comparison.largest_name.endswith(name)
    assert 0.3 < comparison.largest_difference < 0.6


@pytest.mark.parametrize(("step", "says"), [(9, "made steps 0 to 8"), (-1, "made steps 0 to 8")])
def test_a_step_that_the_run_has_not_made_is_refused(step: int, says: str, replay: Replay, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=says):
        replay_step(replay, step, tmp_path)


def test_a_run_that_is_being_trained_is_refused(sparse: Path) -> None:
    with (
        RunDirectory.lock(sparse),
        pytest.raises(UserError, match="is being trained by another process"),
        open_replay(sparse),
    ):
        pass


def test_other_data_are_refused(sparse: Path, tmp_path: Path) -> None:
    changed = tmp_path / "changed"
    shutil.copytree(sparse, changed)
    config = json.loads((changed / "config.json").read_text())
    other = tmp_path / "other.txt"
    other.write_text(Path(config["task"]["dataset"]).read_text(encoding="utf-8").replace("License", "Licence"))
    config["task"]["dataset"] = str(other)
    (changed / "config.json").write_text(json.dumps(config))
    with (
        open_replay(changed, trusted=[str(other)]) as replay,
        pytest.raises(UserError, match=r"split of config\.task\.dataset has changed"),
    ):
        replay.start_before(5)


def test_a_damaged_checkpoint_is_passed_over(
    sparse: Path, everything: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(sparse, damaged)
    manifest = damaged / "checkpoints" / "4" / "manifest" / "metadata"
    manifest.write_bytes(manifest.read_bytes()[:-20])
    with open_replay(damaged) as replay:
        start = replay.start_before(5)
        assert start.step == 0
        state = replay.train_on(start, 5).state
    assert "4 is damaged" in capsys.readouterr().out
    expected = saved_arrays(everything, 5, state)
    assert all(array.tobytes() == expected[name].tobytes() for name, array in numbers(state).items())


def test_files_are_written_neither_over_others_nor_into_the_run(sparse: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for output in (tmp_path, tmp_path / "file"):
        with pytest.raises(UserError, match="is not an empty folder"):
            prepare_output(output, sparse)
    with pytest.raises(UserError, match="lies in the run directory"):
        prepare_output(sparse / "replay", sparse)
    prepare_output(tmp_path / "new", sparse)
    assert (tmp_path / "new").is_dir()


@pytest.fixture(scope="module")
def example(replay: Replay, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a replay to step 3 with the maps of an example."""
    folder = tmp_path_factory.mktemp("example")
    result = replay_step(replay, 3, folder, example=EXAMPLE, verify=False)
    assert {file.name for file in result.files} >= {"example_maps", "example.html"}
    return folder


def test_the_losses_of_examples_are_those_of_a_numpy_softmax(replay: Replay, everything: Path, example: Path) -> None:
    """Of the parameters with which step 3 began, on the batch that it trained on, each row alone, without dropout."""
    start = replay.start_before(2)
    state, batch = replay.train_on(start, 2).state, jax.device_get(replay.batch_of_step(3))
    inputs = {name: batch[name] for name in batch if name not in ("labels", "index", "counts")}
    hidden, _ = replay.components.model.apply(state.variables, inputs, method="hidden", train=False)
    logits = np.asarray(replay.components.model.logits(state.variables, hidden), np.float64)
    log_sums = np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1)) + logits.max(-1)
    losses_BxT = log_sums - np.take_along_axis(logits, batch["labels"][..., None], -1)[..., 0]
    counts_BxT = batch["counts"].astype(bool)
    lines = [json.loads(line) for line in (example / "examples.jsonl").read_text().splitlines()]
    assert [line["example"] for line in lines] == list(range(len(losses_BxT)))
    for line, losses_T, counts_T in zip(lines, losses_BxT, counts_BxT, strict=True):
        assert line["loss"] == pytest.approx(losses_T[counts_T].mean(), rel=1e-5)
        assert line["cross_entropy"] == line["loss"]
        assert line["tokens"] == replay.components.task.tokenizer.decode(real_tokens(replay, batch, line["example"]))
    assert len({line["tokens"] for line in lines}) > 1


def real_tokens(replay: Replay, batch: Any, row: int) -> list[int]:
    ids = batch["tokens"][row].tolist()
    while ids and ids[-1] == replay.components.task.interface.pad_id:
        ids.pop()
    return ids


def test_the_maps_of_an_example_are_those_of_the_model_on_the_whole_batch(replay: Replay, example: Path) -> None:
    state, batch = replay.train_on(replay.start_before(2), 2).state, jax.device_get(replay.batch_of_step(3))
    inputs = {name: batch[name] for name in batch if name not in ("labels", "index", "counts")}
    (site,) = replay.components.model.sites
    _, aux = replay.components.model.apply(state.variables, inputs, train=False, capture=Capture((site.name,)))
    expected_LxHxQxK = np.asarray(aux.maps[site.name].weights)[:, EXAMPLE]
    store = MapStore.open_existing(example / "example_maps")
    assert store.steps == (3,)
    ours_LxHxQxK = store.read(site.name, 3)[0]
    length = ours_LxHxQxK.shape[-1]
    assert length == len(real_tokens(replay, batch, EXAMPLE))
    assert np.abs(ours_LxHxQxK - expected_LxHxQxK[..., :length, :length]).max() < 0.005
    labels = store.labels.tokens[site.key.name][0]
    assert labels == tuple(replay.components.task.tokenizer.labels(real_tokens(replay, batch, EXAMPLE)))


@pytest.mark.parametrize("row", [-1, 8])
def test_an_example_that_the_batch_does_not_have_is_refused(row: int, replay: Replay, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"--example={row} is not in the batch of step 3, whose examples are 0 to 7"):
        replay_step(replay, 3, tmp_path, example=row)


def test_the_state_before_training_has_no_batch(replay: Replay, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--step=1 is the first"):
        replay_step(replay, 0, tmp_path, example=0)
