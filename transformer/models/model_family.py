"""What a file of `models/`, or one's own, exports as FAMILY, and the published sizes that it may name."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from transformer.layers.functional_module import Precision
from transformer.logical_axes import Placement
from transformer.models.model import Model
from transformer.models.task_interface import InputSpec, Modality, Signature, TaskInterface

# The parts of transformer.layers.embedding_and_head, relative positions that all layers share, and maps of embeddings.
TOKEN_EMBEDDING_PATTERNS = (
    "embedding/*",
    "*positions/*",
    "join/*",
    "types/*",
    "embedding_norm/*",
    "*relative/*",
    "enter_*/*",
)


@dataclasses.dataclass(frozen=True)
class PublishedSize:
    """One published model.

    `values` are the keys of `family`'s config that it fixes: its architecture, nothing of how it is trained.
    `vocabulary` and `context` (positions) are those that its parameters and operations are counted with, and
    `counted` are further keys for the count alone, where the published number leaves a head out. `published` is the
    number of parameters that its source prints; `training_flops` and `training_tokens` likewise, None where it prints
    none. `side` is that of the square color images that it reads, in pixels; `vocabulary` then counts their
    classes, and `context` the patches and tokens of one. `notes` say what differs from the source.
    """

    family: str
    values: Mapping[str, Any]
    vocabulary: int
    context: int
    citation: str
    published: float | None = None
    training_flops: float | None = None
    training_tokens: float | None = None
    notes: tuple[str, ...] = ()
    counted: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    side: int | None = None

    @property
    def interface(self) -> TaskInterface:
        """What a task of this vocabulary, or of images of this size, asks of the model."""
        if self.side is not None:
            image = InputSpec(self._image(1), jnp.float32, Modality.IMAGE)
            return TaskInterface({"image": image}, {"classes": self.vocabulary})
        return TaskInterface({}, dict.fromkeys(("tokens", "joint"), self.vocabulary), pad=0, begin=1, end=2)

    def batch(self, rows: int) -> dict[str, jax.ShapeDtypeStruct]:
        """So many examples of the whole context, or images, as shapes."""
        if self.side is not None:
            return {"image": jax.ShapeDtypeStruct(self._image(rows), jnp.float32)}
        return dict.fromkeys(("tokens", "source", "target"), jax.ShapeDtypeStruct((rows, self.context), jnp.int32))

    def _image(self, rows: int) -> tuple[int, ...]:
        assert self.side is not None
        return rows, self.side, self.side, 3


@dataclasses.dataclass(frozen=True)
class ModelFamily:
    """A model family: its config, its builder and what it predicts; exported as FAMILY by the family's module.

    Attributes:
        config: The dataclass of its `config.model` section.
        build: Makes the model from the config, the task's interface and the precision.
        signatures: The inputs and outputs that the family can be trained on.
        logical_axes: Logical axes of its parameters that `transformer.logical_axes` does not know, each with the mesh
            axes along which it is sharded (none: replicated).
        sizes: Its published sizes by name, for the key `config.model.size`.
        check_placement: Raises UserError for a placement on devices that the model does not support, before anything
            is traced; None if every placement is supported.
        embedding_patterns: Patterns of the parameters that come before the first stacked layer, which layer-wise
            learning rates treat as the lowest layer.
    """

    config: type
    build: Callable[[Any, TaskInterface, Precision], Model]
    signatures: frozenset[Signature] = frozenset()
    logical_axes: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    sizes: Mapping[str, PublishedSize] = dataclasses.field(default_factory=dict)
    check_placement: Callable[[Any, Placement], None] | None = None
    embedding_patterns: tuple[str, ...] = TOKEN_EMBEDDING_PATTERNS
