"""Recurrent encoder-decoders: one vector for a sentence, and every way of attending to its words instead."""

import dataclasses
import enum
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from transformer.attention.capture import Capture, Captured, capture_at, capture_weights, captured_at, one_layer
from transformer.attention.masks import Mask
from transformer.attention.normalizers import SAMPLERS, Normaliser, Reweighting
from transformer.attention.rng import dropout
from transformer.attention.scores import SCORES, Score
from transformer.attention.sites import Axis, Site, Values
from transformer.config import Config, Count, Heads, Layers, Positive, Rate, UserError
from transformer.layers.attention_cell import (
    Alignment,
    AttentionCell,
    AttentionCellConfig,
    AttentionMemory,
    Extent,
    Projection,
    scan_steps,
)
from transformer.layers.beams import repeat_rows
from transformer.layers.embedding import Embedding, rows_for
from transformer.layers.initialization import Initialisation, Initialise, ScoreInitialisation
from transformer.layers.linear import Linear
from transformer.layers.module import Builder, Functional, Module, Precision
from transformer.layers.padding import real_lengths, target_lengths
from transformer.layers.recurrent import Cell, CellState, Direction, RecurrentConfig, RecurrentStack, SkipConnections
from transformer.models.contract import Aux, Cache, Inputs, Model
from transformer.models.family import Family
from transformer.models.interface import TRANSLATION, Interface, check_length

SITE = "decoder/attention"

_STREAMS = (
    "source",
    "encoder",
    "target",
    "own",
    "steps",
    "said",
    "attention",
    "decoder",
    "readout",
    "which",
    "draw",
    "soft",
)


class Context(enum.Enum):
    """What the decoder is given of the annotations h_1 ... h_N of the source, beside its first state.

    none: nothing (Sutskever et al. 2014). last: the encoder's last state, at every step (Cho et al. 2014).
    mean: (1/N) sum_i h_i. sum: the same without 1/N. attention: sum_i a_i h_i (Bahdanau et al. 2015, equation 5).
    attention_over_length: (1/N) sum_i a_i h_i, as some lectures write it: the weights sum to one already, so that
      this context shrinks as the source grows.
    """

    NONE = "none"
    LAST = "last"
    MEAN = "mean"
    SUM = "sum"
    ATTENTION = "attention"
    ATTENTION_OVER_LENGTH = "attention_over_length"

    @property
    def attends(self) -> bool:
        """Whether its weights are those of an attention."""
        return self in (Context.ATTENTION, Context.ATTENTION_OVER_LENGTH)


class Order(enum.Enum):
    """Which state asks, and where the answer goes; w_t is the word that step t reads, c_t the context.

    previous: s_{t-1} asks, s_t = f(s_{t-1}, [w_t ; c_t]) (Bahdanau et al. 2015, appendix A.2.2).
    current: s_t = f(s_{t-1}, w_t) asks, and c_t goes to the output alone (Luong et al. 2015, section 3.1).
    input_feeding: the same, but s_t = f(s_{t-1}, [w_t ; r_{t-1}]), r being what the word before was scored from (their
      section 3.3).
    """

    PREVIOUS = "previous"
    CURRENT = "current"
    INPUT_FEEDING = "input_feeding"


class Readout(enum.Enum):
    """r_t, from which the next word is scored.

    maxout: the larger of each pair of features of W [s_t ; w_t ; c_t] + b (Bahdanau et al. 2015, appendix A.2.2).
    tanh: tanh(W [c_t ; s_t]) (Luong et al. 2015, equation 5).
    """

    MAXOUT = "maxout"
    TANH = "tanh"


class Bridge(enum.Enum):
    """Where the decoder's first state comes from.

    tanh: every layer's is tanh(W h + b) of the last state h of the encoder's top layer, an LSTM's memory W' c + b'
      (Bahdanau et al. 2015, appendix A.2.2, of the backward direction alone).
    copy: each layer's is that of the encoder's layer of the same number (Sutskever et al. 2014).
    """

    TANH = "tanh"
    COPY = "copy"


