"""Synthetic scenes: colored items in the cells of a square grid, drawn as small images."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, UInt8

from transformer.data.synthetic_glyphs import DEFAULT_VARIATION, GLYPHS, SHAPES, GlyphVariation, draw_glyphs

COLORS: dict[str, tuple[int, int, int]] = {
    "red": (226, 60, 52),
    "green": (62, 178, 78),
    "blue": (66, 108, 230),
    "yellow": (236, 206, 64),
    "pink": (238, 128, 190),
    "white": (240, 240, 240),
}
# The names of the rows and columns of a grid of three.
ROWS, COLUMNS = ("top", "middle", "bottom"), ("left", "center", "right")
_GROUND, _GROUND_SPREAD, _COLOR_SPREAD, _NOISE = 46.0, 14.0, 14.0, 6.0


class SceneItem(NamedTuple):
    """An item of a scene.

    Attributes:
        cell_index: Its cell, counted row by row from 0.
        shape: The name of its glyph.
        color: The name of its color.
    """

    cell_index: int
    shape: str
    color: str


@dataclasses.dataclass(frozen=True)
class SceneGenerator:
    """Generates scenes on a square grid.

    No two items of a scene have the same shape and the same color.

    Attributes:
        grid_size: Cells on a side of the grid.
        cell_pixels: Pixels on a side of a cell.
        min_items: The smallest number of items.
        max_items: The largest number of items.
        shapes: The names of the glyphs to draw.
        colors: The names of their colors.
        one_of_each: Whether items differ in both shape and color.

    Raises:
        ValueError: If a value is out of range, or there is no glyph or color of a name.
    """

    grid_size: int = 3
    cell_pixels: int = 16
    min_items: int = 2
    max_items: int = 3
    shapes: tuple[str, ...] = tuple(SHAPES)
    colors: tuple[str, ...] = tuple(COLORS)
    one_of_each: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.min_items <= self.max_items <= self.grid_size**2:
            raise ValueError(
                f"min_items={self.min_items}, max_items={self.max_items} must rise, from 1 to {self.grid_size**2} cells"
            )
        if unknown := [*set(self.shapes) - set(GLYPHS), *set(self.colors) - set(COLORS)]:
            raise ValueError(f"shapes and colors name {sorted(unknown)}, which no glyph or color is called")
        room = min(len(self.shapes), len(self.colors)) if self.one_of_each else len(self.shapes) * len(self.colors)
        if self.max_items > room:
            raise ValueError(f"max_items={self.max_items} items cannot all differ: there are {room} kinds")

    @property
    def image_size(self) -> int:
        """Pixels on a side of the image."""
        return self.grid_size * self.cell_pixels

    def draw(self, random: np.random.Generator) -> tuple[SceneItem, ...]:
        """Sample the items of one scene, row by row."""
        count = int(random.integers(self.min_items, self.max_items + 1))
        cells = np.sort(random.permutation(self.grid_size**2)[:count])
        if self.one_of_each:
            shapes = random.permutation(len(self.shapes))[:count]
            colors = random.permutation(len(self.colors))[:count]
        else:
            kinds = random.permutation(len(self.shapes) * len(self.colors))[:count]
            shapes, colors = np.divmod(kinds, len(self.colors))
        items = zip(cells, shapes, colors, strict=True)
        return tuple(SceneItem(int(cell), self.shapes[shape], self.colors[color]) for cell, shape, color in items)

    def place(self, cell: int) -> str:
        """Describe the position of a cell in words; for grids of three by three only."""
        row, column = divmod(cell, self.grid_size)
        return f"{ROWS[row]} {COLUMNS[column]}"


def render_scenes(
    kind: SceneGenerator,
    scenes: Sequence[Sequence[SceneItem]],
    random: np.random.Generator,
    variation: GlyphVariation = DEFAULT_VARIATION,
) -> UInt8[np.ndarray, "B size size 3"]:
    """Render scenes as images, with random variation of items, colors and background and noise on every pixel.

    Args:
        kind: The generator of the scenes.
        scenes: The items of each scene.
        random: The random generator.
        variation: How much the drawings of an item vary.
    """
    names = [item.shape for items in scenes for item in items]
    colors = np.array([COLORS[item.color] for items in scenes for item in items], np.float32).reshape(-1, 3)
    colors += random.uniform(-_COLOR_SPREAD, _COLOR_SPREAD, colors.shape).astype(np.float32)
    shares = draw_glyphs(names, kind.cell_pixels, random, variation)
    ground = _GROUND + random.uniform(-_GROUND_SPREAD, _GROUND_SPREAD, (len(scenes), 1, 1, 3))
    images = np.broadcast_to(ground, (len(scenes), kind.image_size, kind.image_size, 3)).astype(np.float32)
    number = 0
    for image, items in zip(images, scenes, strict=True):
        for item in items:
            row, column = (kind.cell_pixels * place for place in divmod(item.cell_index, kind.grid_size))
            cell = image[row : row + kind.cell_pixels, column : column + kind.cell_pixels]
            cell += shares[number][..., None] * (colors[number] - cell)
            number += 1
    return _to_pixels(images + random.normal(0, _NOISE, images.shape).astype(np.float32))


def _to_pixels(images: Float[np.ndarray, "*B"]) -> UInt8[np.ndarray, "*B"]:
    return np.clip(np.round(images), 0, 255).astype(np.uint8)
