"""What a map's axes mean: all that the store, the page and the evaluations know of a model family."""

import dataclasses
import enum
from collections.abc import Iterable


class AxisKind(enum.Enum):
    """What one position of an axis is."""

    TOKENS = "tokens"
    GRID = "grid"
    FRAMES = "frames"
    POINTS = "points"
    STEPS = "steps"
    SLOTS = "slots"
    EXPERTS = "experts"


class MapValues(enum.Enum):
    """What the numbers of a map are.

    probability: rows that sum to one, or are zero where there is nothing to see. sample: rows of a hard attention, one
    where the sample fell. reweighted: probabilities times something else, such as Luong's Gaussian window, whose rows
    need not sum to one.
    """

    PROBABILITY = "probability"
    SAMPLE = "sample"
    REWEIGHTED = "reweighted"


@dataclasses.dataclass(frozen=True)
class Axis:
    """One side of a map: its name (which labels refer to) and what its positions are.

    A GRID has `shape` (rows, columns) patches, row by row, of `stride` pixels a side; FRAMES lie `stride` seconds
    apart. The first of them begins at `offset`, in pixels or seconds, and stands behind `leading` positions that are
    none, such as a class token. `size` is the number of positions where every example has as many: such an axis
    names its positions itself (`names`), as a grid does. Tokens differ between examples: labels name them.

    Raises:
        ValueError: For a grid without a shape, a stride that is not positive, or a size of grid or tokens.
    """

    name: str
    kind: AxisKind = AxisKind.TOKENS
    shape: tuple[int, int] | None = None
    stride: float = 1.0
    offset: float = 0.0
    leading: int = 0
    size: int | None = None

    def __post_init__(self) -> None:
        if (self.kind is AxisKind.GRID) != (self.shape is not None):
            raise ValueError(f"axis {self.name!r} is of kind {self.kind.value} with shape={self.shape}: a grid has one")
        if self.stride <= 0 or self.leading < 0:
            raise ValueError(
                f"axis {self.name!r} has stride={self.stride}, leading={self.leading}: they must be > 0 and >= 0"
            )
        if self.size is not None and self.kind in (AxisKind.GRID, AxisKind.TOKENS):
            raise ValueError(
                f"axis {self.name!r} of kind {self.kind.value} has size={self.size}: a grid's is its shape's, labels "
                "name tokens"
            )
        if self.size is not None and self.size < 1:
            raise ValueError(f"axis {self.name!r} has size={self.size}: it must be at least 1")

    def names(self) -> tuple[str, ...] | None:
        """What the positions are called where the axis knows how many it has; None where only labels do."""
        leading = ("class",) if self.leading == 1 else tuple(f"class {number}" for number in range(self.leading))
        if self.shape is not None:
            rows, columns = self.shape
            return (*leading, *(f"{row},{column}" for row in range(rows) for column in range(columns)))
        if self.size is None:
            return None
        if self.kind is AxisKind.FRAMES:
            return (*leading, *(f"{self.offset + self.stride * number:.2f} s" for number in range(self.size)))
        return (*leading, *(f"{self.kind.value.removesuffix('s')} {number}" for number in range(self.size)))


@dataclasses.dataclass(frozen=True)
class Site:
    """One place in a model where attention happens, such as "decoder/cross".

    `layers` and `heads` name the real layers and heads: hops and glimpses are layers, read and write heads are heads.
    `causal` says that no query sees a later key; `values` what the numbers of its maps are.
    """

    name: str
    query: Axis
    key: Axis
    layers: tuple[str, ...]
    heads: tuple[str, ...]
    causal: bool = False
    values: MapValues = MapValues.PROBABILITY


def sites_between(sites: Iterable[Site], query: str, key: str) -> tuple[Site, ...]:
    """The sites whose queries and keys are the positions of the axes of these names."""
    return tuple(site for site in sites if (site.query.name, site.key.name) == (query, key))
