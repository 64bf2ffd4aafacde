"""Geometric problems with exact answers: the convex hull, the Delaunay triangulation, the shortest tour.

Coordinates are multiples of 2^-24 in [0, 1), as float32 holds them. Differences, products of two and sums of two
products of such numbers are exact in float64, so that no orientation is ever misjudged.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

# Of 2^11 subsets of the other points the program keeps the shortest way to each of 11 ends: seconds, not minutes.
MAX_TOUR_POINTS = 12


def sample_points(random: np.random.Generator, rows: int, count: int) -> Float[np.ndarray, "B N 2"]:
    """Sample points uniformly from the unit square.

    Args:
        random: The random generator.
        rows: The number of sets.
        count: The number of points of each.

    Returns:
        The points, in float32.
    """
    return random.random((rows, count, 2), dtype=np.float32)


def order_left_to_right(
    points_BxNx2: Float[np.ndarray, "B N 2"], lengths_B: Int[np.ndarray, " B"]
) -> Int[np.ndarray, "B N"]:
    """Order the points of each row by x.

    Args:
        points_BxNx2: The points.
        lengths_B: The number of real points of each row.

    Returns:
        The indices of the points, those of padding last.
    """
    there_BxN = np.arange(points_BxNx2.shape[1]) < lengths_B[:, None]
    return np.argsort(np.where(there_BxN, points_BxNx2[..., 0], np.inf), axis=1, kind="stable")


def convex_hull(points_Nx2: Float[np.ndarray, "N 2"]) -> tuple[int, ...]:
    """Compute the corners of the convex hull counter-clockwise, starting at the one with the lowest index.

    Andrew's monotone chain (1979), in O(n log n); a point in the middle of an edge is no corner.

    Args:
        points_Nx2: The points.

    Returns:
        The indices of the corners.
    """
    # Plain numbers: arrays of two are far slower.
    ordered = sorted((x, y, index) for index, (x, y) in enumerate(points_Nx2.tolist()))

    def chain(points: Sequence[tuple[float, float, int]]) -> list[tuple[float, float, int]]:
        corners: list[tuple[float, float, int]] = []
        for x, y, index in points:
            while len(corners) > 1:
                (ax, ay, _), (bx, by, _) = corners[-2:]
                if (bx - ax) * (y - ay) - (by - ay) * (x - ax) > 0:
                    break
                corners.pop()
            corners.append((x, y, index))
        return corners[:-1]

    return rotate_to_lowest(tuple(index for _, _, index in chain(ordered) + chain(ordered[::-1])))


def rotate_to_lowest(cycle: Sequence[int]) -> tuple[int, ...]:
    """Rotate a cycle so that it starts at its lowest index."""
    first = min(range(len(cycle)), key=cycle.__getitem__)
    return (*cycle[first:], *cycle[:first])


def delaunay_triangulation(points_Nx2: Float[np.ndarray, "N 2"]) -> tuple[tuple[int, int, int], ...]:
    """Compute the triangles of the Delaunay triangulation by Qhull.

    The triangles are ordered by the coordinates of their incenters, x first (Vinyals et al. 2015, section 3.2):
    (a A + b B + c C) / (a + b + c), a being the side opposite to the corner A.

    Args:
        points_Nx2: The points.

    Returns:
        The triangles, each with its corners' indices in rising order.
    """
    from scipy.spatial import Delaunay  # only this problem needs it

    exact_Nx2 = points_Nx2.astype(np.float64)
    triangles_Tx3 = np.sort(Delaunay(exact_Nx2).simplices, axis=1)
    corners_Tx3x2 = exact_Nx2[triangles_Tx3]
    opposite_Tx3x2 = np.roll(corners_Tx3x2, -1, axis=1) - np.roll(corners_Tx3x2, 1, axis=1)
    sides_Tx3 = np.hypot(opposite_Tx3x2[..., 0], opposite_Tx3x2[..., 1])
    incenters_Tx2 = np.einsum("tc,tcx->tx", sides_Tx3, corners_Tx3x2) / sides_Tx3.sum(1, keepdims=True)
    order_T = np.lexsort((incenters_Tx2[:, 1], incenters_Tx2[:, 0]))
    return tuple((int(a), int(b), int(c)) for a, b, c in triangles_Tx3[order_T])


def shortest_tours(points_BxNx2: Float[np.ndarray, "B N 2"]) -> Int[np.ndarray, "B N"]:
    """Compute the shortest closed tour of every row, from index 0, counter-clockwise.

    The dynamic program of Held and Karp (1962), for all rows at once: the shortest path from point 0 through a set of
    the others to the last of them, L(S, j) = min_i L(S - j, i) + d(i, j), sets in the order of their sizes. A shortest
    tour does not cross itself, so that the sign of its area gives its orientation.

    Args:
        points_BxNx2: The points of each row, at most `MAX_TOUR_POINTS`.

    Returns:
        The indices of each tour.
    """
    rows, count, _ = points_BxNx2.shape
    points_BxNx2 = points_BxNx2.astype(np.float64)
    if count < 3:
        return np.broadcast_to(np.arange(count), (rows, count)).copy()
    offsets_BxNxNx2 = points_BxNx2[:, :, None] - points_BxNx2[:, None]
    # Rows last: each step is a long sum of whole rows of numbers.
    distances_NxNxB = np.moveaxis(np.hypot(offsets_BxNxNx2[..., 0], offsets_BxNxNx2[..., 1]), 0, -1)
    between_MxMxB, num_others = distances_NxNxB[1:, 1:], count - 1

    members_SxM = (np.arange(2**num_others)[:, None] >> np.arange(num_others)) & 1 == 1
    shortest_SxMxB = np.full((2**num_others, num_others, rows), np.inf)
    shortest_SxMxB[2 ** np.arange(num_others), np.arange(num_others)] = distances_NxNxB[0, 1:]
    parents_SxMxB = np.zeros(shortest_SxMxB.shape, np.int8)
    for size in range(2, num_others + 1):
        sets_P, last_P = np.nonzero(members_SxM & (members_SxM.sum(1) == size)[:, None])
        ways_PxMxB = shortest_SxMxB[sets_P ^ (1 << last_P)] + between_MxMxB[last_P]
        parents_SxMxB[sets_P, last_P] = ways_PxMxB.argmin(1)
        shortest_SxMxB[sets_P, last_P] = ways_PxMxB.min(1)

    every_B = np.arange(rows)
    last_B = (shortest_SxMxB[-1] + distances_NxNxB[1:, 0]).argmin(0)
    remaining_B = np.full(rows, 2**num_others - 1)
    tours_BxN = np.zeros((rows, count), np.int64)
    for place in range(count - 1, 0, -1):
        tours_BxN[:, place] = last_B + 1
        parents_B = parents_SxMxB[remaining_B, last_B, every_B]
        remaining_B, last_B = remaining_B ^ (1 << last_B), parents_B.astype(np.int64)
    clockwise_B = signed_areas(np.take_along_axis(points_BxNx2, tours_BxN[..., None], axis=1)) < 0
    tours_BxN[clockwise_B, 1:] = tours_BxN[clockwise_B, :0:-1]
    return tours_BxN


def signed_areas(polygons_BxNx2: Float[np.ndarray, "*B N 2"]) -> Float[np.ndarray, "*B"]:
    """Compute the signed area of each polygon, positive if its corners are counter-clockwise (the shoelace formula)."""
    x, y = np.moveaxis(polygons_BxNx2.astype(np.float64), -1, 0)
    return 0.5 * np.sum(x * np.roll(y, -1, axis=-1) - np.roll(x, -1, axis=-1) * y, axis=-1)


def polygon_perimeters(polygons_BxNx2: Float[np.ndarray, "*B N 2"]) -> Float[np.ndarray, "*B"]:
    """Compute the perimeter of each polygon."""
    sides = polygons_BxNx2.astype(np.float64) - np.roll(polygons_BxNx2.astype(np.float64), -1, axis=-2)
    return np.hypot(sides[..., 0], sides[..., 1]).sum(-1)


def is_simple_polygon(polygon_Nx2: Float[np.ndarray, "N 2"]) -> bool:
    """Return whether a polygon has at least three distinct corners, and only neighboring edges meet."""
    count, corners_Nx2 = len(polygon_Nx2), polygon_Nx2.astype(np.float64)
    if count < 3 or len(np.unique(corners_Nx2, axis=0)) < count:
        return False
    ends_Nx2 = np.roll(corners_Nx2, -1, axis=0)
    # turns[e, p]: on which side of edge e the corner p lies.
    edge_Nx1x2, offset_NxNx2 = (ends_Nx2 - corners_Nx2)[:, None], corners_Nx2[None] - corners_Nx2[:, None]
    cross_NxN = edge_Nx1x2[..., 0] * offset_NxNx2[..., 1] - edge_Nx1x2[..., 1] * offset_NxNx2[..., 0]
    start_side_NxN, end_side_NxN = np.sign(cross_NxN), np.sign(np.roll(cross_NxN, -1, axis=1))
    same_side_NxN: Bool[np.ndarray, "N N"] = start_side_NxN * end_side_NxN > 0
    places = np.arange(count)
    gap_NxN = (places[:, None] - places[None]) % count
    not_adjacent_NxN = (gap_NxN > 1) & (gap_NxN < count - 1)
    return bool(np.all((same_side_NxN | same_side_NxN.T)[not_adjacent_NxN]))
