"""Sets of dilated residual convolutions, over whole texts or one token at a time; the base of both ByteNets."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int, Key

from transformer.attention.inverted_dropout import dropout
from transformer.config import Config, PositiveInt, Rate, UserError
from transformer.layers.convolution import Convolution1D, ConvolutionWindow, Padding
from transformer.layers.embedding import Embedding
from transformer.layers.functional_module import Module, ParameterBuilder, bind_layer, scan_layers
from transformer.layers.initialization import Initialization
from transformer.layers.linear import Linear
from transformer.layers.norm import LayerNorm
from transformer.logical_axes import with_logical_constraint
from transformer.models.model import Aux, Cache, ForwardPass, Inputs, PyTree, StatelessModule


@dataclasses.dataclass(frozen=True)
class DilatedConvolutionConfig(Config, path="config.model"):
    """Sets of dilated residual blocks, with a block for each dilation 1, 2, 4 ... `max_dilation`.

    Attributes:
        width: d; blocks carry 2 d features and convolve d.
        max_dilation: The largest dilation, a power of two.
        kernel_size: Positions that a convolution reads.
        vocab_size: Rows of the embedding table; None means as many as the task's tokens.
        initialization: The initialization of the parameters.
        dropout: Dropout rate on the final hidden states.

    Raises:
        UserError: If a value is out of range, or `max_dilation` is not a power of two.
    """

    width: PositiveInt
    max_dilation: PositiveInt = 16
    kernel_size: PositiveInt = 3
    vocab_size: int | None = None
    initialization: Initialization = Initialization.XAVIER
    dropout: Rate = 0.0

    def _check(self) -> None:
        if self.max_dilation & (self.max_dilation - 1):
            raise UserError(
                f"config.model.max_dilation={self.max_dilation} must be a power of two: dilations double from 1"
            )

    @property
    def dilations(self) -> tuple[int, ...]:
        """The dilation of each block of a set: 1, 2, 4 and so on."""
        return tuple(2**power for power in range(self.max_dilation.bit_length()))


class ResidualBlock(Module):
    """Residual block, x + W_3 r(conv(r(W_1 r(x)))), r = ReLU of LayerNorm, 2 d features to d and back (section 3.6).

    Args:
        config: The sizes.
        window: The convolution's window.
        builder: Makes the parameters.
    """

    def __init__(self, config: DilatedConvolutionConfig, window: ConvolutionWindow, builder: ParameterBuilder):
        inner, outer = config.width, 2 * config.width
        self.first_norm = LayerNorm(outer, builder=builder)
        self.contract = Linear((("embed", outer),), (("features", inner),), bias=True, builder=builder)
        self.second_norm = LayerNorm(inner, builder=builder)
        self.convolution = Convolution1D(inner, ("embed", inner), window, builder=builder)
        self.third_norm = LayerNorm(inner, builder=builder)
        self.expand = Linear((("features", inner),), (("embed", outer),), bias=True, builder=builder)

    def __call__(self, x_BxTxF: Float[Array, "B T F"], lengths_B: Int[Array, " B"]) -> Float[Array, "B T F"]:
        """Run whole sequences; nothing beyond their lengths is read."""
        convolved = self.convolution(self._contract_channels(x_BxTxF), lengths_B)
        return with_logical_constraint(x_BxTxF + self._expand_channels(convolved), "batch", "length", None)

    def step(
        self, x_RxF: Float[Array, "R F"], past_RxPxI: Float[Array, "R P I"]
    ) -> tuple[Float[Array, "R F"], Float[Array, "R P I"]]:
        """Run one more position of every row.

        Args:
            x_RxF: The inputs at the position.
            past_RxPxI: The past inputs of the convolution.

        Returns:
            The outputs, and the past inputs that later positions read.
        """
        convolved, past_RxPxI = self.convolution.step(self._contract_channels(x_RxF), past_RxPxI)
        return x_RxF + self._expand_channels(convolved), past_RxPxI

    def _contract_channels(self, x: Array) -> Array:
        return jax.nn.relu(self.second_norm(self.contract(jax.nn.relu(self.first_norm(x)))))

    def _expand_channels(self, convolved: Array) -> Array:
        return self.expand(jax.nn.relu(self.third_norm(convolved)))


class ResidualSet(Module):
    """A set of residual blocks, one for each dilation, the smallest first (section 3.4).

    Args:
        config: The sizes and dilations.
        padding: SAME in an encoder, CAUSAL in a decoder.
        builder: Makes the parameters.
    """

    def __init__(self, config: DilatedConvolutionConfig, padding: Padding, builder: ParameterBuilder):
        self.dilations = config.dilations
        for dilation in self.dilations:
            window = ConvolutionWindow(config.kernel_size, dilation=dilation, padding=padding)
            setattr(self, f"dilation_{dilation}", ResidualBlock(config, window, builder))

    @property
    def blocks(self) -> tuple[ResidualBlock, ...]:
        """The blocks in order."""
        return tuple(getattr(self, f"dilation_{dilation}") for dilation in self.dilations)

    def __call__(self, x_BxTxF: Float[Array, "B T F"], lengths_B: Int[Array, " B"]) -> Float[Array, "B T F"]:
        """Run all blocks in order."""
        for block in self.blocks:
            x_BxTxF = block(x_BxTxF, lengths_B)
        return x_BxTxF


# What every block reads of the positions before, set by set: as many as its convolution reaches back.
PastInputs = tuple[tuple[Float[Array, "R _ I"], ...], ...]


class DecoderCarry(NamedTuple):
    """The carry of decoding.

    Attributes:
        position: Each row's position.
        past: The past inputs of every block, set by set.
    """

    position: Int[Array, " R"]
    past: PastInputs


def initial_past_inputs(sets: Module, weights: Sequence[Any], rows: int, dtype: jax.typing.DTypeLike) -> PastInputs:
    """Return the past inputs before the first position: zeros, for every block of causal sets.

    Args:
        sets: The stacked sets.
        weights: The parameters of each set.
        rows: Number of rows.
        dtype: Type of the inputs.

    Returns:
        The past inputs, set by set and block by block.
    """
    return tuple(
        tuple(block.convolution.initial(rows, dtype) for block in bind_layer(sets, set_weights).blocks)
        for set_weights in weights
    )


def step_residual_sets(
    sets: Module, weights: Sequence[Any], x_RxF: Array, past: PastInputs
) -> tuple[Float[Array, "R F"], PastInputs]:
    """Run one more position of every row through all sets.

    Args:
        sets: The stacked sets.
        weights: The parameters of each set.
        x_RxF: The inputs at the position.
        past: The past inputs of every block.

    Returns:
        The outputs, and the next past inputs.
    """
    after = []
    for params, set_past in zip(weights, past, strict=True):
        grown = []
        for block, block_past in zip(bind_layer(sets, params).blocks, set_past, strict=True):
            x_RxF, block_past = block.step(x_RxF, block_past)
            grown.append(block_past)
        after.append(tuple(grown))
    return x_RxF, tuple(after)


def run_residual_sets(
    sets: Module, x_BxTxF: Float[Array, "B T F"], lengths_B: Int[Array, " B"]
) -> Float[Array, "B T F"]:
    """Run whole sequences through all sets in order."""
    return scan_layers(lambda layer, x, _: (layer(x, lengths_B), None), sets, x_BxTxF, None)[0]


class DilatedConvolutionDecoder(StatelessModule):
    """Base class of decoders of causal dilated convolutions over embedded tokens.

    A family implements the inputs of the blocks, for whole sequences (`block_inputs`) and for the next position
    (`next_block_inputs`).

    Attributes:
        config: The sizes.
        dtype: The type that the model computes in.
        embedding: The embedding of tokens.
        decoder: The stacked sets of blocks.
    """

    config: DilatedConvolutionConfig
    dtype: jnp.dtype
    embedding: Embedding
    decoder: Module

    def _make_head(self, vocabulary: int, builder: ParameterBuilder) -> None:
        outer = 2 * self.config.width
        self.readout = Linear((("features", outer),), (("embed", outer),), bias=True, builder=builder)
        self.output = Linear((("embed", outer),), (("vocabulary", vocabulary),), bias=True, builder=builder)

    def block_inputs(self, inputs: Inputs) -> tuple[Float[Array, "B T F"], Int[Array, " B"]]:
        """Return the inputs of the blocks at every position.

        Args:
            inputs: The model's inputs.

        Returns:
            The inputs of the blocks, and the length of each row.
        """
        raise NotImplementedError

    def next_block_inputs(self, tokens_R: Int[Array, " R"], cache: Cache) -> Float[Array, "R F"]:
        """Return the inputs of the blocks at the next position of every row.

        Args:
            tokens_R: The chosen tokens.
            cache: The cache.

        Returns:
            The inputs of the blocks.
        """
        return self.embedding(tokens_R, self.dtype)

    def hidden(self, state: PyTree, inputs: Inputs, forward_pass: ForwardPass) -> tuple[Float[Array, "B T F"], Aux]:
        """Return the final hidden states, from which `logits` computes the logits."""
        x_BxTxF = run_residual_sets(self.decoder, *self.block_inputs(inputs))
        return self._apply_readout(x_BxTxF, forward_pass.training_key), Aux({}, {}, state)

    def logits(self, hidden: Float[Array, "*B F"]) -> Float[Array, "*B V"]:
        """Compute the logits of the tokens, in float32 or wider."""
        return checkpoint_name(self.output.logits(hidden), "logits")

    def forward(self, state: PyTree, inputs: Inputs, forward_pass: ForwardPass) -> tuple[Float[Array, "B T V"], Aux]:
        """Return the logits of every position."""
        hidden_BxTxF, aux = self.hidden(state, inputs, forward_pass)
        return self.logits(hidden_BxTxF), aux

    def step(
        self, state: PyTree, cache: Cache, tokens_R: Int[Array, " R"], forward_pass: ForwardPass
    ) -> tuple[Float[Array, "R V"], Cache, Aux]:
        """Run one more token of every row through the blocks."""
        x_RxF, past = step_residual_sets(
            self.decoder, cache.weights, self.next_block_inputs(tokens_R, cache), cache.rows.past
        )
        cache = cache._replace(rows=DecoderCarry(cache.rows.position + 1, past))
        return self.logits(self._apply_readout(x_RxF, None)), cache, Aux({}, {}, state)

    def _apply_readout(self, x: Array, key: Key[Array, ""] | None) -> Array:
        return dropout(jax.nn.relu(self.readout(x)), self.config.dropout, key)
