"""The store against what it was given, in float64, and against zarr-python's reading of it."""

import concurrent.futures
import dataclasses
import json
import shutil
import threading
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from experiments.speech.wav import encode_wav
from transformer.attention.capture import TopWeights
from transformer.attention.sites import Axis, AxisKind, MapValues, Site
from transformer.config import UserError
from transformer.maps import store as module
from transformer.maps import store as store_module
from transformer.maps.capture_plan import StoredMaps, StoredResolutions, quantize_maps, resolution_levels
from transformer.maps.store import CorruptMapsError, MapStore
from transformer.maps.store_metadata import site_metadata
from transformer.maps.zarr_files import check_fits_memory
from transformer.runs.exceptions import NonFiniteError
from transformer.storage.json_reading import parse_dataclass
from transformer.tasks.axis_labels import AxisLabels, GoldAlignment

LABELS = AxisLabels(
    tokens={"source": (("a", "b", "c"), ("d",)), "target": (("w", "x"), ("y", "z"))},
    titles=("first", "second"),
    gold_alignments={"decoder/cross": ((GoldAlignment(0, 2, True), GoldAlignment(1, 0, False)), ())},
)
SITES = (
    Site("encoder/self", Axis("source"), Axis("source"), ("0",), ("0", "1")),
    Site("decoder/cross", Axis("target"), Axis("source"), ("0", "1", "2"), ("0", "1")),
)


@pytest.mark.parametrize("values", MapValues, ids=lambda values: values.value)
def test_all_that_a_site_is_comes_back(values):
    slots, patches = (
        Axis("memory", AxisKind.SLOTS, num_positions=3),
        Axis("patches", AxisKind.GRID, shape=(2, 3), num_leading_positions=1),
    )
    site = Site("memory/read", patches, slots, ("0", "1"), ("read",), causal=True, values=values)
    assert parse_dataclass(Site, json.loads(json.dumps(site_metadata(site))), "a site") == site


def some_weights(seed: int) -> dict[str, np.ndarray]:
    """[layer, example, head, query, key], padded to five; padding holds what a model may leave there."""
    rng = np.random.default_rng(seed)
    return {site.name: rng.dirichlet(np.ones(5), size=(len(site.layers), 2, 2, 5)).astype(np.float32) for site in SITES}


def cut_to_labels(weights: np.ndarray, site: Site) -> np.ndarray:
    queries, keys = (max(map(len, LABELS.tokens[axis.name])) for axis in (site.query, site.key))
    return weights[..., :queries, :keys]


def some_maps(seed: int, store: MapStore) -> dict[str, StoredMaps]:
    rng = np.random.default_rng([seed, 1])
    kept = {}
    for site in SITES:
        entropy = rng.random((len(site.layers), 2, 2)).astype(np.float32)
        weights = cut_to_labels(some_weights(seed)[site.name], site)
        kept[site.name] = quantize_maps(weights, store.levels(site.name), {"entropy": entropy})
    return kept


def open_store(path, **changes) -> MapStore:
    return MapStore.open(path, **{"sites": SITES, "labels": LABELS, "config_hash": "abc", **changes})


def open_group(path: Path) -> Any:
    """The group of a folder as zarr-python reads it, which takes a second to import."""
    import zarr

    return zarr.open_group(path, mode="r")


