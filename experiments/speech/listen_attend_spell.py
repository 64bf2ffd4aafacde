"""Listen, Attend and Spell: a pyramidal BLSTM encoder and an attentive LSTM decoder (Chan et al. 2016)."""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from experiments.speech.log_mel import SAMPLE_RATE, LogMelConfig, log_mel_features
from experiments.speech.signature import SPEECH_RECOGNITION
from transformer.attention.scores import INNER_PRODUCT
from transformer.attention.sites import Axis, AxisKind, Site
from transformer.config import Config, NumLayers, PositiveInt, Rate
from transformer.layers.attention_cell import Alignment, AttentionCell, AttentionCellConfig, AttentionMemory
from transformer.layers.embedding import Embedding, padded_vocab_size
from transformer.layers.functional_module import Module, ParameterBuilder
from transformer.layers.linear import Linear
from transformer.layers.recurrent import CellState, Direction, RecurrentConfig, RecurrentLayer, RecurrentStack
from transformer.layers.sequence_lengths import real_positions
from transformer.models.model import ForwardPass, Inputs, PyTree
from transformer.models.model_family import ModelFamily
from transformer.models.recurrent_attention_decoder_base import (
    SITE,
    RecurrentAttentionDecoder,
    StepInput,
    sample_scheduled_sampling_mask,
)
from transformer.models.task_interface import TaskInterface


@dataclasses.dataclass(frozen=True)
class ListenAttendSpellConfig(Config, path="config.model"):
    """The configuration of a listener (pyramidal BLSTM over log-mel frames) and a speller (attentive LSTM).

    The defaults are those of the paper's section 4.

    Attributes:
        audio_frontend: The log-mel frames.
        listener_width: Features of each direction of every LSTM of the listener.
        pyramid: For each layer of the listener above its lowest, how many neighboring outputs of the layer below it
            concatenates; (1, 1, 1) keeps every frame.
        speller_width: Features of the decoder's LSTMs.
        speller_layers: Number of the decoder's LSTMs.
        embedding_width: Features of the character embeddings.
        attention_width: The dimension of the space in which states and frames are compared.
        scheduled_sampling: The probability that training feeds the speller its own sample instead of the true
            character.
        vocab_size: Rows of the vocabulary, None for as many as the task has tokens.
    """

    audio_frontend: LogMelConfig = dataclasses.field(default_factory=LogMelConfig)
    listener_width: PositiveInt = 256
    pyramid: tuple[PositiveInt, ...] = (2, 2, 2)
    speller_width: PositiveInt = 512
    speller_layers: NumLayers = 2
    embedding_width: PositiveInt = 64
    attention_width: PositiveInt = 128
    scheduled_sampling: Rate = 0.1
    vocab_size: int | None = None

    @property
    def frames_per_output(self) -> int:
        """The number of frames of one output of the listener."""
        return math.prod(self.pyramid)

    @property
    def listener_layer(self) -> RecurrentConfig:
        """The config of one layer of the listener."""
        return RecurrentConfig(width=self.listener_width, direction=Direction.BIDIRECTIONAL)

    @property
    def speller_stack(self) -> RecurrentConfig:
        """The config of the speller's LSTM stack."""
        return RecurrentConfig(width=self.speller_width, layers=self.speller_layers)

    @property
    def attention_cell(self) -> AttentionCellConfig:
        """The config of the attention."""
        return AttentionCellConfig(score=INNER_PRODUCT)


