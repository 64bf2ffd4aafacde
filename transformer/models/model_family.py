"""ModelFamily, which a model's module exports as FAMILY, and PublishedSize, a published model of a family."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from transformer.attention.sites import Site
from transformer.layers.functional_module import FunctionalModule, Module, ParameterBuilder, Precision
from transformer.logical_axes import Placement
from transformer.models.model import Model
from transformer.models.task_interface import (
    InputSpec,
    Modality,
    Signature,
    TaskInterface,
    check_max_length,
    predicts_next_tokens,
)

# The parts of transformer.layers.embedding_and_head, relative positions that all layers share, and maps of embeddings.
TOKEN_EMBEDDING_PATTERNS = (
    "embedding/*",
    "*positions/*",
    "join/*",
    "types/*",
    "*embedding_norm/*",
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
            image = InputSpec(self._image_shape(1), jnp.float32, Modality.IMAGE)
            return TaskInterface({"image": image}, {"classes": self.vocab_size})
        return TaskInterface({}, dict.fromkeys(("tokens", "joint"), self.vocab_size), pad_id=0, bos_id=1, eos_id=2)

    def batch_shapes(self, rows: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Return the shapes of a batch of `rows` examples of the whole context, or of images."""
        if self.image_size is not None:
            return {"image": jax.ShapeDtypeStruct(self._image_shape(rows), jnp.float32)}
        return dict.fromkeys(
            ("tokens", "source", "target"), jax.ShapeDtypeStruct((rows, self.context_length), jnp.int32)
        )

    def _image_shape(self, rows: int) -> tuple[int, ...]:
        assert self.image_size is not None
        return rows, self.image_size, self.image_size, 3


def no_attention(config: Any, interface: TaskInterface) -> tuple[Site, ...]:
    """Return the attention sites of a model without attention: none."""
    return ()


def fits_every_task(config: Any, interface: TaskInterface) -> None:
    """Accept every task whose signature the family has."""


def configured_max_length(config: Any) -> int | None:
    """Return `config.max_length`, the number of positions; None for a config without it, or if it is 0."""
    return getattr(config, "max_length", None) or None


def unlimited_length(config: Any) -> None:
    """Return the number of positions of a model of sequences of any length: None."""


def forward_alone(config: Any, interface: TaskInterface) -> tuple[str, ...]:
    """Return the method that uses all parameters once in most families, `forward`."""
    return ("forward",)


def hidden_for_next_tokens(config: Any, interface: TaskInterface) -> tuple[str, ...]:
    """Return `hidden` for a task of next tokens, since `forward` of one that classifies too gives the classes alone."""
    return ("hidden" if predicts_next_tokens(interface.vocabularies) else "forward",)


@dataclasses.dataclass(frozen=True)
class ModelFamily:
    """A model family: its config, its module and what it predicts; exported as FAMILY by the family's file.

    Attributes:
        config_class: The dataclass of its `config.model` section.
        module: Its module, made from the config, the task's interface and a ParameterBuilder.
        signatures: The inputs and outputs that the family can be trained on.
        sites: The attention sites of a config for a task; by default none. It raises UserError if it finds that the
            task does not fit, such as images whose sides the strides do not divide.
        check: Raises UserError if a config and a task do not fit, beyond their signature and length.
        max_length: The number of positions of a config, which no sequence of a task may exceed; by default
            `config.max_length` where it is given.
        forward_methods: `Model.forward_methods` of a config for a task; by default `forward`.
        logical_axes: Logical axes of its parameters that `transformer.logical_axes` does not know, each with the mesh
            axes along which it is sharded (none: replicated).
        sizes: Its published sizes by name, for the key `config.model.size`.
        check_ring_attention_placement: Raises UserError, before anything is traced, if the placement on devices needs
            ring attention and the model's attention does not support it; None if every placement is supported.
        embedding_patterns: Patterns of the parameters that come before the first stacked layer, which layer-wise
            learning rates treat as the lowest layer.
    """

    config_class: type
    module: Callable[[Any, TaskInterface, ParameterBuilder], Module]
    signatures: frozenset[Signature] = frozenset()
    sites: Callable[[Any, TaskInterface], tuple[Site, ...]] = no_attention
    check: Callable[[Any, TaskInterface], None] = fits_every_task
    max_length: Callable[[Any], int | None] = configured_max_length
    forward_methods: Callable[[Any, TaskInterface], tuple[str, ...]] = forward_alone
    logical_axes: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    sizes: Mapping[str, PublishedSize] = dataclasses.field(default_factory=dict)
    check_ring_attention_placement: Callable[[Any, Placement], None] | None = None
    embedding_patterns: tuple[str, ...] = TOKEN_EMBEDDING_PATTERNS

    def build(self, config: Any, interface: TaskInterface, precision: Precision) -> Model:
        """Build the model of a config for a task.

        Raises:
            UserError: If the config and the task do not fit, or if the task's sequences are longer than the model's
                number of positions.
        """
        self.check(config, interface)
        max_length = self.max_length(config)
        if max_length is not None:
            check_max_length(max_length, interface)
        sites = self.sites(config, interface)  # which refuses some tasks that the module could not be made for
        return Model(
            functional=FunctionalModule(functools.partial(self.module, config, interface), precision),
            sites=sites,
            max_length=max_length,
            forward_methods=self.forward_methods(config, interface),
            width_ratio=getattr(config, "width_ratio", 1.0),
        )
