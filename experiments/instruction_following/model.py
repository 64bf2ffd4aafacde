"""Listen, Attend and Walk: from instructions to actions in an observed environment (Mei, Bansal and Walter 2016)."""

import dataclasses
import enum
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from experiments.instruction_following.signature import INSTRUCTION_FOLLOWING
from experiments.instruction_following.transition_tables import follow_transitions, next_pose, observations_at
from transformer.attention.sites import Axis, Site
from transformer.config import Config, PositiveInt
from transformer.layers.attention_cell import Alignment, AttentionCell, AttentionCellConfig
from transformer.layers.beam_rows import flatten_beam_axis, unflatten_beam_axis
from transformer.layers.embedding import Embedding, padded_vocab_size
from transformer.layers.functional_module import ParameterBuilder
from transformer.layers.linear import Linear
from transformer.layers.recurrent import CellState, Direction, RecurrentConfig, RecurrentLayer
from transformer.layers.sequence_lengths import real_lengths, real_positions
from transformer.models.model import ForwardPass, Inputs, PyTree
from transformer.models.model_family import ModelFamily
from transformer.models.recurrent_attention_decoder_base import (
    SITE,
    EncodedSource,
    RecurrentAttentionDecoder,
    compute_context,
)
from transformer.models.task_interface import TaskInterface


class AlignerKind(enum.Enum):
    """What z_t an action reads from N words; x_j is the embedding of a word, h_j the encoder's state there.

    multi_level: sum_j a_tj [x_j ; h_j] with weights from x_j and h_j, a_t = softmax(beta_t) and
      beta_tj = v' tanh(W s_{t-1} + U x_j + V h_j) (Mei et al. 2016).
    high_level: sum_j a_tj h_j, beta_tj = v' tanh(W s_{t-1} + V h_j), without word embeddings.
    mean: (1/N) sum_j [x_j ; h_j] for all actions, without attention. last: the encoder's last state for all actions.
    """

    MULTI_LEVEL = "multi_level"
    HIGH_LEVEL = "high_level"
    MEAN = "mean"
    LAST = "last"

    @property
    def attends(self) -> bool:
        """Whether each action has attention weights."""
        return self in (AlignerKind.MULTI_LEVEL, AlignerKind.HIGH_LEVEL)

    @property
    def reads_words(self) -> bool:
        """Whether word embeddings are read in addition to states."""
        return self in (AlignerKind.MULTI_LEVEL, AlignerKind.MEAN)


@dataclasses.dataclass(frozen=True)
class ListenAttendWalkConfig(Config, path="config.model"):
    """The configuration of an LSTM encoder of words, an aligner, and an LSTM decoder over observations.

    Attributes:
        width: Features of each LSTM.
        embedding_width: Features of the word embeddings and of the output layer's input.
        aligner: How actions read the instruction.
        direction: The direction of the encoder.
        vocab_size: Rows of the embedding table, by default as many as there are words.
    """

    width: PositiveInt = 128
    embedding_width: PositiveInt = 64
    aligner: AlignerKind = AlignerKind.MULTI_LEVEL
    direction: Direction = Direction.BIDIRECTIONAL
    vocab_size: int | None = None

    @property
    def encoder(self) -> RecurrentConfig:
        """The config of the LSTM over words."""
        return RecurrentConfig(width=self.width, direction=self.direction)

    @property
    def decoder(self) -> RecurrentConfig:
        """The config of the LSTM over actions."""
        return RecurrentConfig(width=self.width)

    @property
    def context_width(self) -> int:
        """The number of features of z_t."""
        return self.encoder.output_width + self.embedding_width * self.aligner.reads_words


class EncodedInputs(NamedTuple):
    """What every action reads: the encoded instruction and the tables of the environment.

    Attributes:
        instruction: The encoded instruction.
        observations: The observation at each pose.
        transitions: The pose after each token at each pose.
    """

    instruction: EncodedSource
    observations: Float[Array, "B P F"]
    transitions: Int[Array, "B P V"]

    @property
    def lengths(self) -> Int[Array, " B"]:
        """The number of words of each instruction."""
        return self.instruction.lengths


class StepInputs(NamedTuple):
    """The inputs of a step.

    Attributes:
        pose: The agent's pose.
        observation: E y_t, the embedded observation there.
    """

    pose: Int[Array, "*B"]
    observation: Float[Array, "*B E"]


class Carry(NamedTuple):
    """The decoder's state, and the agent's pose after it."""

    state: CellState
    pose: Int[Array, " R"]


class StepOutput(NamedTuple):
    """The outputs of a step: s_t and z_t."""

    hidden: Float[Array, "*B F"]
    context: Float[Array, "*B M"]


