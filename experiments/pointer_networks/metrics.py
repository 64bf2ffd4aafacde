"""Metrics of geometric answers: exact match, and area, triangles or length."""

from collections.abc import Sequence
from typing import assert_never

import numpy as np
from jaxtyping import Float

from experiments.pointer_networks.data import is_simple_polygon, polygon_perimeters, rotate_to_lowest, signed_areas
from experiments.pointer_networks.decoding import Answer, Problem


def geometry_metrics(
    problem: Problem,
    points: Sequence[Float[np.ndarray, "N 2"]],
    truths: Sequence[Answer],
    answers: Sequence[Answer | None],
) -> dict[str, float]:
    """Average metrics over examples.

    accuracy: the fraction of right answers (Vinyals et al. 2015, sections 4.2 to 4.4): the same polygon or tour,
    whatever its start, a tour in either direction; the same set of triangles.

    hull: `area_ratio`, the area of the predicted polygon over the true one's, over simple polygons; `invalid_fraction`,
    of the answers that are none (section 4.2). delaunay: `triangle_coverage`, the fraction of the true triangles that
    were predicted (section 4.3). tour: `tour_length` of the predicted tours, `optimal_tour_length` of the shortest
    through the same points, and `optimality_gap`, the relative difference, all over the answers that visit every point
    once; `invalid_fraction`, of those that do not.

    Args:
        problem: The problem.
        points: The points of each example.
        truths: The true answers.
        answers: The predicted answers; None for one without an end.

    Returns:
        The metrics by name.
    """
    match problem:
        case Problem.HULL:
            return _hull_metrics(points, truths, answers)
        case Problem.DELAUNAY:
            return _triangulation_metrics(truths, answers)
        case Problem.TOUR:
            return _tour_metrics(points, truths, answers)
        case _:
            assert_never(problem)


def _hull_metrics(
    points: Sequence[np.ndarray], truths: Sequence[Answer], answers: Sequence[Answer | None]
) -> dict[str, float]:
    right, covered = 0, []
    for points_Nx2, truth, answer in zip(points, truths, answers, strict=True):
        if answer is None or not is_simple_polygon(points_Nx2[list(answer)]):
            continue
        right += rotate_to_lowest(answer) == truth
        covered.append(float(abs(signed_areas(points_Nx2[list(answer)])) / signed_areas(points_Nx2[list(truth)])))
    return {
        "accuracy": right / len(truths),
        "area_ratio": _mean(covered),
        "invalid_fraction": 1 - len(covered) / len(truths),
    }


def _triangulation_metrics(truths: Sequence[Answer], answers: Sequence[Answer | None]) -> dict[str, float]:
    right, covered = 0, []
    for truth, answer in zip(truths, answers, strict=True):
        expected, predicted = _triangles(truth), _triangles(answer or ())
        # What is left over behind the last whole triangle, or said twice, is an error.
        right += answer is not None and predicted == expected and len(answer) == len(truth)
        covered.append(len(predicted & expected) / len(expected))
    return {"accuracy": right / len(truths), "triangle_coverage": _mean(covered)}


def _triangles(answer: Answer) -> set[frozenset[int]]:
    return {frozenset(answer[place : place + 3]) for place in range(0, len(answer) - 2, 3)}


def _tour_metrics(
    points: Sequence[np.ndarray], truths: Sequence[Answer], answers: Sequence[Answer | None]
) -> dict[str, float]:
    right, lengths, shortest = 0, [], []
    for points_Nx2, truth, answer in zip(points, truths, answers, strict=True):
        if answer is None or sorted(answer) != list(range(len(points_Nx2))):
            continue
        forward = rotate_to_lowest(answer)
        right += truth in (forward, (*forward[:1], *forward[:0:-1]))
        lengths.append(float(polygon_perimeters(points_Nx2[list(answer)])))
        shortest.append(float(polygon_perimeters(points_Nx2[list(truth)])))
    length, optimal = _mean(lengths), _mean(shortest)
    return {
        "accuracy": right / len(truths),
        "tour_length": length,
        "optimal_tour_length": optimal,
        "optimality_gap": length / optimal - 1 if lengths else 0.0,
        "invalid_fraction": 1 - len(lengths) / len(truths),
    }


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0
