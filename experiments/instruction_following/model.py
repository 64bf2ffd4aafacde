"""Listen, Attend and Walk: instructions in, actions out, in a world that moves with them (Mei, Bansal, Walter 2016)."""

import dataclasses
import enum
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from experiments.instruction_following.transition_tables import moved, seen, walked
from transformer.attention.capture import Capture, capture_at, capture_weights, captured_at
from transformer.attention.masks import Mask
from transformer.attention.sites import Axis, Site
from transformer.config import UserError
from transformer.layers.attention_cell import Alignment, AttentionCell, AttentionCellConfig, AttentionMemory, scan_steps
from transformer.layers.beams import as_rows, by_example, repeat_rows
from transformer.layers.embedding import Embedding, rows_for
from transformer.layers.linear import Linear
from transformer.layers.module import Builder, Functional, Precision
from transformer.layers.padding import real_lengths, real_positions, target_lengths
from transformer.layers.recurrent import CellState, Direction, RecurrentConfig, RecurrentLayer
from transformer.models.contract import Aux, Cache, Inputs, Model, PyTree, Stateless
from transformer.models.family import Family, Operations
from transformer.models.interface import WALKING, Interface

SITE = "decoder/attention"


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
    def of_words(self) -> bool:
        """Whether words are read beside states."""
        return self in (Aligner.MULTI_LEVEL, Aligner.MEAN)


@dataclasses.dataclass(frozen=True)
class WalkerConfig:
    """An LSTM over words, an aligner, and an LSTM over what is seen on the way.

    `width`: of each of the encoder's cells and of the decoder; `embedding`: of words, of sights, and of what the
    next action is scored from. `direction` is the encoder's. `embedding_rows`: of the words' table, None for as many as
    the task has words.

    Errors: UserError for sizes below 1.
    """

    width: int = 128
    embedding: int = 64
    aligner: Aligner = Aligner.MULTI_LEVEL
    direction: Direction = Direction.BIDIRECTIONAL
    embedding_rows: int | None = None

    def __post_init__(self) -> None:
        for name in ("width", "embedding"):
            if getattr(self, name) < 1:
                raise UserError(f"config.model.{name}={getattr(self, name)} must be at least 1")

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
        return self.encoder.output_width + self.embedding * self.aligner.of_words


class Heard(NamedTuple):
    """What every action reads of an instruction: the memory of an aligner, or one vector for all actions."""

    memory: AttentionMemory | None = None
    vector: Float[Array, "B M"] | None = None


class World(NamedTuple):
    """An instruction, and the tables of the world that it is followed in."""

    heard: Heard
    sights: Float[Array, "B P F"]
    moves: Int[Array, "B P V"]


class Carry(NamedTuple):
    """What decoding hands from step to step: the state, and where one stands."""

    state: CellState
    place: Int[Array, " R"]