def test_what_is_read_is_what_was_written(tmp_path):
    store = open_store(tmp_path / "maps")
    maps = {step: some_weights(step) for step in (10, 20, 30)}
    for step in maps:
        store.write(step, some_maps(step, store))
    reader = MapStore.open_existing(tmp_path / "maps")
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
    store.write(5, some_maps(0, store))
    store.write(9, some_maps(1, store))
    group = open_group(tmp_path / "maps")
    assert group.attrs["steps"] == [5, 9]
    assert sorted(group["steps"].group_keys(), key=int) == ["5", "9"]
    site = group["steps/9"]["decoder/cross"]
    assert site["full/codes"].metadata.dimension_names == ("example", "layer", "head", "query", "key")
    assert site["full/codes"].shape == (2, 3, 2, 2, 3)
    assert site["full/codes"].dtype == np.uint8
    assert site["full/scale"].metadata.dimension_names == ("example", "layer", "head", "query")
    weights = site["full/scale"][:][..., None] * (site["full/codes"][:] / 255.0) ** site["full/root"][:][..., None]
    assert site["statistics"].metadata.dimension_names == ("example", "layer", "head", "statistic")
    assert site["statistics"].shape == (2, 3, 2, len(site.attrs["statistics"]))
    assert site["full"].attrs["query_block"] == 1
    np.testing.assert_allclose(weights, store.read("decoder/cross", 9), rtol=1e-6)
    labels, described = group.attrs["labels"], group.attrs["sites"][1]
    assert labels["tokens"] == {"source": [["a", "b", "c"], ["d"]], "target": [["w", "x"], ["y", "z"]]}
    assert labels["gold_alignments"]["decoder/cross"] == [[[0, 2, True], [1, 0, False]], []]
    assert (described["name"], described["causal"]) == ("decoder/cross", False)
    assert (labels["titles"], group.attrs["config_hash"]) == (["first", "second"], "abc")
    assert (described["query"]["name"], described["query"]["kind"]) == ("target", "tokens")
    assert (described["layers"], described["heads"]) == (["0", "1", "2"], ["0", "1"])


def test_a_store_is_continued_where_it_stopped(tmp_path):
    store = open_store(tmp_path / "maps")
    store.write(1, some_maps(1, store))
    again = open_store(tmp_path / "maps", config_hash="def")
    again.write(2, some_maps(2, again))
    reader = MapStore.open_existing(tmp_path / "maps")
    assert (reader.steps, reader.config_hash) == ((1, 2), "def")
    assert np.abs(reader.read("encoder/self", 1)).sum() > 0


def test_truncate_drops_what_lies_beyond_the_checkpoint(tmp_path):
    store = open_store(tmp_path / "maps")
    for step in (10, 20, 30):
        store.write(step, some_maps(step, store))
    store.truncate(after_step=20)
    assert MapStore.open_existing(tmp_path / "maps").steps == (10, 20)
    assert set(open_group(tmp_path / "maps")["steps"].group_keys()) == {"10", "20"}
    store.write(30, some_maps(99, store))
    fresh = open_store(tmp_path / "fresh")
    fresh.write(30, some_maps(99, fresh))
    np.testing.assert_array_equal(store.read("decoder/cross", 30), fresh.read("decoder/cross", 30))
    store.truncate(after_step=0)
    assert MapStore.open_existing(tmp_path / "maps").steps == ()


def test_a_step_is_read_from_its_own_folder_alone(tmp_path):
    store = open_store(tmp_path / "maps")
    for step in (10, 20, 30):
        store.write(step, some_maps(step, store))
    expected = store.read("decoder/cross", 20)
    for step in ("10", "30"):
        shutil.rmtree(tmp_path / "maps" / "steps" / step)
    reader = MapStore.open_existing(tmp_path / "maps")
    assert reader.steps == (10, 20, 30)
    np.testing.assert_array_equal(reader.read("decoder/cross", 20), expected)
    with pytest.raises(CorruptMapsError, match="at step 30 cannot be read") as caught:
        reader.read("decoder/cross", 30)
    assert caught.value.step == 30


def test_a_start_removes_what_a_kill_left_and_nothing_else(tmp_path):
    store = open_store(tmp_path / "maps")
    store.write(10, some_maps(10, store))
    steps = tmp_path / "maps" / "steps"
    for left in ("20", "30.removed", "30.removed.removed"):
        shutil.copytree(steps / "10", steps / left)
    (steps / ".DS_Store").touch()
    assert open_store(tmp_path / "maps").steps == (10,)
    assert {entry.name for entry in steps.iterdir()} == {"10", "zarr.json", ".DS_Store"}


