"""ByteNet (Kalchbrenner et al. 2016): a decoder of dilated convolutions stacked on an encoder of them, no attention."""

import dataclasses
import math

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.config import NonNegativeFloat, NonNegativeInt, PositiveInt, Rate
from transformer.layers.beam_rows import flatten_beam_axis, unflatten_beam_axis
from transformer.layers.convolution import Padding
from transformer.layers.embedding import Embedding, padded_vocab_size
from transformer.layers.functional_module import ParameterBuilder, unstack_layers
from transformer.layers.initialization import InitializationRule
from transformer.layers.sequence_lengths import real_lengths, real_positions, target_lengths
from transformer.logical_axes import with_logical_constraint
from transformer.models.bytenet_base import (
    DecoderCarry,
    DilatedConvolutionConfig,
    DilatedConvolutionDecoder,
    ResidualSet,
    initial_past_inputs,
    run_residual_sets,
)
from transformer.models.model import Cache, Inputs, PyTree
from transformer.models.model_family import ModelFamily
from transformer.models.task_interface import TRANSLATION, TaskInterface


@dataclasses.dataclass(frozen=True)
class ByteNetConfig(DilatedConvolutionConfig):
    """The configuration of ByteNet; the defaults are the paper's for translation (section 5), 30 blocks a side.

    Attributes:
        width: d; blocks carry 2 d features and convolve d.
        encoder_sets: Sets of blocks in the encoder.
        decoder_sets: Sets of blocks in the decoder.
        length_factor: a of the length a |s| + b to which the encoder unfolds (section 3.2).
        length_offset: b of that length.
        dropout: Dropout rate on the final hidden states.

    Raises:
        UserError: If a value is out of range, or `max_dilation` is not a power of two.
    """

    width: PositiveInt = 800
    encoder_sets: PositiveInt = 6
    decoder_sets: PositiveInt = 6
    length_factor: NonNegativeFloat = 1.2
    length_offset: NonNegativeInt = 0
    dropout: Rate = 0.1

    def unfolded_length(self, length: int) -> int:
        """Return the length to which the encoder unfolds a source of this length: a |s| + b, rounded up."""
        # 1.1 x 50 is a little more than 55 to a computer.
        return math.ceil(round(self.length_factor * length + self.length_offset, 6))


class ByteNet(DilatedConvolutionDecoder):
    """ByteNet: a decoder on top of an encoder, with one joint vocabulary and a shared embedding.

    inputs: `source` [B, S] and `target` [B, T], the decoder's input (the target after a begin token); padding is the
    token `pad`, at the end only. Outputs: logits [B, T, V].

    The decoder's input at a position is the embedding of the previous word plus the encoder's output at the same
    position, zeros past its end (section 3.2; that they are added is our reading).
    """

    config: ByteNetConfig

    def __init__(self, config: ByteNetConfig, interface: TaskInterface, builder: ParameterBuilder):
        if interface.pad_id is None or interface.bos_id is None:
            raise ValueError("an encoder-decoder needs interface.pad_id and interface.bos_id, the tokens' numbers")
        self.config, self.pad, self.begin, self.dtype = config, interface.pad_id, interface.bos_id, builder.dtype
        builder = builder.with_rule(InitializationRule(config.initialization))
        vocabulary = padded_vocab_size(interface.vocabularies["joint"], config.vocab_size)
        self.embedding = Embedding(vocabulary, 2 * config.width, builder=builder)
        self.encoder = builder.stack(lambda builder: ResidualSet(config, Padding.SAME, builder), config.encoder_sets)
        self.decoder = builder.stack(lambda builder: ResidualSet(config, Padding.CAUSAL, builder), config.decoder_sets)
        self._make_head(vocabulary, builder)

    def encode(self, source_BxS: Int[Array, "B S"]) -> tuple[Float[Array, "B U F"], Int[Array, " B"]]:
        """Encode the source; between its end and its unfolded length the encoder reads zeros in place of words.

        Args:
            source_BxS: The source, padded.

        Returns:
            The source representation, zero beyond its unfolded length, and the lengths of the sources.
        """
        count, lengths_B = source_BxS.shape[1], real_lengths(source_BxS, self.pad)
        # By a table, for floating-point numbers would round some products up.
        unfolded_B = jnp.asarray([self.config.unfolded_length(length) for length in range(count + 1)])[lengths_B]
        longest = self.config.unfolded_length(count)
        x_BxUxF = _cut_or_pad(self._embed(source_BxS, lengths_B), max(count, longest))
        x_BxUxF = run_residual_sets(self.encoder, x_BxUxF, jnp.maximum(lengths_B, unfolded_B))[:, :longest]
        return jnp.where(real_positions(unfolded_B, longest)[..., None], x_BxUxF, 0), lengths_B

    def block_inputs(self, inputs: Inputs) -> tuple[Float[Array, "B T F"], Int[Array, " B"]]:
        """Return the embeddings of a known target plus the source representation at each position, and the lengths."""
        representation_BxUxF, source_lengths_B = self.encode(jnp.asarray(inputs["source"]))
        target_BxT = jnp.asarray(inputs["target"])
        lengths_B = target_lengths(target_BxT, source_lengths_B, self.pad)
        source_BxTxF = _cut_or_pad(representation_BxUxF, target_BxT.shape[1])
        return self._embed(target_BxT, lengths_B) + source_BxTxF, lengths_B

    def init_cache(
        self, state: PyTree, inputs: Inputs, *, num_beams: int, length: int
    ) -> tuple[Cache, Int[Array, " R"]]:
        """Encode the source once; every row starts with the begin token, and zeros before it."""
        representation_BxUxF, _ = self.encode(jnp.asarray(inputs["source"]))
        rows, weights = num_beams * len(representation_BxUxF), unstack_layers(self.decoder, self.config.decoder_sets)
        carry = DecoderCarry(jnp.zeros(rows, jnp.int32), initial_past_inputs(self.decoder, weights, rows, self.dtype))
        return Cache((), carry, representation_BxUxF, weights), jnp.full(rows, self.begin, jnp.int32)

    def next_block_inputs(self, tokens_R: Int[Array, " R"], cache: Cache) -> Float[Array, "R F"]:
        """Return the embeddings of the chosen tokens, each plus the source representation at its position."""
        position_BxM = unflatten_beam_axis(cache.rows.position, len(cache.examples))
        read_BxMxF = jnp.take_along_axis(cache.examples, position_BxM[..., None], axis=1, mode="fill", fill_value=0)
        return self.embedding(tokens_R, self.dtype) + flatten_beam_axis(read_BxMxF)

    def _embed(self, tokens_BxT: Array, lengths_B: Array) -> Array:
        """Return the embeddings of the tokens, zero beyond the lengths (section 3.3)."""
        x_BxTxF = self.embedding(tokens_BxT, self.dtype)
        x_BxTxF = jnp.where(real_positions(lengths_B, tokens_BxT.shape[1])[..., None], x_BxTxF, 0)
        return with_logical_constraint(x_BxTxF, "batch", "length", None)


def _cut_or_pad(x_BxTxF: Array, length: int) -> Array:
    """Cut or zero-pad to `length` positions."""
    more = max(length - x_BxTxF.shape[1], 0)
    return jnp.pad(x_BxTxF[:, :length], ((0, 0), (0, more), (0, 0)))


FAMILY = ModelFamily(ByteNetConfig, ByteNet, frozenset({TRANSLATION}))
