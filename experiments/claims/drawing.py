"""Exhibits as HTML: tables, and charts and heat maps as SVG in the colors of the theme, without a script."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from experiments.claims.exhibits import Exhibit, HeatMap, LineChart, Series, Table
from transformer.pages.template import escape_html

# In units of the picture, which is shown about as wide as it is in pixels.
WIDTH, HEIGHT = 380, 240
LETTER_WIDTH = 6.2  # of the labels, about
TOP, BOTTOM, RIGHT = 24, 40, 14
MAX_TICKS = 6
MAX_MARKED_POINTS = 30
NUM_SERIES_COLORS = 8
NUM_HEAT_LEVELS = 20
MAX_CELL, MAX_WRITTEN_CELLS = 34, 150
MAX_LABEL = 130
MAX_UNBROKEN_CELL = 24
SCALE_HEIGHT = 26


def draw_exhibit(exhibit: Exhibit) -> str:
    """Return the HTML of an exhibit."""
    match exhibit:
        case Table():
            return draw_table(exhibit)
        case LineChart():
            return draw_line_chart(exhibit)
        case HeatMap():
            return draw_heat_map(exhibit)


def draw_table(table: Table) -> str:
    """Return a table as HTML."""
    head = "".join(f'<th scope="col">{escape_html(column)}</th>' for column in table.columns)
    rows = []
    for first, *cells in table.rows:
        data = "".join(f"<td{_wrapping(cell)}>{escape_html(cell)}</td>" for cell in cells)
        rows.append(f'<tr><th scope="row"{_wrapping(first)}>{escape_html(first)}</th>{data}</tr>')
    return (
        f'<figure class="exhibit">{_caption(table.caption)}<div class="scroll" tabindex="0"><table><thead><tr>{head}'
        f"</tr></thead><tbody>{''.join(rows)}</tbody></table></div></figure>"
    )


def _wrapping(cell: str) -> str:
    """Return the class of a cell that may take several lines."""
    return ' class="long"' if len(cell) > MAX_UNBROKEN_CELL else ""


@dataclass(frozen=True)
class Axis:
    """An axis: its ticks, and where a value stands on it, from 0 to 1."""

    ticks: Sequence[float]
    place: Callable[[float], float]


def linear_axis(values: Iterable[float]) -> Axis:
    """Return an axis around values, from 0 if that is near them."""
    numbers = list(values)
    low, high = min(numbers), max(numbers)
    if 0 < low < 0.4 * high:
        low = 0.0
    if 0.4 * low < high < 0:
        high = 0.0
    if low == high:
        margin = abs(low) / 2 or 1.0
        low, high = low - margin, high + margin
    rough_step = (high - low) / MAX_TICKS
    power = 10.0 ** math.floor(math.log10(rough_step))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough_step * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = [round(index * step, 12) for index in range(first, last + 1)]
    return Axis(ticks, lambda value: (value - ticks[0]) / (ticks[-1] - ticks[0]))


def logarithmic_axis(values: Iterable[float], *, at_values: bool = False) -> Axis:
    """Return an axis around positive values; `at_values` puts the ticks at the values themselves if they are few."""
    numbers = sorted({value for value in values if value > 0})
    low, high = math.log10(numbers[0]), math.log10(numbers[-1])
    if low == high:
        low, high = low - 0.5, high + 0.5
    if at_values and len(numbers) <= MAX_TICKS:
        ticks = list(numbers)
    else:
        for factors in ((1,), (1, 3), (1, 2, 5)):
            ticks = [
                factor * 10.0**power for power in range(math.floor(low), math.ceil(high) + 1) for factor in factors
            ]
            ticks = [tick for tick in ticks if low - 1e-9 <= math.log10(tick) <= high + 1e-9]
            if len(ticks) > 2:
                break
        ticks = ticks[:: math.ceil(len(ticks) / MAX_TICKS)] if ticks else [numbers[0], numbers[-1]]
    return Axis(ticks, lambda value: (math.log10(value) - low) / (high - low))


def draw_line_chart(chart: LineChart) -> str:
    """Return a chart as HTML: caption, legend and SVG."""
    lines = {name: _drawable(series, chart) for name, series in chart.series.items()}
    lines = {name: points for name, points in lines.items() if points}
    heights = [value for points in lines.values() for point in points for value in point[1:] if value is not None]
    x_values = [point[0] for points in lines.values() for point in points]
    x_axis = logarithmic_axis(x_values, at_values=True) if chart.x_scale == "log" else linear_axis(x_values)
    y_axis = logarithmic_axis(heights) if chart.y_scale == "log" else linear_axis(heights)
    margin = 12 + LETTER_WIDTH * max(len(format_number(tick)) for tick in y_axis.ticks)

    def place_x(value: float) -> float:
        return margin + x_axis.place(value) * (WIDTH - RIGHT - margin)

    def place_y(value: float) -> float:
        return HEIGHT - BOTTOM - y_axis.place(value) * (HEIGHT - BOTTOM - TOP)

    parts = []
    for tick in y_axis.ticks:
        y = place_y(tick)
        parts.append(f'<line class="grid" x1="{margin:.1f}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(format_number(tick), margin - 6, y + 4, "tick", "end"))
    last_end = -math.inf
    for tick in x_axis.ticks:
        label, x = format_number(tick), place_x(tick)
        half_width = LETTER_WIDTH * len(label) / 2
        parts.append(
            f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{HEIGHT - BOTTOM}" y2="{HEIGHT - BOTTOM + 4}"/>'
        )
        middle = min(x, WIDTH - half_width)
        if middle - half_width > last_end + 4:
            parts.append(_text(label, middle, HEIGHT - BOTTOM + 16, "tick", "middle"))
            last_end = middle + half_width
    logarithmic = " (log)" if chart.x_scale == "log" else ""
    parts.append(
        _text(f"{chart.x_label}{logarithmic}", (margin + WIDTH - RIGHT) / 2, HEIGHT - 6, "axis-name", "middle")
    )
    parts.append(_text(chart.y_label + (" (log)" if chart.y_scale == "log" else ""), 2, 12, "axis-name", "start"))
    # Bands first: a line is never under the band of another series.
    parts += [_band(points, _ink(index), place_x, place_y) for index, points in enumerate(lines.values())]
    for index, (name, points) in enumerate(lines.items()):
        parts.append(_line(name, points, _ink(index), place_x, place_y))
    entries = [
        f'<span class="entry"><svg class="sample" width="26" height="8" aria-hidden="true">'
        f'<path class="stroke {_ink(index)}" d="M1 4H25"/></svg>{escape_html(name)}</span>'
        for index, name in enumerate(lines)
    ]
    legend = f'<div class="entries">{"".join(entries)}</div>' if len(entries) > 1 else ""
    return (
        f'<figure class="exhibit picture">{_caption(chart.caption)}{legend}'
        f"{_svg(HEIGHT, f'{chart.y_label} over {chart.x_label}', parts)}</figure>"
    )


Point = tuple[float, float, float | None, float | None]  # x, y, and the ends of the band


def _drawable(series: Series, chart: LineChart) -> list[Point]:
    """Return the points of a series that its axes can show."""
    lows = series.low if series.low is not None else [None] * len(series.x)
    highs = series.high if series.high is not None else [None] * len(series.x)
    points = []
    for x, y, low, high in zip(series.x, series.y, lows, highs, strict=True):
        if (chart.x_scale == "log" and x <= 0) or (chart.y_scale == "log" and y <= 0):
            continue
        if chart.y_scale == "log" and low is not None and low <= 0:
            low = y  # a band that reaches 0 has no lower end on this axis
        points.append((x, y, low, high))
    return points


def _ink(index: int) -> str:
    number = index % NUM_SERIES_COLORS
    return f"series-{number} dash-{number}"


def _band(points: Sequence[Point], ink: str, place_x: Callable[..., float], place_y: Callable[..., float]) -> str:
    upper = [f"{place_x(x):.1f} {place_y(high):.1f}" for x, _, _, high in points if high is not None]
    lower = [f"{place_x(x):.1f} {place_y(low):.1f}" for x, _, low, _ in reversed(points) if low is not None]
    if not upper or not lower:
        return ""
    return f'<path class="band {ink}" d="M{"L".join([*upper, *lower])}Z"/>'


def _line(
    name: str, points: Sequence[Point], ink: str, place_x: Callable[..., float], place_y: Callable[..., float]
) -> str:
    places = [f"{place_x(x):.1f} {place_y(y):.1f}" for x, y, *_ in points]
    parts = [f'<path class="stroke {ink}" d="M{"L".join(places)}"/>']
    if len(points) <= MAX_MARKED_POINTS:
        for x, y, low, high in points:
            band = "" if low is None or high is None else f" ({format_number(low)} to {format_number(high)})"
            hint = escape_html(f"{name}: {format_number(y)}{band} at {format_number(x)}")
            place = f'cx="{place_x(x):.1f}" cy="{place_y(y):.1f}" r="3.4"'
            parts.append(f'<circle class="marker {ink}" {place}><title>{hint}</title></circle>')
    return "".join(parts)


def draw_heat_map(heat_map: HeatMap) -> str:
    """Return a heat map as HTML: caption and SVG, with the scale below."""
    num_columns, num_rows = len(heat_map.column_labels), len(heat_map.row_labels)
    margin = 8 + min(MAX_LABEL, LETTER_WIDTH * max(map(len, heat_map.row_labels)))
    margin += 16 if heat_map.row_axis else 0
    cell = min(MAX_CELL, (WIDTH - margin - 2) / num_columns)
    longest = LETTER_WIDTH * max(map(len, heat_map.column_labels))
    upright = longest + 4 > cell
    labels_height = min(MAX_LABEL, longest) + 8 if upright else 18
    top = labels_height + (18 if heat_map.column_axis else 0)
    largest = max((value for row in heat_map.values for value in row), default=0.0)
    are_written = num_columns * num_rows <= MAX_WRITTEN_CELLS and cell >= 24
    parts = []
    if heat_map.column_axis:
        parts.append(_text(heat_map.column_axis, margin + num_columns * cell / 2, 12, "axis-name", "middle"))
    if heat_map.row_axis:
        middle = top + num_rows * cell / 2
        parts.append(
            _text(heat_map.row_axis, 11, middle, "axis-name", "middle", f' transform="rotate(-90 11 {middle:.1f})"')
        )
    # Names that are closer than lines of text are written for some columns and rows.
    every = math.ceil(12 / cell)
    for column, label in list(enumerate(heat_map.column_labels))[:: every if upright else 1]:
        x, y = margin + (column + 0.5) * cell, top - 6
        words = _shorten(label)
        turn = f' transform="rotate(-90 {x + 4:.1f} {y:.1f})"' if upright else ""
        parts.append(_text(words, x + 4 if upright else x, y, "tick", "start" if upright else "middle", turn))
    for row, label in list(enumerate(heat_map.row_labels))[::every]:
        parts.append(_text(_shorten(label), margin - 6, top + (row + 0.5) * cell + 4, "tick", "end"))
    for row, values in enumerate(heat_map.values):
        for column, value in enumerate(values):
            level = heat_level(value, largest)
            x, y = margin + column * cell, top + row * cell
            hint = f"{heat_map.row_labels[row]}, {heat_map.column_labels[column]}: {format_number(value)}"
            parts.append(
                f'<rect class="heat-{level}" x="{x:.1f}" y="{y:.1f}" width="{cell:.1f}" height="{cell:.1f}">'
                f"<title>{escape_html(hint)}</title></rect>"
            )
            if are_written:
                label = f"{value:.2f}".removeprefix("0") if 0 < value < 1 else f"{value:.3g}"
                tone = "on-heat" if level > NUM_HEAT_LEVELS // 2 else "cell"
                parts.append(_text(label, x + cell / 2, y + cell / 2 + 4, tone, "middle"))
    bottom = top + num_rows * cell
    parts.append(_text("0", margin, bottom + 20, "tick", "start"))
    for level in range(NUM_HEAT_LEVELS + 1):
        x, y = margin + 12 + 5 * level, bottom + 11
        parts.append(f'<rect class="heat-{level}" x="{x:.1f}" y="{y:.1f}" width="5" height="10"/>')
    end = margin + 12 + 5 * (NUM_HEAT_LEVELS + 1)
    parts.append(_text(format_number(largest), end + 5, bottom + 20, "tick", "start"))
    label = f"{heat_map.row_axis or 'rows'} by {heat_map.column_axis or 'columns'}"
    return (
        f'<figure class="exhibit picture">{_caption(heat_map.caption)}'
        f"{_svg(bottom + SCALE_HEIGHT, label, parts)}</figure>"
    )


def heat_level(value: float, largest: float) -> int:
    """Return the level of a value's color; its root runs evenly along the colors, so that faint ones show."""
    share = min(1.0, max(0.0, value / largest)) if largest > 0 else 0.0
    return round(NUM_HEAT_LEVELS * math.sqrt(share))