def test_a_missing_file_is_no_array_of_zeros(tmp_path):
    store = long_store(tmp_path / "maps", 40, (64,))
    store.write(1, {"decoder/self": quantize_maps(np.zeros_like(long_maps(40)), store.levels("decoder/self"))})
    (file,) = (tmp_path / "maps" / "steps" / "1" / "decoder" / "self" / "full" / "codes").iterdir()
    file.unlink()
    with pytest.raises(CorruptMapsError, match="decoder/self/full/codes at step 1 cannot be read"):
        MapStore.open_existing(tmp_path / "maps").read("decoder/self", 1)


class Killed(BaseException):
    """The moment of a kill: nothing of the program runs after it."""


@pytest.mark.parametrize(
    "moment",
    ["before the data", "amid the data", "before the group", "amid the group", "before the list", "amid the list"],
)
def test_a_killed_write_leaves_a_readable_store(tmp_path, monkeypatch, moment):
    store = open_store(tmp_path / "maps")
    store.write(10, some_maps(10, store))
    before = store.read("decoder/cross", 10)

    def die(*_):
        raise Killed

    replaced = Path.replace
    pieces = MapStore._pieces

    def write_two(self, step, site, maps):
        for name, where, values in list(pieces(self, step, site, maps))[:2]:
            self._open_array(step, name)[where].write(values).result()
        raise Killed

    def die_at_the_list(path, target):
        if target.parent.name == "maps":
            raise Killed
        return replaced(path, target)

    with monkeypatch.context() as patch:
        match moment:
            case "before the data":
                patch.setattr(MapStore, "_site_arrays", die)
            case "amid the data":
                patch.setattr(MapStore, "_pieces", write_two)
            case "before the group":
                patch.setattr(store_module, "write_group", die)
            case "amid the group":
                patch.setattr(Path, "replace", die)
            case "before the list":
                patch.setattr(MapStore, "_commit", die)
            case "amid the list":
                patch.setattr(Path, "replace", die_at_the_list)
        with pytest.raises(Killed):
            store.write(20, some_maps(20, store))
    reader = MapStore.open_existing(tmp_path / "maps")
    assert reader.steps == (10,)
    np.testing.assert_array_equal(reader.read("decoder/cross", 10), before)
    again = open_store(tmp_path / "maps")
    assert {entry.name for entry in (tmp_path / "maps" / "steps").iterdir()} == {"10", "zarr.json"}
    again.write(20, some_maps(21, again))
    fresh = open_store(tmp_path / "fresh")
    fresh.write(20, some_maps(21, fresh))
    assert MapStore.open_existing(tmp_path / "maps").steps == (10, 20)
    for site in SITES:
        np.testing.assert_array_equal(again.read(site.name, 20), fresh.read(site.name, 20))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"sites": SITES[:1]}, "sites"),
        ({"sites": (SITES[0], dataclasses.replace(SITES[1], heads=("0", "1", "2")))}, "sites"),
        ({"labels": dataclasses.replace(LABELS, titles=("first", "other"))}, "labels"),
        ({"labels": dataclasses.replace(LABELS, gold_alignments=None)}, "labels"),
        ({"resolutions": StoredResolutions(level_sizes=(64,))}, "resolutions"),
        ({"sizes": {"encoder/self": (7, 7)}}, "sizes"),
    ],
)
def test_a_store_of_other_sites_or_labels_is_refused(tmp_path, changes, named):
    store = open_store(tmp_path / "maps")
    store.write(1, some_maps(1, store))
    with pytest.raises(UserError, match=f"other {named}") as caught:
        open_store(tmp_path / "maps", **changes)
    assert "\n" not in str(caught.value)
    assert MapStore.open_existing(tmp_path / "maps").steps == (1,)


def test_a_store_of_another_version_says_so(tmp_path):
    open_store(tmp_path / "maps")
    path = tmp_path / "maps" / "zarr.json"
    group = json.loads(path.read_text())
    group["attributes"]["version"] = 99
    path.write_text(json.dumps(group))
    with pytest.raises(UserError, match="version 99"):
        MapStore.open_existing(tmp_path / "maps")
    path.write_text("{")
    with pytest.raises(UserError, match="not the group of a map store"):
        open_store(tmp_path / "maps")


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError, match="no map store"):
        MapStore.open_existing(tmp_path / "maps")
    store = open_store(tmp_path / "maps")
    store.write(4, some_maps(4, store))
    with pytest.raises(UserError, match="step=5"):
        store.read("encoder/self", 5)
    with pytest.raises(UserError, match="decoder/self"):
        store.read("decoder/self", 4)


