"""Listen, Attend and Walk: instructions in, actions out, in a world that moves with them (Mei, Bansal, Walter 2016)."""

import dataclasses
import enum
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from experiments.instruction_following.transition_tables import follow_moves, move, seen
from transformer.attention.sites import Axis, Site
from transformer.config import Config, Positive
from transformer.layers.attention_cell import Alignment, AttentionCell, AttentionCellConfig
from transformer.layers.beam_rows import as_rows, by_example
from transformer.layers.embedding import Embedding, rows_for
from transformer.layers.functional_module import Builder, Functional, Precision
from transformer.layers.linear import Linear
from transformer.layers.recurrent import CellState, Direction, RecurrentConfig, RecurrentLayer
from transformer.layers.sequence_lengths import real_lengths, real_positions
from transformer.models.model import Inputs, Model, PyTree
from transformer.models.model_family import ModelFamily
from transformer.models.recurrent_attention_decoder import SITE, EncodedSource, RecurrentAttentionDecoder, read_context
from transformer.models.task_interface import INSTRUCTION_FOLLOWING, TaskInterface


class Aligner(enum.Enum):
    """What z_t an action reads of an instruction of N words: x_j is a word's embedding, h_j the encoder's state there.

    multi_level: sum_j a_tj [x_j ; h_j] with weights from x_j and h_j, beta_tj = v' tanh(W s_{t-1} + U x_j + V h_j), of
      which a_t is the softmax (Mei et al. 2016).
    high_level: sum_j a_tj h_j, beta_tj = v' tanh(W s_{t-1} + V h_j): no words beside the states.
    mean: (1/N) sum_j [x_j ; h_j] for all actions, no aligner. last: the encoder's last state for all of them, neither.
    """

    MULTI_LEVEL = "multi_level"
    HIGH_LEVEL = "high_level"
    MEAN = "mean"
    LAST = "last"

    @property
    def attends(self) -> bool:
        """Whether each action has weights of its own."""
        return self in (Aligner.MULTI_LEVEL, Aligner.HIGH_LEVEL)

    @property
    def reads_words(self) -> bool:
        """Whether words are read beside states."""
        return self in (Aligner.MULTI_LEVEL, Aligner.MEAN)


@dataclasses.dataclass(frozen=True)
class ListenAttendWalkConfig(Config, path="config.model"):
    """An LSTM encoder of words, an aligner, and an LSTM decoder over observations."""

    width: Positive = 128
    embedding: Positive = 64
    aligner: Aligner = Aligner.MULTI_LEVEL
    direction: Direction = Direction.BIDIRECTIONAL
    vocab_size: int | None = None

    @property
    def encoder(self) -> RecurrentConfig:
        """The LSTM over words."""
        return RecurrentConfig(width=self.width, direction=self.direction)

    @property
    def decoder(self) -> RecurrentConfig:
        """The LSTM over actions."""
        return RecurrentConfig(width=self.width)

    @property
    def read(self) -> int:
        """The features of z_t."""
        return self.encoder.output_width + self.embedding * self.aligner.reads_words


class World(NamedTuple):
    """What every action reads: an instruction, and the tables of the world that it is followed in."""

    instruction: EncodedSource
    sights: Float[Array, "B P F"]
    moves: Int[Array, "B P V"]

    @property
    def lengths(self) -> Int[Array, " B"]:
        """How many words each instruction has."""
        return self.instruction.lengths


class Sight(NamedTuple):
    """Where one stands, and E y_t, what is seen there."""

    place: Int[Array, "*B"]
    seen: Float[Array, "*B E"]


class Carry(NamedTuple):
    """The state, and where one stood behind it."""

    state: CellState
    place: Int[Array, " R"]


class StepOutput(NamedTuple):
    """What a step hands out: s_t and z_t."""

    hidden: Float[Array, "*B F"]
    context: Float[Array, "*B M"]