@dataclasses.dataclass(frozen=True)
class RecurrentEncoderDecoderConfig(Config, path="config.model"):
    """A recurrent encoder-decoder; the defaults are those of Bahdanau et al. 2015 at a smaller width.

    `width`: of a state of either side and of the readout; `embedding`: of words. `direction` of the encoder: backward
    reads the source reversed (Sutskever et al. 2014). `score` to `half_width` are of the attention
    (transformer.layers.attention_cell), `max_length` the positions that the score location has rows for,
    `embedding_rows` those of the vocabulary, None for as many as the task has tokens.
    Of a `normaliser` that draws, `soft_share` is the probability that a training example is read by the probabilities
    in place of draws (Xu et al. 2015, section 4.1). In training a word that the decoder reads is its own draw, and not
    the reference's, with a probability that rises to `scheduled_sampling` over as many steps as
    `scheduled_sampling_steps` says (Bengio et al. 2015).

    Errors: UserError for sizes below 1, and for choices that exclude each other.
    """

    cell: Cell = Cell.GRU_RESET_BEFORE
    width: Positive = 256
    embedding: Positive = 256
    encoder_layers: Layers = 1
    decoder_layers: Layers = 1
    direction: Direction = Direction.BIDIRECTIONAL
    links: SkipConnections = SkipConnections.NONE
    bridge: Bridge = Bridge.TANH
    context: Context = Context.ATTENTION
    order: Order = Order.PREVIOUS
    readout: Readout = Readout.MAXOUT
    score: Score = AttentionCellConfig.score
    normaliser: Normaliser = AttentionCellConfig.normaliser
    projection: Projection = AttentionCellConfig.projection
    heads: Heads = AttentionCellConfig.heads
    depth: Count = AttentionCellConfig.depth
    extent: Extent = AttentionCellConfig.extent
    half_width: Positive = AttentionCellConfig.half_width
    max_length: Count = AttentionCellConfig.max_length
    soft_share: Rate = 0.0
    embedding_rows: int | None = None
    initialisation: Initialisation = Initialisation.XAVIER
    dropout: Rate = 0.0
    scheduled_sampling: Rate = 0.0
    scheduled_sampling_steps: Positive = 10_000

    def _check(self) -> None:
        if self.soft_share and not (self.normaliser in SAMPLERS and self.context.attends):
            raise UserError(
                f"config.model.soft_share={self.soft_share} is for an attention that draws: say normaliser=hard or "
                "straight_through, or soft_share=0"
            )
        if self.order is Order.INPUT_FEEDING and self.context is Context.NONE:
            raise UserError(
                "config.model.order=input_feeding feeds what was read of the source back, and config.model.context="
                "none reads nothing: say current, or another context"
            )
        single = all(len(self.direction.orders(layer)) == 1 for layer in range(self.encoder_layers))
        alike = single and self.encoder_layers == self.decoder_layers
        if self.bridge is Bridge.COPY and not alike:
            raise UserError(
                "config.model.bridge=copy needs as many layers on both sides, and encoder layers of one cell each: "
                f"config.model.encoder_layers={self.encoder_layers}, decoder_layers={self.decoder_layers}, "
                f"direction={self.direction.value}; or say bridge=tanh"
            )
        if self.context.attends:
            self.check_attention()

    def check_attention(self) -> None:
        """Errors: UserError for an attention that these sizes do not allow, or whose choices exclude each other."""
        self.attention()
        if self.extent is Extent.PREDICTIVE and self.normaliser in SAMPLERS:
            raise UserError(
                "config.model.extent=predictive weighs the keys around its centre, of which config.model.normaliser="
                f"{self.normaliser.value} leaves one: say extent=monotonic, or normaliser=softmax"
            )
        memory, split = self.encoder().output_width, self.projection is Projection.SPLIT
        for name, size in (("width", self.width), ("the encoder's output", memory)):
            if size % self.heads and not (split and self.depth):
                raise UserError(f"config.model.heads={self.heads} do not divide the {size} features of {name}")
        if SCORES[self.score].product and not split and self.width != memory:
            raise UserError(
                f"config.model.score={self.score.value} multiplies states of {self.width} features with annotations "
                f"of {memory}: say projection=split, direction=forward, or the score general"
            )

    def encoder(self) -> RecurrentConfig:
        """The encoder's stack."""
        return RecurrentConfig(self.cell, self.width, self.encoder_layers, self.direction, self.links, self.dropout)

    def decoder(self) -> RecurrentConfig:
        """The decoder's stack."""
        return RecurrentConfig(self.cell, self.width, self.decoder_layers, links=self.links, dropout=self.dropout)

    @property
    def context_width(self) -> int:
        """The features of a context, 0 without one."""
        annotations = self.encoder().output_width
        if self.context.attends:
            return self.attention().context_width(self.width, annotations)
        return 0 if self.context is Context.NONE else annotations

    @property
    def fed_width(self) -> int:
        """The features that the decoder's first layer reads beside the word."""
        match self.order:
            case Order.PREVIOUS:
                return self.context_width
            case Order.CURRENT:
                return 0
            case Order.INPUT_FEEDING:
                return self.width

    @property
    def readout_sizes(self) -> tuple[int, int]:
        """Features that the readout's matrix reads, and those that it gives: maxout reads the word and gives pairs."""
        both = self.width + self.context_width
        if self.readout is Readout.MAXOUT:
            return both + self.embedding, 2 * self.width
        return both, self.width

    def attention(self) -> AttentionCellConfig:
        """The decoder's attention: local-p with its Gaussian window."""
        bahdanau = self.initialisation is Initialisation.BAHDANAU
        return AttentionCellConfig(
            self.score,
            self.normaliser,
            Reweighting.GAUSSIAN if self.extent is Extent.PREDICTIVE else Reweighting.NONE,
            self.projection,
            self.heads,
            self.depth,
            self.max_length,
            self.extent,
            self.half_width,
            ScoreInitialisation.BAHDANAU if bahdanau else ScoreInitialisation.OWN,
        )


