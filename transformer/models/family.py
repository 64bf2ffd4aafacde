"""What a file of `models/`, or one's own, exports as FAMILY."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from transformer.axes import Placement
from transformer.layers.module import Precision
from transformer.models.contract import Model
from transformer.models.interface import Interface, Signature
from transformer.models.sizes import Size


class Operations(NamedTuple):
    """Floating-point operations of one batch, a multiplication and an addition counting as two.

    `forward`: the matrix products of one forward pass; `recomputed`: those that the backward pass computes again.
    """

    forward: float
    recomputed: float = 0.0


# The parts of transformer.layers.ends, relative positions that all layers share, and maps of embeddings.
OF_TOKENS = ("embedding/*", "*positions/*", "join/*", "types/*", "embedding_norm/*", "*relative/*", "enter_*/*")


@dataclasses.dataclass(frozen=True)
class Family:
    """Everything that the library knows of a family: what a file of `models/`, or one's own, exports as FAMILY.

    `config` is its section's dataclass, `build` makes the model for a task's interface, `serves` says what it predicts
    from what. `operations(config, batch, vocabularies)` counts by formula, from arrays or their shapes; None where
    there is no formula. `logical_axes` are axes of its parameters that `transformer.axes` does not know, with the mesh
    axes along which they are divided (none: whole on every device). `sizes` are its published models by name.
    `check_placement(config, placement)` refuses a placement of arrays on devices that the model cannot have, before
    anything is traced; None where it takes any. `front` are patterns of the parameters that its inputs meet before the
    first of its stacked layers, which layer-wise rates take for the lowest.
    """

    config: type
    build: Callable[[Any, Interface, Precision], Model]
    serves: frozenset[Signature] = frozenset()
    operations: Callable[[Any, Mapping[str, Any], Mapping[str, int]], Operations] | None = None
    logical_axes: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    sizes: Mapping[str, Size] = dataclasses.field(default_factory=dict)
    check_placement: Callable[[Any, Placement], None] | None = None
    front: tuple[str, ...] = OF_TOKENS
