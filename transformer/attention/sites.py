"""Attention sites and the axes of their maps: all that the map store, the page and evaluations know of a model."""

import dataclasses
import enum
from collections.abc import Iterable


class AxisKind(enum.Enum):
    """What the positions of a map's axis are.

    Attributes:
        TOKENS: Tokens of a text.
        GRID: Patches or cells of an image.
        FRAMES: Frames of audio.
        POINTS: Points of a set.
        STEPS: Steps of an episode or sequence.
        SLOTS: Slots of a memory, or another fixed set, such as a single answer.
        EXPERTS: Experts of a mixture.
    """

    TOKENS = "tokens"
    GRID = "grid"
    FRAMES = "frames"
    POINTS = "points"
    STEPS = "steps"
    SLOTS = "slots"
    EXPERTS = "experts"


class MapValues(enum.Enum):
    """What the numbers of a map are.

    Attributes:
        PROBABILITY: Rows that sum to one, or are zero if no key is visible.
        SAMPLE: One-hot rows of hard attention, one at the sampled key.
        REWEIGHTED: Probabilities multiplied by something else, such as Luong's Gaussian window, or without the part
            of a sink; rows need not sum to one.
    """

    PROBABILITY = "probability"
    SAMPLE = "sample"
    REWEIGHTED = "reweighted"


@dataclasses.dataclass(frozen=True)
class Axis:
    """One side of a map: queries or keys.

    Attributes:
        name: The axis' name, to which labels refer.
        kind: What its positions are. Tokens differ between examples, so that labels name them.
        shape: Rows and columns of a GRID of patches, in row-major order.
        stride: Side of a patch in pixels for a GRID, or the time between frames in seconds for FRAMES.
        offset: Where the first patch or frame begins, in pixels or seconds.
        num_leading_positions: Number of positions before the first patch or frame, such as a class token.
        num_positions: Number of positions where it is the same for every example; such an axis names its positions
            itself. A GRID has its shape instead.
        delayed_axis: For TOKENS that are those of another axis after a begin token, such as what a decoder reads of
            its own source, the name of that axis, from which these are named.

    Raises:
        ValueError: If a grid has no shape or another kind has one, if `stride`, `num_leading_positions` or
            `num_positions` is out of range, or if a grid or tokens have `num_positions`.
    """

    name: str
    kind: AxisKind = AxisKind.TOKENS
    shape: tuple[int, int] | None = None
    stride: float = 1.0
    offset: float = 0.0
    num_leading_positions: int = 0
    num_positions: int | None = None
    delayed_axis: str | None = None

    def __post_init__(self) -> None:
        if (self.kind is AxisKind.GRID) != (self.shape is not None):
            raise ValueError(f"axis {self.name!r} is of kind {self.kind.value} with shape={self.shape}: a grid has one")
        if self.stride <= 0 or self.num_leading_positions < 0:
            raise ValueError(
                f"axis {self.name!r} has stride={self.stride}, num_leading_positions={self.num_leading_positions}: "
                "they must be > 0 and >= 0"
            )
        if self.num_positions is not None and self.kind in (AxisKind.GRID, AxisKind.TOKENS):
            raise ValueError(
                f"axis {self.name!r} of kind {self.kind.value} has num_positions={self.num_positions}: a grid's is its "
                "shape's, labels name tokens"
            )
        if self.num_positions is not None and self.num_positions < 1:
            raise ValueError(f"axis {self.name!r} has num_positions={self.num_positions}: it must be at least 1")

    def names(self) -> tuple[str, ...] | None:
        """The names of the positions where their number is fixed; None where only labels name them."""
        leading = (
            ("class",)
            if self.num_leading_positions == 1
            else tuple(f"class {number}" for number in range(self.num_leading_positions))
        )
        if self.shape is not None:
            rows, columns = self.shape
            return (*leading, *(f"{row},{column}" for row in range(rows) for column in range(columns)))
        if self.num_positions is None:
            return None
        if self.kind is AxisKind.FRAMES:
            return (*leading, *(f"{self.offset + self.stride * number:.2f} s" for number in range(self.num_positions)))
        return (*leading, *(f"{self.kind.value.removesuffix('s')} {number}" for number in range(self.num_positions)))


@dataclasses.dataclass(frozen=True)
class Site:
    """An attention module of a model, such as "decoder/cross".

    Attributes:
        name: The site's name.
        query: The axis of its queries.
        key: The axis of its keys.
        layers: Names of its layers; hops and glimpses count as layers.
        heads: Names of its heads; read and write heads count as heads.
        causal: Whether no query sees a later key.
        values: What the numbers of its maps are.
    """

    name: str
    query: Axis
    key: Axis
    layers: tuple[str, ...]
    heads: tuple[str, ...]
    causal: bool = False
    values: MapValues = MapValues.PROBABILITY


def sites_between(sites: Iterable[Site], query: str, key: str) -> tuple[Site, ...]:
    """The sites whose query and key axes have these names."""
    return tuple(site for site in sites if (site.query.name, site.key.name) == (query, key))
