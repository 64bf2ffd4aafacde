"""Exact answers about points in the plane against brute force: every edge, every circle, every order."""

import itertools
from fractions import Fraction

import numpy as np
import pytest

from experiments.pointer_networks.data import (
    convex_hull,
    delaunay_triangulation,
    is_simple_polygon,
    polygon_perimeters,
    rotate_to_lowest,
    sample_points,
    shortest_tours,
    signed_areas,
)


def points_of(seed: int, count: int, rows: int = 1) -> np.ndarray:
    return sample_points(np.random.default_rng(seed), rows, count)


def exact(points: np.ndarray) -> list[tuple[Fraction, Fraction]]:
    return [(Fraction(float(x)), Fraction(float(y))) for x, y in points]


def turn(a: tuple, b: tuple, c: tuple) -> Fraction:
    """Twice the area of a triangle, positive where its corners are counter-clockwise."""
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


@pytest.mark.parametrize("count", [3, 4, 7, 12])
def test_hull_edges_are_those_that_have_every_other_point_on_their_left(count: int) -> None:
    for points in points_of(count, count, 20):
        plane, found = exact(points), convex_hull(points)
        edges = {
            (a, b)
            for a, b in itertools.permutations(range(count), 2)
            if all(turn(plane[a], plane[b], plane[c]) > 0 for c in range(count) if c not in (a, b))
        }
        assert set(zip(found, (*found[1:], found[0]), strict=True)) == edges
        assert found[0] == min(found)


def test_a_point_on_an_edge_is_no_corner_and_one_that_occurs_twice_is_one() -> None:
    points = np.float32([[0, 0], [0.5, 0], [1, 0], [1, 1], [0.25, 0.25], [0, 1], [1, 1]])
    assert convex_hull(points) in ((0, 2, 3, 5), (0, 2, 6, 5))


@pytest.mark.parametrize("steps", [-1, 0, 1])
def test_a_turn_is_judged_exactly_where_points_lie_as_near_as_float32_allows(steps: int) -> None:
    """A corner between two others that bends by one part in 2^24, and one far away."""
    near = 0.5 + np.array([[0, 0], [4 + steps, 4], [8, 8]]) * 2.0**-24
    points = np.concatenate([near, [[0.5, 0.9]]]).astype(np.float32)
    assert (1 in convex_hull(points)) == (steps > 0)


@pytest.mark.parametrize("count", [3, 4, 6, 10])
def test_triangles_are_those_whose_circumcircles_are_empty(count: int) -> None:
    for points in points_of(100 + count, count, 10):
        plane = exact(points)

        def inside(triangle: tuple[int, ...], other: int, plane: list = plane) -> bool:
            """Whether a point lies in the circle through three others, by the determinant (Guibas and Stolfi 1985)."""
            a, b, c = (plane[corner] for corner in triangle)
            rows = [(p[0] - plane[other][0], p[1] - plane[other][1]) for p in (a, b, c)]
            (ax, ay), (bx, by), (cx, cy) = rows
            squares = [x * x + y * y for x, y in rows]
            determinant = (
                squares[0] * (bx * cy - cx * by) - squares[1] * (ax * cy - cx * ay) + squares[2] * (ax * by - bx * ay)
            )
            return determinant * turn(a, b, c) > 0

        expected = {
            triangle
            for triangle in itertools.combinations(range(count), 3)
            if not any(inside(triangle, other) for other in range(count) if other not in triangle)
        }
        found = delaunay_triangulation(points)
        assert set(found) == expected
        assert len(found) == 2 * count - 2 - len(convex_hull(points))
        centers = [incenter(points.astype(np.float64)[list(triangle)]) for triangle in found]
        assert centers == sorted(centers)


