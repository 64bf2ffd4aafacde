"""The page's file: what is in it, that it is one and closed, and what is said when it cannot be made."""

import base64
import gzip
import hashlib
import html.parser
import json
import re
import shutil

import numpy as np
import pytest

from transformer.config import UserError
from transformer.maps.first_view import count_crossings
from transformer.maps.record import evenly, read_curves, thin
from transformer.maps.report import write_report
from transformer.maps.store import MapStore
from transformer.tasks.labels import Labels


class Page(html.parser.HTMLParser):
    """The elements of a page by tag, with their attributes and text."""

    def __init__(self, text: str):
        super().__init__()
        self.elements: list[tuple[str, dict, str]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs), ""))

    def handle_endtag(self, tag):
        self.elements.append((f"/{tag}", {}, ""))

    def handle_data(self, data):
        if self.elements:
            tag, attributes, text = self.elements[-1]
            self.elements[-1] = (tag, attributes, text + data)

    def all(self, tag):
        return [(attributes, text) for name, attributes, text in self.elements if name == tag]

    def data(self):
        return next(json.loads(text) for attributes, text in self.all("script") if attributes.get("id") == "data")


@pytest.fixture(scope="module")
def page(run) -> Page:
    path = write_report(run.directory)
    assert path == run.directory / "report.html"
    return Page(path.read_text())


def test_the_maps_in_the_page_are_those_of_the_run(run, page):
    data = page.data()
    assert data["steps"] == sorted(run.maps)
    blocks = {attributes.get("id"): text for attributes, text in page.all("script")}
    for step, site in ((0, 2), (7, 0), (3, 1)):
        examples, layers, heads, queries, keys = data["sites"][site]["shape"]
        packed = gzip.decompress(base64.b64decode(blocks[f"maps-{step}-{site}"]))
        rows = examples * layers * heads * queries
        scale = np.frombuffer(packed[: 4 * rows], "<f4").reshape(examples, layers, heads, queries, 1)
        codes = np.frombuffer(packed[4 * rows :], np.uint8).reshape(examples, layers, heads, queries, keys)
        given = run.maps[data["steps"][step]][run.sites[site].name]
        expected = given.transpose(1, 0, 2, 3, 4)[..., :queries, :keys]
        assert np.abs(scale * (codes / 255.0) ** 2 - expected).sum(axis=-1).max() <= 0.01


