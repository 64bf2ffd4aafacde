"""Tables of signed values as pictures, such as what every head adds to a logit, or what each layer would predict."""

import dataclasses
import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from transformer.config import UserError
from transformer.storage.disk_errors import refuse_unwritable_file
from transformer.storage.paths import parse_path, storage_of

# In pixels. A letter is as wide as in the sans-serif fonts of browsers, on average and rounded up.
CELL_HEIGHT, LETTER_WIDTH, MARGIN, TITLE_HEIGHT, LEGEND_HEIGHT = 24, 7.2, 8, 28, 34
WIDEST_CELL, WIDEST_LABEL, SCALE_WIDTH = 96, 220, 270
MOST_WRITTEN_CELLS = 600  # of more, a cell shows its value only under the pointer
# White is 0. Both hues darken alike, so that a picture printed in gray still shows how large a value is.
POSITIVE_RGB, NEGATIVE_RGB = (35, 74, 159), (158, 60, 20)
Color = tuple[int, int, int]


@dataclasses.dataclass(frozen=True, repr=False)
class HeatMap:
    """A table of signed values as a picture: blue above 0, orange below, the darker the larger.

    A notebook displays it. Every cell tells its row, column and value under the pointer.

    Attributes:
        values_RxC: The value of each row and column; NaN is drawn as an empty cell.
        rows: The name of each row.
        columns: The name of each column.
        title: The title.
        words: A word written in each cell in place of its value; None writes the values.
    """

    values_RxC: Float[np.ndarray, "R C"]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    title: str = ""
    words: tuple[tuple[str, ...], ...] | None = None

    @property
    def svg(self) -> str:
        """The picture."""
        return _draw(self)

    def save(self, path: str | Path) -> Path:
        """Write the picture as an SVG file, print its path and return it.

        Raises:
            UserError: If the name does not end in .svg, or the file cannot be written.
        """
        file = parse_path(path)
        if file.suffix != ".svg":
            raise UserError(f"path={file} must end in .svg")
        with refuse_unwritable_file(file, "path"):
            storage_of(file).replace(file.absolute(), self.svg.encode())
        print(f"Open this picture in a browser: {file}")
        return file

    def _repr_html_(self) -> str:
        return f'<div style="overflow-x:auto">{self.svg}</div>'

    def __repr__(self) -> str:
        return f"HeatMap({self.title!r}: {len(self.rows)} rows, {len(self.columns)} columns)"


def heat_map(
    values: Any,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    *,
    title: str = "",
    words: Sequence[Sequence[str]] | None = None,
) -> HeatMap:
    """Return a picture of values by row and column, by default by layer and head.

    Args:
        values: The values, [row, column].
        rows: The name of each row; by default "layer 0", "layer 1" ...
        columns: The name of each column; by default "head 0", "head 1" ...
        title: The title.
        words: A word for each cell, written in place of its value.

    Raises:
        UserError: If the values are no table, or there are more or fewer names or words than rows and columns.

    Example:
        ```python
        import numpy as np
        from transformer.interpret import heat_map

        heat_map(np.array([[0.3, -0.1], [0.0, 1.2]]), title="loss without a head").save("heads.svg")
        ```
    """
    array = np.asarray(values, np.float64)
    if array.ndim != 2 or not array.size:
        raise UserError(f"values of shape {array.shape} are no table: give [row, column], such as [layer, head]")
    row_names, column_names = (
        tuple(f"{axis} {number}" for number in range(size)) if names is None else tuple(names)
        for axis, size, names in zip(("layer", "head"), array.shape, (rows, columns), strict=True)
    )
    if (len(row_names), len(column_names)) != array.shape:
        raise UserError(
            f"rows={len(row_names)} and columns={len(column_names)} names do not fit values of shape {array.shape}"
        )
    cell_words = None if words is None else tuple(map(tuple, words))
    if cell_words is not None and [len(row) for row in cell_words] != [array.shape[1]] * array.shape[0]:
        raise UserError(f"words must have one word for each value of shape {array.shape}")
    return HeatMap(array, row_names, column_names, title, cell_words)


