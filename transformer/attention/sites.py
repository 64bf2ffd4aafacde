"""What a map's axes mean: all that the store and the page know of a model family."""

import dataclasses
import enum


class AxisKind(enum.Enum):
    """What one position of an axis is."""

    TOKENS = "tokens"
    POINTS = "points"
    STEPS = "steps"


@dataclasses.dataclass(frozen=True)
class Axis:
    """One side of a map: its name (which labels refer to) and what its positions are."""

    name: str
    kind: AxisKind = AxisKind.TOKENS


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