class Pyramid(Module):
    """A pyramidal BLSTM: h_i^j = BLSTM(h_{i-1}^j, [h_{2i}^{j-1} ; h_{2i+1}^{j-1}]) (equation 5), with any factor.

    Missing neighbors after the last position of an utterance are zero: n positions become ceil(n / factor).
    """

    def __init__(self, config: ListenAttendSpellConfig, inputs: int, *, builder: ParameterBuilder):
        self.factors = (1, *config.pyramid)
        for number, factor in enumerate(self.factors):
            setattr(self, f"layer_{number}", RecurrentLayer(config.listener_layer, factor * inputs, builder=builder))
            inputs = config.listener_layer.output_width

    def __call__(
        self, x_BxTxF: Float[Array, "B T F"], lengths_B: Int[Array, " B"]
    ) -> tuple[Float[Array, "B S G"], Int[Array, " B"]]:
        """Return the top layer's outputs, zero at padding, and the number of positions of each utterance."""
        for number, factor in enumerate(self.factors):
            x_BxTxF = stack_neighbors(x_BxTxF, lengths_B, factor)
            lengths_B = -(-lengths_B // factor)
            x_BxTxF, _ = getattr(self, f"layer_{number}")(x_BxTxF, lengths_B)
        return x_BxTxF, lengths_B


class Carry(NamedTuple):
    """The decoder's state: s_{i-1}, c_{i-1} and, with scheduled sampling, the speller's own last character."""

    states: tuple[CellState, ...]
    context: Float[Array, "R C"]
    last_character: Int[Array, " R"] | None = None


class ListenAttendSpell(RecurrentAttentionDecoder):
    """Listen, Attend and Spell: p(y_i | x, y_<i) = softmax(MLP(s_i, c_i)), s_i = LSTM(s_{i-1}, [y_{i-1} ; c_{i-1}]).

    These are equations 6 to 8. c_i = sum_u alpha_iu h_u, alpha_i = softmax(e_i), e_iu = <phi(s_i), psi(h_u)> (equations
    9 to 11); phi and psi are each a layer of tanh, MLP is one followed by an output layer. s_0 and c_0 are zero.

    Inputs: `sound` and its `lengths`, in samples, and `target`, the transcript after a begin token, padded at its end.
    """

    streams = ("hearing", "own", "steps")

    def __init__(self, config: ListenAttendSpellConfig, interface: TaskInterface, builder: ParameterBuilder):
        super().__init__(interface, builder)
        self.config = config
        annotations = config.listener_layer.output_width
        vocabulary = padded_vocab_size(interface.vocabularies["joint"], config.vocab_size)
        self.listener = Pyramid(config, config.audio_frontend.num_mel_bins, builder=builder)
        self.embedding = Embedding(vocabulary, config.embedding_width, builder=builder)
        self.speller = RecurrentStack(config.speller_stack, config.embedding_width + annotations, builder=builder)

        def layer(inputs: int, name: str, outputs: int) -> Linear:
            return Linear((("features", inputs),), ((name, outputs),), bias=True, builder=builder)

        self.phi = layer(config.speller_width, "embed", config.attention_width)
        self.psi = layer(annotations, "embed", config.attention_width)
        self.attention = AttentionCell(
            config.attention_cell, config.attention_width, config.attention_width, builder=builder
        )
        self.hidden_layer = layer(config.speller_width + annotations, "embed", config.speller_width)
        self.output = layer(config.speller_width, "vocabulary", vocabulary)

    def encode(self, inputs: Inputs, key: Key[Array, ""] | None) -> tuple[AttentionMemory, Carry]:
        """Return h, whose keys are psi(h), and s_0 and c_0; with a key, as in training, SpecAugment is applied."""
        sound, lengths_B = jnp.asarray(inputs["sound"]), jnp.asarray(inputs["lengths"])
        frontend, masked_by = self.config.audio_frontend, self.random_stream_key(key, "hearing")
        frames_BxFxM, frames_B = log_mel_features(sound, lengths_B, frontend, dtype=self.dtype, key=masked_by)
        h_BxUxC, lengths_B = self.listener(frames_BxFxM, frames_B)
        memory = self.attention.prepare(jnp.tanh(self.psi(h_BxUxC)), lengths_B)
        samples = key is not None and self.config.scheduled_sampling
        said_B = jnp.asarray(inputs["target"])[:, 0] if samples else None
        states = self.speller.initial(len(lengths_B), self.dtype)
        first = Carry(states, jnp.zeros((len(lengths_B), h_BxUxC.shape[-1]), self.dtype), said_B)
        return memory._replace(values=h_BxUxC[:, :, None]), first

    def step_inputs(
        self, state: PyTree, inputs: Inputs, source: AttentionMemory, key: Key[Array, ""] | None
    ) -> StepInput:
        """Return the characters, and in training where the speller reads its own sample instead."""
        word_inputs, key = super().step_inputs(state, inputs, source, key), self.random_stream_key(key, "own")
        if key is None or not self.config.scheduled_sampling:
            return word_inputs
        return word_inputs._replace(
            use_sampled_word=sample_scheduled_sampling_mask(
                key, self.config.scheduled_sampling, jnp.asarray(inputs["target"])
            )
        )

    def advance(
        self, source: AttentionMemory, carry: Carry, step_input: StepInput, forward_pass: ForwardPass
    ) -> tuple[Carry, Float[Array, "R V"], Alignment]:
        """Compute s_i from the last character and context, attend, and return the logits as the output."""
        character_RxE = step_input.word
        if step_input.use_sampled_word is not None:
            assert carry.last_character is not None
            character_RxE = jnp.where(
                step_input.use_sampled_word[:, None], self.embedding(carry.last_character, self.dtype), character_RxE
            )
        s_RxF, states = self.speller.step(jnp.concatenate([character_RxE, carry.context], axis=-1), carry.states)
        context_RxC, alignment = self.attention.step(jnp.tanh(self.phi(s_RxF)), source)
        logits_RxV = super().logits(jnp.tanh(self.hidden_layer(jnp.concatenate([s_RxF, context_RxC], axis=-1))))
        sampled_R = carry.last_character
        if step_input.use_sampled_word is not None:
            assert forward_pass.key is not None
            sampled_R = jax.random.categorical(forward_pass.key, jax.lax.stop_gradient(logits_RxV)).astype(jnp.int32)
        return Carry(states, context_RxC, sampled_R), logits_RxV, alignment

    def logits(self, hidden: Float[Array, "*B V"]) -> Float[Array, "*B V"]:
        """Return the step's output, which already is the logits, from which it samples its own character."""
        return hidden


def stack_neighbors(x_BxTxF: Float[Array, "B T F"], lengths_B: Int[Array, " B"], factor: int) -> Float[Array, "B S _"]:
    """Concatenate every `factor` neighboring positions.

    Args:
        x_BxTxF: The positions.
        lengths_B: The number of real positions of each row; others are read as zeros.
        factor: The number of positions that become one.

    Returns:
        ceil(T / factor) positions of width factor x F.
    """
    if factor == 1:
        return x_BxTxF
    rows, count, features = x_BxTxF.shape
    x_BxTxF = jnp.where(real_positions(lengths_B, count)[..., None], x_BxTxF, 0)
    padded = jnp.pad(x_BxTxF, ((0, 0), (0, -count % factor), (0, 0)))
    return padded.reshape(rows, -1, factor * features)


def attention_sites(config: ListenAttendSpellConfig, interface: TaskInterface) -> tuple[Site, ...]:
    """Return the attention site of the decoder, over frames of the audio."""
    stride = config.audio_frontend.hop_length * config.frames_per_output / SAMPLE_RATE
    frames = Axis("frames", AxisKind.FRAMES, stride=stride)
    return (Site(SITE, Axis("target"), frames, layers=("0",), heads=("0",)),)


FAMILY = ModelFamily(ListenAttendSpellConfig, ListenAttendSpell, frozenset({SPEECH_RECOGNITION}), sites=attention_sites)
