"""What a page of claims can show of figures: tables, line charts and heat maps, as values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table; numbers are given as they are to be read, such as "0.984 ± 0.003"."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Series:
    """A line of a chart: its points, and the lower and upper ends of its band if it has one."""

    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


@dataclass(frozen=True, kw_only=True)
class LineChart:
    """Lines over one axis; marks are shown where a line has at most 30 points."""

    caption: str
    x_label: str
    y_label: str
    series: Mapping[str, Series]
    x_scale: Literal["linear", "log"] = "linear"
    y_scale: Literal["linear", "log"] = "linear"


@dataclass(frozen=True, kw_only=True)
class HeatMap:
    """A matrix of values from 0 to its largest, with a label for each row and column."""

    caption: str
    values: Sequence[Sequence[float]]
    row_labels: Sequence[str]
    column_labels: Sequence[str]
    row_axis: str = ""
    column_axis: str = ""


Exhibit = Table | LineChart | HeatMap