def test_the_page_refers_to_nothing_outside_itself(run, page):
    text = (run.directory / "report.html").read_text()
    for _, attributes, _ in page.elements:
        assert not {"src", "href", "srcset", "data", "action", "style"} & attributes.keys()
        assert not any(name.startswith("on") for name in attributes)
    addresses = set(re.findall(r"https?://[^\s\"'<>)]+", text)) - {"http://www.w3.org/2000/svg"}
    assert addresses == set()
    assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|\beval\b|\bfetch\(|XMLHttpRequest", text)
    assert "@import" not in text
    assert "url(" not in text


def test_the_policy_admits_exactly_the_script_and_the_style(page):
    policy = next(a["content"] for a, _ in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    script = next(text for attributes, text in page.all("script") if attributes.get("type") == "module")
    (_, style), *_ = page.all("style")

    def hashed(text: str) -> str:
        return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    assert policy.startswith("default-src 'none'; ")
    assert f"script-src 'sha256-{hashed(script)}'" in policy
    assert f"style-src 'sha256-{hashed(style)}'" in policy
    assert "unsafe" not in policy


def test_the_first_view_is_the_aligning_head_on_a_sentence_that_reorders(run, page):
    data = page.data()
    first, labels = data["first"], run.labels
    assert data["sites"][first["site"]]["name"] == "decoder/cross"
    last = run.maps[1600]["decoder/cross"].astype(np.float64)
    mass = sum(
        last[:, example, :, query, key]
        for example, links in enumerate(labels.links["decoder/cross"])
        for query, key, _ in links
    )
    assert (first["layer"], first["head"]) == np.unravel_index(mass.argmax(), mass.shape)
    assert count_crossings([(q, k) for q, k, _ in labels.links["decoder/cross"][first["example"]]]) >= 3


def test_curves_hold_the_metrics_of_each_split(run, page):
    lines = [json.loads(line) for line in (run.directory / "metrics.jsonl").read_text().splitlines()]
    curves = page.data()["curves"]
    expected = [[line["step"], line["loss"]] for line in lines if line["split"] == "validation"]
    assert curves["loss"]["validation"] == expected
    assert len(curves["loss"]["train"]) == 160
    assert curves["bleu"]["test"] == [[1600, 99.1]]


def test_metrics_of_a_run_that_was_killed_and_resumed(tmp_path):
    lines = [
        '{"step": 1, "split": "train", "loss": 5.0}',
        '{"step": 2, "split": "train", "loss": 4.0}',
        '{"step": 2, "split": "train", "loss": 3.0, "note": "text", "ok": true, "lost": null}',
        '{"step": 3, "split": "train", "loss": NaN}',
        '{"step": 4, "split": "tr',
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    assert read_curves(tmp_path) == {"loss": {"train": [(1, 5.0), (2, 3.0)]}}
    (tmp_path / "metrics.jsonl").write_text("\n".join([*lines, lines[0]]))
    with pytest.raises(UserError, match=r"metrics\.jsonl:5 is no JSON object"):
        read_curves(tmp_path)


def test_thinning_keeps_ends_and_spikes():
    curve = [(step, float(step % 7)) for step in range(5000)]
    curve[1234] = (1234, 900.0)
    thinned = thin(curve, 100)
    assert len(thinned) <= 100
    assert {curve[0], curve[-1], curve[1234]} <= set(thinned)
    assert thinned == sorted(thinned)


@pytest.mark.parametrize(("total", "kept"), [(8, 8), (8, 3), (8, 2), (50, 7)])
def test_evenly_chosen_indices_hold_both_ends(total, kept):
    chosen = evenly(total, kept)
    assert len(chosen) == kept
    assert {0, total - 1} <= set(chosen)
    assert max(np.diff(chosen)) - min(np.diff(chosen)) <= 1
    assert evenly(total, 1) == [total - 1]


def test_a_small_budget_leaves_steps_out_and_says_so(run):
    whole = write_report(run.directory).stat().st_size
    path = write_report(run.directory, budget=whole // 2)
    assert path.stat().st_size <= whole // 2
    data = Page(path.read_text()).data()
    assert sorted(data["steps"] + data["leftOut"]) == sorted(run.maps)
    assert 2 <= len(data["steps"]) < len(run.maps)
    assert {100, 1600} <= set(data["steps"])
    with pytest.raises(UserError, match="too small for one step of maps: give at least") as caught:
        write_report(run.directory, budget=1000)
    # What it asks for is enough.
    assert write_report(run.directory, budget=int(re.search(r"at least (\d+)", str(caught.value))[1])).exists()


def test_the_same_run_gives_the_same_page(run):
    assert write_report(run.directory).read_bytes() == write_report(run.directory).read_bytes()


@pytest.mark.parametrize("missing", ["config.json", "metrics.jsonl", "maps"])
def test_what_is_missing_is_named_in_one_line(run, tmp_path, missing):
    directory = tmp_path / "copy"
    shutil.copytree(run.directory, directory)
    path = directory / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    (directory / "report.html").unlink(missing_ok=True)
    with pytest.raises(UserError, match=re.escape(missing)) as caught:
        write_report(directory)
    assert "\n" not in str(caught.value)
    assert not (directory / "report.html").exists()


def test_samples_and_environment_may_be_absent(run, tmp_path):
    directory = tmp_path / "copy"
    shutil.copytree(run.directory, directory)
    (directory / "samples.jsonl").unlink()
    (directory / "environment.json").unlink()
    data = Page(write_report(directory).read_text()).data()
    assert data["samples"] == []
    assert data["title"] == "demo"


def test_another_store_can_be_shown_on_another_page(run, tmp_path):
    store = MapStore.open(tmp_path / "maps", run.sites[:1], Labels({"source": (("a", "b"),)}, ("one",)), "abc")
    store.write(7, {"encoder/self": np.full((3, 1, 4, 2, 2), 0.5, np.float32)})
    before = write_report(run.directory).read_bytes()
    path = write_report(run.directory, maps=tmp_path / "maps", page=tmp_path / "other.html")
    data = Page(path.read_text()).data()
    assert path == tmp_path / "other.html"
    assert (data["steps"], data["titles"], data["title"]) == ([7], ["one"], "demo")
    assert (run.directory / "report.html").read_bytes() == before
