"""Listen, Attend and Spell: a pyramid of LSTMs hears, and one that attends to it writes (Chan et al. 2016)."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from transformer.attention.capture import Capture, capture_at, capture_weights, captured_at
from transformer.attention.masks import Mask
from transformer.attention.rng import check_rate
from transformer.attention.scores import INNER_PRODUCT
from transformer.attention.sites import Axis, AxisKind, Site
from transformer.config import Layers, UserError
from transformer.layers.attention_cell import Alignment, AttentionCell, AttentionCellConfig, AttentionMemory, scan_steps
from transformer.layers.audio import RATE, HearingConfig, heard
from transformer.layers.beams import repeat_rows
from transformer.layers.embedding import Embedding, rows_for
from transformer.layers.linear import Linear
from transformer.layers.module import Builder, Functional, Module, Precision
from transformer.layers.padding import real_positions, target_lengths
from transformer.layers.recurrent import CellState, Direction, RecurrentConfig, RecurrentLayer, RecurrentStack
from transformer.models.contract import Aux, Cache, Inputs, Model, PyTree, Stateless
from transformer.models.family import Family, Operations
from transformer.models.interface import TRANSCRIPTION, Interface

SITE = "decoder/attention"


@dataclasses.dataclass(frozen=True)
class ListenAttendSpellConfig:
    """A listener, a pyramid over log-mel frames, and a speller; the defaults are those of the paper, section 4.

    `listener`: the width of each direction of every LSTM of the listener. Above its lowest layer each of `pyramid`
    reads so many neighbouring outputs of the one beneath as one: (1, 1, 1) is a stack that keeps every frame.
    `speller` and `speller_layers`: of the LSTMs that write; `attention`: features of the space that states and frames
    are compared in. In training each character that the speller reads is its own draw with the probability `sampled`.
    `embedding_rows`: of the vocabulary, None for as many as the task has tokens.

    Errors: UserError for sizes below 1, and for a probability that is none.
    """

    hearing: HearingConfig = dataclasses.field(default_factory=HearingConfig)
    listener: int = 256
    pyramid: tuple[int, ...] = (2, 2, 2)
    speller: int = 512
    speller_layers: Layers = 2
    embedding: int = 64
    attention: int = 128
    sampled: float = 0.1
    embedding_rows: int | None = None

    def __post_init__(self) -> None:
        for name in ("listener", "speller", "speller_layers", "embedding", "attention"):
            if getattr(self, name) < 1:
                raise UserError(f"config.model.{name}={getattr(self, name)} must be at least 1")
        if any(factor < 1 for factor in self.pyramid):
            raise UserError(
                f"config.model.pyramid={self.pyramid} must be numbers of frames that become one, at least 1"
            )
        check_rate("sampled", self.sampled)

    @property
    def reduction(self) -> int:
        """How many frames the listener makes one position of."""
        return math.prod(self.pyramid)

    @property
    def listening(self) -> RecurrentConfig:
        """One layer of the listener."""
        return RecurrentConfig(width=self.listener, direction=Direction.BIDIRECTIONAL)

    @property
    def spelling(self) -> RecurrentConfig:
        """The stack of the speller."""
        return RecurrentConfig(width=self.speller, layers=self.speller_layers)

    @property
    def comparing(self) -> AttentionCellConfig:
        """The score of what the speller's state and a position of the listener have become."""
        return AttentionCellConfig(score=INNER_PRODUCT)


