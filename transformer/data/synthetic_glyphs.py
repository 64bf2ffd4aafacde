"""Synthetic images: digits, letters and shapes as lines in the unit square, drawn at any size.

A glyph is a few polylines, x to the right and y downwards; a shape is one closed line whose inside is filled.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

Polyline = tuple[tuple[float, float], ...]
# Padding segments lie this far away from all pixels.
_FAR = 1e3


def _arc_points(
    x: float, y: float, radius_x: float, radius_y: float, start: float, stop: float, count: int = 10
) -> Polyline:
    """Return points of an ellipse around (x, y), between two angles in turns: 0 is to the right, 0.25 below."""
    angles = [2 * math.pi * (start + (stop - start) * number / count) for number in range(count + 1)]
    return tuple((x + radius_x * math.cos(angle), y + radius_y * math.sin(angle)) for angle in angles)


DIGITS: dict[str, tuple[Polyline, ...]] = {
    "0": (_arc_points(0.5, 0.5, 0.26, 0.38, 0, 1, 16),),
    "1": (((0.34, 0.28), (0.54, 0.12), (0.54, 0.88)),),
    "2": ((*_arc_points(0.5, 0.34, 0.24, 0.22, -0.5, 0.1), (0.26, 0.88), (0.76, 0.88)),),
    "3": (_arc_points(0.48, 0.31, 0.22, 0.19, -0.4, 0.25), _arc_points(0.48, 0.69, 0.25, 0.19, -0.25, 0.4)),
    "4": (((0.62, 0.88), (0.62, 0.12), (0.22, 0.64), (0.8, 0.64)),),
    "5": (((0.72, 0.12), (0.32, 0.12), (0.29, 0.46), *_arc_points(0.48, 0.65, 0.25, 0.23, -0.3, 0.4)),),
    "6": (((0.64, 0.12), (0.34, 0.46), (0.27, 0.66)), _arc_points(0.5, 0.66, 0.23, 0.22, 0, 1, 14)),
    "7": (((0.24, 0.12), (0.76, 0.12), (0.42, 0.88)),),
    "8": (_arc_points(0.5, 0.31, 0.19, 0.19, 0, 1, 14), _arc_points(0.5, 0.69, 0.23, 0.19, 0, 1, 14)),
    "9": (_arc_points(0.5, 0.34, 0.23, 0.22, 0, 1, 14), ((0.73, 0.34), (0.68, 0.58), (0.42, 0.88))),
}
LETTERS: dict[str, tuple[Polyline, ...]] = {
    "A": (((0.2, 0.88), (0.5, 0.12), (0.8, 0.88)), ((0.31, 0.6), (0.69, 0.6))),
    "B": (
        ((0.27, 0.12), (0.27, 0.88)),
        ((0.27, 0.12), *_arc_points(0.5, 0.3, 0.2, 0.18, -0.25, 0.25), (0.27, 0.48)),
        ((0.27, 0.48), *_arc_points(0.52, 0.68, 0.22, 0.2, -0.25, 0.25), (0.27, 0.88)),
    ),
    "C": (_arc_points(0.55, 0.5, 0.3, 0.38, -0.13, -0.87, 14),),
    "D": (((0.27, 0.12), (0.27, 0.88)), ((0.27, 0.12), *_arc_points(0.44, 0.5, 0.32, 0.38, -0.25, 0.25), (0.27, 0.88))),
    "E": (((0.74, 0.12), (0.28, 0.12), (0.28, 0.88), (0.74, 0.88)), ((0.28, 0.49), (0.66, 0.49))),
    "F": (((0.74, 0.12), (0.3, 0.12), (0.3, 0.88)), ((0.3, 0.49), (0.66, 0.49))),
    "G": ((*_arc_points(0.53, 0.5, 0.3, 0.38, -0.13, -0.95, 14), (0.83, 0.55), (0.58, 0.55)),),
    "H": (((0.25, 0.12), (0.25, 0.88)), ((0.75, 0.12), (0.75, 0.88)), ((0.25, 0.5), (0.75, 0.5))),
    "I": (((0.36, 0.12), (0.64, 0.12)), ((0.5, 0.12), (0.5, 0.88)), ((0.36, 0.88), (0.64, 0.88))),
    "J": (((0.44, 0.12), (0.76, 0.12)), ((0.64, 0.12), (0.64, 0.66), *_arc_points(0.44, 0.66, 0.2, 0.22, 0, 0.45))),
    "K": (((0.27, 0.12), (0.27, 0.88)), ((0.74, 0.12), (0.27, 0.54)), ((0.42, 0.42), (0.76, 0.88))),
    "L": (((0.3, 0.12), (0.3, 0.88), (0.74, 0.88)),),
    "M": (((0.18, 0.88), (0.2, 0.12), (0.5, 0.6), (0.8, 0.12), (0.82, 0.88)),),
    "N": (((0.24, 0.88), (0.24, 0.12), (0.76, 0.88), (0.76, 0.12)),),
    "O": (_arc_points(0.5, 0.5, 0.34, 0.38, 0, 1, 16),),
    "P": (((0.28, 0.88), (0.28, 0.12), *_arc_points(0.52, 0.32, 0.22, 0.2, -0.25, 0.25), (0.28, 0.52)),),
    "Q": (_arc_points(0.5, 0.48, 0.33, 0.36, 0, 1, 16), ((0.56, 0.66), (0.8, 0.88))),
    "R": (
        ((0.28, 0.88), (0.28, 0.12), *_arc_points(0.52, 0.31, 0.21, 0.19, -0.25, 0.25), (0.28, 0.5)),
        ((0.48, 0.5), (0.76, 0.88)),
    ),
    "S": ((*_arc_points(0.5, 0.31, 0.24, 0.19, -0.08, -0.75), *_arc_points(0.5, 0.69, 0.26, 0.19, -0.25, 0.42)),),
    "T": (((0.2, 0.12), (0.8, 0.12)), ((0.5, 0.12), (0.5, 0.88))),
    "U": (((0.24, 0.12), *_arc_points(0.5, 0.62, 0.26, 0.26, 0.5, 0), (0.76, 0.12)),),
    "V": (((0.2, 0.12), (0.5, 0.88), (0.8, 0.12)),),
    "W": (((0.14, 0.12), (0.32, 0.88), (0.5, 0.36), (0.68, 0.88), (0.86, 0.12)),),
    "X": (((0.24, 0.12), (0.76, 0.88)), ((0.76, 0.12), (0.24, 0.88))),
    "Y": (((0.22, 0.12), (0.5, 0.48), (0.78, 0.12)), ((0.5, 0.48), (0.5, 0.88))),
    "Z": (((0.24, 0.12), (0.76, 0.12), (0.24, 0.88), (0.76, 0.88)),),
}
# Closed lines, filled by the even-odd rule.
SHAPES: dict[str, tuple[Polyline, ...]] = {
    "circle": (_arc_points(0.5, 0.5, 0.38, 0.38, 0, 1, 20),),
    "square": (((0.17, 0.17), (0.83, 0.17), (0.83, 0.83), (0.17, 0.83), (0.17, 0.17)),),
    "triangle": (((0.5, 0.12), (0.9, 0.84), (0.1, 0.84), (0.5, 0.12)),),
    "ring": (_arc_points(0.5, 0.5, 0.4, 0.4, 0, 1, 20), _arc_points(0.5, 0.5, 0.2, 0.2, 0, 1, 16)),
    "cross": (
        (
            *((0.36, 0.1), (0.64, 0.1), (0.64, 0.36), (0.9, 0.36), (0.9, 0.64), (0.64, 0.64), (0.64, 0.9)),
            *((0.36, 0.9), (0.36, 0.64), (0.1, 0.64), (0.1, 0.36), (0.36, 0.36), (0.36, 0.1)),
        ),
    ),
    "star": (
        tuple(
            (0.5 + radius * math.sin(math.pi * turn / 5), 0.53 - radius * math.cos(math.pi * turn / 5))
            for turn, radius in enumerate((*(0.46, 0.18) * 5, 0.46))
        ),
    ),
    "moon": (
        (*_arc_points(0.45, 0.5, 0.4, 0.4, 0.15, 0.85, 14), *_arc_points(0.72, 0.5, 0.326, 0.326, 0.73, 0.27, 12)),
    ),
    "bar": (((0.1, 0.36), (0.9, 0.36), (0.9, 0.64), (0.1, 0.64), (0.1, 0.36)),),
}
GLYPHS = DIGITS | LETTERS | SHAPES


@dataclasses.dataclass(frozen=True)
class GlyphVariation:
    """How much drawings of a glyph vary; each value is the bound of a uniform random variable around 0.

    Attributes:
        turn: The rotation in turns.
        slant: The horizontal shear, in widths per height.
        scale: The relative change of width and height.
        shift: The shift, in sides of the glyph's square.
        jitter: The shift of every corner of a line, in sides of the square.
        thickness: The smallest and the largest thickness of lines, in sides of the square.
    """

    turn: float = 0.03
    slant: float = 0.15
    scale: float = 0.12
    shift: float = 0.05
    jitter: float = 0.015
    thickness: tuple[float, float] = (0.08, 0.14)


DEFAULT_VARIATION = GlyphVariation()
NO_VARIATION = GlyphVariation(0.0, 0.0, 0.0, 0.0, 0.0, (0.1, 0.1))


@functools.cache
def _glyph_segments(name: str) -> tuple[Float[np.ndarray, "S 2 2"], bool]:
    """Return the segments of a glyph, and whether its inside is filled."""
    lines = [np.array(line) for line in GLYPHS[name]]
    return np.concatenate([np.stack([line[:-1], line[1:]], 1) for line in lines]), name in SHAPES


def draw_glyphs(
    names: Sequence[str], size: int, random: np.random.Generator, variation: GlyphVariation = DEFAULT_VARIATION
) -> Float[np.ndarray, "N size size"]:
    """Draw glyphs with random variation.

    The coverage of a pixel falls from one to zero within a pixel's width at the glyph's edge.

    Args:
        names: The names of the glyphs.
        size: The side of the images in pixels.
        random: The random generator.
        variation: How much drawings vary.

    Returns:
        The share of every pixel that each glyph covers, from 0 to 1.

    Raises:
        KeyError: If there is no glyph of a name.
    """
    return rasterize_strokes(*sample_strokes(names, random, variation), size)


class Strokes(NamedTuple):
    """The line segments of glyphs, each glyph in its unit square; padding segments lie far outside."""

    segments_NxSx2x2: Float[np.ndarray, "N S 2 2"]
    filled_N: Bool[np.ndarray, " N"]
    thickness_N: Float[np.ndarray, " N"]


def sample_strokes(
    names: Sequence[str], random: np.random.Generator, variation: GlyphVariation = DEFAULT_VARIATION
) -> Strokes:
    """Return the varied lines of each glyph: x to the right, y downwards.

    Args:
        names: The names of the glyphs.
        random: The random generator.
        variation: How much drawings vary.

    Raises:
        KeyError: If there is no glyph of a name.
    """
    glyphs = [_glyph_segments(name) for name in names]
    most = max((len(segments) for segments, _ in glyphs), default=0)
    segments_NxSx2x2 = np.full((len(names), most, 2, 2), _FAR, np.float32)
    for row, (segments, _) in enumerate(glyphs):
        segments_NxSx2x2[row, : len(segments)] = vary_strokes(segments, random, variation)
    filled_N = np.array([filled for _, filled in glyphs], bool)
    thickness_N = random.uniform(*variation.thickness, len(names)).astype(np.float32)
    return Strokes(segments_NxSx2x2, filled_N, thickness_N)


def draw_point_clouds(
    names: Sequence[str],
    count: int,
    random: np.random.Generator,
    variation: GlyphVariation = DEFAULT_VARIATION,
    noise: float = 0.01,
) -> Float[np.ndarray, "N count 2"]:
    """Sample points uniformly on the varied lines of each glyph, in no order.

    Args:
        names: The names of the glyphs.
        count: The number of points.
        random: The random generator.
        variation: How much drawings vary.
        noise: The standard deviation of normal noise on each point.

    Returns:
        x and y of each point, in the unit square.

    Raises:
        KeyError: If there is no glyph of a name.
    """
    clouds = np.empty((len(names), count, 2), np.float32)
    for cloud, name in zip(clouds, names, strict=True):
        segments_Sx2x2 = vary_strokes(_glyph_segments(name)[0], random, variation)
        lengths_S = np.linalg.norm(segments_Sx2x2[:, 1] - segments_Sx2x2[:, 0], axis=-1)
        segment_indices = random.choice(len(lengths_S), count, p=lengths_S / lengths_S.sum())
        start_Nx2, end_Nx2 = segments_Sx2x2[segment_indices, 0], segments_Sx2x2[segment_indices, 1]
        cloud[:] = start_Nx2 + random.random((count, 1)) * (end_Nx2 - start_Nx2)
    return clouds + random.normal(0, noise, clouds.shape).astype(np.float32)


def vary_strokes(
    segments: Float[np.ndarray, "S 2 2"], random: np.random.Generator, variation: GlyphVariation
) -> Float[np.ndarray, "S 2 2"]:
    """Rotate, shear, scale and shift segments at random, and jitter their corners, those of meeting lines alike."""
    corners, places = np.unique(np.round(segments.reshape(-1, 2), 6), axis=0, return_inverse=True)
    moved = corners + random.uniform(-variation.jitter, variation.jitter, corners.shape)
    angle = 2 * np.pi * random.uniform(-variation.turn, variation.turn)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    slant = np.array([[1.0, -random.uniform(-variation.slant, variation.slant)], [0.0, 1.0]])
    scale = 1 + random.uniform(-variation.scale, variation.scale, 2)
    shift = random.uniform(-variation.shift, variation.shift, 2)
    varied = (moved - 0.5) @ (turn @ slant).T * scale + 0.5 + shift
    return varied[places.reshape(-1)].reshape(segments.shape)


def rasterize_strokes(
    segments_NxSx2x2: Float[np.ndarray, "N S 2 2"],
    filled_N: Bool[np.ndarray, " N"],
    thickness_N: Float[np.ndarray, " N"],
    size: int,
) -> Float[np.ndarray, "N size size"]:
    """Compute how much of every pixel is covered by lines, or by the inside of closed lines.

    share = clip(1/2 + (reach - distance) size, 0, 1), with the distance of the pixel's center to the nearest segment.
    The reach is half of the thickness; for a filled glyph it is 0, and distances inside are negative.

    Args:
        segments_NxSx2x2: The two ends of each segment, in the unit square.
        filled_N: Which glyphs are filled.
        thickness_N: The thickness of the lines of the others.
        size: The side of the images in pixels.
    """
    middles = (np.arange(size, dtype=np.float32) + 0.5) / size
    pixels_2xP = np.stack([np.tile(middles, size), np.repeat(middles, size)])
    start, direction = segments_NxSx2x2[:, :, 0], segments_NxSx2x2[:, :, 1] - segments_NxSx2x2[:, :, 0]
    length = np.maximum((direction**2).sum(-1, keepdims=True), 1e-12)
    # Of a pixel p and a segment from s along a: (p - s) a, by which the nearest point is s + t a with t from 0 to 1.
    ahead_NxSxP = direction @ pixels_2xP - (start * direction).sum(-1, keepdims=True)
    part_NxSxP = np.clip(ahead_NxSxP / length, 0, 1)
    # |p - s - t a|^2 = |p|^2 - 2 p s + |s|^2 - t (2 (p - s) a - t |a|^2), of which |p|^2 is the same for all segments.
    square_NxSxP = (start**2).sum(-1, keepdims=True) - 2 * start @ pixels_2xP
    square_NxSxP -= part_NxSxP * (2 * ahead_NxSxP - part_NxSxP * length)
    distance_NxP = np.sqrt(np.maximum(square_NxSxP.min(axis=1) + (pixels_2xP**2).sum(0), 0))
    reach_N = np.where(filled_N, 0.0, thickness_N / 2)
    if filled_N.any():
        inside_NxP = _is_inside(segments_NxSx2x2[filled_N], pixels_2xP)
        distance_NxP[filled_N] = np.where(inside_NxP, -distance_NxP[filled_N], distance_NxP[filled_N])
    share_NxP = np.clip(0.5 + (reach_N[:, None] - distance_NxP) * size, 0, 1)
    return share_NxP.reshape(-1, size, size).astype(np.float32)


def _is_inside(
    segments_NxSx2x2: Float[np.ndarray, "N S 2 2"], pixels_2xP: Float[np.ndarray, "2 P"]
) -> Bool[np.ndarray, "N P"]:
    """Return whether a line from the pixel to the right crosses the outline an odd number of times."""
    start, end = segments_NxSx2x2[:, :, 0, :, None], segments_NxSx2x2[:, :, 1, :, None]
    x_P, y_P = pixels_2xP
    spans = (start[:, :, 1] > y_P) != (end[:, :, 1] > y_P)
    direction = end - start
    rise = np.where(np.abs(direction[:, :, 1]) < 1e-9, 1e-9, direction[:, :, 1])
    crossed = x_P - start[:, :, 0] < direction[:, :, 0] * (y_P - start[:, :, 1]) / rise
    return (spans & crossed).sum(axis=1) % 2 == 1