class Walker(Stateless):
    """p(a_t | x, y_1 ... y_t) = softmax(L_0 (E y_t + L_s s_t + L_z z_t)) (Mei et al. 2016).

    s_t = LSTM([E y_t ; z_t], s_{t-1}) from zeros; y_t is what is seen where the actions before have led, so that these
    reach the decoder through the world alone; z_t is the aligner's. Inputs: `source`, the instruction, padded at its
    end; `target`, the actions behind a begin token; and the world, `sights`, `moves` and `start`
    (experiments.instruction_following.transition_tables), whose begin token and padding lead nowhere.
    """

    def __init__(self, config: WalkerConfig, interface: Interface, builder: Builder):
        if interface.pad is None or interface.begin is None:
            raise ValueError("a walker needs interface.pad and interface.begin, the tokens' numbers")
        self.config, self.pad, self.begin, self.dtype = config, interface.pad, interface.begin, builder.dtype
        width, embedding = config.width, config.embedding

        def linear(inputs: int, outputs: int, name: str = "embed") -> Linear:
            return Linear((("features", inputs),), ((name, outputs),), bias=False, builder=builder)

        words = rows_for(interface.vocabularies["source"], config.embedding_rows)
        self.embedding = Embedding(words, embedding, builder=builder)
        self.encoder = RecurrentLayer(config.encoder, embedding, builder=builder)
        aligned = AttentionCell(AttentionCellConfig(), width, config.read, builder=builder)
        self.aligner = aligned if config.aligner.attends else None
        self.sight = linear(interface.inputs["sights"].shape[-1], embedding)
        self.decoder = RecurrentLayer(config.decoder, embedding + config.read, builder=builder)
        self.of_state, self.of_context = linear(width, embedding), linear(config.read, embedding)
        self.output = linear(embedding, interface.vocabularies["target"], "vocabulary")

    def listen(self, source_BxS: Int[Array, "B S"]) -> tuple[Heard, Int[Array, " B"]]:
        """What the actions read of the instruction, and how many words it has."""
        lengths_B = real_lengths(source_BxS, self.pad)
        x_BxSxE = self.embedding(source_BxS, self.dtype)
        h_BxSxM, last = self.encoder(x_BxSxE, lengths_B)
        match self.config.aligner:
            case Aligner.LAST:
                return Heard(vector=last.hidden), lengths_B
            case Aligner.MEAN:
                real_BxSx1 = real_positions(lengths_B, source_BxS.shape[1])[..., None]
                words_B = jnp.maximum(lengths_B, 1).astype(self.dtype)
                sum_BxM = jnp.sum(jnp.where(real_BxSx1, jnp.concatenate([x_BxSxE, h_BxSxM], axis=-1), 0), axis=1)
                return Heard(vector=sum_BxM / words_B[:, None]), lengths_B
            case Aligner.MULTI_LEVEL:
                h_BxSxM = jnp.concatenate([x_BxSxE, h_BxSxM], axis=-1)
        assert self.aligner is not None
        return Heard(self.aligner.prepare(h_BxSxM, lengths_B)), lengths_B

    def forward(
        self,
        state: PyTree,
        inputs: Inputs,
        *,
        train: bool,
        key: Key[Array, ""] | None = None,
        capture: Capture | None = None,
    ) -> tuple[Float[Array, "B T V"], Aux]:
        """Teacher forcing: the score of every action at every place that the actions of `target` lead to."""
        target_BxT, moves_BxPxV = jnp.asarray(inputs["target"]), jnp.asarray(inputs["moves"])
        heard, words_B = self.listen(jnp.asarray(inputs["source"]))
        place_BxT = walked(moves_BxPxV, jnp.asarray(inputs["start"]), target_BxT)
        sight_BxTxE = self.sight(seen(jnp.asarray(inputs["sights"], self.dtype), place_BxT))
        lengths_B = target_lengths(target_BxT, words_B, self.pad)
        _, told, captured = scan_steps(
            functools.partial(self._step, heard=heard),
            self.decoder.initial(len(target_BxT), self.dtype),
            sight_BxTxE,
            mask=Mask(query_lengths=lengths_B, key_lengths=words_B),
            capture=capture_at(SITE, capture),
        )
        return self._score(sight_BxTxE, *told), Aux({} if captured is None else {SITE: captured}, {}, state)

    def init_cache(self, state: PyTree, inputs: Inputs, *, beams: int, length: int) -> tuple[Cache, Int[Array, " R"]]:
        """Every row stands at the start of its example's world; instruction and world lie in `examples`."""
        heard, _ = self.listen(jnp.asarray(inputs["source"]))
        moves_BxPxV = jnp.asarray(inputs["moves"])
        start_R = repeat_rows(jnp.asarray(inputs["start"], moves_BxPxV.dtype), beams)
        rows = Carry(self.decoder.initial(len(start_R), self.dtype), start_R)
        world = World(heard, jnp.asarray(inputs["sights"], self.dtype), moves_BxPxV)
        return Cache(layers=(), rows=rows, examples=world), jnp.full(len(start_R), self.begin, jnp.int32)

    def step(
        self,
        state: PyTree,
        cache: Cache,
        tokens_R: Int[Array, " R"],
        *,
        key: Key[Array, ""] | None = None,
        capture: Capture | None = None,
    ) -> tuple[Float[Array, "R V"], Cache, Aux]:
        """The world moves by the action that was chosen, and what is seen there gives the next one."""
        world: World = cache.examples
        place_R = moved(world.moves, cache.rows.place, tokens_R)
        sight_RxE = self.sight(as_rows(seen(world.sights, by_example(place_R, len(world.sights)))))
        of_decoder, told, alignment = self._step(cache.rows.state, sight_RxE, None, heard=world.heard)
        maps, asked = {}, capture_at(SITE, capture)
        if alignment is not None and asked is not None:
            logits = alignment.logits[:, :, None]
            maps = captured_at(SITE, capture_weights(alignment.weights[:, :, None], asked, logits=logits), capture)
        return self._score(sight_RxE, *told), cache._replace(rows=Carry(of_decoder, place_R)), Aux(maps, {}, state)

    def _step(
        self, state: CellState, sight_RxE: Array, key: Key[Array, ""] | None, *, heard: Heard
    ) -> tuple[CellState, tuple[Array, Array], Alignment | None]:
        """One action further: s_{t-1} reads the instruction, s_t what is seen beside it; s_t and z_t are handed out."""
        alignment = None
        if self.aligner is None:
            assert heard.vector is not None
            context_RxM = repeat_rows(heard.vector, len(sight_RxE) // len(heard.vector))
        else:
            assert heard.memory is not None
            context_RxM, alignment = self.aligner.step(state.hidden, heard.memory)
        state = self.decoder.step(jnp.concatenate([sight_RxE, context_RxM], axis=-1), state)
        return state, (state.hidden, context_RxM), alignment

    def _score(self, sight: Array, hidden: Array, context: Array) -> Float[Array, "*B V"]:
        """The score of every action, in at least float32."""
        logits = self.output(sight + self.of_state(hidden) + self.of_context(context))
        return logits.astype(jnp.promote_types(logits.dtype, jnp.float32))


def build(config: WalkerConfig, interface: Interface, precision: Precision) -> Model:
    """The model for sights of so many features; instructions and walks may have any length."""
    site = Site(SITE, Axis("target"), Axis("source"), layers=("0",), heads=("0",))
    sites = (site,) if config.aligner.attends else ()
    return Model(Functional(lambda builder: Walker(config, interface, builder), precision), sites)


def operations(config: WalkerConfig, batch: Mapping[str, Any], vocabularies: Mapping[str, int]) -> Operations:
    """Matrix products of a forward pass by teacher forcing, 2 for each multiplication and addition."""
    (rows, words), steps, width, embedding = (
        batch["source"].shape,
        batch["target"].shape[1],
        config.width,
        config.embedding,
    )
    count = words * config.encoder.operations(embedding)
    if config.aligner.attends:
        count += AttentionCellConfig().operations(width, config.read, queries=steps, keys=words)
    of_action = config.decoder.operations(embedding + config.read)
    of_action += 2 * embedding * (batch["sights"].shape[-1] + width + config.read + vocabularies["target"])
    return Operations(float(rows * (count + steps * of_action)))


FAMILY = Family(WalkerConfig, build, frozenset({WALKING}), operations)
