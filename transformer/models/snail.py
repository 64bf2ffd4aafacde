"""SNAIL: temporal convolutions and causal attention, which learn from the past of an episode (Mishra et al. 2018)."""

import dataclasses
import enum
import math
from collections.abc import Mapping
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from transformer.attention.api import attend
from transformer.attention.capture import Capture, CapturedAttention, capture_for_site
from transformer.attention.masks import Mask
from transformer.attention.sites import Axis, AxisKind, Site
from transformer.config import Config, PositiveInt, TupleLimits, UserError
from transformer.layers.batch_norm import BatchNorm, BatchStatistics
from transformer.layers.convolution import (
    Convolution1D,
    Convolution2D,
    ConvolutionActivation,
    ConvolutionWindow,
    Padding,
)
from transformer.layers.functional_module import Module, ParameterBuilder
from transformer.layers.image_grid_attention import stack_layer_maps
from transformer.layers.linear import Linear
from transformer.logical_axes import with_logical_constraint
from transformer.models.model import Aux, ForwardPass, Inputs
from transformer.models.model_family import ModelFamily
from transformer.models.task_interface import FEW_SHOT_CLASSIFICATION, VECTOR_REGRESSION, TaskInterface

SITE = "episode/attention"
_KERNEL, _POOL = 3, 2  # of the convolutions over images


class BlockKind(enum.Enum):
    """The kind of a block."""

    ATTENTION = "attention"
    CONVOLUTIONS = "convolutions"


class EnabledBlocks(enum.Enum):
    """Which kinds of blocks the stack has, for ablations."""

    BOTH = "both"
    ATTENTION = "attention"
    CONVOLUTIONS = "convolutions"

    def has(self, block: BlockKind) -> bool:
        """Return whether the stack has blocks of this kind."""
        return self is EnabledBlocks.BOTH or self.value == block.value


_OMNIGLOT = (
    BlockKind.ATTENTION,
    BlockKind.CONVOLUTIONS,
    BlockKind.ATTENTION,
    BlockKind.CONVOLUTIONS,
    BlockKind.ATTENTION,
)