class ListenAttendWalk(RecurrentAttentionDecoder):
    """p(a_t | x, y_1 ... y_t) = softmax(L_0 (E y_t + L_s s_t + L_z z_t)) (Mei et al. 2016).

    s_t = LSTM([E y_t ; z_t], s_{t-1}) from zeros; y_t is what is seen where the actions before have led, so that these
    reach the decoder through the world alone; z_t is the aligner's. Inputs: `source`, the instruction, padded at its
    end; `target`, the actions behind a begin token; and the world, `sights`, `moves` and `start`
    (experiments.instruction_following.transition_tables), whose begin token and padding lead nowhere.
    """

    def __init__(self, config: ListenAttendWalkConfig, interface: TaskInterface, builder: Builder):
        super().__init__(interface, builder)
        self.config = config
        width, embedding = config.width, config.embedding

        def linear(inputs: int, outputs: int, name: str = "embed") -> Linear:
            return Linear((("features", inputs),), ((name, outputs),), bias=False, builder=builder)

        words = rows_for(interface.vocabularies["source"], config.vocab_size)
        self.embedding = Embedding(words, embedding, builder=builder)
        self.encoder = RecurrentLayer(config.encoder, embedding, builder=builder)
        aligned = AttentionCell(AttentionCellConfig(), width, config.read, builder=builder)
        self.aligner = aligned if config.aligner.attends else None
        self.sight = linear(interface.inputs["sights"].shape[-1], embedding)
        self.decoder = RecurrentLayer(config.decoder, embedding + config.read, builder=builder)
        self.of_state, self.of_context = linear(width, embedding), linear(config.read, embedding)
        self.output = linear(embedding, interface.vocabularies["target"], "vocabulary")

    def encode(self, inputs: Inputs, key: Key[Array, ""] | None) -> tuple[World, Carry]:
        """The instruction and the world around it, and a state of zeros where the walk starts."""
        instruction, moves_BxPxV = self._listen(jnp.asarray(inputs["source"])), jnp.asarray(inputs["moves"])
        start_B = jnp.asarray(inputs["start"], moves_BxPxV.dtype)
        world = World(instruction, jnp.asarray(inputs["sights"], self.dtype), moves_BxPxV)
        return world, Carry(self.decoder.initial(len(start_B), self.dtype), start_B)

    def step_inputs(self, state: PyTree, inputs: Inputs, source: World, key: Key[Array, ""] | None) -> Sight:
        """What is seen at every place that the actions of `target` lead to."""
        place_BxT = follow_moves(source.moves, jnp.asarray(inputs["start"]), jnp.asarray(inputs["target"]))
        return Sight(place_BxT, self.sight(seen(source.sights, place_BxT)))

    def next_step_input(self, tokens_R: Int[Array, " R"], source: World, carry: Carry) -> Sight:
        """The world moves by the action that was chosen, and what is seen there gives the next one."""
        place_R = move(source.moves, carry.place, tokens_R)
        return Sight(place_R, self.sight(as_rows(seen(source.sights, by_example(place_R, len(source.sights))))))

    def advance(
        self, source: World, carry: Carry, given: Sight, key: Key[Array, ""] | None, *, train: bool
    ) -> tuple[Carry, StepOutput, Alignment | None]:
        """s_{t-1} reads the instruction, and s_t what is seen beside it."""
        context_RxM, alignment = read_context(self.aligner, source.instruction, carry.state.hidden)
        state = self.decoder.step(jnp.concatenate([given.seen, context_RxM], axis=-1), carry.state)
        return Carry(state, given.place), StepOutput(state.hidden, context_RxM), alignment

    def output_features(self, given: Sight, outputs: StepOutput) -> Float[Array, "*B E"]:
        """E y_t + L_s s_t + L_z z_t."""
        return given.seen + self.of_state(outputs.hidden) + self.of_context(outputs.context)

    def _listen(self, source_BxS: Int[Array, "B S"]) -> EncodedSource:
        """What the actions read of the instruction."""
        lengths_B = real_lengths(source_BxS, self.pad)
        x_BxSxE = self.embedding(source_BxS, self.dtype)
        h_BxSxM, last = self.encoder(x_BxSxE, lengths_B)
        match self.config.aligner:
            case Aligner.LAST:
                return EncodedSource(lengths_B, vector=last.hidden)
            case Aligner.MEAN:
                real_BxSx1 = real_positions(lengths_B, source_BxS.shape[1])[..., None]
                words_B = jnp.maximum(lengths_B, 1).astype(self.dtype)
                sum_BxM = jnp.sum(jnp.where(real_BxSx1, jnp.concatenate([x_BxSxE, h_BxSxM], axis=-1), 0), axis=1)
                return EncodedSource(lengths_B, vector=sum_BxM / words_B[:, None])
            case Aligner.MULTI_LEVEL:
                h_BxSxM = jnp.concatenate([x_BxSxE, h_BxSxM], axis=-1)
        assert self.aligner is not None
        return EncodedSource(lengths_B, self.aligner.prepare(h_BxSxM, lengths_B))


def build(config: ListenAttendWalkConfig, interface: TaskInterface, precision: Precision) -> Model:
    """The model for sights of so many features; instructions and walks may have any length."""
    site = Site(SITE, Axis("target"), Axis("source"), layers=("0",), heads=("0",))
    sites = (site,) if config.aligner.attends else ()
    return Model(Functional(lambda builder: ListenAttendWalk(config, interface, builder), precision), sites)


FAMILY = ModelFamily(ListenAttendWalkConfig, build, frozenset({INSTRUCTION_FOLLOWING}))
