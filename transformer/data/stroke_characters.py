"""Characters that no alphabet has: a few bent strokes each, drawn by as many hands as are asked for."""

import numpy as np
from jaxtyping import UInt8

from transformer.data.strokes import Variation, cover, varied

_STROKES = (2, 4)  # from fewest to most
_POINTS = 6  # of the line that stands for a bent stroke
_EDGE = 0.14  # of the unit square around a character
_SHIFTED = 0.03  # deviation of each hand's own ends and bends
_HAND = Variation(turn=0.025, slant=0.12, scale=0.1, shift=0.05, jitter=0.0, thickness=(0.05, 0.09))
_AT_ONCE, _FAR = 256, 1e3


def draw_characters(
    random: np.random.Generator, count: int, hands: int, side: int
) -> UInt8[np.ndarray, "count hands side side"]:
    """So many characters, each drawn by so many hands: ink is bright.

    A stroke is a parabola (a Bezier curve of three points) anywhere in the square. A hand moves the points of every
    stroke a little, and turns, slants, scales and shifts the whole.
    """
    points_SxT = np.linspace(0, 1, _POINTS)[:, None]
    weights_Px3 = np.concatenate([(1 - points_SxT) ** 2, 2 * points_SxT * (1 - points_SxT), points_SxT**2], axis=1)
    most = _STROKES[1]
    segments = np.full((count, hands, most * (_POINTS - 1), 2, 2), _FAR, np.float32)
    for character in range(count):
        strokes = int(random.integers(_STROKES[0], most + 1))
        bends_Kx3x2 = random.random((strokes, 3, 2))
        low, high = bends_Kx3x2.min(axis=(0, 1)), bends_Kx3x2.max(axis=(0, 1))
        bends_Kx3x2 = _EDGE + (1 - 2 * _EDGE) * (bends_Kx3x2 - low) / (high - low)
        for hand in range(hands):
            moved_Kx3x2 = bends_Kx3x2 + _SHIFTED * random.standard_normal(bends_Kx3x2.shape)
            line_KxPx2 = weights_Px3 @ moved_Kx3x2
            pairs = np.stack([line_KxPx2[:, :-1], line_KxPx2[:, 1:]], axis=2).reshape(-1, 2, 2)
            segments[character, hand, : len(pairs)] = varied(pairs, random, _HAND)
    flat = segments.reshape(count * hands, -1, 2, 2)
    thickness = random.uniform(*_HAND.thickness, len(flat)).astype(np.float32)
    drawn = [
        cover(flat[start : start + _AT_ONCE], np.zeros(len(part), bool), part, side)
        for start in range(0, len(flat), _AT_ONCE)
        for part in (thickness[start : start + _AT_ONCE],)
    ]
    ink = np.concatenate(drawn).reshape(count, hands, side, side)
    return np.round(255 * ink).astype(np.uint8)
