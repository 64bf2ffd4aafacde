"""How far heads look on an image, in pixels, against NumPy in float64 over the stored maps."""

import itertools
import math

import numpy as np
import pytest

from transformer.attention.sites import Axis, AxisKind, Site
from transformer.maps.attention_distance import PIXELS, distances_in_pixels, page_attention_distances, uniform_distance
from transformer.maps.report.head_history import probe_tables
from transformer.maps.store import MapStore, Statistics


@pytest.fixture(scope="module")
def store(image_run) -> MapStore:
    return MapStore.open_existing(image_run.directory / "maps")


def apart(first: int, second: int, axis: Axis) -> float:
    """Pixels between the centers of two patches."""
    (row, column), (other_row, other_column) = divmod(first, axis.shape[1]), divmod(second, axis.shape[1])
    return axis.stride * math.hypot(row - other_row, column - other_column)


def test_the_page_has_the_mean_attention_distance_in_pixels(store):
    """Patches of eight pixels behind a class token, which is neither query nor key, its share given to the others."""
    (site,) = store.sites
    table = probe_tables(store, site.name)[0]
    assert "distance" not in table.names
    expected = np.zeros((len(store.steps), 2, 3))
    for number, step in enumerate(store.steps):
        weights = np.asarray(store.read(site.name, step), np.float64)
        for layer, head in np.ndindex(2, 3):
            looks = []
            for example, query in np.ndindex(2, 16):
                row = weights[example, layer, head, 1 + query, 1:]
                looks.append(sum(row[key] * apart(query, key, site.key) for key in range(16)) / row.sum())
            expected[number, layer, head] = np.mean(looks)
    measured = np.moveaxis(table.values_NxLxHxS[table.names.index(PIXELS)], -1, 0)
    # The statistic was taken before the maps were rounded to eight bits.
    np.testing.assert_allclose(measured, expected, atol=0.03)
    (summed,) = page_attention_distances(store)
    np.testing.assert_allclose(summed["heads"], expected[-1], atol=0.04)
    # The second head looks nearby, the first at the disc.
    assert expected[-1, 0, 1] < 0.6 * expected[-1, 0, 0]


def test_a_head_that_reads_all_alike_looks_as_far_as_patches_lie_apart():
    axis = Axis("patches", AxisKind.GRID, shape=(3, 5), stride=4.0, num_leading_positions=2)
    pairs = [apart(a, b, axis) for a, b in itertools.product(range(15), repeat=2)]
    assert uniform_distance(axis) == pytest.approx(np.mean(pairs))


@pytest.mark.parametrize(
    ("query", "key"),
    [
        (Axis("words"), Axis("words")),
        (Axis("words"), Axis("grid", AxisKind.GRID, shape=(2, 2), stride=8.0)),
        (Axis("there", AxisKind.GRID, shape=(2, 2)), Axis("here", AxisKind.GRID, shape=(2, 2))),
    ],
    ids=["words", "words to a grid", "two grids"],
)
def test_only_on_one_grid_is_there_a_distance_in_pixels(query, key):
    statistics = Statistics(("entropy", "distance"), np.ones((1, 1, 1, 1, 2), np.float32))
    assert distances_in_pixels(statistics, Site("here", query, key, ("0",), ("0",))) is statistics


def test_a_head_that_reads_no_patch_has_no_distance(store, monkeypatch):
    (site,) = store.sites
    names, values = store.statistics(site.name)
    values = np.array(values)
    values[..., 1, 2, names.index("distance")] = np.nan
    monkeypatch.setattr(store, "statistics", lambda _: Statistics(names, values))
    (summed,) = page_attention_distances(store)
    assert [[far is None for far in layer] for layer in summed["heads"]] == [[False] * 3, [False, False, True]]