def test_mistakes_in_writing_are_refused(tmp_path):
    store = open_store(tmp_path / "maps")
    store.write(4, some_maps(4, store))
    with pytest.raises(ValueError, match="after the last stored step 4"):
        store.write(4, some_maps(4, store))
    with pytest.raises(ValueError, match="sites"):
        store.write(5, {"encoder/self": some_maps(5, store)["encoder/self"]})
    other = MapStore.open(tmp_path / "one", SITES, dataclasses.replace(LABELS, gold_alignments=None), "abc")
    with pytest.raises(ValueError, match="has shape"):
        quantize_maps(some_weights(5)["encoder/self"], other.levels("encoder/self"))
    few = {
        site.name: quantize_maps(cut_to_labels(some_weights(5)[site.name], site)[:, :1], store.levels(site.name))
        for site in SITES
    }
    with pytest.raises(ValueError, match="of shape"):
        store.write(5, few)
    with pytest.raises(ValueError, match="statistics \\['charm'\\]"):
        store.write(
            5, {name: kept._replace(statistics={"charm": np.ones(1)}) for name, kept in some_maps(5, store).items()}
        )
    for value in (np.nan, np.inf, -0.1):
        broken = {name: weights.copy() for name, weights in some_weights(5).items()}
        broken["decoder/cross"][0, 0, 0, 0, 0] = value
        maps = {
            site.name: quantize_maps(cut_to_labels(broken[site.name], site), store.levels(site.name)) for site in SITES
        }
        with pytest.raises(NonFiniteError, match="decoder/cross"):
            store.write(5, maps)
    assert MapStore.open_existing(tmp_path / "maps").steps == (4,)
    with pytest.raises(ValueError, match="lacks the axis 'source'"):
        open_store(tmp_path / "other", labels=dataclasses.replace(LABELS, tokens={"target": LABELS.tokens["target"]}))


def test_labels_must_agree_on_the_examples():
    with pytest.raises(ValueError, match="has 1 examples but titles has 2"):
        AxisLabels(tokens={"source": (("a",),)}, titles=("first", "second"))


def test_tokens_of_any_kind_come_back(tmp_path):
    hostile = ("</script>", "\x00", "\ud800", "שלום", "👩‍👩‍👧", "", "x" * 10_000)
    labels = AxisLabels(tokens={"source": (hostile,)}, titles=("<b>",))
    MapStore.open(tmp_path / "maps", SITES[:1], labels, "abc")
    assert MapStore.open_existing(tmp_path / "maps").labels == labels


def test_the_store_moves(tmp_path):
    store = open_store(tmp_path / "maps")
    store.write(1, some_maps(1, store))
    shutil.move(tmp_path / "maps", tmp_path / "elsewhere")
    assert MapStore.open_existing(tmp_path / "elsewhere").read("encoder/self", 1).shape == (2, 1, 2, 3, 3)


def test_statistics_come_back_by_name_step_and_example(tmp_path):
    store = open_store(tmp_path / "maps")
    assert store.statistics("encoder/self").values.shape[0] == 0
    for step in (1, 2):
        store.write(step, some_maps(step, store))
    names, values = MapStore.open_existing(tmp_path / "maps").statistics("decoder/cross")
    assert {"entropy", "distance", "diagonality", "first_token", "alignment_error"} <= set(names)
    assert "alignment_error" not in store.statistics("encoder/self").names
    rng = np.random.default_rng([2, 1])
    rng.random((1, 2, 2))
    np.testing.assert_array_equal(
        values[1, ..., names.index("entropy")], np.moveaxis(rng.random((3, 2, 2)).astype(np.float32), 1, 0)
    )
    # What was not measured is not a number, and no zero either.
    assert np.isnan(values[..., names.index("distance")]).all()


