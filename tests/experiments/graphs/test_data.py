"""Graphs: as many edges of each type at every node, and distances as the powers of a matrix have them."""

import numpy as np
import pytest

from experiments.graphs.data import (
    BLUE,
    NO_EDGE,
    RED,
    SOURCE,
    TARGET,
    UNMARKED,
    Graphs,
    accuracy_by_distance,
    red_distances,
    sample_graphs,
)


@pytest.fixture(scope="module", params=[(12, 1, 5), (14, 2, 3)], ids=["one cycle", "two cycles"])
def drawn(request: pytest.FixtureRequest) -> tuple[Graphs, int, int]:
    nodes, degree, longest = request.param
    return sample_graphs(np.random.default_rng(0), 600, nodes, degree, longest), degree, longest


def steps_by_matrix_powers(edges: np.ndarray, source: int, target: int) -> int:
    """The least k such that a walk of k red edges leads from source to target: entry of the k-th power."""
    red, walks = np.int64(edges == RED), np.eye(len(edges), dtype=np.int64)
    for steps in range(len(edges)):
        if walks[target, source]:
            return steps
        walks = np.minimum(red @ walks, 1)
    return -1


def test_every_node_has_as_many_edges_of_each_type(drawn: tuple[Graphs, int, int]) -> None:
    graphs, degree, _ = drawn
    for kind in (RED, BLUE):
        for axis in (1, 2):
            assert ((graphs.edges == kind).sum(axis) == degree).all()
    assert not np.diagonal(graphs.edges, axis1=1, axis2=2).any()
    assert set(np.unique(graphs.edges)) == {NO_EDGE, RED, BLUE}


def test_distances_are_those_of_matrix_powers_and_uniform(drawn: tuple[Graphs, int, int]) -> None:
    graphs, _, longest = drawn
    for edges, marks, distance in zip(*graphs, strict=True):
        ((source,), (target,)) = ((marks == mark).nonzero()[0] for mark in (SOURCE, TARGET))
        assert steps_by_matrix_powers(edges, source, target) == distance
        assert (marks == UNMARKED).sum() == len(marks) - 2
    shares = np.bincount(graphs.distances, minlength=longest + 1) / len(graphs.distances)
    assert shares[0] == 0
    assert np.abs(shares[1:] - 1 / longest).max() < 0.06


def test_one_cycle_tells_nothing_of_a_distance_but_by_its_edges(drawn: tuple[Graphs, int, int]) -> None:
    graphs, degree, longest = drawn
    for kind in (RED, BLUE) if degree == 1 else ():
        for edges in graphs.edges[:20]:
            # A single cycle: the walk from any node is back after all N nodes, and not before.
            node, length = 0, 0
            while length == 0 or node != 0:
                node, length = int((edges[:, node] == kind).argmax()), length + 1
            assert length == len(edges)
    sources = (graphs.marks == SOURCE).argmax(1)
    for distance in range(1, longest + 1):
        assert abs(sources[graphs.distances == distance].mean() - (graphs.edges.shape[1] - 1) / 2) < 1.2


def test_the_search_reaches_every_node_at_its_distance_and_no_other() -> None:
    # Red: 0 -> 1 -> 2 and 0 -> 2, 3 -> 0; blue: 2 -> 3. Node 3 is out of reach.
    edges = np.zeros((1, 4, 4), int)
    for start, end, kind in ((0, 1, RED), (1, 2, RED), (0, 2, RED), (3, 0, RED), (2, 3, BLUE)):
        edges[0, end, start] = kind
    np.testing.assert_array_equal(red_distances(edges, np.array([0])), [[0, 1, 1, -1]])
    np.testing.assert_array_equal(red_distances(edges, np.array([3])), [[1, 2, 2, 0]])


def test_accuracies_by_distance_by_hand() -> None:
    found = accuracy_by_distance(np.array([1, 2, 2, 1]), np.array([1, 1, 2, 4]), 4)
    np.testing.assert_array_equal(found, [0.5, 1, np.nan, 0])
