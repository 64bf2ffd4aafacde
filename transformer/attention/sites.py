"""What a map's axes mean: all that the store and the page know of a model family."""

import dataclasses
import enum


class AxisKind(enum.Enum):
    """What one position of an axis is."""

    TOKENS = "tokens"
    GRID = "grid"
    FRAMES = "frames"
    POINTS = "points"
    STEPS = "steps"


@dataclasses.dataclass(frozen=True)
class Axis:
    """One side of a map: its name (which labels refer to) and what its positions are.

    A GRID has `shape` (rows, columns) patches, row by row, of `stride` pixels a side; FRAMES lie `stride` seconds
    apart. The first of them begins at `offset`, in pixels or seconds, and stands behind `leading` positions that are
    none, such as a class token.

    Errors: ValueError for a grid without a shape, or a stride that is not positive.
    """

    name: str
    kind: AxisKind = AxisKind.TOKENS
    shape: tuple[int, int] | None = None
    stride: float = 1.0
    offset: float = 0.0
    leading: int = 0

    def __post_init__(self) -> None:
        if (self.kind is AxisKind.GRID) != (self.shape is not None):
            raise ValueError(f"axis {self.name!r} is of kind {self.kind.value} with shape={self.shape}: a grid has one")
        if self.stride <= 0 or self.leading < 0:
            raise ValueError(
                f"axis {self.name!r} has stride={self.stride}, leading={self.leading}: they must be > 0 and >= 0"
            )


@dataclasses.dataclass(frozen=True)
class Site:
    """One place in a model where attention happens, such as "decoder/cross".

    `layers` and `heads` name the real layers and heads; `causal` says that no query sees a later key.
    """

    name: str
    query: Axis
    key: Axis
    layers: tuple[str, ...]
    heads: tuple[str, ...]
    causal: bool = False