class ListenAttendWalk(RecurrentAttentionDecoder):
    """Listen, Attend and Walk: p(a_t | x, y_1 ... y_t) = softmax(L_0 (E y_t + L_s s_t + L_z z_t)) (Mei et al. 2016).

    s_t = LSTM([E y_t ; z_t], s_{t-1}) from zeros; y_t is the observation where the previous actions have led, which
    reach the decoder only in this way; z_t is the aligner's.

    Inputs: `source`, the instruction, padded at its end; `target`, the actions after a begin token; and the tables
    `observations`, `transitions` and `start` (experiments.instruction_following.transition_tables), in which the begin
    token and padding do not move.
    """

    def __init__(self, config: ListenAttendWalkConfig, interface: TaskInterface, builder: ParameterBuilder):
        super().__init__(interface, builder)
        self.config = config
        width, embedding = config.width, config.embedding_width

        def linear(inputs: int, outputs: int, name: str = "embed") -> Linear:
            return Linear((("features", inputs),), ((name, outputs),), bias=False, builder=builder)

        words = padded_vocab_size(interface.vocabularies["source"], config.vocab_size)
        self.embedding = Embedding(words, embedding, builder=builder)
        self.encoder = RecurrentLayer(config.encoder, embedding, builder=builder)
        aligned = AttentionCell(AttentionCellConfig(), width, config.context_width, builder=builder)
        self.aligner = aligned if config.aligner.attends else None
        self.sight = linear(interface.inputs["observations"].shape[-1], embedding)
        self.decoder = RecurrentLayer(config.decoder, embedding + config.context_width, builder=builder)
        self.of_state, self.of_context = linear(width, embedding), linear(config.context_width, embedding)
        self.output = linear(embedding, interface.vocabularies["target"], "vocabulary")

    def encode(self, inputs: Inputs, key: Key[Array, ""] | None) -> tuple[EncodedInputs, Carry]:
        """Return the encoded instruction with the environment, and a zero state at the start."""
        instruction, transitions_BxPxV = (
            self._encode_instruction(jnp.asarray(inputs["source"])),
            jnp.asarray(inputs["transitions"]),
        )
        start_B = jnp.asarray(inputs["start"], transitions_BxPxV.dtype)
        encoded = EncodedInputs(instruction, jnp.asarray(inputs["observations"], self.dtype), transitions_BxPxV)
        return encoded, Carry(self.decoder.initial(len(start_B), self.dtype), start_B)

    def step_inputs(
        self, state: PyTree, inputs: Inputs, source: EncodedInputs, key: Key[Array, ""] | None
    ) -> StepInputs:
        """Return the observation at every pose that the actions of `target` lead to."""
        pose_BxT = follow_transitions(source.transitions, jnp.asarray(inputs["start"]), jnp.asarray(inputs["target"]))
        return StepInputs(pose_BxT, self.sight(observations_at(source.observations, pose_BxT)))

    def next_step_input(self, tokens_R: Int[Array, " R"], source: EncodedInputs, carry: Carry) -> StepInputs:
        """Move by the chosen action, and return the observation there."""
        pose_R = next_pose(source.transitions, carry.pose, tokens_R)
        return StepInputs(
            pose_R,
            self.sight(
                flatten_beam_axis(
                    observations_at(source.observations, unflatten_beam_axis(pose_R, len(source.observations)))
                )
            ),
        )

    def advance(
        self, source: EncodedInputs, carry: Carry, step_input: StepInputs, forward_pass: ForwardPass
    ) -> tuple[Carry, StepOutput, Alignment | None]:
        """Attend to the instruction with s_{t-1}, then compute s_t from the context and the observation."""
        context_RxM, alignment = compute_context(self.aligner, source.instruction, carry.state.hidden)
        state = self.decoder.step(jnp.concatenate([step_input.observation, context_RxM], axis=-1), carry.state)
        return Carry(state, step_input.pose), StepOutput(state.hidden, context_RxM), alignment

    def output_features(self, step_inputs: StepInputs, outputs: StepOutput) -> Float[Array, "*B E"]:
        """Return E y_t + L_s s_t + L_z z_t."""
        return step_inputs.observation + self.of_state(outputs.hidden) + self.of_context(outputs.context)

    def _encode_instruction(self, source_BxS: Int[Array, "B S"]) -> EncodedSource:
        """Encode the instruction as the actions read it."""
        lengths_B = real_lengths(source_BxS, self.pad)
        x_BxSxE = self.embedding(source_BxS, self.dtype)
        h_BxSxM, last = self.encoder(x_BxSxE, lengths_B)
        match self.config.aligner:
            case AlignerKind.LAST:
                return EncodedSource(lengths_B, vector=last.hidden)
            case AlignerKind.MEAN:
                real_BxSx1 = real_positions(lengths_B, source_BxS.shape[1])[..., None]
                words_B = jnp.maximum(lengths_B, 1).astype(self.dtype)
                sum_BxM = jnp.sum(jnp.where(real_BxSx1, jnp.concatenate([x_BxSxE, h_BxSxM], axis=-1), 0), axis=1)
                return EncodedSource(lengths_B, vector=sum_BxM / words_B[:, None])
            case AlignerKind.MULTI_LEVEL:
                h_BxSxM = jnp.concatenate([x_BxSxE, h_BxSxM], axis=-1)
        assert self.aligner is not None
        return EncodedSource(lengths_B, self.aligner.prepare(h_BxSxM, lengths_B))


def attention_sites(config: ListenAttendWalkConfig, interface: TaskInterface) -> tuple[Site, ...]:
    """Return the attention site of the decoder; none without attention."""
    site = Site(SITE, Axis("target"), Axis("source"), layers=("0",), heads=("0",))
    return (site,) if config.aligner.attends else ()


FAMILY = ModelFamily(
    ListenAttendWalkConfig, ListenAttendWalk, frozenset({INSTRUCTION_FOLLOWING}), sites=attention_sites
)
