"""ModelFamily, which a model's module exports as FAMILY, and PublishedSize, a published model of a family."""

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
    """A published model, which `config.model.size` can name.

    Attributes:
        family: The name of its family.
        config_values: The config keys that it fixes: its architecture, not its training.
        vocab_size: The size of the vocabulary, or the number of classes of an image model, for counting parameters.
        context_length: The number of positions for counting FLOPs.
        citation: The source.
        published_parameters: The number of parameters that the source gives; None if it gives none.
        training_flops: The training FLOPs that the source gives; None if it gives none.
        training_tokens: The training tokens that the source gives; None if it gives none.
        notes: What differs from the source.
        count_overrides: Other config keys for counting parameters, if the published number leaves out a head.
        image_size: The height and width of its input images in pixels; None for a model of tokens.
    """

    family: str
    config_values: Mapping[str, Any]
    vocab_size: int
    context_length: int
    citation: str
    published_parameters: float | None = None
    training_flops: float | None = None
    training_tokens: float | None = None
    notes: tuple[str, ...] = ()
    count_overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    image_size: int | None = None

    @property
    def task_interface(self) -> TaskInterface:
        """The interface of a task with this vocabulary, or with images of this size."""
        if self.image_size is not None:
            image = InputSpec(self._image(1), jnp.float32, Modality.IMAGE)
            return TaskInterface({"image": image}, {"classes": self.vocab_size})
        return TaskInterface({}, dict.fromkeys(("tokens", "joint"), self.vocab_size), pad_id=0, bos_id=1, eos_id=2)

    def batch_shapes(self, rows: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Return the shapes of a batch of `rows` examples of the whole context, or of images."""
        if self.image_size is not None:
            return {"image": jax.ShapeDtypeStruct(self._image(rows), jnp.float32)}
        return dict.fromkeys(
            ("tokens", "source", "target"), jax.ShapeDtypeStruct((rows, self.context_length), jnp.int32)
        )

    def _image(self, rows: int) -> tuple[int, ...]:
        assert self.image_size is not None
        return rows, self.image_size, self.image_size, 3


@dataclasses.dataclass(frozen=True)
class ModelFamily:
    """A model family: its config, its builder and what it predicts; exported as FAMILY by the family's module.

    Attributes:
        config_class: The dataclass of its `config.model` section.
        build: Makes the model from the config, the task's interface and the precision.
        signatures: The inputs and outputs that the family can be trained on.
        logical_axes: Logical axes of its parameters that `transformer.logical_axes` does not know, each with the mesh
            axes along which it is sharded (none: replicated).
        sizes: Its published sizes by name, for the key `config.model.size`.
        check_ring_attention_placement: Raises UserError, before anything is traced, if the placement on devices needs
            ring attention and the model's attention does not support it; None if every placement is supported.
        embedding_patterns: Patterns of the parameters that come before the first stacked layer, which layer-wise
            learning rates treat as the lowest layer.
    """

    config_class: type
    build: Callable[[Any, TaskInterface, Precision], Model]
    signatures: frozenset[Signature] = frozenset()
    logical_axes: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    sizes: Mapping[str, PublishedSize] = dataclasses.field(default_factory=dict)
    check_ring_attention_placement: Callable[[Any, Placement], None] | None = None
    embedding_patterns: tuple[str, ...] = TOKEN_EMBEDDING_PATTERNS