def incenter(corners: np.ndarray) -> tuple[float, float]:
    """Where the bisectors of two angles meet."""
    a, b, c = corners

    def bisector(at: np.ndarray, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        return (one - at) / np.linalg.norm(one - at) + (other - at) / np.linalg.norm(other - at)

    of_a, of_b = bisector(a, b, c), bisector(b, a, c)
    along, _ = np.linalg.solve(np.stack([of_a, -of_b], axis=1), b - a)
    x, y = a + along * of_a
    return float(x), float(y)


@pytest.mark.parametrize("count", [3, 4, 5, 7])
def test_tours_are_the_shortest_of_all_orders(count: int) -> None:
    drawn = points_of(200 + count, count, 8)
    found = shortest_tours(drawn)
    for points, tour in zip(drawn.astype(np.float64), found, strict=True):

        def length(point_order: tuple[int, ...], points: np.ndarray = points) -> float:
            closed = [*point_order, point_order[0]]
            return sum(float(np.linalg.norm(points[a] - points[b])) for a, b in itertools.pairwise(closed))

        orders = [(0, *rest) for rest in itertools.permutations(range(1, count))]
        assert sorted(tour) == list(range(count))
        assert tour[0] == 0
        assert length(tuple(tour)) == pytest.approx(min(map(length, orders)), abs=1e-12)
        assert polygon_perimeters(points[tour]) == pytest.approx(length(tuple(tour)), abs=1e-12)
        # Counter-clockwise: the angles around a point within the tour add up to one whole turn.
        corners = points[tour]
        steps = np.roll(corners, -1, axis=0) - corners
        turns = np.angle(np.exp(1j * (np.roll(angles := np.arctan2(steps[:, 1], steps[:, 0]), -1) - angles)))
        assert turns.sum() == pytest.approx(2 * np.pi)


def test_a_tour_of_one_number_of_points_is_that_of_a_row_alone() -> None:
    drawn = points_of(5, 9, 4)
    np.testing.assert_array_equal(shortest_tours(drawn), np.concatenate([shortest_tours(row[None]) for row in drawn]))


def test_areas_are_those_of_the_triangles_from_the_origin() -> None:
    triangle = np.float32([[0, 0], [1, 0], [0, 0.5]])
    assert signed_areas(triangle) == 0.25
    assert signed_areas(triangle[::-1]) == -0.25
    for points in points_of(7, 8, 5):
        plane, corners = exact(points), convex_hull(points)
        fan = sum(turn(plane[corners[0]], plane[a], plane[b]) for a, b in itertools.pairwise(corners[1:]))
        assert signed_areas(points[list(corners)]) == pytest.approx(float(fan) / 2, abs=1e-14)


def test_polygons_whose_edges_cross_are_not_simple() -> None:
    square = np.float32([[0, 0], [1, 0], [1, 1], [0, 1]])
    assert is_simple_polygon(square)
    assert is_simple_polygon(square[::-1])
    assert not is_simple_polygon(square[[0, 2, 1, 3]])
    assert not is_simple_polygon(square[[0, 1]])
    assert not is_simple_polygon(square[[0, 1, 2, 1]])
    assert is_simple_polygon(np.float32([[0, 0], [1, 0], [1, 1], [0.5, 0.25], [0, 1]]))  # not convex
    for points in points_of(11, 6, 30):
        plane, count = exact(points), len(points)

        def crosses(one: int, other: int, plane: list = plane, count: int = count) -> bool:
            a, b, c, d = (plane[corner % count] for corner in (one, one + 1, other, other + 1))
            return turn(a, b, c) * turn(a, b, d) < 0 and turn(c, d, a) * turn(c, d, b) < 0

        pairs = [(e, f) for e in range(count) for f in range(e + 2, count) if (f + 1) % count != e]
        assert is_simple_polygon(points) == (not any(crosses(e, f) for e, f in pairs))


def test_a_cycle_begins_at_its_lowest_index_and_keeps_its_direction() -> None:
    assert rotate_to_lowest((4, 1, 7, 3)) == (1, 7, 3, 4)
    assert rotate_to_lowest((2,)) == (2,)


def test_drawn_points_are_what_float32_holds_in_fixed_steps() -> None:
    points = points_of(1, 50, 20).astype(np.float64)
    assert (points >= 0).all()
    assert (points < 1).all()
    assert (points * 2**24 == np.round(points * 2**24)).all()
    np.testing.assert_allclose([points.mean(), points.std()], [0.5, 12**-0.5], atol=0.02)