def long_store(path, positions: int, cells: tuple[int, ...], **changes) -> MapStore:
    site = Site("decoder/self", Axis("tokens"), Axis("tokens"), ("0", "1"), ("0", "1", "2"), causal=True)
    words = tuple(f"w{n}" for n in range(positions))
    labels = AxisLabels({"tokens": (words, words[: positions - 9])}, ("whole", "shorter"))
    return MapStore.open(path, (site,), labels, "abc", StoredResolutions(cells, num_rows=3, top_k=4), **changes)


def long_maps(positions: int) -> np.ndarray:
    rng = np.random.default_rng(3)
    logits = 3 * rng.normal(size=(2, 2, 3, positions, positions)) + np.where(np.tri(positions), 0, -np.inf)
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    weights[:, 1, :, positions - 9 :] = 0
    weights[:, 1, :, :, positions - 9 :] = 0
    return weights.astype(np.float32)


def test_a_long_map_is_kept_as_a_pyramid_some_rows_and_the_top_of_each(tmp_path):
    store = long_store(tmp_path / "maps", 100, (16, 32))
    assert [(level.name, level.num_queries, level.query_block) for level in store.levels("decoder/self")] == [
        ("pooled-16", 13, 8),
        ("pooled-32", 25, 4),
    ]
    weights = long_maps(100)
    order = np.argsort(-weights, axis=-1, kind="stable")[..., :4]
    top = TopWeights(order.astype(np.int32), np.take_along_axis(weights, order, axis=-1))
    blocks = weights.reshape(2, 2, 3, 25, 4, 25, 4).max(axis=(4, 6))
    rows = weights[..., [0, 50, 99], :]
    store.write(7, {"decoder/self": quantize_maps(blocks, store.levels("decoder/self"), {}, rows, top)})
    reader = MapStore.open_existing(tmp_path / "maps")
    first = np.moveaxis(weights, 1, 0)
    for side, block in ((16, 8), (32, 4)):
        expected = np.zeros((2, 2, 3, -(-100 // block), -(-100 // block)))
        for query, key in np.ndindex(expected.shape[-2:]):
            place = first[..., query * block : (query + 1) * block, key * block : (key + 1) * block]
            expected[..., query, key] = place.max(axis=(-1, -2))
        np.testing.assert_allclose(reader.read("decoder/self", 7, f"pooled-{side}"), expected, atol=0.01)
    chosen, whole = reader.read_rows("decoder/self", 7)
    assert chosen == (0, 50, 99)
    assert np.abs(whole - first[..., [0, 50, 99], :]).sum(axis=-1).max() <= 0.01
    keys, largest = reader.read_top("decoder/self", 7)
    np.testing.assert_array_equal(keys, np.moveaxis(order, 1, 0))
    np.testing.assert_allclose(largest, np.moveaxis(np.take_along_axis(weights, order, -1), 1, 0), atol=0.004)
    with pytest.raises(UserError, match=r"level='full' .* pooled-16, pooled-32"):
        reader.read("decoder/self", 7)
    assert open_group(tmp_path / "maps" / "steps" / "7")["decoder/self/top/keys"].dtype == np.int32


def test_a_whole_map_has_neither_rows_nor_tops(tmp_path):
    store = long_store(tmp_path / "maps", 100, (16, 128))
    assert [level.name for level in store.levels("decoder/self")] == ["pooled-16", "full"]
    store.write(1, {"decoder/self": quantize_maps(long_maps(100), store.levels("decoder/self"))})
    assert np.isnan(store.statistics("decoder/self").values).all()
    assert store.read_rows("decoder/self", 1) is None
    assert store.read_top("decoder/self", 1) is None
    assert not (tmp_path / "maps" / "steps" / "1" / "decoder" / "self" / "rows").exists()


def test_divided_arrays_are_written_where_they_lie(tmp_path, monkeypatch):
    """Each shard by itself and once, though every device holds some: nothing is gathered first."""
    mesh = jax.make_mesh((2, 2), ("data", "tensor"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    store, plain = long_store(tmp_path / "maps", 40, (64,)), long_store(tmp_path / "plain", 40, (64,))
    kept = quantize_maps(long_maps(40), store.levels("decoder/self"), {"entropy": np.ones((2, 2, 3), np.float32)})
    plain.write(1, {"decoder/self": kept})
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data", "tensor"))
    divided = jax.tree.map(lambda leaf: jax.device_put(leaf, sharding), kept)
    seen = []
    monkeypatch.setattr(
        module, "set_padding_to_zero", lambda values, where, name, *of: seen.append((name, values.shape)) or values
    )
    store.write(1, {"decoder/self": divided})
    assert [shape for name, shape in seen if name == "full/codes"] == [(1, 1, 3, 40, 40)] * 4
    np.testing.assert_array_equal(store.read("decoder/self", 1), plain.read("decoder/self", 1))
    np.testing.assert_array_equal(store.statistics("decoder/self").values, plain.statistics("decoder/self").values)


def test_two_writers_make_one_store_whichever_is_ahead(tmp_path):
    """Each process holds one of two examples, and what it does not hold it does not write."""
    stores = [long_store(tmp_path / "maps", 40, (64,), writers=(writer, 2)) for writer in range(2)]
    kept = quantize_maps(long_maps(40), stores[0].levels("decoder/self"), {"entropy": np.ones((2, 2, 3), np.float32)})
    plain = long_store(tmp_path / "plain", 40, (64,))
    plain.write(1, {"decoder/self": kept})
    with pytest.MonkeyPatch.context() as patch:

        def write(writer: int, step: int) -> None:
            patch.setattr(store_module, "local_shards", lambda array: iter([half(array, writer)]))
            stores[writer].write(step, {"decoder/self": kept})

        for writer, step in ((0, 1), (0, 2), (1, 1), (1, 2), (1, 3), (0, 3)):
            write(writer, step)
        assert MapStore.open_existing(tmp_path / "maps").steps == (1, 2, 3)
        # One drops its steps while the other writes again already.
        stores[0].truncate(after_step=1)
        write(0, 2)
        stores[1].truncate(after_step=1)
        assert MapStore.open_existing(tmp_path / "maps").steps == (1,)
        write(1, 2)
    reader = MapStore.open_existing(tmp_path / "maps")
    assert reader.steps == (1, 2)
    for step in reader.steps:
        np.testing.assert_array_equal(reader.read("decoder/self", step), plain.read("decoder/self", 1))
    entropy = reader.statistics("decoder/self").values[..., 0]
    np.testing.assert_array_equal(entropy, np.ones((2, 2, 2, 3)))


def test_a_run_goes_on_with_another_number_of_writers(tmp_path):
    """Each start holds what was complete, whoever wrote it, and no list of an earlier start is believed again."""
    kept = quantize_maps(
        long_maps(40), (levels := resolution_levels(40, 40, (64,))), {"entropy": np.ones((2, 2, 3), np.float32)}
    )
    assert levels[-1].name == "full"

    def write(stores: list[MapStore], step: int, *of: int) -> None:
        for writer in of:
            with pytest.MonkeyPatch.context() as patch:
                if len(stores) > 1:
                    patch.setattr(store_module, "local_shards", lambda array, own=writer: iter([half(array, own)]))
                stores[writer].write(step, {"decoder/self": kept})

    def start(count: int) -> list[MapStore]:
        return [long_store(tmp_path / "maps", 40, (64,), writers=(writer, count)) for writer in range(count)]

    steps = lambda: MapStore.open_existing(tmp_path / "maps").steps  # noqa: E731
    two = start(2)
    write(two, 1, 0, 1)
    write(two, 2, 1)  # the first was killed before
    write(start(1), 2, 0)
    assert steps() == (1, 2)
    two = start(2)
    assert steps() == (1, 2)
    write(two, 3, 0, 1)
    write(two, 4, 0)  # the second was killed before
    assert steps() == (1, 2, 3)
    one = start(1)
    assert one[0].steps == (1, 2, 3)
    write(one, 4, 0)
    one[0].truncate(after_step=3)
    write(one, 4, 0)
    assert steps() == (1, 2, 3, 4)
    first = long_store(tmp_path / "maps", 40, (64,), writers=(0, 2))
    assert first.steps == steps() == (1, 2, 3, 4)  # also while the second has not come yet
    plain = long_store(tmp_path / "plain", 40, (64,))
    plain.write(1, {"decoder/self": kept})
    for step in steps():
        np.testing.assert_array_equal(first.read("decoder/self", step), plain.read("decoder/self", 1))


def test_writers_of_one_file_do_not_undo_each_other(tmp_path):
    """As after a start with another number of processes, or with heads divided over processes."""
    long_store(tmp_path / "maps", 40, (64,))  # whose files hold all examples
    stores = [long_store(tmp_path / "maps", 40, (64,), writers=(writer, 2)) for writer in range(2)]
    kept = quantize_maps(long_maps(40), stores[0].levels("decoder/self"), {"entropy": np.ones((2, 2, 3), np.float32)})
    names = {threading.current_thread().name: 0}

    def piece(array):
        return iter([half(array, names[threading.current_thread().name])])

    def write(writer: int) -> None:
        names[threading.current_thread().name] = writer
        for step in range(1, 6):
            stores[writer].write(step, {"decoder/self": kept})

    with pytest.MonkeyPatch.context() as patch, concurrent.futures.ThreadPoolExecutor(2) as pool:
        patch.setattr(store_module, "local_shards", piece)
        list(pool.map(write, range(2)))
    plain, both = long_store(tmp_path / "plain", 40, (64,)), MapStore.open_existing(tmp_path / "maps")
    plain.write(1, {"decoder/self": kept})
    assert both.steps == (1, 2, 3, 4, 5)
    for step in both.steps:
        np.testing.assert_array_equal(both.read("decoder/self", step), plain.read("decoder/self", 1))


def test_tiers_are_asked_for_before_the_store_is_opened(tmp_path):
    assert MapStore.resolutions_at(tmp_path / "maps") is None
    assert long_store(tmp_path / "maps", 40, (64,)).resolutions == MapStore.resolutions_at(tmp_path / "maps")


def half(array, writer: int):
    return (slice(writer, writer + 1),) + (slice(None),) * (array.ndim - 1), np.asarray(array)[writer : writer + 1]


def test_images_and_spectrograms_come_back(tmp_path):
    rng = np.random.default_rng(0)
    patches = Axis("patches", AxisKind.GRID, shape=(2, 2), stride=8.0, num_leading_positions=1)
    frames = Axis("frames", AxisKind.FRAMES, stride=0.02, offset=0.01)
    sites = (
        Site("encoder/self", patches, patches, ("0",), ("0",)),
        Site("speech/self", frames, frames, ("0",), ("0",)),
    )
    labels = AxisLabels(
        {"patches": (("class", "a", "b", "c", "d"),), "frames": (("0.0", "0.02"),)},
        ("image",),
        periods=(None,),
        images={"patches": rng.integers(0, 255, (1, 16, 16, 3), np.uint8)},
        spectrograms={"frames": rng.random((1, 5, 7)).astype(np.float32)},
        sounds={"frames": (encode_wav(rng.random(9)),)},
    )
    open_store(tmp_path / "maps", sites=sites, labels=labels)
    reader = MapStore.open_existing(tmp_path / "maps")
    assert reader.sites == sites
    assert reader.labels.periods == (None,)
    np.testing.assert_array_equal(reader.labels.images["patches"], labels.images["patches"])
    np.testing.assert_array_equal(reader.labels.spectrograms["frames"], labels.spectrograms["frames"])
    assert reader.labels.sounds == labels.sounds
    longer = dataclasses.replace(
        labels,
        **{name: {axis: (*of, *of) for axis, of in getattr(labels, name).items()} for name in ("tokens",)},
        titles=("one", "two"),
        periods=None,
        images={},
        spectrograms={},
        sounds={"frames": (encode_wav(rng.random(5)), encode_wav(rng.random(50)))},
    )
    open_store(tmp_path / "longer", sites=sites, labels=longer)
    assert MapStore.open_existing(tmp_path / "longer").labels.sounds == longer.sounds
    other = dataclasses.replace(labels, images={"patches": labels.images["patches"] // 2})
    with pytest.raises(UserError, match="other labels"):
        open_store(tmp_path / "maps", sites=sites, labels=other)


def test_a_changed_byte_anywhere_is_noticed_and_names_its_step(tmp_path):
    store = open_store(tmp_path / "maps")
    for step in (1, 2, 3):
        store.write(step, some_maps(step, store))
    found = set()
    random = np.random.default_rng(5)
    for file in sorted(path for path in (tmp_path / "maps").rglob("*") if path.is_file()):
        content = file.read_bytes()
        # Most flipped bits of the root's JSON leave no JSON; some must leave other values.
        flips = 16 if file == tmp_path / "maps" / "zarr.json" else 1
        for kind in (*["flipped"] * flips, "halved", "deleted"):
            changed = bytearray(content)
            changed[int(random.integers(len(content)))] ^= 1 << int(random.integers(8))
            file.write_bytes({"flipped": changed, "halved": content[: len(content) // 2]}.get(kind, b""))
            if kind == "deleted":
                file.unlink()
            try:
                read = all_of(tmp_path / "maps")
            except UserError as error:
                found.add(str(error).partition("damaged: ")[2])
            else:
                for name, values in all_of_store(store).items():
                    np.testing.assert_array_equal(read[name], values, err_msg=f"{file} {kind}")
        file.write_bytes(content)
    assert any("at step 2 cannot be read" in said for said in found)
    assert any(said.startswith("its zarr.json is not what was written") for said in found)


def all_of(path) -> dict[str, np.ndarray]:
    return all_of_store(MapStore.open_existing(path))


def all_of_store(store: MapStore) -> dict[str, np.ndarray]:
    read = {f"{site.name} {step}": store.read(site.name, step) for site in store.sites for step in store.steps}
    return {**read, **{site.name: store.statistics(site.name).values for site in store.sites}}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"shape": [10**6] * 5}, "is not what was written"),
        ({"shape": [2, 1, 2, 3]}, "is not what was written"),
        ({"shape": "x"}, "is not what was written"),
        ({"shape": [10**30, 1, 2, 3, 3]}, "is not what was written"),
        ({"data_type": "float32"}, "is not what was written"),
        ({"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [10**6] * 5}}}, "is not what was written"),
        ({"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [0] * 5}}}, "is not what was written"),
        ({"codecs": []}, "is not what was written"),
        ({"storage_transformers": [{"name": "x"}]}, "is not what was written"),
        ("[" * 200_000, "stand too deep"),
        ("[" * 150 + "]" * 150, "more than 100 deep"),
        ("{}", "is not what was written"),
        ("", "is not JSON"),
        (" " * (1 << 21), "at most"),
    ],
)
def test_no_array_reaches_tensorstore_that_is_not_the_plans(tmp_path, change, says):
    store = open_store(tmp_path / "maps")
    store.write(1, some_maps(1, store))
    file = tmp_path / "maps" / "steps" / "1" / "zarr.json"
    group = json.loads(file.read_text())
    if not isinstance(change, str):
        group["consolidated_metadata"]["metadata"]["encoder/self/full/codes"] |= change
    file.write_text(change if isinstance(change, str) else json.dumps(group))
    for read in (
        lambda: MapStore.open_existing(tmp_path / "maps").read("encoder/self", 1),
        lambda: MapStore.check(tmp_path / "maps"),
    ):
        with pytest.raises(CorruptMapsError, match=says):
            read()


@pytest.mark.parametrize(("data_type", "values"), [("uint8", 2**34), ("float32", 2**32), ("float64", 2**31)])
def test_arrays_of_more_than_16_gib_are_refused(data_type, values):
    check_fits_memory("a map", {"shape": [1, values], "data_type": data_type})
    with pytest.raises(UserError, match=r"^a map is not usable: values of shape \[1, \d+\] take 1.72e\+10 bytes"):
        check_fits_memory("a map", {"shape": [1, values + 1], "data_type": data_type})
