"""ByteNet's decoder as a language model of dilated convolutions (Kalchbrenner et al. 2016, sections 3.6 and 4)."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.config import PositiveInt, UserError
from transformer.layers.beam_rows import repeat_per_beam
from transformer.layers.convolution import Padding
from transformer.layers.embedding import Embedding, padded_vocab_size
from transformer.layers.functional_module import ParameterBuilder, unstack_layers
from transformer.layers.initialization import InitializationRule
from transformer.layers.sequence_lengths import read_prompts
from transformer.models.bytenet_base import (
    DecoderCarry,
    DilatedConvolutionConfig,
    DilatedConvolutionDecoder,
    PastInputs,
    ResidualSet,
    initial_past_inputs,
    step_residual_sets,
)
from transformer.models.model import Cache, Inputs, PyTree
from transformer.models.model_family import ModelFamily
from transformer.models.task_interface import LANGUAGE_MODELING, TaskInterface


@dataclasses.dataclass(frozen=True)
class ByteNetDecoderConfig(DilatedConvolutionConfig):
    """The configuration of ByteNet's decoder; the defaults are those of section 4.

    The receptive field of a position is 1 + `sets` (`kernel_size` - 1) (2 `max_dilation` - 1) words.

    Attributes:
        width: d; blocks carry 2 d features and convolve d.
        sets: Sets of blocks.

    Raises:
        UserError: If a value is out of range, or `max_dilation` is not a power of two.
    """

    width: PositiveInt = 512
    sets: PositiveInt = 6


class ByteNetDecoder(DilatedConvolutionDecoder):
    """ByteNet's decoder as a language model: embedding, causal sets of residual blocks, and an output layer.

    inputs: `tokens` [B, T]; optionally `lengths` [B], beyond which an example is padding. Outputs: logits [B, T, V].
    """

    config: ByteNetDecoderConfig

    def __init__(self, config: ByteNetDecoderConfig, interface: TaskInterface, builder: ParameterBuilder):
        self.config, self.dtype = config, builder.dtype
        builder = builder.with_rule(InitializationRule(config.initialization))
        vocabulary = padded_vocab_size(interface.vocabularies["tokens"], config.vocab_size)
        self.embedding = Embedding(vocabulary, 2 * config.width, builder=builder)
        self.decoder = builder.stack(lambda builder: ResidualSet(config, Padding.CAUSAL, builder), config.sets)
        self._make_head(vocabulary, builder)

    def block_inputs(self, inputs: Inputs) -> tuple[Float[Array, "B T F"], Int[Array, " B"]]:
        """Return the embeddings of the tokens, and the length of each row.

        Raises:
            UserError: If rows are packed: a convolution would read across texts.
        """
        if "segments" in inputs:
            raise UserError(
                "config.task.batching=packed puts several texts into a row, and a convolution would read from one into "
                "the next: say config.task.batching=windows"
            )
        tokens_BxT = jnp.asarray(inputs["tokens"])
        batch, count = tokens_BxT.shape
        lengths_B = jnp.asarray(inputs["lengths"]) if "lengths" in inputs else jnp.full(batch, count, jnp.int32)
        return self.embedding(tokens_BxT, self.dtype), lengths_B

    def init_cache(
        self, state: PyTree, inputs: Inputs, *, num_beams: int, length: int
    ) -> tuple[Cache, Int[Array, " R"]]:
        """Read the prompts except for the last token of each, which the first step reads."""
        prompts = read_prompts(inputs)
        tokens_BxP, last_B = prompts
        examples, width = tokens_BxP.shape
        weights = unstack_layers(self.decoder, self.config.sets)

        def read(past: PastInputs, token_and_position: tuple[Array, Array]) -> tuple[PastInputs, None]:
            tokens_B, position = token_and_position
            _, grown = step_residual_sets(self.decoder, weights, self.embedding(tokens_B, self.dtype), past)
            in_prompt_Bx1x1 = (position < last_B)[:, None, None]
            return jax.tree.map(lambda new, old: jnp.where(in_prompt_Bx1x1, new, old), grown, past), None

        past, _ = jax.lax.scan(
            read, initial_past_inputs(self.decoder, weights, examples, self.dtype), (tokens_BxP.T, jnp.arange(width))
        )
        carry = DecoderCarry(last_B.astype(jnp.int32), past)
        return Cache((), repeat_per_beam(carry, num_beams), (), weights), repeat_per_beam(
            prompts.last_tokens(), num_beams
        )


FAMILY = ModelFamily(ByteNetDecoderConfig, ByteNetDecoder, frozenset({LANGUAGE_MODELING}))
