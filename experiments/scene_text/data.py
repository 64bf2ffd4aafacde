"""Synthetic scene text: strings rendered along a straight or curved line, with the position of every glyph."""

import dataclasses
import enum
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, UInt8

from transformer.data.synthetic_glyphs import (
    DEFAULT_VARIATION,
    DIGITS,
    LETTERS,
    GlyphVariation,
    rasterize_strokes,
    sample_strokes,
)

# None of these turned by half a turn, or drawn badly, is another one.
ALPHABET = "AEFGHJKPRT24"
_TILT, _STEEP = np.radians(15), np.radians(45)  # of a straight line, and of a bent one on the whole
_BEND = np.radians((45, 65))  # between one glyph and the next on an arc
_SWING, _PHASE = np.radians((55, 70)), np.radians((45, 60))  # of a wave: its steepest slope, and what a glyph moves on
_GAP = (1.0, 1.15)  # between the middles of neighbors, in sides of a glyph
_GROUND, _INK, _SPREAD, _NOISE = (20.0, 70.0), (185.0, 245.0), 15.0, 8.0


class TextLine(enum.Enum):
    """The line that a string is written along: a slightly sloping straight line, or an arc or a wave."""

    STRAIGHT = "straight"
    CURVED = "curved"


class RenderedText(NamedTuple):
    """A string and the squares of its glyphs.

    Attributes:
        text: The string.
        glyph_centers: The centers of the squares in pixels, x to the right and y downwards.
        glyph_angles: Their rotations in radians.
        glyph_size: Their side in pixels.
    """

    text: str
    glyph_centers: Float[np.ndarray, "N 2"]
    glyph_angles: Float[np.ndarray, " N"]
    glyph_size: float


@dataclasses.dataclass(frozen=True)
class TextRenderer:
    """A renderer of images with a random string.

    Attributes:
        image_size: The height and width of an image.
        min_length: The fewest glyphs of a string.
        max_length: The most glyphs of a string.
        glyph_size_range: The range of a glyph's side in pixels; smaller if the string would not fit.
        alphabet: The glyphs.

    Raises:
        ValueError: If a value is out of range, or a glyph is no capital letter or digit or is repeated.
    """

    image_size: int = 56
    min_length: int = 3
    max_length: int = 5
    glyph_size_range: tuple[float, float] = (9.0, 12.0)
    alphabet: str = ALPHABET

    def __post_init__(self) -> None:
        if not 1 <= self.min_length <= self.max_length:
            raise ValueError(
                f"min_length={self.min_length} and max_length={self.max_length}: need 1 <= min_length <= max_length"
            )
        if unknown := sorted(set(self.alphabet) - set(LETTERS) - set(DIGITS)):
            raise ValueError(f"alphabet={self.alphabet!r} has {unknown}, which are no capital letters or digits")
        if not self.alphabet or len(set(self.alphabet)) < len(self.alphabet):
            raise ValueError(f"alphabet={self.alphabet!r} must name at least one glyph, and none of them twice")
        if not 1 <= self.glyph_size_range[0] <= self.glyph_size_range[1] <= self.image_size / 2:
            raise ValueError(
                f"glyph_size_range={self.glyph_size_range} must rise, from 1 pixel to half of the image's "
                f"image_size={self.image_size}"
            )

    def sample_string(self, random: np.random.Generator) -> str:
        """Sample a string; glyphs may repeat."""
        count = int(random.integers(self.min_length, self.max_length + 1))
        return "".join(self.alphabet[number] for number in random.integers(0, len(self.alphabet), count))

    def place_glyphs(self, text: str, line: TextLine, random: np.random.Generator) -> RenderedText:
        """Place each glyph of a string on a line of this form, with all squares within the image.

        Args:
            text: The string.
            line: The form of the line.
            random: The random generator.

        Returns:
            The placed string.
        """
        turns = _sample_angles(len(text), line, random)
        # Between two glyphs the line goes as far toward the one's direction as toward the other's.
        between = (turns[1:] + turns[:-1]) / 2
        steps = np.stack([np.cos(between), np.sin(between)], axis=1) * random.uniform(*_GAP)
        middles = np.concatenate([np.zeros((1, 2)), np.cumsum(steps, axis=0)])
        reach = (np.abs(np.cos(turns)) + np.abs(np.sin(turns)))[:, None] / 2
        low, high = (middles - reach).min(axis=0), (middles + reach).max(axis=0)
        side = min(random.uniform(*self.glyph_size_range), self.image_size / float((high - low).max()))
        corner = random.uniform(0, 1, 2) * np.maximum(self.image_size - side * (high - low), 0)
        return RenderedText(text, side * (middles - low) + corner, turns, side)