class Pyramid(Module):
    """h_i^j = BLSTM(h_{i-1}^j, [h_{2i}^{j-1} ; h_{2i+1}^{j-1}]) (equation 5), with any number of neighbours.

    What is missing behind the last position of an utterance is zero: n positions become ceil(n / factor).
    """

    def __init__(self, config: ListenAttendSpellConfig, inputs: int, *, builder: Builder):
        self.factors = (1, *config.pyramid)
        for number, factor in enumerate(self.factors):
            setattr(self, f"layer_{number}", RecurrentLayer(config.listening, factor * inputs, builder=builder))
            inputs = config.listening.output_width

    def __call__(
        self, x_BxTxF: Float[Array, "B T F"], lengths_B: Int[Array, " B"]
    ) -> tuple[Float[Array, "B S G"], Int[Array, " B"]]:
        """The top layer's outputs, zero at padding, and how many positions of each utterance there are."""
        for number, factor in enumerate(self.factors):
            x_BxTxF = beside(x_BxTxF, lengths_B, factor)
            lengths_B = -(-lengths_B // factor)
            x_BxTxF, _ = getattr(self, f"layer_{number}")(x_BxTxF, lengths_B)
        return x_BxTxF, lengths_B


class Given(NamedTuple):
    """What a step is given: the character before, and, where drawn, whether it reads its own instead."""

    character: Float[Array, "*B E"]
    own: Bool[Array, "*B"] | None = None


class Carry(NamedTuple):
    """s_{i-1}, c_{i-1}, and, where characters are drawn, the speller's own last one."""

    states: tuple[CellState, ...]
    context: Float[Array, "R C"]
    said: Int[Array, " R"] | None = None


class ListenAttendSpell(Stateless):
    """p(y_i | x, y_<i) = softmax(MLP(s_i, c_i)), s_i = LSTM(s_{i-1}, [y_{i-1} ; c_{i-1}]) (equations 6 to 8).

    c_i = sum_u alpha_iu h_u, alpha_i = softmax(e_i), e_iu = <phi(s_i), psi(h_u)> (equations 9 to 11); phi and psi are
    each a layer of tanh, MLP one with an output behind it. s_0 and c_0 are zero.

    Inputs: `sound` and its `lengths`, in samples, and `target`, what is said behind a begin token, padded at its end.
    """

    def __init__(self, config: ListenAttendSpellConfig, interface: Interface, builder: Builder):
        if interface.pad is None or interface.begin is None:
            raise ValueError("a speller needs interface.pad and interface.begin, the tokens' numbers")
        self.config, self.pad, self.begin, self.dtype = config, interface.pad, interface.begin, builder.dtype
        annotations = config.listening.output_width
        vocabulary = rows_for(interface.vocabularies["joint"], config.embedding_rows)
        self.listener = Pyramid(config, config.hearing.bands, builder=builder)
        self.embedding = Embedding(vocabulary, config.embedding, builder=builder)
        self.speller = RecurrentStack(config.spelling, config.embedding + annotations, builder=builder)

        def layer(inputs: int, name: str, outputs: int) -> Linear:
            return Linear((("features", inputs),), ((name, outputs),), bias=True, builder=builder)

        self.phi = layer(config.speller, "embed", config.attention)
        self.psi = layer(annotations, "embed", config.attention)
        self.attention = AttentionCell(config.comparing, config.attention, config.attention, builder=builder)
        self.hidden_layer = layer(config.speller + annotations, "embed", config.speller)
        self.output = layer(config.speller, "vocabulary", vocabulary)

    def listen(self, inputs: Inputs, key: Key[Array, ""] | None) -> AttentionMemory:
        """h, whose keys are psi(h); with a key, as in training, parts of what is heard are hidden."""
        sound, lengths_B = jnp.asarray(inputs["sound"]), jnp.asarray(inputs["lengths"])
        frames_BxFxM, frames_B = heard(sound, lengths_B, self.config.hearing, dtype=self.dtype, key=key)
        h_BxUxC, lengths_B = self.listener(frames_BxFxM, frames_B)
        memory = self.attention.prepare(jnp.tanh(self.psi(h_BxUxC)), lengths_B)
        return memory._replace(values=h_BxUxC[:, :, None])

    def forward(
        self,
        state: PyTree,
        inputs: Inputs,
        *,
        train: bool,
        key: Key[Array, ""] | None = None,
        capture: Capture | None = None,
    ) -> tuple[Float[Array, "B T V"], Aux]:
        """The score of every character at every position of `target`, which is read but for the draws in training."""
        hearing_key, own_key, step_key = (None,) * 3 if key is None or not train else jax.random.split(key, 3)
        target_BxT = jnp.asarray(inputs["target"])
        memory = self.listen(inputs, hearing_key)
        lengths_B = target_lengths(target_BxT, memory.lengths, self.pad)
        own_BxT, said = None, None
        if own_key is not None and self.config.sampled:
            own_BxT = jax.random.bernoulli(own_key, self.config.sampled, target_BxT.shape).at[:, 0].set(False)
            said = target_BxT[:, 0]
        _, logits_BxTxV, captured = scan_steps(
            functools.partial(self._step, memory=memory),
            self._first(len(target_BxT), said),
            Given(self.embedding(target_BxT, self.dtype), own_BxT),
            mask=Mask(query_lengths=lengths_B, key_lengths=memory.lengths),
            key=step_key,
            capture=capture_at(SITE, capture),
        )
        return logits_BxTxV, Aux({} if captured is None else {SITE: captured}, {}, state)

    def init_cache(self, state: PyTree, inputs: Inputs, *, beams: int, length: int) -> tuple[Cache, Int[Array, " R"]]:
        """Rows are examples x beams; what was heard lies in `examples`, once for all beams."""
        memory = self.listen(inputs, None)
        rows = repeat_rows(self._first(len(memory.lengths), None), beams)
        return Cache(layers=(), rows=rows, examples=memory), jnp.full(len(rows.context), self.begin, jnp.int32)

    def step(
        self,
        state: PyTree,
        cache: Cache,
        tokens_R: Int[Array, " R"],
        *,
        key: Key[Array, ""] | None = None,
        capture: Capture | None = None,
    ) -> tuple[Float[Array, "R V"], Cache, Aux]:
        """The same step as in training, on the characters that were chosen."""
        given = Given(self.embedding(tokens_R, self.dtype))
        rows, logits_RxV, alignment = self._step(cache.rows, given, None, memory=cache.examples)
        weights, logits = alignment.weights[:, :, None], alignment.logits[:, :, None]
        maps = captured_at(SITE, capture_weights(weights, capture_at(SITE, capture), logits=logits), capture)
        return logits_RxV, cache._replace(rows=rows), Aux(maps, {}, state)

    def _first(self, rows: int, said_R: Int[Array, " R"] | None) -> Carry:
        context_RxC = jnp.zeros((rows, self.config.listening.output_width), self.dtype)
        return Carry(self.speller.initial(rows, self.dtype), context_RxC, said_R)

    def _step(
        self, carry: Carry, given: Given, key: Key[Array, ""] | None, *, memory: AttentionMemory
    ) -> tuple[Carry, Float[Array, "R V"], Alignment]:
        """One character further: what the speller reads next, the scores, and how the frames were weighted."""
        character_RxE = given.character
        if given.own is not None:
            assert carry.said is not None
            character_RxE = jnp.where(given.own[:, None], self.embedding(carry.said, self.dtype), character_RxE)
        s_RxF, states = self.speller.step(jnp.concatenate([character_RxE, carry.context], axis=-1), carry.states)
        context_RxC, alignment = self.attention.step(jnp.tanh(self.phi(s_RxF)), memory)
        logits_RxV = self.output(jnp.tanh(self.hidden_layer(jnp.concatenate([s_RxF, context_RxC], axis=-1))))
        logits_RxV = logits_RxV.astype(jnp.promote_types(logits_RxV.dtype, jnp.float32))
        said_R = carry.said
        if given.own is not None:
            assert key is not None
            said_R = jax.random.categorical(key, jax.lax.stop_gradient(logits_RxV)).astype(jnp.int32)
        return Carry(states, context_RxC, said_R), logits_RxV, alignment


def beside(x_BxTxF: Float[Array, "B T F"], lengths_B: Int[Array, " B"], factor: int) -> Float[Array, "B S _"]:
    """Every `factor` neighbouring positions as one, zeros behind the last real position of each row."""
    if factor == 1:
        return x_BxTxF
    rows, count, features = x_BxTxF.shape
    x_BxTxF = jnp.where(real_positions(lengths_B, count)[..., None], x_BxTxF, 0)
    padded = jnp.pad(x_BxTxF, ((0, 0), (0, -count % factor), (0, 0)))
    return padded.reshape(rows, -1, factor * features)


def build(config: ListenAttendSpellConfig, interface: Interface, precision: Precision) -> Model:
    """The model for sounds and strings of any length."""
    stride = config.hearing.hop * config.reduction / RATE
    frames = Axis("frames", AxisKind.FRAMES, stride=stride)
    site = Site(SITE, Axis("target"), frames, layers=("0",), heads=("0",))
    return Model(Functional(lambda builder: ListenAttendSpell(config, interface, builder), precision), (site,))


def operations(
    config: ListenAttendSpellConfig, batch: Mapping[str, Any], vocabularies: Mapping[str, int]
) -> Operations:
    """Matrix products of a forward pass by teacher forcing, 2 for each multiplication and addition."""
    (rows, samples), steps = batch["sound"].shape, batch["target"].shape[1]
    annotations, count = config.listening.output_width, config.hearing.operations(samples)
    positions, inputs = config.hearing.frames(samples), config.hearing.bands
    for factor in (1, *config.pyramid):
        positions = -(-positions // factor)
        count += positions * config.listening.operations(factor * inputs)
        inputs = annotations
    count += positions * 2 * config.attention * annotations  # psi
    of_step = config.spelling.operations(config.embedding + annotations)
    of_step += 2 * config.speller * (config.attention + rows_for(vocabularies["joint"], config.embedding_rows))
    of_step += 2 * (config.speller + annotations) * config.speller
    of_step += 2 * positions * (config.attention + annotations)
    return Operations(float(rows * (count + steps * of_step)))


FAMILY = Family(ListenAttendSpellConfig, build, frozenset({TRANSCRIPTION}), operations)