@dataclasses.dataclass(frozen=True)
class SnailConfig(Config, path="config.model"):
    """An embedding of every step, a stack of blocks, and a linear output layer; by default the paper's for Omniglot.

    Attributes:
        embedding_width: Features of a step's embedding, by convolutions for an image, by a linear map for a vector.
        channels: Features of each convolution of an image.
        blocks: The kinds of the blocks, in order.
        key_sizes: Features of queries and keys of each attention block.
        value_sizes: Features of the values of each attention block.
        filters: Filters of each convolution block.
        enabled_blocks: Which kinds of blocks are built, for ablations; sizes of the others are ignored.

    Raises:
        UserError: If a size is below 1, or if the numbers of sizes and blocks differ.
    """

    embedding_width: PositiveInt = 64
    channels: Annotated[tuple[PositiveInt, ...], TupleLimits(min_length=1)] = (64, 64, 64, 64)
    blocks: tuple[BlockKind, ...] = _OMNIGLOT
    key_sizes: tuple[PositiveInt, ...] = (64, 256, 512)
    value_sizes: tuple[PositiveInt, ...] = (32, 128, 256)
    filters: tuple[PositiveInt, ...] = (128, 128)
    enabled_blocks: EnabledBlocks = EnabledBlocks.BOTH

    def _check(self) -> None:
        for name, block in (
            ("key_sizes", BlockKind.ATTENTION),
            ("value_sizes", BlockKind.ATTENTION),
            ("filters", BlockKind.CONVOLUTIONS),
        ):
            sizes, count = getattr(self, name), self.blocks.count(block)
            if len(sizes) != count:
                raise UserError(
                    f"config.model.{name}={sizes} must be {count} sizes, one for each {block.value!r} "
                    "in config.model.blocks"
                )
        if not self.enabled_block_sizes:
            raise UserError(
                f"config.model.enabled_blocks={self.enabled_blocks.value} leaves nothing of config.model.blocks"
            )

    @property
    def enabled_block_sizes(self) -> tuple[tuple[BlockKind, tuple[int, ...]], ...]:
        """The enabled blocks, each with its sizes."""
        sizes = {
            BlockKind.ATTENTION: zip(self.key_sizes, self.value_sizes, strict=True),
            BlockKind.CONVOLUTIONS: ((filter_count,) for filter_count in self.filters),
        }
        all_blocks = [(block, tuple(next(iter(sizes[block])))) for block in self.blocks]
        return tuple((block, size) for block, size in all_blocks if self.enabled_blocks.has(block))

    def count_attention_blocks(self) -> int:
        """Return the number of attention blocks."""
        return sum(block is BlockKind.ATTENTION for block, _ in self.enabled_block_sizes)

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return the rows and columns of the last grid of an image's convolutions.

        Raises:
            UserError: If the image is too small.
        """
        halved = _POOL ** len(self.channels)
        rows, columns = height // halved, width // halved
        if not rows or not columns:
            raise UserError(
                f"config.model.channels={self.channels} halve images of {height} x {width} pixels "
                f"{len(self.channels)} times, to nothing: give fewer, or larger images"
            )
        return rows, columns


class DenseBlock(Module):
    """Dense block, [x_t ; tanh(W_f * x)_t sigmoid(W_g * x)_t], from x_t and x_(t - dilation) (figure 2a).

    Args:
        inputs: Input features.
        filters: Features that are appended.
        dilation: The dilation, in steps.
        builder: Makes the parameters.
    """

    def __init__(self, inputs: int, filters: int, dilation: int, *, builder: ParameterBuilder):
        window = ConvolutionWindow(2, dilation=dilation, padding=Padding.CAUSAL)
        gated = ConvolutionActivation.GTU
        self.convolution = Convolution1D(inputs, ("features", filters), window, activation=gated, builder=builder)

    def __call__(self, x_BxTxI: Float[Array, "B T I"]) -> Float[Array, "B T O"]:
        """Return the features, with `filters` new ones appended."""
        return jnp.concatenate([x_BxTxI, self.convolution(x_BxTxI)], axis=-1)


def dilations(length: int) -> tuple[int, ...]:
    """Return 1, 2, 4, ..., the dilations of the ceil(log2 length) dense blocks, so that the last step reads all steps.

    The paper's pseudo-code counts i from 1 and writes 2^i, by which no block would read a step at an odd distance.
    These follow its figure and its text, which has a receptive field of all steps.
    """
    return tuple(2**number for number in range(math.ceil(math.log2(length))))


class TemporalBlock(Module):
    """TCBlock(T, D): a dense block of D filters for each of the `dilations` of T steps (section 3).

    Args:
        inputs: Input features.
        filters: D.
        length: T.
        builder: Makes the parameters.
    """

    def __init__(self, inputs: int, filters: int, length: int, *, builder: ParameterBuilder):
        self.count = len(dilations(length))
        for number, dilation in enumerate(dilations(length)):
            setattr(self, f"dense_{number}", DenseBlock(inputs + number * filters, filters, dilation, builder=builder))

    def __call__(self, x: Float[Array, "B T I"]) -> Float[Array, "B T O"]:
        """Return the features, with those of every dense block appended."""
        for number in range(self.count):
            x = getattr(self, f"dense_{number}")(x)
        return x


class AttentionBlock(Module):
    """Attention block, [x_t ; sum_{s <= t} p_ts v_s], p_t = softmax_{s <= t} q_t k_s / sqrt(K) (section 3, figure 2b).

    q = W_q x + b_q and k = W_k x have K features, v = W_v x + b_v has V. Keys have no bias, which would only add the
    same to all logits of a step.

    Args:
        inputs: Input features.
        key_size: K.
        value_size: V, the features that are appended.
        builder: Makes the parameters.
    """

    def __init__(self, inputs: int, key_size: int, value_size: int, *, builder: ParameterBuilder):
        features = (("features", inputs),)
        key_axes = (("groups", 1), ("head_dim", key_size))
        self.query = Linear(features, key_axes, bias=True, builder=builder)
        self.key = Linear(features, key_axes, bias=False, builder=builder)
        self.value = Linear(features, (("groups", 1), ("head_dim", value_size)), bias=True, builder=builder)

    @jax.named_scope("attention")
    def __call__(
        self, x_BxTxI: Float[Array, "B T I"], capture: Capture | None
    ) -> tuple[Float[Array, "B T O"], CapturedAttention | None]:
        """Apply the block.

        Args:
            x_BxTxI: The features of every step.
            capture: Which maps to capture; None captures nothing.

        Returns:
            The features with the attention's output appended, and what was captured.
        """
        q, k, v = self.query(x_BxTxI), self.key(x_BxTxI), self.value(x_BxTxI)
        read_BxTx1xV, attended = attend(q, k, v, mask=Mask(causal=True), capture=capture)
        return jnp.concatenate([x_BxTxI, read_BxTx1xV[:, :, 0]], axis=-1), attended.captured


class ImageEmbedding(Module):
    """3 x 3 convolutions, each with batch norm, ReLU and 2 x 2 max pooling, and a linear layer (appendix).

    Pooling drops the last row and column of a grid of odd size.

    Args:
        config: The channels and the embedding's width.
        image: Height, width and channels of the images.
        builder: Makes the parameters.
    """

    def __init__(self, config: SnailConfig, image: tuple[int, ...], *, builder: ParameterBuilder):
        height, width, inputs = image
        self.count = len(config.channels)
        windows = ConvolutionWindow(_KERNEL), ConvolutionWindow(_KERNEL)
        for number, (before, channels) in enumerate(zip((inputs, *config.channels), config.channels, strict=False)):
            # The norm that follows has a bias of its own.
            convolution = Convolution2D(before, ("features", channels), windows, bias=False, builder=builder)
            setattr(self, f"convolution_{number}", convolution)
            setattr(self, f"norm_{number}", BatchNorm(channels, builder=builder))
        flat = math.prod(config.grid(height, width)) * config.channels[-1]
        embedded = (("embed", config.embedding_width),)
        self.output = Linear((("features", flat),), embedded, bias=True, builder=builder)

    def initial_state(self) -> dict[str, BatchStatistics]:
        """Return the initial statistics of every batch norm."""
        return {f"norm_{number}": getattr(self, f"norm_{number}").initial_state() for number in range(self.count)}

    def __call__(
        self, x: Float[Array, "N Y X C"], state: Mapping[str, BatchStatistics], *, train: bool
    ) -> tuple[Float[Array, "N E"], dict[str, BatchStatistics]]:
        """Embed images.

        Args:
            x: The images.
            state: The statistics of every batch norm.
            train: Whether to use and update with the batch's statistics.

        Returns:
            The features of every image, and the next statistics.
        """
        after = {}
        for number in range(self.count):
            name = f"norm_{number}"
            y = getattr(self, f"convolution_{number}")(x)
            y, after[name] = getattr(self, name)(y, state[name], train=train)
            x = max_pool(jax.nn.relu(y))
        return self.output(x.reshape(x.shape[0], -1)), after


def max_pool(x_NxYxXxC: Float[Array, "N Y X C"]) -> Float[Array, "N V U C"]:
    """Max pooling over 2 x 2 pixels."""
    count, height, width, channels = x_NxYxXxC.shape
    rows, columns = height // _POOL, width // _POOL
    cut = x_NxYxXxC[:, : rows * _POOL, : columns * _POOL].reshape(count, rows, _POOL, columns, _POOL, channels)
    # In pairs: the gradient of windows that are reduced is slow on CPUs, and that of a maximum over axes is 0 / 0 where
    # the compiler computes what it is taken of twice, and rounds it otherwise (jax 0.12.0).
    upper, lower = (jnp.maximum(cut[:, :, row, :, 0], cut[:, :, row, :, 1]) for row in range(_POOL))
    return jnp.maximum(upper, lower)


class Snail(Module):
    """SNAIL: an embedding of every step, the blocks, and W x_t + b.

    An output depends on no later step, except in training through batch norm, whose statistics are those of all images
    of a batch.

    inputs: `images` [B, T, Y, X, C] and `shown` [B, T], the class of each image plus 1, or 0 if it is not given; or
    `vectors` [B, T, I]. Outputs: logits of the classes, or numbers, [B, T, O].
    """

    def __init__(self, config: SnailConfig, interface: TaskInterface, builder: ParameterBuilder):
        self.config, self.dtype = config, builder.dtype
        self.reads_images = "images" in interface.inputs
        if self.reads_images:
            _, length, *image = interface.inputs["images"].shape
            self.outputs = interface.vocabularies["classes"]
            self.embedding: Any = ImageEmbedding(config, tuple(image), builder=builder)
            width = config.embedding_width + self.outputs
        else:
            _, length, features = interface.inputs["vectors"].shape
            self.outputs = interface.vocabularies["numbers"]
            embedded = (("embed", config.embedding_width),)
            self.embedding = Linear((("features", features),), embedded, bias=True, builder=builder)
            width = config.embedding_width
        for number, (block, sizes) in enumerate(config.enabled_block_sizes):
            match block:
                case BlockKind.ATTENTION:
                    module: Module = AttentionBlock(width, sizes[0], sizes[1], builder=builder)
                case BlockKind.CONVOLUTIONS:
                    module = TemporalBlock(width, sizes[0], length, builder=builder)
            setattr(self, f"block_{number}", module)
            width = block_output_width(width, block, sizes, length)
        # A sum of the sizes of blocks, which no mesh need divide.
        self.head = Linear((("features", width),), (("features", self.outputs),), bias=True, builder=builder)

    def initial_state(self, key: Key[Array, ""]) -> dict[str, BatchStatistics]:
        """Return the initial statistics of the batch norms; the key is ignored."""
        return self.embedding.initial_state() if self.reads_images else {}

    def embed_steps(self, state: Any, inputs: Inputs, *, train: bool) -> tuple[Float[Array, "B T F"], Any]:
        """Return the embedding of every step, and the next state."""
        if not self.reads_images:
            return self.embedding(jnp.asarray(inputs["vectors"], self.dtype)), state
        images = jnp.asarray(inputs["images"], self.dtype)
        rows, length = images.shape[:2]
        flat = with_logical_constraint(images.reshape(rows * length, *images.shape[2:]), "batch", None, None, None)
        embedded_NxE, after = self.embedding(flat, state, train=train)
        shown_BxT: Int[Array, "B T"] = jnp.asarray(inputs["shown"])
        # Of a class that is not told the vector is zero.
        told_BxTxC = jax.nn.one_hot(shown_BxT - 1, self.outputs, dtype=self.dtype)
        return jnp.concatenate([embedded_NxE.reshape(rows, length, -1), told_BxTxC], axis=-1), after

    def forward(self, state: Any, inputs: Inputs, forward_pass: ForwardPass) -> tuple[Float[Array, "B T O"], Aux]:
        """Return the outputs at every step."""
        x, after = self.embed_steps(state, inputs, train=forward_pass.train)
        maps: list[CapturedAttention | None] = []
        for number, (block, _) in enumerate(self.config.enabled_block_sizes):
            module = getattr(self, f"block_{number}")
            if block is BlockKind.ATTENTION:
                x, captured = module(x, capture_for_site(SITE, forward_pass.capture))
                maps.append(captured)
            else:
                x = module(x)
        return self.head.logits(x), Aux(stack_layer_maps(SITE, maps), {}, after)


def block_output_width(width: int, block: BlockKind, sizes: tuple[int, ...], length: int) -> int:
    """Return the output features of a block.

    Args:
        width: Its input features.
        block: Its kind.
        sizes: Its sizes, as in `SnailConfig.enabled_block_sizes`.
        length: Steps of an episode.

    Returns:
        The number of features.
    """
    return width + (sizes[1] if block is BlockKind.ATTENTION else sizes[0] * len(dilations(length)))


def image_grid_shape(length: int) -> tuple[int, int]:
    """Return rows and columns of the smallest nearly square grid with room for `length` images."""
    rows = math.isqrt(length)
    return rows, -(-length // rows)


def attention_sites(config: SnailConfig, interface: TaskInterface) -> tuple[Site, ...]:
    """Return the attention site of the model, over episodes of the task's length; none without attention blocks.

    Raises:
        UserError: If the images are too small for the convolutions.
    """
    if "images" in interface.inputs:
        _, length, height, _, _ = interface.inputs["images"].shape
        query: Axis = Axis("episode", AxisKind.STEPS)
        key = Axis("shot", AxisKind.GRID, shape=image_grid_shape(length), stride=float(height))
    else:
        query = key = Axis("steps", AxisKind.STEPS)
    layers = tuple(map(str, range(config.count_attention_blocks())))
    return (Site(SITE, query, key, layers, heads=("0",), causal=True),) if layers else ()


FAMILY = ModelFamily(SnailConfig, Snail, frozenset({FEW_SHOT_CLASSIFICATION, VECTOR_REGRESSION}), sites=attention_sites)