def _sample_angles(count: int, line: TextLine, random: np.random.Generator) -> Float[np.ndarray, " N"]:
    """Return the clockwise rotation of each glyph, which is the direction of its line there."""
    numbers, sign = np.arange(count) - (count - 1) / 2, random.choice([-1, 1])
    if line is TextLine.STRAIGHT:
        return np.full(count, random.uniform(-_TILT, _TILT))
    tilt = random.uniform(-_STEEP, _STEEP)
    if random.random() < 0.5:
        return tilt + sign * random.uniform(*_BEND) * numbers
    phase = random.uniform(*_PHASE) * numbers + random.uniform(-np.pi / 4, np.pi / 4)
    return tilt + sign * random.uniform(*_SWING) * np.sin(phase)


def render_text(
    text_renderer: TextRenderer,
    strings: Sequence[RenderedText],
    random: np.random.Generator,
    variation: GlyphVariation = DEFAULT_VARIATION,
) -> UInt8[np.ndarray, "B pixels pixels 3"]:
    """Render images of strings, light on dark; every drawing of a glyph is different, and pixels are noisy.

    Args:
        text_renderer: The renderer.
        strings: The placed strings.
        random: The random generator.
        variation: How drawings of a glyph vary.

    Returns:
        The images [string, height, width, 3].
    """
    count = len(strings)
    ground = random.uniform(*_GROUND, (count, 1, 1, 1)) + random.uniform(-_SPREAD, _SPREAD, (count, 1, 1, 3))
    ink = random.uniform(*_INK, (count, 1, 1, 1)) + random.uniform(-_SPREAD, _SPREAD, (count, 1, 1, 3))
    inked = np.zeros((count, text_renderer.image_size, text_renderer.image_size), np.float32)
    squares, corners, rows = _render_glyphs(text_renderer, strings, random, variation)
    patch = squares.shape[1]
    for square, (x, y), row in zip(squares, corners, rows, strict=True):
        top, left = max(y, 0), max(x, 0)
        visible = square[
            top - y : max(text_renderer.image_size - y, 0), left - x : max(text_renderer.image_size - x, 0)
        ]
        part = inked[row, top : top + patch, left : left + patch][: visible.shape[0], : visible.shape[1]]
        np.maximum(part, visible, out=part)
    images = ground + inked[..., None] * (ink - ground) + random.normal(0, _NOISE, (*inked.shape, 3))
    return np.clip(np.round(images), 0, 255).astype(np.uint8)


def _render_glyphs(
    text_renderer: TextRenderer, strings: Sequence[RenderedText], random: np.random.Generator, variation: GlyphVariation
) -> tuple[Float[np.ndarray, "N P P"], list[tuple[int, int]], list[int]]:
    """Render every glyph in its own patch; return the patches, their upper left pixels, and the image of each."""
    strokes = sample_strokes([glyph for string in strings for glyph in string.text], random, variation)
    middles_Nx2 = np.concatenate([string.glyph_centers for string in strings])
    turns_N = np.concatenate([string.glyph_angles for string in strings])
    sides_N = np.concatenate([np.full(len(string.text), string.glyph_size) for string in strings])
    rows = [row for row, string in enumerate(strings) for _ in string.text]
    # However it is turned, a glyph that is drawn a little too large lies within.
    patch = int(np.ceil(1.6 * text_renderer.glyph_size_range[1])) + 2
    corners_Nx2 = np.floor(middles_Nx2 - patch / 2).astype(int)
    cos, sin = np.cos(turns_N), np.sin(turns_N)
    turned_Nx2x2 = np.stack([np.stack([cos, -sin], axis=-1), np.stack([sin, cos], axis=-1)], axis=1)
    scale_N = sides_N / patch
    middle_Nx1x1x2 = ((middles_Nx2 - corners_Nx2) / patch)[:, None, None]
    segments = np.einsum("nij,nsej->nsei", turned_Nx2x2, strokes.segments_NxSx2x2 - 0.5)
    placed = (scale_N[:, None, None, None] * segments + middle_Nx1x1x2).astype(np.float32)
    squares = rasterize_strokes(placed, strokes.filled_N, (strokes.thickness_N * scale_N).astype(np.float32), patch)
    return squares, [(int(x), int(y)) for x, y in corners_Nx2], rows
