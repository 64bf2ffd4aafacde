"""Random graphs with two types of edges, and the distance between two marked nodes along the first type."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from transformer.models.task_interface import signature

# `marks` [B, N] say which node is the source and which the target, `edges` [B, N, N] are the types of the edges from
# node j to node i, for every i and j. They are of `vocabularies["marks"]` and `vocabularies["edge types"]` kinds. A
# logit for each of `vocabularies["classes"]` classes of the target.
GRAPH_CLASSIFICATION = signature("marks", "edges", output="class of the target")
MARKS = UNMARKED, SOURCE, TARGET = 0, 1, 2
# Distances are counted along red edges. As many blue ones lead elsewhere.
EDGE_TYPES = NO_EDGE, RED, BLUE = 0, 1, 2


class Graphs(NamedTuple):
    """Graphs with a source and a target.

    Attributes:
        edges: The type of the edge from node j to node i at [graph, i, j].
        marks: Which node is the source and which the target.
        distances: The number of red edges on the shortest path from source to target.
    """

    edges: Int[np.ndarray, "B N N"]
    marks: Int[np.ndarray, "B N"]
    distances: Int[np.ndarray, " B"]


def sample_graphs(random: np.random.Generator, count: int, nodes: int, degree: int, max_distance: int) -> Graphs:
    """Sample graphs in which as many edges of each type enter and leave every node.

    Args:
        random: The random generator.
        count: The number of graphs.
        nodes: The number of nodes N.
        degree: The edges of each type that enter a node, and that leave it.
        max_distance: Distances are uniform on 1 ... `max_distance`.

    Returns:
        The graphs.
    """
    edges_BxNxN = sample_edges(random, count, nodes, degree)
    distances_B = random.integers(1, max_distance + 1, count)
    source_B, target_B = np.zeros((2, count), np.int64)
    rows = np.arange(count)
    # Where no node is that far from a source, the graph is drawn again.
    while len(rows):
        source_B[rows] = random.integers(0, nodes, len(rows))
        steps_BxN = red_distances(edges_BxNxN[rows], source_B[rows])
        chance_BxN = np.where(steps_BxN == distances_B[rows, None], random.random(steps_BxN.shape), -1.0)
        target_B[rows] = chance_BxN.argmax(axis=1)
        rows = rows[chance_BxN.max(axis=1) < 0]
        edges_BxNxN[rows] = sample_edges(random, len(rows), nodes, degree)
    marks_BxN = np.full((count, nodes), UNMARKED)
    marks_BxN[np.arange(count), source_B] = SOURCE
    marks_BxN[np.arange(count), target_B] = TARGET
    return Graphs(edges_BxNxN, marks_BxN, distances_B)


def sample_edges(random: np.random.Generator, count: int, nodes: int, degree: int) -> Int[np.ndarray, "B N N"]:
    """Sample edges: for each type, the union of `degree` cycles through all nodes, of which no two share an edge."""
    edges_BxNxN = np.full((count, nodes, nodes), NO_EDGE)
    for kind in (RED, BLUE) * degree:
        cycle_BxNxN, rows = np.zeros(edges_BxNxN.shape, bool), np.arange(count)
        while len(rows):
            cycle_BxNxN[rows] = sample_cycles(random, len(rows), nodes)
            rows = rows[(cycle_BxNxN[rows] & (edges_BxNxN[rows] != NO_EDGE)).any(axis=(1, 2))]
        edges_BxNxN[cycle_BxNxN] = kind
    return edges_BxNxN


def sample_cycles(random: np.random.Generator, count: int, nodes: int) -> Bool[np.ndarray, "B N N"]:
    """Sample directed cycles through all nodes: True at [graph, i, j] where j comes before i."""
    order_BxN = random.random((count, nodes)).argsort(axis=1)
    cycle_BxNxN = np.zeros((count, nodes, nodes), bool)
    cycle_BxNxN[np.arange(count)[:, None], order_BxN, np.roll(order_BxN, 1, axis=1)] = True
    return cycle_BxNxN


def red_distances(edges_BxNxN: Int[np.ndarray, "B N N"], source_B: Int[np.ndarray, " B"]) -> Int[np.ndarray, "B N"]:
    """The number of red edges from the source to every node, by breadth-first search; -1 for a node out of reach."""
    red_BxNxN = edges_BxNxN == RED
    distances_BxN = np.full(edges_BxNxN.shape[:2], -1)
    frontier_BxN = np.arange(edges_BxNxN.shape[1]) == source_B[:, None]
    for step in range(edges_BxNxN.shape[1]):
        distances_BxN[frontier_BxN] = step
        frontier_BxN = (red_BxNxN & frontier_BxN[:, None]).any(axis=2) & (distances_BxN < 0)
    return distances_BxN


def accuracy_by_distance(
    predicted_B: Int[np.ndarray, " B"], distances_B: Int[np.ndarray, " B"], max_distance: int
) -> Float[np.ndarray, " K"]:
    """The accuracy over the graphs of each distance from 1 to `max_distance`; NaN for a distance that none has."""
    has_distance_KxB = np.arange(1, max_distance + 1)[:, None] == distances_B
    counts_K = has_distance_KxB.sum(axis=1)
    correct_K = (has_distance_KxB & (predicted_B == distances_B)).sum(axis=1)
    return np.where(counts_K > 0, correct_K / np.maximum(counts_K, 1), np.nan)