class EncodedSource(NamedTuple):
    """What of the source every step reads: the memory of an attention, or one vector for all steps, or nothing."""

    lengths: Int[Array, " B"]
    memory: AttentionMemory | None = None
    vector: Float[Array, "B M"] | None = None


class StepInput(NamedTuple):
    """What a step is given: the word, and, where drawn, whether it reads its own instead, and the source softly."""

    word: Float[Array, "*B E"]
    own: Bool[Array, "*B"] | None = None
    soft: Bool[Array, "*B"] | None = None


class DecoderCarry(NamedTuple):
    """What a step hands to the next: the states, with input feeding the readout, and the model's own last word."""

    states: tuple[CellState, ...]
    position: Int[Array, " R"]
    read: Float[Array, "R E"] | None = None
    said: Int[Array, " R"] | None = None


class RecurrentEncoderDecoder(Module):
    """Encoder, attention and decoder over one joint vocabulary.

    inputs: `source` [B, S] and `target` [B, T], the decoder's input (the target behind a begin token); padding is the
    token `pad`, at the end only. Outputs: logits [B, T, V].
    """

    def __init__(self, config: RecurrentEncoderDecoderConfig, interface: Interface, builder: Builder):
        builder = builder.with_rule(Initialise(config.initialisation))
        if interface.pad is None or interface.begin is None:
            raise ValueError("an encoder-decoder needs interface.pad and interface.begin, the tokens' numbers")
        self.config, self.pad, self.begin, self.dtype = config, interface.pad, interface.begin, builder.dtype
        vocabulary = rows_for(interface.vocabularies["joint"], config.embedding_rows)
        width, embedding = config.width, config.embedding
        self.embedding = Embedding(vocabulary, embedding, builder=builder)
        self.encoder = RecurrentStack(config.encoder(), embedding, builder=builder)
        annotations = config.encoder().output_width

        attends = config.context.attends
        self.attention = AttentionCell(config.attention(), width, annotations, builder=builder) if attends else None
        self.decoder = RecurrentStack(config.decoder(), embedding + config.fed_width, builder=builder)

        def first() -> Linear:
            states = (("layers", config.decoder_layers), ("embed", width))
            return Linear((("features", annotations),), states, bias=True, builder=builder)

        made = config.bridge is Bridge.TANH
        self.first_hidden = first() if made else None
        self.first_memory = first() if made and config.cell is Cell.LSTM else None
        read, given = config.readout_sizes
        maxout = config.readout is Readout.MAXOUT
        self.readout = Linear((("features", read),), (("embed", given),), bias=maxout, builder=builder)
        self.output = Linear((("embed", width),), (("vocabulary", vocabulary),), bias=False, builder=builder)

    def initial_state(self, key: Key[Array, ""]) -> dict:
        """The training steps that scheduled sampling counts; nothing without it."""
        return {"steps": jnp.int32(0)} if self.config.scheduled_sampling else {}

    def encode(
        self, source_BxS: Int[Array, "B S"], key: Key[Array, ""] | None
    ) -> tuple[EncodedSource, tuple[CellState, ...]]:
        """What the steps read of the source, and the decoder's first states."""
        lengths_B, context = real_lengths(source_BxS, self.pad), self.config.context
        words_BxSxE = self._embedded(source_BxS, _stream(key, "source"))
        h_BxSxM, last = self.encoder(words_BxSxE, lengths_B, key=_stream(key, "encoder"))
        first = self._first(last)
        match context:
            case Context.NONE:
                return EncodedSource(lengths_B), first
            case Context.LAST:
                return EncodedSource(lengths_B, vector=last[-1].hidden), first
            case Context.SUM:
                return EncodedSource(lengths_B, vector=jnp.sum(h_BxSxM, axis=1)), first
            case Context.MEAN:
                return EncodedSource(lengths_B, vector=_divide_by_length(jnp.sum(h_BxSxM, axis=1), lengths_B)), first
            case Context.ATTENTION | Context.ATTENTION_OVER_LENGTH:
                assert self.attention is not None
                return EncodedSource(lengths_B, memory=self.attention.prepare(h_BxSxM, lengths_B)), first

    def hidden(
        self,
        state: dict,
        inputs: Inputs,
        *,
        train: bool,
        key: Key[Array, ""] | None = None,
        capture: Capture | None = None,
    ) -> tuple[Float[Array, "B T E"], Aux]:
        """Teacher forcing: what `logits` scores the words of a known target from.

        Of hard attention, whose draws learn by REINFORCE, `extras` has `attention_log_prob` [B, T, H], the
        log-probability of each draw, and `attention_entropy`, that of what it was drawn from.
        """
        key = key if train else None
        target_BxT = jnp.asarray(inputs["target"])
        source, first = self.encode(jnp.asarray(inputs["source"]), key)
        lengths_B = target_lengths(target_BxT, source.lengths, self.pad)
        mask = Mask(query_lengths=lengths_B, key_lengths=source.lengths)
        asked = capture_at(SITE, capture)
        own_BxT, state = self._own_words(state, target_BxT, train, _stream(key, "own"))
        words_BxTxE = self._embedded(target_BxT, _stream(key, "target"))
        given = StepInput(words_BxTxE, own_BxT, self._soft(target_BxT, train, _stream(key, "soft")))
        if self.config.order is Order.CURRENT and own_BxT is None:
            read_BxTxE, draws, captured = self._at_once(source, first, given, mask, train, key, asked)
        else:
            carry = self._carry(first, target_BxT[:, 0] if own_BxT is not None else None)
            _, (read_BxTxE, draws), captured = scan_steps(
                functools.partial(self._step, source=source, train=train),
                carry,
                given,
                mask=mask,
                key=_stream(key, "steps"),
                capture=asked,
            )
        return read_BxTxE, Aux({} if captured is None else {SITE: captured}, draws, state)

    def logits(self, read: Float[Array, "*B E"]) -> Float[Array, "*B V"]:
        """The score of every word from what was read out, in at least float32."""
        logits = self.output(read)
        return logits.astype(jnp.promote_types(logits.dtype, jnp.float32))

    def forward(self, state: dict, inputs: Inputs, **options: Any) -> tuple[Float[Array, "B T V"], Aux]:
        """The score of every word at every position of the target."""
        read_BxTxE, aux = self.hidden(state, inputs, **options)
        return self.logits(read_BxTxE), aux

    def init_cache(self, state: dict, inputs: Inputs, *, beams: int, length: int) -> tuple[Cache, Int[Array, " R"]]:
        """Encode the source once; every row begins with the first states and the begin token."""
        source, first = self.encode(jnp.asarray(inputs["source"]), None)
        rows = repeat_rows(self._carry(first, None), beams)
        begin_R = jnp.full(len(rows.position), self.begin, jnp.int32)
        return Cache(layers=(), rows=rows, examples=source), begin_R

    def step(
        self,
        state: dict,
        cache: Cache,
        tokens_R: Int[Array, " R"],
        *,
        key: Key[Array, ""] | None = None,
        capture: Capture | None = None,
    ) -> tuple[Float[Array, "R V"], Cache, Aux]:
        """The same step as in training, on the words that were chosen."""
        words_RxE = self._embedded(tokens_R, None)
        rows, (read_RxE, _), alignment = self._step(
            cache.rows, StepInput(words_RxE), None, source=cache.examples, train=False
        )
        maps, asked = {}, capture_at(SITE, capture)
        if alignment is not None and asked is not None:
            maps = captured_at(SITE, capture_weights(alignment.weights[:, :, None], asked), capture)
        return self.logits(read_RxE), cache._replace(rows=rows), Aux(maps, {}, state)

    def _step(
        self,
        carry: DecoderCarry,
        given: StepInput,
        key: Key[Array, ""] | None,
        *,
        source: EncodedSource,
        train: bool,
    ) -> tuple[DecoderCarry, tuple[Array, dict[str, Array]], Alignment | None]:
        """One word further: the carry, the readout and what is told of a draw, and the alignment."""
        word_RxE = given.word
        if given.own is not None:
            assert carry.said is not None
            word_RxE = jnp.where(given.own[:, None], self._embedded(carry.said, _stream(key, "said")), word_RxE)
        read = functools.partial(
            self._read, source=source, position_R=carry.position, soft_R=given.soft, train=train, key=key
        )
        query = carry.states[-1].hidden
        if self.config.order is Order.PREVIOUS:
            context, alignment = read(query)
            entering = _concatenate(word_RxE, context)
        else:
            entering = _concatenate(word_RxE, carry.read)
        output_RxE, states = self.decoder.step(entering, carry.states, key=_stream(key, "decoder"))
        if self.config.order is not Order.PREVIOUS:
            context, alignment = read(output_RxE)
        read_RxE = self._read_out(output_RxE, word_RxE, context, _stream(key, "readout"))

        said = carry.said
        if given.own is not None:
            said = jax.random.categorical(_require_stream(key, "draw"), self.logits(jax.lax.stop_gradient(read_RxE)))
        fed = read_RxE if self.config.order is Order.INPUT_FEEDING else None
        after = DecoderCarry(states, carry.position + 1, fed, None if said is None else said.astype(jnp.int32))
        return after, (read_RxE, _sampling_extras(alignment, self.config.normaliser)), alignment

    def _at_once(
        self,
        source: EncodedSource,
        first: tuple[CellState, ...],
        given: StepInput,
        mask: Mask,
        train: bool,
        key: Key[Array, ""] | None,
        capture: Capture | None,
    ) -> tuple[Float[Array, "B T E"], dict[str, Array], Captured | None]:
        """All steps of a known target whose states do not depend on what is read: one attention for all of them."""
        words_BxTxE = given.word
        output_BxTxE, _ = self.decoder(words_BxTxE, mask.query_lengths, first, key=_stream(key, "decoder"))
        captured, draws = None, {}
        if self.attention is None:
            context = (
                None
                if source.vector is None
                else jnp.broadcast_to(source.vector[:, None], (*words_BxTxE.shape[:2], source.vector.shape[-1]))
            )
        else:
            assert source.memory is not None
            context, alignment = self.attention(
                output_BxTxE,
                source.memory,
                mask=Mask(query_lengths=mask.query_lengths),
                soft_BxQ=given.soft,
                key=_stream(key, "attention"),
                train=train,
            )
            context = self._over_length(context, source)
            draws = {
                name: jnp.moveaxis(each, 1, 2)
                for name, each in _sampling_extras(alignment, self.config.normaliser).items()
            }
            if capture is not None:
                kept = alignment.logits if capture.statistics else None
                of_layer = capture_weights(alignment.weights, capture, logits=kept, mask=mask)
                captured = None if of_layer is None else one_layer(of_layer)
        return self._read_out(output_BxTxE, words_BxTxE, context, _stream(key, "readout")), draws, captured

    def _read(
        self,
        query_RxE: Array,
        *,
        source: EncodedSource,
        position_R: Array,
        soft_R: Array | None,
        train: bool,
        key: Key[Array, ""] | None,
    ) -> tuple[Array | None, Alignment | None]:
        """The context that a state reads, and how."""
        if self.attention is not None:
            assert source.memory is not None
            context_RxC, alignment = self.attention.step(
                query_RxE,
                source.memory,
                position_R=position_R,
                soft_R=soft_R,
                train=train,
                key=_stream(key, "attention"),
            )
            return self._over_length(context_RxC, source), alignment
        if source.vector is None:
            return None, None
        return repeat_rows(source.vector, len(query_RxE) // len(source.vector)), None

    def _over_length(self, context: Array, source: EncodedSource) -> Array:
        """Divided by the length of the source where the context is to be."""
        if self.config.context is not Context.ATTENTION_OVER_LENGTH:
            return context
        return _divide_by_length(context, repeat_rows(source.lengths, len(context) // len(source.lengths)))

    def _read_out(self, output: Array, word: Array, context: Array | None, key: Key[Array, ""] | None) -> Array:
        """r_t of the readout."""
        match self.config.readout:
            case Readout.MAXOUT:
                pairs = self.readout(_concatenate(output, word, context))
                read = jnp.max(pairs.reshape(*pairs.shape[:-1], -1, 2), axis=-1)
            case Readout.TANH:
                read = jnp.tanh(self.readout(_concatenate(context, output)))
        return dropout(read, self.config.dropout, key)

    def _first(self, last: tuple[CellState, ...]) -> tuple[CellState, ...]:
        """The decoder's first states, by the bridge."""
        if self.first_hidden is None:
            return last
        top = last[-1]
        hidden_LxBxF = jnp.moveaxis(jnp.tanh(self.first_hidden(top.hidden)), 1, 0)
        if self.first_memory is None:
            return tuple(CellState(hidden) for hidden in jnp.unstack(hidden_LxBxF))
        assert top.memory is not None
        memory_LxBxF = jnp.moveaxis(self.first_memory(top.memory), 1, 0)
        return tuple(map(CellState, jnp.unstack(hidden_LxBxF), jnp.unstack(memory_LxBxF)))

    def _carry(self, first: tuple[CellState, ...], said_R: Array | None) -> DecoderCarry:
        hidden_RxF = first[-1].hidden
        fed = jnp.zeros_like(hidden_RxF) if self.config.order is Order.INPUT_FEEDING else None
        return DecoderCarry(first, jnp.zeros(len(hidden_RxF), jnp.int32), fed, said_R)

    def _embedded(self, tokens: Int[Array, "..."], key: Key[Array, ""] | None) -> Float[Array, "..."]:
        return dropout(self.embedding(tokens, self.dtype), self.config.dropout, key)

    def _soft(self, target_BxT: Array, train: bool, key: Key[Array, ""] | None) -> Bool[Array, "B T"] | None:
        """Which examples are read by the probabilities, none outside of training."""
        if not (self.config.soft_share and train):
            return None
        drawn_Bx1 = jax.random.bernoulli(_require_stream(key, "which"), self.config.soft_share, (len(target_BxT), 1))
        return jnp.broadcast_to(drawn_Bx1, target_BxT.shape)

    def _own_words(
        self, state: dict, target_BxT: Array, train: bool, key: Key[Array, ""] | None
    ) -> tuple[Bool[Array, "B T"] | None, dict]:
        """Which words the decoder reads of its own draws, none outside of training; and the next state."""
        if not (self.config.scheduled_sampling and train):
            return None, state
        share = jnp.minimum(state["steps"] / self.config.scheduled_sampling_steps, 1) * self.config.scheduled_sampling
        own_BxT = jax.random.bernoulli(_require_stream(key, "which"), share, target_BxT.shape)
        return own_BxT.at[:, 0].set(False), {"steps": state["steps"] + 1}


def _sampling_extras(alignment: Alignment | None, normaliser: Normaliser) -> dict[str, Array]:
    """What REINFORCE is made of, by the names of `extras`."""
    if normaliser is not Normaliser.HARD or alignment is None or alignment.log_prob is None:
        return {}
    assert alignment.entropy is not None
    return {"attention_log_prob": alignment.log_prob, "attention_entropy": alignment.entropy}


def _concatenate(*parts: Array | None) -> Array:
    """Features side by side, of the parts that there are."""
    return jnp.concatenate([part for part in parts if part is not None], axis=-1)


def _divide_by_length(x: Array, lengths: Int[Array, " R"]) -> Array:
    """The quotient x / N; of an empty source nothing."""
    return x / jnp.maximum(lengths, 1).astype(x.dtype).reshape(-1, *(1,) * (x.ndim - 1))


def _stream(key: Key[Array, ""] | None, name: str) -> Key[Array, ""] | None:
    """The key of one of the places that draw; None without a key."""
    return None if key is None else jax.random.fold_in(key, _STREAMS.index(name))


def _require_stream(key: Key[Array, ""] | None, name: str) -> Key[Array, ""]:
    of_name = _stream(key, name)
    if of_name is None:
        raise TypeError("a model that draws in training needs a key")
    return of_name


def build(config: RecurrentEncoderDecoderConfig, interface: Interface, precision: Precision) -> Model:
    """The model for a task with inputs `source` and `target` and one joint vocabulary.

    Errors: UserError where the score has a row for each position and the task's sources are longer.
    """
    if config.max_length:
        check_length(config.max_length, interface)
    sites: tuple[Site, ...] = ()
    if config.context.attends:
        values = Values.PROBABILITY
        if config.extent is Extent.PREDICTIVE:
            values = Values.REWEIGHTED
        if config.normaliser in SAMPLERS:
            values = Values.SAMPLE
        heads = tuple(map(str, range(config.heads)))
        sites = (Site(SITE, Axis("target"), Axis("source"), ("0",), heads, values=values),)
    functional = Functional(lambda builder: RecurrentEncoderDecoder(config, interface, builder), precision)
    return Model(functional, sites, config.max_length or None)


FAMILY = Family(RecurrentEncoderDecoderConfig, build, frozenset({TRANSLATION}))
