"""Exhibits as HTML and SVG: marks stand where the numbers say, ticks are round, and nothing is drawn outside."""

import math
import xml.etree.ElementTree as ET
from collections.abc import Sequence

import numpy as np
import pytest

from experiments.claims.drawing import draw_exhibit, format_number, heat_level, linear_axis, logarithmic_axis
from experiments.claims.exhibits import Exhibit, HeatMap, LineChart, Series, Table


def parse(exhibit: Exhibit) -> ET.Element:
    """The HTML of an exhibit, which is XML too."""
    return ET.fromstring(draw_exhibit(exhibit))


def texts(element: ET.Element) -> list[str]:
    return [text.strip() for text in element.itertext() if text.strip()]


def chart_of(x: Sequence[float], y: Sequence[float], **changes: object) -> LineChart:
    values = {"caption": "c", "x_label": "x", "y_label": "y", "series": {"one": Series(x, y)}, **changes}
    return LineChart(**values)  # type: ignore[arg-type]


def marks(chart: LineChart) -> np.ndarray:
    """The centers of a chart's marks, a row each."""
    circles = parse(chart).iter("circle")
    return np.array([[float(circle.attrib["cx"]), float(circle.attrib["cy"])] for circle in circles])


@pytest.mark.parametrize(
    ("x", "y", "scales"),
    [
        ((0, 3, 10), (-2.5, 4, 1), ("linear", "linear")),
        ((4, 16, 64, 256), (1e-4, 0.02, 0.3, 3), ("log", "log")),
        ((1, 10, 100, 1000), (5, 6, 7, 9), ("log", "linear")),
        ((1, 2, 3), (1e3, 1e7, 1e5), ("linear", "log")),
    ],
)
def test_marks_stand_where_their_values_are(x: Sequence[float], y: Sequence[float], scales: tuple[str, str]) -> None:
    drawn_places = marks(chart_of(x, y, x_scale=scales[0], y_scale=scales[1]))
    for axis, (values, scale) in enumerate(zip((x, y), scales, strict=True)):
        expected = np.log(values) if scale == "log" else np.asarray(values, float)
        # Equal differences of values are equal differences of places; upward is a smaller y.
        slope, offset = np.polyfit(expected, drawn_places[:, axis], 1)
        np.testing.assert_allclose(slope * expected + offset, drawn_places[:, axis], atol=0.11)
        assert slope > 0 if axis == 0 else slope < 0


def test_a_line_of_many_points_has_no_marks_and_a_band_is_behind_lines() -> None:
    x = list(range(31))
    series = Series(x, [0.5] * 31, [0.4] * 31, [0.6] * 31)
    svg = parse(chart_of([], [], series={"a": series, "b": series})).find("svg")
    assert svg is not None
    assert list(svg.iter("circle")) == []
    paths = [path.attrib["class"].split()[0] for path in svg.iter("path")]
    assert paths == ["band", "band", "stroke", "stroke"]


def test_what_a_logarithmic_axis_cannot_show_is_left_out() -> None:
    assert len(marks(chart_of((0, 1, 10), (1, 0, 2), x_scale="log", y_scale="log"))) == 1
    series = {"one": Series((1, 2), (1.0, 2.0), (-1.0, 1.0), (2.0, 3.0))}
    assert "nan" not in draw_exhibit(chart_of((), (), series=series, y_scale="log"))


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ((0.1, 0.97), [0, 0.2, 0.4, 0.6, 0.8, 1]),
        ((1.39, 1.58), [1.35, 1.4, 1.45, 1.5, 1.55, 1.6]),
        ((3, 3), [1.5, 2, 2.5, 3, 3.5, 4, 4.5]),
        ((0, 0), [-1, -0.5, 0, 0.5, 1]),
        ((-7, -6), [-7, -6.8, -6.6, -6.4, -6.2, -6]),
    ],
)
def test_linear_ticks_are_round_and_around_the_values(values: Sequence[float], ticks: Sequence[float]) -> None:
    axis = linear_axis(values)
    assert axis.ticks == pytest.approx(ticks)
    assert all(0 <= axis.place(value) <= 1 for value in values)


def test_logarithmic_ticks_are_powers_or_the_few_values() -> None:
    assert logarithmic_axis((1e-4, 2)).ticks == pytest.approx([1e-4, 1e-3, 1e-2, 0.1, 1])
    assert logarithmic_axis((4, 64, 16), at_values=True).ticks == [4, 16, 64]
    assert logarithmic_axis((3, 4)).ticks
    assert all(math.isfinite(logarithmic_axis((7,)).place(value)) for value in (7, 70))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.25, "0.25"),
        (1024, "1,024"),
        (-0.5, "−0.5"),
        (1e-4, "1e−4"),
        (3_186_432, "3.19e6"),
        (12.3456, "12.35"),
    ],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert format_number(value) == text


def test_a_heat_map_has_a_cell_for_each_value() -> None:
    values = [[0.0, 0.25], [1.0, 0.01], [0.5, -1.0]]
    heat_map = HeatMap(caption="<m>", values=values, row_labels=("a", "b", "c"), column_labels=("d", "e & f"))
    figure = parse(heat_map)
    cells = [rect for rect in figure.iter("rect") if rect.find("title") is not None]
    assert [rect.findtext("title") for rect in cells] == [
        "a, d: 0",
        "a, e & f: 0.25",
        "b, d: 1",
        "b, e & f: 0.01",
        "c, d: 0.5",
        "c, e & f: −1",
    ]
    levels = [int(rect.attrib["class"].removeprefix("heat-")) for rect in cells]
    assert levels == [round(20 * math.sqrt(max(value, 0))) for row in values for value in row]
    assert heat_level(0.0, 0.0) == 0
    assert "<m>" in texts(figure)


@pytest.mark.parametrize("num_columns", [1, 5, 12, 64])
def test_nothing_is_outside_of_a_picture(num_columns: int) -> None:
    labels = [f"position {number}" for number in range(num_columns)]
    heat_map = HeatMap(
        caption="c",
        values=[[1.0] * num_columns] * num_columns,
        row_labels=labels,
        column_labels=labels,
        row_axis="query",
        column_axis="key",
    )
    svg = parse(heat_map).find("svg")
    assert svg is not None
    *_, width, height = map(float, svg.attrib["viewBox"].split())
    for rect in svg.iter("rect"):
        x, y, wide, high = (float(rect.attrib[name]) for name in ("x", "y", "width", "height"))
        assert x >= 0
        assert y >= 0
        assert x + wide <= width + 0.1
        assert y + high <= height + 0.1


def test_a_table_has_its_cells_and_what_is_text_stays_text() -> None:
    table = Table(caption="c", columns=("name", "value"), rows=[("<b>", "1 & 2"), ("x" * 30, "0.984 ± 0.003")])
    assert texts(parse(table)) == ["c", "name", "value", "<b>", "1 & 2", "x" * 30, "0.984 ± 0.003"]