def _draw(figure: HeatMap) -> str:
    """Return a figure as SVG: title, names of columns and rows, cells, and the scale."""
    texts = _cell_texts(figure)
    longest = max((len(text) for row in texts for text in row), default=0)
    names = max(map(len, figure.columns))
    cell_width = min(WIDEST_CELL, max(CELL_HEIGHT, LETTER_WIDTH * max(longest, min(names, 8)) + 6))
    left = min(WIDEST_LABEL, LETTER_WIDTH * max(map(len, figure.rows)) + MARGIN) + MARGIN
    # Names that are wider than their column stand upright.
    upright = LETTER_WIDTH * names + 4 > cell_width
    head = min(WIDEST_LABEL, LETTER_WIDTH * names + MARGIN) if upright else CELL_HEIGHT
    top = head + (TITLE_HEIGHT if figure.title else MARGIN)
    rows, columns = figure.values_RxC.shape
    bottom = top + CELL_HEIGHT * rows
    width = max(left + cell_width * columns, left + SCALE_WIDTH, LETTER_WIDTH * 1.2 * len(figure.title)) + MARGIN
    limit = _largest(figure.values_RxC)
    parts = [_text(MARGIN, 19, figure.title, weight=600, size=14)] if figure.title else []
    for column, name in enumerate(figure.columns):
        x, label = left + cell_width * (column + 0.5), _shorten(name, head if upright else cell_width)
        turn = f' transform="rotate(-90 {x + 4:.1f} {top - 6:.1f})"' if upright else ""
        parts.append(_text(x + 4 if upright else x, top - 6, label, "start" if upright else "middle", attributes=turn))
    for row, name in enumerate(figure.rows):
        y = top + CELL_HEIGHT * row
        parts.append(_text(left - MARGIN, y + 16, _shorten(name, left - MARGIN), "end"))
        for column, value in enumerate(figure.values_RxC[row]):
            x, color = left + cell_width * column, _color(value, limit)
            words = "" if figure.words is None else f"{figure.words[row][column]}, "
            hint = f"{name}, {figure.columns[column]}: {words}{_number(value, 4)}"
            cell = f'<rect x="{x:.1f}" y="{y}" width="{cell_width:.1f}" height="{CELL_HEIGHT}" fill="rgb{color}"/>'
            cell_text = _shorten(texts[row][column], cell_width - 2)
            ink = "#fff" if sum(color) < 3 * 140 else "#1b1d24"
            label = _text(x + cell_width / 2, y + 16, cell_text, "middle", fill=ink) if cell_text else ""
            parts.append(f"<g>{cell}{label}<title>{html.escape(hint)}</title></g>")
    parts.append(_scale(left, bottom + 12, figure.values_RxC, limit))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width:.0f}" height="{bottom + LEGEND_HEIGHT:.0f}" '
        f'font-family="Inter, Segoe UI, Roboto, Liberation Sans, sans-serif" font-size="12">'
        f"<title>{html.escape(figure.title)}</title>"
        f'<rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>'
    )


def _cell_texts(figure: HeatMap) -> Sequence[Sequence[str]]:
    if figure.words is not None:
        return figure.words
    if figure.values_RxC.size > MOST_WRITTEN_CELLS:
        return [[""] * len(figure.columns)] * len(figure.rows)
    return [[_number(value, 2) for value in row] for row in figure.values_RxC]


def _scale(x: float, y: float, values: Float[np.ndarray, "..."], limit: float) -> str:
    """The colors from the most negative value, or 0 if none is negative, to the most positive one, with both named."""
    first = -8 if np.nanmin(values, initial=0) < 0 else 0
    boxes = (
        f'<rect x="{x + 45 + 10 * place:.0f}" y="{y}" width="10" height="10" fill="rgb{_color(step / 8, 1.0)}"/>'
        for place, step in enumerate(range(first, 9))
    )
    ends = _text(x + 40, y + 9, _number(limit * first / 8, 2), "end")
    return "".join(boxes) + ends + _text(x + 60 + 10 * (8 - first), y + 9, _number(limit, 2))


def _text(
    x: float,
    y: float,
    text: str,
    anchor: str = "start",
    *,
    fill: str = "#1b1d24",
    weight: int = 400,
    size: int = 12,
    attributes: str = "",
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}" font-weight="{weight}" '
        f'font-size="{size}" xml:space="preserve"{attributes}>{html.escape(text)}</text>'
    )


def _shorten(text: str, width: float) -> str:
    letters = max(1, int(width / LETTER_WIDTH))
    return text if len(text) <= letters else f"{text[: letters - 1]}…"


def _number(value: float, digits: int) -> str:
    return "" if np.isnan(value) else f"{value:.{digits}g}".replace("-", "−")


def _largest(values: Float[np.ndarray, "..."]) -> float:
    """The largest finite size of the values, by which colors are scaled; 1 if all are 0."""
    return float(np.abs(values[np.isfinite(values)]).max(initial=0)) or 1.0


def _color(value: float, limit: float) -> Color:
    """White for 0 and NaN; for `limit` and beyond, the full color of the value's sign."""
    if np.isnan(value):
        return 255, 255, 255
    part = min(1.0, abs(value) / limit)
    red, green, blue = (round(255 + part * (full - 255)) for full in (POSITIVE_RGB if value > 0 else NEGATIVE_RGB))
    return red, green, blue
