"""Captions of synthetic scenes: the color, shape and position of every item, in reading order."""

from collections.abc import Sequence

from transformer.data.synthetic_scenes import COLUMNS, ROWS, SceneGenerator, SceneItem

COMMA = ","


def caption_vocabulary(scene_generator: SceneGenerator) -> tuple[str, ...]:
    """Return the vocabulary of the captions."""
    return (COMMA, *scene_generator.colors, *scene_generator.shapes, *ROWS, *COLUMNS)


def max_caption_length(scene_generator: SceneGenerator) -> int:
    """Return the number of words of the longest caption: four an item, and commas between items."""
    return 5 * scene_generator.max_items - 1


def write_caption(scene_generator: SceneGenerator, items: Sequence[SceneItem]) -> tuple[str, ...]:
    """Caption a scene of 3 x 3 cells, row by row: "red circle top left , ...".

    Args:
        scene_generator: The generator of scenes, which names the places.
        items: The items of the scene.

    Returns:
        The words.
    """
    words: list[str] = []
    for item in sorted(items):
        words += [*((COMMA,) if words else ()), item.color, item.shape, *scene_generator.place(item.cell_index).split()]
    return tuple(words)


def noun_positions(items: Sequence[SceneItem]) -> tuple[tuple[int, int], ...]:
    """Return, for each item, the index of its noun in the caption and the cell where it lies."""
    return tuple((5 * number + 1, item.cell_index) for number, item in enumerate(sorted(items)))


def parse_scene(scene_generator: SceneGenerator, text: str) -> tuple[SceneItem, ...]:
    """Parse a description such as "red circle top left, blue star bottom right".

    Args:
        scene_generator: The generator of scenes, which limits the number of items.
        text: The description.

    Returns:
        The items, row by row.

    Raises:
        ValueError: If a part describes no item, there are too few or too many items, or two are of one cell or kind.
            The message is one line.
    """
    items = [
        _parse_scene_item(scene_generator, part.split()) for part in text.replace(COMMA, f" {COMMA} ").split(COMMA)
    ]
    if not scene_generator.min_items <= len(items) <= scene_generator.max_items:
        raise ValueError(
            f"it has {len(items)} items, and scenes have {scene_generator.min_items} to {scene_generator.max_items}"
        )
    for what, distinct in (("cell", {item.cell_index for item in items}), ("kind", {item[1:] for item in items})):
        if len(distinct) < len(items):
            raise ValueError(f"two of its items are of one {what}")
    return tuple(sorted(items))


def _parse_scene_item(scene_generator: SceneGenerator, words: Sequence[str]) -> SceneItem:
    """Parse the color, shape, row and column of one item."""
    groups = (("color", scene_generator.colors), ("shape", scene_generator.shapes), ("row", ROWS), ("column", COLUMNS))
    if len(words) != len(groups):
        raise ValueError(f"{' '.join(words)!r} is no item: say its color, shape, row and column")
    for word, (what, allowed) in zip(words, groups, strict=True):
        if word not in allowed:
            raise ValueError(f"{word!r} is no {what}: they are {', '.join(allowed)}")
    color, shape, row, column = words
    return SceneItem(scene_generator.grid_size * ROWS.index(row) + COLUMNS.index(column), shape, color)