def heat_styles() -> str:
    """Return the CSS of the levels of heat maps, along the ramp of the theme."""
    rules = []
    for level in range(NUM_HEAT_LEVELS + 1):
        stop, share = divmod(4 * level, NUM_HEAT_LEVELS)
        color = f"var(--ramp-{stop})"
        if share:
            color = f"color-mix(in oklab, {color}, var(--ramp-{stop + 1}) {100 * share / NUM_HEAT_LEVELS:g}%)"
        rules.append(f".heat-{level} {{ fill: {color}; }}")
    return "\n".join(rules)


def format_number(value: float) -> str:
    """Format a number in four digits at most, or as a power of ten if it is very large or small."""
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e6:
        text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    else:
        mantissa, _, power = f"{value:.2e}".partition("e")
        text = f"{mantissa.rstrip('0').rstrip('.')}e{int(power)}"
    return text.replace("-", "−")


def _caption(text: str) -> str:
    return f"<figcaption>{escape_html(text)}</figcaption>"


def _svg(height: float, label: str, parts: Iterable[str]) -> str:
    return (
        f'<svg role="img" aria-label="{escape_html(label)}" viewBox="0 0 {WIDTH} {height:.0f}">{"".join(parts)}</svg>'
    )


def _text(text: str, x: float, y: float, style: str, anchor: str, attributes: str = "") -> str:
    return (
        f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{attributes}>{escape_html(text)}</text>'
    )


def _shorten(text: str) -> str:
    letters = int(MAX_LABEL / LETTER_WIDTH)
    return text if len(text) <= letters else f"{text[: letters - 1]}…"
