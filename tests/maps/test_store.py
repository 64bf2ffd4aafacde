"""The store against what it was given, in float64, and against zarr-python's reading of it."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import zarr

from transformer.attention.sites import Axis, Site
from transformer.config import UserError
from transformer.maps import store as store_module
from transformer.maps.quantise import dequantise, quantise
from transformer.maps.store import MapStore
from transformer.tasks.labels import Labels, Link

LABELS = Labels(
    tokens={"source": (("a", "b", "c"), ("d",)), "target": (("w", "x"), ("y", "z"))},
    titles=("first", "second"),
    links={"decoder/cross": ((Link(0, 2, True), Link(1, 0, False)), ())},
)
SITES = (
    Site("encoder/self", Axis("source"), Axis("source"), ("0",), ("0", "1")),
    Site("decoder/cross", Axis("target"), Axis("source"), ("0", "1", "2"), ("0", "1")),
)


def softmax_rows(rng, rows: int, keys: int, spread: float) -> np.ndarray:
    logits = rng.normal(size=(rows, keys)) * spread
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def some_maps(seed: int) -> dict[str, np.ndarray]:
    """[layer, example, head, query, key], padded to five; padding holds what a model may leave there."""
    rng = np.random.default_rng(seed)
    return {site.name: rng.dirichlet(np.ones(5), size=(len(site.layers), 2, 2, 5)).astype(np.float32) for site in SITES}


def open_store(path, **changes) -> MapStore:
    return MapStore.open(path, **{"sites": SITES, "labels": LABELS, "config_hash": "abc", **changes})


@pytest.mark.parametrize("keys", [1, 2, 14, 64, 128])
@pytest.mark.parametrize("spread", [0.0, 0.3, 1.0, 1.5, 2.0, 4.0, 20.0])
def test_row_error_of_softmax_rows_is_at_most_a_hundredth(keys, spread):
    weights = softmax_rows(np.random.default_rng(1), 500, keys, spread)
    error = np.abs(dequantise(*quantise(weights)).astype(np.float64) - weights).sum(axis=-1)
    assert error.max() <= 0.01


@pytest.mark.parametrize("keys", [2, 8, 26, 128, 1000])
def test_no_row_is_beyond_the_stated_bound(keys):
    # One large weight over a flat floor is the worst: all errors of the floor have the same sign.
    for large in np.linspace(0.05, 0.95, 181):
        row = np.full((1, keys), (1 - large) / (keys - 1))
        row[0, 0] = large
        error = np.abs(dequantise(*quantise(row)) - row).sum()
        assert error <= np.sqrt(keys - 1) / 510 + keys * row.max() / 260_100
        assert error <= 0.01 or keys > 26


def test_the_largest_weight_of_a_row_is_exact_and_nothing_stays_nothing():
    weights = softmax_rows(np.random.default_rng(2), 50, 9, 2.0).astype(np.float32)
    weights[7] = 0
    restored = dequantise(*quantise(weights))
    np.testing.assert_array_equal(restored.max(axis=-1), weights.max(axis=-1))
    np.testing.assert_array_equal(restored[7], 0)


@pytest.mark.parametrize("value", [np.nan, np.inf, -0.1])
def test_weights_that_are_none_are_refused(value):
    with pytest.raises(ValueError, match="finite and not negative"):
        quantise(np.array([[0.5, value]]))


def test_what_is_read_is_what_was_written(tmp_path):
    store = open_store(tmp_path / "maps")
    maps = {step: some_maps(step) for step in (10, 20, 30)}
    for step, values in maps.items():
        store.write(step, values)
    reader = MapStore.existing(tmp_path / "maps")
    assert reader.steps == (10, 20, 30)
    assert (reader.sites, reader.labels, reader.config_hash) == (SITES, LABELS, "abc")
    for step, values in maps.items():
        for site in SITES:
            found = reader.read(site.name, step)
            for example in range(2):
                queries = len(LABELS.tokens[site.query.name][example])
                keys = len(LABELS.tokens[site.key.name][example])
                expected = values[site.name][:, example, :, :queries, :keys]
                inside = found[example, :, :, :queries, :keys]
                assert np.abs(inside - expected).sum(axis=-1).max() <= 0.01
                # What pads the batch is nobody's weight.
                assert found[example].sum() == pytest.approx(inside.sum(), rel=1e-6)


def test_zarr_python_reads_the_store(tmp_path):
    store = open_store(tmp_path / "maps")
    store.write(5, some_maps(0))
    store.write(9, some_maps(1))
    group = zarr.open_group(tmp_path / "maps", mode="r")
    assert group.attrs["steps"] == [5, 9]
    site = group["decoder/cross"]
    assert site["weights"].metadata.dimension_names == ("step", "example", "layer", "head", "query", "key")
    assert site["weights"].shape == (2, 2, 3, 2, 2, 3)
    assert site["weights"].dtype == np.uint8
    assert site["scale"].metadata.dimension_names == ("step", "example", "layer", "head", "query")
    weights = site["scale"][1][..., None] * (site["weights"][1] / 255.0) ** 2
    np.testing.assert_allclose(weights, store.read("decoder/cross", 9), rtol=1e-6)
    assert site.attrs["tokens"] == {"source": [["a", "b", "c"], ["d"]], "target": [["w", "x"], ["y", "z"]]}
    assert site.attrs["links"] == [[[0, 2, True], [1, 0, False]], []]
    assert (site.attrs["name"], site.attrs["causal"]) == ("decoder/cross", False)
    assert (site.attrs["titles"], site.attrs["config_hash"]) == (["first", "second"], "abc")
    assert site.attrs["query"] == {"name": "target", "kind": "tokens"}
    assert (site.attrs["layers"], site.attrs["heads"]) == (["0", "1", "2"], ["0", "1"])


def test_a_store_is_continued_where_it_stopped(tmp_path):
    open_store(tmp_path / "maps").write(1, some_maps(1))
    again = open_store(tmp_path / "maps", config_hash="def")
    again.write(2, some_maps(2))
    reader = MapStore.existing(tmp_path / "maps")
    assert (reader.steps, reader.config_hash) == ((1, 2), "def")
    assert np.abs(reader.read("encoder/self", 1)).sum() > 0


def test_truncate_drops_what_lies_beyond_the_checkpoint(tmp_path):
    store = open_store(tmp_path / "maps")
    for step in (10, 20, 30):
        store.write(step, some_maps(step))
    store.truncate(after_step=20)
    assert MapStore.existing(tmp_path / "maps").steps == (10, 20)
    assert zarr.open_group(tmp_path / "maps", mode="r")["decoder/cross/weights"].shape[0] == 2
    store.write(30, some_maps(99))
    fresh = open_store(tmp_path / "fresh")
    fresh.write(30, some_maps(99))
    np.testing.assert_array_equal(store.read("decoder/cross", 30), fresh.read("decoder/cross", 30))
    store.truncate(after_step=0)
    assert MapStore.existing(tmp_path / "maps").steps == ()


class Killed(BaseException):
    """The moment of a kill: nothing of the program runs after it."""


@pytest.mark.parametrize("moment", ["before the data", "amid the data", "before the list", "amid the list"])
def test_a_killed_write_leaves_a_readable_store(tmp_path, monkeypatch, moment):
    store = open_store(tmp_path / "maps")
    store.write(10, some_maps(10))
    before = store.read("decoder/cross", 10)

    def die(*_):
        raise Killed

    calls = []
    append = MapStore._append

    def append_once(self, site, name, values):
        if len(calls) == 2:
            raise Killed
        calls.append(name)
        return append(self, site, name, values)

    with monkeypatch.context() as patch:
        match moment:
            case "before the data":
                patch.setattr(MapStore, "_append", die)
            case "amid the data":
                patch.setattr(MapStore, "_append", append_once)
            case "before the list":
                patch.setattr(MapStore, "_commit", die)
            case "amid the list":
                patch.setattr(store_module.os, "replace", die)
        with pytest.raises(Killed):
            store.write(20, some_maps(20))
    reader = MapStore.existing(tmp_path / "maps")
    assert reader.steps == (10,)
    np.testing.assert_array_equal(reader.read("decoder/cross", 10), before)
    again = open_store(tmp_path / "maps")
    again.write(20, some_maps(21))
    fresh = open_store(tmp_path / "fresh")
    fresh.write(20, some_maps(21))
    assert MapStore.existing(tmp_path / "maps").steps == (10, 20)
    for site in SITES:
        np.testing.assert_array_equal(again.read(site.name, 20), fresh.read(site.name, 20))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"sites": SITES[:1]}, "sites"),
        ({"sites": (SITES[0], dataclasses.replace(SITES[1], heads=("0", "1", "2")))}, "sites"),
        ({"labels": dataclasses.replace(LABELS, titles=("first", "other"))}, "labels"),
        ({"labels": dataclasses.replace(LABELS, links=None)}, "labels"),
    ],
)
def test_a_store_of_other_sites_or_labels_is_refused(tmp_path, changes, named):
    open_store(tmp_path / "maps").write(1, some_maps(1))
    with pytest.raises(UserError, match=f"other {named}") as caught:
        open_store(tmp_path / "maps", **changes)
    assert "\n" not in str(caught.value)
    assert MapStore.existing(tmp_path / "maps").steps == (1,)


def test_a_store_of_another_version_says_so(tmp_path):
    open_store(tmp_path / "maps")
    path = tmp_path / "maps" / "zarr.json"
    group = json.loads(path.read_text())
    group["attributes"]["version"] = 99
    path.write_text(json.dumps(group))
    with pytest.raises(UserError, match="version 99"):
        MapStore.existing(tmp_path / "maps")
    path.write_text("{")
    with pytest.raises(UserError, match="not the group of a map store"):
        open_store(tmp_path / "maps")


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError, match="no map store"):
        MapStore.existing(tmp_path / "maps")
    store = open_store(tmp_path / "maps")
    store.write(4, some_maps(4))
    with pytest.raises(UserError, match="step=5"):
        store.read("encoder/self", 5)
    with pytest.raises(UserError, match="decoder/self"):
        store.read("decoder/self", 4)


def test_mistakes_in_writing_are_refused(tmp_path):
    store = open_store(tmp_path / "maps")
    store.write(4, some_maps(4))
    with pytest.raises(ValueError, match="after the last stored step 4"):
        store.write(4, some_maps(4))
    with pytest.raises(ValueError, match="sites"):
        store.write(5, {"encoder/self": some_maps(5)["encoder/self"]})
    with pytest.raises(ValueError, match="has shape"):
        store.write(5, {name: values[:, :1] for name, values in some_maps(5).items()})
    with pytest.raises(ValueError, match="has shape"):
        store.write(5, {name: values[..., :2] for name, values in some_maps(5).items()})
    assert MapStore.existing(tmp_path / "maps").steps == (4,)
    with pytest.raises(ValueError, match="lacks the axis 'source'"):
        open_store(tmp_path / "other", labels=dataclasses.replace(LABELS, tokens={"target": LABELS.tokens["target"]}))


def test_labels_must_agree_on_the_examples():
    with pytest.raises(ValueError, match="has 1 examples but titles has 2"):
        Labels(tokens={"source": (("a",),)}, titles=("first", "second"))


def test_tokens_of_any_kind_come_back(tmp_path):
    hostile = ("</script>", "\x00", "\ud800", "שלום", "👩‍👩‍👧", "", "x" * 10_000)
    labels = Labels(tokens={"source": (hostile,)}, titles=("<b>",))
    MapStore.open(tmp_path / "maps", SITES[:1], labels, "abc")
    assert MapStore.existing(tmp_path / "maps").labels == labels


def test_the_store_moves(tmp_path):
    store = open_store(tmp_path / "maps")
    store.write(1, some_maps(1))
    shutil.move(tmp_path / "maps", tmp_path / "elsewhere")
    assert MapStore.existing(tmp_path / "elsewhere").read("encoder/self", 1).shape == (2, 1, 2, 3, 3)
