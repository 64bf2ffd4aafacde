"""Runs whose heads were shuffled: each head is found again, and runs that cannot be compared are refused."""

import dataclasses
import itertools

import numpy as np
import pytest

from transformer.attention.sites import Axis, Site
from transformer.config import UserError
from transformer.maps.capture_plan import quantize_maps
from transformer.maps.head_matching import assign_heads, maps_similarity, match_heads, statistics_similarity
from transformer.maps.store import MapStore
from transformer.tasks.axis_labels import AxisLabels

LAYERS, HEADS = 2, 5
TOKENS = Axis("tokens")
LABELS = AxisLabels({"tokens": (tuple("abcdef"), tuple("abcd"))}, ("one", "two"))
OTHER_LABELS = AxisLabels({"tokens": (tuple("uvwxyz"), tuple("uvwx"))}, ("one", "two"))
SITES = tuple(Site(name, TOKENS, TOKENS, tuple("01"), tuple("01234")) for name in ("left/self", "right/self"))
ORDERS = {"left/self": ((3, 0, 4, 1, 2), (1, 2, 3, 4, 0)), "right/self": ((4, 3, 2, 1, 0), (0, 1, 2, 3, 4))}


def make_run(seed: int, statistics: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Of each site the maps [layer, example, head, query, key] and statistics [layer, example, head, statistic]."""
    rng = np.random.default_rng(seed)
    run = {}
    for site in SITES:
        maps = rng.dirichlet(np.full(6, 0.5), size=(LAYERS, 2, HEADS, 6))
        maps[:, 1, :, 4:] = 0
        maps[:, 1, ..., 4:] = 0
        run[site.name] = maps, rng.normal(size=(LAYERS, 2, HEADS, statistics)) * 10 ** rng.normal(size=statistics)
    return run


def shuffled(run: dict, noise: float = 0.0) -> dict:
    """Head `order[h]` of the new run is head h of the old one."""
    rng = np.random.default_rng(9)
    new = {}
    for name, parts in run.items():
        copies = tuple(np.zeros_like(part) for part in parts)
        for layer, order in enumerate(ORDERS[name]):
            for copy, part in zip(copies, parts, strict=True):
                copy[layer][:, list(order)] = part[layer]
        copies[1][...] += noise * copies[1].std(axis=(0, 1, 2)) * rng.normal(size=copies[1].shape)
        new[name] = copies
    return new


def write_store(path, runs: list[dict], sites=SITES, labels=LABELS, undefined: str | None = None) -> MapStore:
    store = MapStore.open(path, sites, labels, "abc")
    for step, run in enumerate(runs):
        given = {}
        for site in sites:
            maps, values = run[site.name]
            found = dict(zip(store.statistics(site.name).names, np.moveaxis(values, -1, 0), strict=True))
            if undefined is not None:
                found[undefined] = np.full_like(found[undefined], np.nan)
            given[site.name] = quantize_maps(maps, store.levels(site.name), found)
        store.write(step, given)
    return store


@pytest.fixture(scope="module")
def names(tmp_path_factory) -> tuple[str, ...]:
    store = MapStore.open(tmp_path_factory.mktemp("names") / "maps", SITES, LABELS, "abc")
    return store.statistics(SITES[0].name).names


def found_orders(store: MapStore, other: MapStore) -> dict[str, tuple[tuple[int, ...], ...]]:
    matches = match_heads(store, other)
    assert all(match.layer == match.other_layer for match in matches)
    assert [(match.site, match.layer, match.head) for match in matches] == [
        (site.name, layer, head) for site in SITES for layer in range(LAYERS) for head in range(HEADS)
    ]
    each = {(match.site, match.layer, match.head): match.other_head for match in matches}
    return {
        site.name: tuple(tuple(each[site.name, layer, head] for head in range(HEADS)) for layer in range(LAYERS))
        for site in SITES
    }


def test_a_shuffled_run_is_matched_back_exactly(tmp_path, names):
    run = make_run(0, len(names))
    store = write_store(tmp_path / "a", [make_run(1, len(names)), run])
    other = write_store(tmp_path / "b", [shuffled(run)])
    assert found_orders(store, other) == ORDERS
    assert all(match.similarity == pytest.approx(1, abs=1e-6) for match in match_heads(store, other))


def test_statistics_alone_match_runs_of_other_examples(tmp_path, names):
    run = make_run(0, len(names))
    noisy = shuffled(run, noise=0.05)
    for maps, _ in noisy.values():
        maps[...] = np.roll(maps, 1, axis=2)  # maps of other examples, which say nothing
    store = write_store(tmp_path / "a", [run], undefined=names[2])
    other = write_store(tmp_path / "b", [noisy], labels=OTHER_LABELS)
    assert found_orders(store, other) == ORDERS


def test_maps_decide_where_the_statistics_do_not(tmp_path, names):
    run = make_run(0, len(names))
    for _, values in run.values():
        values[...] = 1.0
    store = write_store(tmp_path / "a", [run])
    assert found_orders(store, write_store(tmp_path / "b", [shuffled(run)])) == ORDERS
    # Other examples have other maps: nothing is left that tells heads apart.
    apart = found_orders(store, write_store(tmp_path / "c", [shuffled(run)], labels=OTHER_LABELS))
    assert apart == {site.name: (tuple(range(HEADS)),) * LAYERS for site in SITES}


def test_heads_that_agree_in_nothing_are_less_alike(tmp_path, names):
    store = write_store(tmp_path / "a", [make_run(0, len(names))])
    similarities = [
        each.similarity for each in match_heads(store, write_store(tmp_path / "b", [make_run(2, len(names))]))
    ]
    assert min(similarities) >= 0
    assert max(similarities) < 0.9


def test_similarity_of_statistics_is_its_definition():
    rng = np.random.default_rng(3)
    mine, theirs = rng.normal(size=(2, LAYERS, 3, 4)) * [1, 100, 0.01, 1e-8] + [0, 0, 0, 5]
    mine[0, 0, 1] = np.nan
    found = statistics_similarity(mine, theirs)
    for layer, head, other in np.ndindex(LAYERS, 3, 3):
        squares = []
        for name in (0, 2):
            spread = np.std([*mine[..., name].ravel(), *theirs[..., name].ravel()])
            squares.append(((mine[layer, head, name] - theirs[layer, other, name]) / spread) ** 2)
        assert found[layer, head, other] == pytest.approx(np.exp(-np.mean(squares) / 2))


def test_similarity_of_maps_is_its_definition():
    maps, others = (make_run(seed, 1)["left/self"][0].swapaxes(0, 1) for seed in (4, 5))
    maps, others = (part / np.maximum(part.sum(axis=-1, keepdims=True), 1e-30) for part in (maps, others))
    maps[0, 1, 2, 3] = 0  # a row that one head does not have
    found = maps_similarity(3 * maps, others)
    for layer, head, other in np.ndindex(LAYERS, HEADS, HEADS):
        rows = [(example, row) for example in (0, 1) for row in range((6, 4)[example]) if (example, row) != (0, 3)]
        shared = [sum(np.sqrt(maps[e, layer, head, q] * others[e, layer, other, q])) for e, q in rows]
        assert found[layer, head, other] == pytest.approx(np.mean(shared))
    assert (found >= 0).all()
    assert (found <= 1).all()
    np.testing.assert_allclose(np.einsum("lhh->lh", maps_similarity(maps, maps)), 1)


def test_pairs_have_the_largest_sum_of_similarities():
    similarity = np.random.default_rng(6).random((5, 5))
    best = max(
        sum(similarity[row, column] for row, column in enumerate(order)) for order in itertools.permutations(range(5))
    )
    assert sum(similarity[pair] for pair in assign_heads(similarity)) == pytest.approx(best)


@pytest.mark.parametrize(
    ("sites", "message"),
    [
        (SITES[:1], r"other sites, left/self, right/self and left/self: heads"),
        ((SITES[0], dataclasses.replace(SITES[1], name="middle/self")), "left/self, middle/self"),
        (
            (SITES[0], dataclasses.replace(SITES[1], heads=tuple("01"))),
            "'right/self' has 2 layers of 5 heads .* 2 layers of 2",
        ),
        (
            (SITES[0], dataclasses.replace(SITES[1], layers=tuple("0"))),
            "'right/self' has 2 layers of 5 heads .* 1 layers of 5",
        ),
        ((SITES[0], dataclasses.replace(SITES[1], key=Axis("more"))), "from tokens to tokens .* from tokens to more"),
    ],
)
def test_runs_of_other_sites_or_shapes_are_refused_in_one_line(tmp_path, names, sites, message):
    store = write_store(tmp_path / "a", [make_run(0, len(names))])
    labels = AxisLabels({**LABELS.tokens, "more": LABELS.tokens["tokens"]}, LABELS.titles)
    run = {site.name: (np.zeros((len(site.layers), 2, len(site.heads), 6, 6)),) * 2 for site in sites}
    run = {name: (maps, np.zeros((*maps.shape[:3], len(names)))) for name, (maps, _) in run.items()}
    other = write_store(tmp_path / "b", [run], sites=sites, labels=labels)
    with pytest.raises(UserError, match=message) as error:
        match_heads(store, other)
    assert "\n" not in str(error.value)


def test_a_run_without_maps_is_refused(tmp_path, names):
    store = write_store(tmp_path / "a", [make_run(0, len(names))])
    with pytest.raises(UserError, match="holds no step yet"):
        match_heads(store, write_store(tmp_path / "b", []))
