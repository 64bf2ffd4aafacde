"""Captions of drawn scenes: every item by color, shape and place, in reading order."""

from collections.abc import Sequence

from transformer.data.scenes import COLUMNS, ROWS, Item, SceneKind

COMMA = ","


def words(kind: SceneKind) -> tuple[str, ...]:
    """All words that a caption can say."""
    return (COMMA, *kind.colors, *kind.shapes, *ROWS, *COLUMNS)


def longest(kind: SceneKind) -> int:
    """The most words that a caption has: four an item, with commas between."""
    return 5 * kind.most - 1


def caption(kind: SceneKind, items: Sequence[Item]) -> tuple[str, ...]:
    """The words that name the items of a scene of three by three cells, row by row: "red circle top left , ..."."""
    said: list[str] = []
    for item in sorted(items):
        said += [*((COMMA,) if said else ()), item.color, item.shape, *kind.place(item.cell).split()]
    return tuple(said)


def nouns(items: Sequence[Item]) -> tuple[tuple[int, int], ...]:
    """At which word of the caption each item's shape is named, and the cell where it lies."""
    return tuple((5 * number + 1, item.cell) for number, item in enumerate(sorted(items)))


def scene(kind: SceneKind, text: str) -> tuple[Item, ...]:
    """The items of a description such as "red circle top left, blue star bottom right", row by row.

    Raises:
        ValueError: One line that says what is wrong, for words that name no item and for a scene that `kind` does not
            have.
    """
    items = [_item(kind, part.split()) for part in text.replace(COMMA, f" {COMMA} ").split(COMMA)]
    if not kind.fewest <= len(items) <= kind.most:
        raise ValueError(f"it has {len(items)} items, and scenes have {kind.fewest} to {kind.most}")
    for what, seen in (("cell", {item.cell for item in items}), ("kind", {item[1:] for item in items})):
        if len(seen) < len(items):
            raise ValueError(f"two of its items are of one {what}")
    return tuple(sorted(items))


def _item(kind: SceneKind, said: Sequence[str]) -> Item:
    """One item by color, shape, row and column."""
    groups = (("color", kind.colors), ("shape", kind.shapes), ("row", ROWS), ("column", COLUMNS))
    if len(said) != len(groups):
        raise ValueError(f"{' '.join(said)!r} is no item: say its color, shape, row and column")
    for word, (what, known) in zip(said, groups, strict=True):
        if word not in known:
            raise ValueError(f"{word!r} is no {what}: they are {', '.join(known)}")
    color, shape, row, column = said
    return Item(kind.side * ROWS.index(row) + COLUMNS.index(column), shape, color)
