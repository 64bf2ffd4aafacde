"""The page's file: what is in it, that it is one and closed, and what is said when it cannot be made."""

import base64
import gzip
import hashlib
import html.parser
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from transformer.attention.sites import Axis, Site
from transformer.config import UserError
from transformer.data.png import encode_png
from transformer.maps.capture_plan import quantize_maps
from transformer.maps.quantize import Quantized, quantize
from transformer.maps.report import page as report_page
from transformer.maps.report.page import write_report
from transformer.maps.report.payload import COARSE_LEVELS, downsample_image, requantize, spread_order
from transformer.maps.report.run_data import count_crossings, evenly_spaced_indices, initial_view
from transformer.maps.store import MapStore
from transformer.runs.metric_curves import read_curves, thin_curve
from transformer.runs.run_directory import RunDirectory
from transformer.tasks.axis_labels import AxisLabels

LAYERS, HEADS = 3, 4  # of the fake run


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


def blocks_of(page: Page) -> dict[str, str]:
    return {attributes["id"]: text for attributes, text in page.all("script") if "id" in attributes}


def unpack(text: str, rows: int, keys: int, largest: int, triangular: int = 0) -> np.ndarray:
    """Rows of weights as the page's script reads them, in float64; of a triangular map of so many rows the whole."""
    packed = np.frombuffer(gzip.decompress(base64.b64decode(text)), np.uint8)
    scale = packed[: 4 * rows].reshape(4, rows).T.copy().view("<f4").astype(np.float64)
    root, codes = packed[4 * rows : 5 * rows, None], packed[5 * rows :]
    if triangular:
        whole = np.zeros((rows // triangular, triangular, keys))
        per_map = triangular * (triangular + 1) // 2
        for number, each in enumerate(codes.reshape(-1, per_map)):
            whole[number][np.tril(np.ones((triangular, keys), bool))] = each
        codes = whole
    return scale * (codes.reshape(rows, keys) / largest) ** root


TYPES = (Path(report_page.__file__).parent / "web" / "types.d.ts").read_text(encoding="utf-8")


def declared_fields(name: str) -> tuple[set[str], set[str]]:
    """The fields that the page's scripts read of an object, and those of them that may be absent."""
    body = re.search(rf"^export interface {name} {{\n(.*?)^}}", TYPES, re.DOTALL | re.MULTILINE)
    assert body is not None, name
    fields = re.findall(r"^  (\w+)(\??):", body[1], re.MULTILINE)
    return {field for field, _ in fields}, {field for field, mark in fields if mark}


def test_the_scripts_find_the_fields_that_they_read(page):
    data = page.data()
    history = data["history"]
    parts = {
        "ReportData": [data],
        "Site": data["sites"],
        "Level": [level for site in data["sites"] for level in site["levels"]],
        "AxisData": list(data["axes"].values()),
        "RoleKind": data["roles"]["kinds"],
        "SampleGroup": data["samples"],
        "StatisticsTable": [table for site in history["sites"] for table in site["tables"]],
        "RoleOnset": history["roles"],
    }
    for name, objects in parts.items():
        fields, optional = declared_fields(name)
        assert objects, name
        for each in objects:
            assert fields - optional <= each.keys() <= fields, name


def test_the_maps_in_the_page_are_those_of_the_run(run, page):
    data, blocks = page.data(), blocks_of(page)
    assert data["steps"] == sorted(run.maps)
    assert data["codes"] == 255
    for step, site, example in ((0, 2, 7), (7, 0, 0), (3, 1, 4)):
        (level,) = data["sites"][site]["levels"]
        assert (level["name"], level["triangular"]) == ("full", run.sites[site].causal)
        queries, keys = level["queries"], level["keys"]
        rows = LAYERS * HEADS * queries
        block = blocks[f"maps-{step}-{site}-{example}-full"]
        found = unpack(block, rows, keys, 255, queries if level["triangular"] else 0)
        given = run.maps[data["steps"][step]][run.sites[site].name][:, example]
        expected = given[..., :queries, :keys].reshape(rows, keys)
        assert np.abs(found - expected).sum(axis=-1).max() <= 0.01


def test_a_long_site_is_there_in_levels_rows_and_the_top_of_each_row(long_run):
    page = Page(write_report(long_run.directory).read_text())
    data, blocks = page.data(), blocks_of(page)
    (site,), whole = data["sites"], long_run.maps[40]["decoder/self"][:, 0].astype(np.float64)
    assert [level["name"] for level in site["levels"]] == ["pooled-64", "pooled-128"]
    for level in site["levels"]:
        cells, block = level["queries"], level["queryBlock"]
        pooled = np.zeros((2, 3, cells * block, cells * block))
        pooled[..., :500, :500] = whole
        pooled = pooled.reshape(2, 3, cells, block, cells, block).max(axis=(-3, -1))
        names = [f"maps-1-0-0-{level['name']}" + (f"-{layer}" if level["split"] else "") for layer in range(2)]
        parts = [unpack(blocks[name], (3 if level["split"] else 6) * cells, cells, 255, cells) for name in names]
        found = np.concatenate(parts if level["split"] else parts[:1]).reshape(pooled.shape)
        assert np.abs(found - pooled).max() <= 0.005
    rows = unpack(blocks["rows-1-0-0"], 6 * 4, 500, 255).reshape(2, 3, 4, 500)
    assert np.abs(rows - whole[:, :, site["rows"]["positions"]]).max() <= 0.005
    count = 3 * 500 * site["top"]["k"]
    packed = gzip.decompress(base64.b64decode(blocks["top-1-0-0-1"]))
    keys = 256 * np.frombuffer(packed[:count], np.uint8).astype(int) + np.frombuffer(
        packed[count : 2 * count], np.uint8
    )
    weights = unpack(base64.b64encode(gzip.compress(packed[2 * count :])).decode(), 1500, site["top"]["k"], 255)
    largest = np.sort(whole[1].reshape(1500, 500), axis=-1)[:, ::-1][:, : site["top"]["k"]]
    assert np.abs(weights - largest).max() <= 0.005
    named = np.take_along_axis(whole[1].reshape(1500, 500), keys.reshape(1500, -1), axis=-1)
    assert np.abs(named - largest).max() <= 1e-6


def test_fewer_bits_stay_within_a_hundredth_of_what_is_stored():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(200, 64)) * rng.choice([0.5, 1.5, 4, 12], size=(200, 1))
    weights = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    every_code = np.tile(np.arange(256, dtype=np.uint8), (5, 1))
    # Whatever root a store chose, at the largest scale that a probability has.
    hardest = Quantized(every_code, np.ones(5, np.float32), np.arange(2, 7, dtype=np.uint8))
    for stored in (quantize(weights.astype(np.float32)), hardest):
        fewer = requantize(stored, COARSE_LEVELS)
        assert fewer.codes.max() <= COARSE_LEVELS
        drawn = fewer.scale[:, None].astype(np.float64) * (fewer.codes / COARSE_LEVELS) ** fewer.root[:, None]
        assert np.abs(drawn - stored.weights()).max() < 0.01
        same = requantize(stored, 255)
        assert np.abs(same.weights() - stored.weights()).max() <= 2.0**-12


def test_indices_spread_from_the_last():
    for total in (1, 2, 7, 20):
        order = spread_order(total)
        assert sorted(order) == list(range(total))
        assert order[0] == total - 1
    assert set(spread_order(9)[:3]) == {8, 0, 4}


def test_each_query_may_have_a_image_of_its_own(agent_run):
    page = Page(write_report(agent_run.directory).read_text())
    assert page.data()["axes"]["region"]["image"] == [6, 6, 6, 6]
    packed = gzip.decompress(base64.b64decode(blocks_of(page)["image-1-1"]))
    assert packed == agent_run.labels.images["region"][1].tobytes()


def test_images_and_spectrograms_are_packed(image_run, speech_run):
    page = Page(write_report(image_run.directory).read_text())
    axis = page.data()["axes"]["patches"]
    assert (axis["kind"], axis["shape"], axis["numLeadingPositions"], axis["image"]) == (
        "grid",
        [4, 4],
        1,
        [32, 32, 32, 32],
    )
    packed = gzip.decompress(base64.b64decode(blocks_of(page)["image-0-1"]))
    assert packed == image_run.labels.images["patches"][1].tobytes()
    large = np.arange(500 * 300 * 3, dtype=np.uint32).astype(np.uint8).reshape(500, 300, 3)
    small = downsample_image(large, 320)
    assert small.shape == (250, 150, 3)
    assert small[10, 20].tolist() == np.rint(large[20:22, 40:42].mean(axis=(0, 1))).tolist()
    page = Page(write_report(speech_run.directory).read_text())
    axis = page.data()["axes"]["frames"]
    assert (axis["stride"], axis["spectrogram"]) == (0.04, [40, 240, 60])
    sound = np.frombuffer(gzip.decompress(base64.b64decode(blocks_of(page)["spectrogram-0-0"])), np.uint8)
    given = speech_run.labels.spectrograms["frames"][0]
    assert np.corrcoef(sound, given.ravel())[0, 1] > 0.999
    assert axis["sound"]
    for example, file in enumerate(speech_run.labels.sounds["frames"]):
        assert base64.b64decode(blocks_of(page)[f"sound-0-{example}"]) == file


def test_another_run_is_carried_at_the_nearest_steps(run, other_run, tmp_path):
    path = write_report(run.directory, compare_to=other_run.directory, page=tmp_path / "both.html")
    page = Page(path.read_text())
    against = page.data()["otherRun"]
    assert against["title"] == "demo, seed 1"
    assert against["steps"] == list(run.maps)
    assert len(against["matches"]) == len(run.sites) * LAYERS * HEADS
    (level,) = against["sites"][0]["levels"]
    rows = LAYERS * HEADS * level["queries"]
    found = unpack(blocks_of(page)["other-7-0-2-full"], rows, level["keys"], against["codes"])
    expected = other_run.maps[1600]["encoder/self"][:, 2, :, : level["queries"], : level["keys"]]
    assert np.abs(found - expected.reshape(rows, -1)).sum(axis=-1).max() <= 0.01


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
    assert "img-src data:; media-src data:; " in policy
    assert "unsafe" not in policy


def test_the_first_view_is_the_aligning_head_on_a_sentence_that_reorders(run, page):
    data = page.data()
    first, labels = data["initialView"], run.labels
    assert data["sites"][first["site"]]["name"] == "decoder/cross"
    last = run.maps[1600]["decoder/cross"].astype(np.float64)
    mass = sum(
        last[:, example, :, query, key]
        for example, links in enumerate(labels.gold_alignments["decoder/cross"])
        for query, key, _ in links
    )
    assert (first["layer"], first["head"]) == np.unravel_index(mass.argmax(), mass.shape)
    assert count_crossings([(q, k) for q, k, _ in labels.gold_alignments["decoder/cross"][first["example"]]]) >= 3


@pytest.mark.parametrize(("periods", "shown"), [((None, 3), 0), ((3, None), 1), ((4, 3), 1), (None, 1)])
def test_the_first_view_is_a_text_and_no_random_tokens_where_there_is_one(tmp_path, periods, shown):
    """The head's strongest weights cross in the second example alone, on which it copies from one period before."""
    tokens = Axis("tokens")
    site = Site("decoder/self", tokens, tokens, ("0",), ("0",), causal=True)
    texts = (tuple("abcdef"), tuple("abcabc"))
    store = MapStore.open(tmp_path, (site,), AxisLabels({"tokens": texts}, ("one", "two"), periods=periods), "abc")
    maps = np.zeros((1, 2, 1, 6, 6))
    for query in range(6):
        maps[0, 0, 0, query, query] = 1
        maps[0, 1, 0, query, query if query < 3 else query - 3] = 1
    store.write(7, {"decoder/self": quantize_maps(maps, store.levels("decoder/self"))})
    assert initial_view(store)["example"] == shown


def test_curves_hold_the_metrics_of_each_split(run, page):
    lines = [json.loads(line) for line in (run.directory / "metrics.jsonl").read_text().splitlines()]
    curves = page.data()["curves"]
    expected = [[line["step"], line["loss"]] for line in lines if line["split"] == "validation"]
    assert curves["loss"]["validation"] == expected
    assert len(curves["loss"]["train"]) == 160
    assert curves["bleu"]["test"] == [[1600, 99.1]]


def test_the_page_says_what_each_metric_means(run, page):
    meanings = page.data()["metricMeanings"]
    assert meanings.keys() <= page.data()["curves"].keys()
    assert meanings["bleu"].startswith("BLEU of the corpus, from 0 to 100")
    assert meanings["loss"].endswith(", in nats")
    assert "`" not in "".join(meanings.values())


def test_metrics_of_a_run_that_was_killed_and_resumed(tmp_path):
    lines = [
        '{"step": 1, "split": "train", "loss": 5.0}',
        '{"step": 2, "split": "train", "loss": 4.0}',
        '{"step": 2, "split": "train", "loss": 3.0, "lost": null}',
        '{"step": 3, "split": "train", "loss": NaN}',
        '{"step": 4, "split": "tr',
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    assert read_curves(RunDirectory(tmp_path)) == {"loss": {"train": [(1, 5.0), (2, 3.0)]}}
    (tmp_path / "metrics.jsonl").write_text("\n".join([*lines, lines[0]]))
    with pytest.raises(UserError, match=r"metrics\.jsonl:5 is no JSON object"):
        read_curves(RunDirectory(tmp_path))


def test_thinning_keeps_ends_and_spikes():
    curve = [(step, float(step % 7)) for step in range(5000)]
    curve[1234] = (1234, 900.0)
    thinned = thin_curve(curve, 100)
    assert len(thinned) <= 100
    assert {curve[0], curve[-1], curve[1234]} <= set(thinned)
    assert thinned == sorted(thinned)


@pytest.mark.parametrize(("total", "kept"), [(8, 8), (8, 3), (8, 2), (50, 7)])
def test_evenly_chosen_indices_hold_both_ends(total, kept):
    chosen = evenly_spaced_indices(total, kept)
    assert len(chosen) == kept
    assert {0, total - 1} <= set(chosen)
    assert max(np.diff(chosen)) - min(np.diff(chosen)) <= 1
    assert evenly_spaced_indices(total, 1) == [total - 1]


def test_a_step_whose_maps_are_damaged_is_named_and_not_drawn(run, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run.directory, copy)
    step = sorted(run.maps)[1]
    (file,) = (copy / "maps" / "steps" / str(step) / "decoder" / "cross" / "full" / "codes").iterdir()
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    data = Page(write_report(copy).read_text()).data()
    assert data["steps"] == [each for each in sorted(run.maps) if each != step]
    (said,) = data["damageMessages"]
    assert f"at step {step} " in said


def test_a_small_budget_leaves_steps_out_and_says_so(run):
    whole = write_report(run.directory).stat().st_size
    budget = whole * 2 // 3
    path = write_report(run.directory, budget=budget)
    assert path.stat().st_size <= budget
    data = Page(path.read_text()).data()
    assert sorted(data["steps"] + data["omittedSteps"]) == sorted(run.maps)
    assert 2 <= len(data["steps"]) < len(run.maps)
    assert {100, 1600} <= set(data["steps"])
    assert data["codes"] == 127
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


def test_a_model_without_attention_has_no_page(run, tmp_path):
    MapStore.open(tmp_path / "maps", (), AxisLabels({}, ("one",)), "abc").write(7, {})
    with pytest.raises(UserError, match="is of a model without attention, which has no maps to show"):
        write_report(run.directory, maps=tmp_path / "maps", page=tmp_path / "page.html")


def test_samples_and_environment_may_be_absent(run, tmp_path):
    directory = tmp_path / "copy"
    shutil.copytree(run.directory, directory)
    (directory / "samples.jsonl").unlink()
    (directory / "environment.json").unlink()
    data = Page(write_report(directory).read_text()).data()
    assert data["samples"] == []
    assert (data["title"], data["configName"]) == ("copy", "demo")


def test_a_image_of_samples_is_in_the_page_and_no_other_file_is(run, tmp_path):
    directory = tmp_path / "copy"
    shutil.copytree(run.directory, directory)
    (directory / "samples").mkdir()
    image = encode_png(np.uint8([[0, 255], [128, 64]]))
    named = {"made.png": image, "words.png": b"no image", "large.png": image + bytes(2**20)}
    for name, content in (*named.items(), ("../outside.png", image)):
        (directory / "samples" / name).write_bytes(content)
    others = ["words.png", "large.png", "absent.png", "../outside.png"]
    paths = ["samples/made.png", *(f"samples/{name}" for name in others)]
    lines = [
        {"step": step, "split": "test", "source": f"sample {number}", "target": "1", "output": "1", "image": path}
        for step, path in enumerate(paths)
        for number in range(2)
    ]
    (directory / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    groups = Page(write_report(directory).read_text()).data()["samples"]
    shown = [group["images"] for group in groups]
    assert shown == [[f"data:image/png;base64,{base64.b64encode(image).decode()}"], *[[]] * len(others)]
    assert all(set(row) == {"source", "target", "output"} for group in groups for row in group["rows"])


def test_another_store_can_be_shown_on_another_page(run, tmp_path):
    store = MapStore.open(tmp_path / "maps", run.sites[:1], AxisLabels({"source": (("a", "b"),)}, ("one",)), "abc")
    maps = np.full((3, 1, 4, 2, 2), 0.5, np.float32)
    store.write(7, {"encoder/self": quantize_maps(maps, store.levels("encoder/self"))})
    before = write_report(run.directory).read_bytes()
    path = write_report(run.directory, maps=tmp_path / "maps", page=tmp_path / "other.html")
    data = Page(path.read_text()).data()
    assert path == tmp_path / "other.html"
    assert (data["steps"], data["titles"], data["title"]) == ([7], ["one"], "demo")
    assert (run.directory / "report.html").read_bytes() == before
