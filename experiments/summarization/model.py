"""A pointer-generator: a recurrent decoder that writes words and copies those of its source (See et al. 2017)."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from transformer.attention.capture import Capture, Captured, capture_at, capture_weights, captured_at
from transformer.attention.masks import Mask
from transformer.attention.rng import check_rate, dropout
from transformer.attention.sites import Axis, AxisKind, Site
from transformer.config import UserError
from transformer.layers.attention_cell import Alignment, AttentionCell, AttentionCellConfig, AttentionMemory, scan_steps
from transformer.layers.beams import repeat_rows
from transformer.layers.embedding import Embedding
from transformer.layers.initialization import Role
from transformer.layers.linear import Linear
from transformer.layers.module import Builder, Functional, Module, Precision
from transformer.layers.padding import real_lengths, real_positions, target_lengths
from transformer.layers.recurrent import CellState, Direction, RecurrentConfig, RecurrentLayer
from transformer.models.contract import Aux, AuxiliaryLoss, Cache, Inputs, Model, PyTree, Stateless
from transformer.models.family import Family, Operations
from transformer.models.interface import COPYING, TRANSLATION, Interface


class CoveredKeys(Module):
    """v' tanh(W1 k_i + W2 q + w_c c_i): of each key the coverage c_i beside it (See et al. 2017, equation 11).

    It moves the prepared keys of a score with a hidden layer of `hidden` units for each of `heads` heads. The paper's
    b, which moves all keys alike, is in neither score, this one or the one that knows of no coverage.
    """

    def __init__(self, heads: int, hidden: int, *, builder: Builder):
        rule = builder.rule(Role.DENSE, 1, hidden)
        self.weight = builder.parameter(rule, (heads, hidden), ("groups", "head_dim"))

    def __call__(self, memory: AttentionMemory, coverage_RxK: Float[Array, "R K"]) -> AttentionMemory:
        """A memory for each row, whose keys know how much of them that row has read already.

        Rows are examples x beams, as those of `AttentionCell.step`, which reads the result with one query for each.
        """
        rows = repeat_rows(memory, len(coverage_RxK) // len(memory.lengths))
        keys_RxKxHxA = rows.keys.keys
        covered_RxKx1x1 = coverage_RxK[:, :, None, None].astype(keys_RxKxHxA.dtype)
        moved = keys_RxKxHxA + covered_RxKx1x1 * jnp.asarray(self.weight[...], keys_RxKxHxA.dtype)[None, None]
        return rows._replace(keys=dataclasses.replace(rows.keys, keys=moved))


def read_again(weights_RxK: Float[Array, "R K"], coverage_RxK: Float[Array, "R K"]) -> Float[Array, " R"]:
    """sum_i min(a_i, c_i), from 0 to 1: how much of a step's attention lies where it has lain (equation 12)."""
    return jnp.sum(jnp.minimum(weights_RxK, coverage_RxK), axis=-1)


SITE, SWITCH = "decoder/attention", "decoder/switch"
# The logit of a word that can be neither written nor copied: finite, so that no gradient through it is NaN.
NO_WORD = -1e9


@dataclasses.dataclass(frozen=True)
class PointerGeneratorConfig:
    """A bidirectional LSTM over the source, and an LSTM that attends to it; the paper's are 256 and 128 wide.

    `width`: of the decoder's state and of each direction of the encoder; `embedding`: of words. `coverage`: the weight
    of the loss sum_i min(a_i, c_i) (equation 13), of an attention whose score knows what it has read (equation 11);
    None without that. `dropout` is of embeddings and of what words are scored from. It copies where the task says what
    a copy would say (`COPYING`), and writes alone where it does not.

    Errors: UserError for sizes below 1, a weight below 0, and a dropout outside of [0, 1).
    """

    width: int = 256
    embedding: int = 128
    coverage: float | None = None
    dropout: float = 0.0

    def __post_init__(self) -> None:
        for name in ("width", "embedding"):
            if getattr(self, name) < 1:
                raise UserError(f"config.model.{name}={getattr(self, name)} must be at least 1")
        check_rate("dropout", self.dropout)
        if self.coverage is not None and not self.coverage >= 0:
            raise UserError(f"config.model.coverage={self.coverage} must be at least 0, or None")

    @property
    def encoder(self) -> RecurrentConfig:
        """The encoder's layer."""
        return RecurrentConfig(width=self.width, direction=Direction.BIDIRECTIONAL)

    @property
    def decoder(self) -> RecurrentConfig:
        """The decoder's layer."""
        return RecurrentConfig(width=self.width)


class Source(NamedTuple):
    """What every step reads: the annotations, the source's words, and the numbers under which they are copied."""

    memory: AttentionMemory
    words: Int[Array, "B S"]
    copied: Int[Array, "B S"] | None


class Carry(NamedTuple):
    """What a step hands to the next: s_t, the context that it read, and the coverage c, where that is known."""

    state: CellState
    context: Float[Array, "R C"]
    coverage: Float[Array, "R S"] | None


class Told(NamedTuple):
    """What a step hands out: the state, the context, the attention, and how much of it was read before."""

    hidden: Float[Array, "*B F"]
    context: Float[Array, "*B C"]
    weights: Float[Array, "*B S"]
    again: Float[Array, " *B"]


class PointerGenerator(Stateless):
    """P(w) = p_gen P_vocab(w) + (1 - p_gen) sum_{i: w_i = w} a_i (equation 9).

    s_t = LSTM([x_t ; h*_{t-1}], s_{t-1}), e_i = v' tanh(W_h h_i + W_s s_t + w_c c_i), a = softmax(e), h*_t = sum_i
    a_i h_i, c the sum of all a before, where it is known; P_vocab = softmax(V' (V [s_t ; h*_t] + b) + b') and p_gen =
    sigmoid(w' [h*_t ; s_t ; x_t] + b); the b of equation 1 is left out of e_i. Inputs: `source` and `target`, words by
    number, padded at their ends; `copied`, the numbers under which the source's words are copied, those beyond the
    vocabulary for words that it lacks, which `target` may have as well: x_t is then that of the word that stands for
    them in `source`. Outputs: log P of both kinds of words; without `copied` the logits of P_vocab.
    """

    def __init__(self, config: PointerGeneratorConfig, interface: Interface, builder: Builder):
        if interface.pad is None or interface.begin is None:
            raise ValueError("a pointer-generator needs interface.pad and interface.begin, the tokens' numbers")
        self.config, self.pad, self.begin, self.dtype = config, interface.pad, interface.begin, builder.dtype
        self.extended = interface.vocabularies["joint"]
        self.words = interface.vocabularies.get("source", self.extended)
        self.copies = "copied" in interface.inputs
        width, embedding, annotations = config.width, config.embedding, config.encoder.output_width
        self.embedding = Embedding(self.words, embedding, builder=builder)
        self.encoder = RecurrentLayer(config.encoder, embedding, builder=builder)

        def linear(inputs: int, name: str, outputs: int) -> Linear:
            return Linear((("features", inputs),), ((name, outputs),), bias=True, builder=builder)

        self.first_hidden = linear(annotations, "embed", width)
        self.first_memory = linear(annotations, "embed", width)
        self.attention = AttentionCell(AttentionCellConfig(), width, annotations, builder=builder)
        self.covered = None if config.coverage is None else CoveredKeys(1, width, builder=builder)
        self.decoder = RecurrentLayer(config.decoder, embedding + annotations, builder=builder)
        self.readout = linear(width + annotations, "embed", width)
        self.output = Linear((("embed", width),), (("vocabulary", self.words),), bias=True, builder=builder)
        self.switch = linear(annotations + width + embedding, "features", 1) if self.copies else None

    def encode(self, inputs: Inputs, key: Key[Array, ""] | None = None) -> tuple[Source, Carry]:
        """What every step reads of the source, and s_0: tanh of a linear map of the states in which it was read."""
        words_BxS = jnp.asarray(inputs["source"])
        lengths_B = real_lengths(words_BxS, self.pad)
        h_BxSxC, last = self.encoder(self._embedded(words_BxS, key), lengths_B)
        memory = self.attention.prepare(h_BxSxC, lengths_B)
        assert last.memory is not None
        first = CellState(jnp.tanh(self.first_hidden(last.hidden)), jnp.tanh(self.first_memory(last.memory)))
        coverage_BxS = None if self.covered is None else jnp.zeros(words_BxS.shape, h_BxSxC.dtype)
        copied_BxS = jnp.asarray(inputs["copied"]) if self.copies else None
        return Source(memory, words_BxS, copied_BxS), Carry(first, jnp.zeros_like(h_BxSxC[:, 0]), coverage_BxS)

    def hidden(
        self,
        state: PyTree,
        inputs: Inputs,
        *,
        train: bool,
        key: Key[Array, ""] | None = None,
        capture: Capture | None = None,
    ) -> tuple[Float[Array, "B T E"], Aux]:
        """What `logits` scores the words of the vocabulary from, over a known target: all that there is without copies.

        Errors: ValueError where copies are scored as well, as `forward` does.
        """
        if self.copies:
            raise ValueError("copies are scored from the attention: call forward")
        read_BxTxE, aux, *_ = self._over(state, inputs, train, key, capture)
        return read_BxTxE, aux

    def logits(self, read: Float[Array, "*B E"]) -> Float[Array, "*B V"]:
        """The score of every word of the vocabulary from what was read out, in at least float32."""
        logits = self.output(read)
        return logits.astype(jnp.promote_types(logits.dtype, jnp.float32))

    def forward(
        self,
        state: PyTree,
        inputs: Inputs,
        *,
        train: bool,
        key: Key[Array, ""] | None = None,
        capture: Capture | None = None,
    ) -> tuple[Float[Array, "B T V"], Aux]:
        """Teacher forcing: the score of every word at every position of the target.

        Where it copies, `extras` has `p_gen` [B, T]. An attention that covers adds the loss `coverage`, a sum over the
        positions of the target.
        """
        read_BxTxE, aux, told, word_BxTxE, source = self._over(state, inputs, train, key, capture)
        if source.copied is None:
            return self.logits(read_BxTxE), aux
        switch_BxT = self._switch(told, word_BxTxE)
        lengths_B = target_lengths(jnp.asarray(inputs["target"]), source.memory.lengths, self.pad)
        maps = {**aux.maps, **_origins(switch_BxT, lengths_B, capture)}
        scores_BxTxV = self._mixed(read_BxTxE, switch_BxT, told.weights, source.copied)
        return scores_BxTxV, aux._replace(maps=maps, extras={"p_gen": jax.nn.sigmoid(switch_BxT)})

    def init_cache(self, state: PyTree, inputs: Inputs, *, beams: int, length: int) -> tuple[Cache, Int[Array, " R"]]:
        """Rows are examples x beams, each with a coverage of its own; the source lies in `examples`."""
        source, carry = self.encode(inputs)
        rows = repeat_rows(carry, beams)
        return Cache(layers=(), rows=rows, examples=source), jnp.full(len(rows.context), self.begin, jnp.int32)

    def step(
        self,
        state: PyTree,
        cache: Cache,
        tokens_R: Int[Array, " R"],
        *,
        key: Key[Array, ""] | None = None,
        capture: Capture | None = None,
    ) -> tuple[Float[Array, "R V"], Cache, Aux]:
        """The same step as in training, on the words that were chosen, copies among them."""
        source: Source = cache.examples
        words_RxS, copied_RxS = repeat_rows((source.words, source.copied), len(tokens_R) // len(source.words))
        word_RxE = self._embedded(self._known(tokens_R[:, None], words_RxS, copied_RxS), None)[:, 0]
        rows, told, alignment = self._step(cache.rows, word_RxE, None, source=source)
        weights, asked = alignment.weights[:, :, None], capture_at(SITE, capture)
        maps = captured_at(SITE, capture_weights(weights, asked, logits=alignment.logits[:, :, None]), capture)
        read_RxE = self._read_out(told, None)
        if copied_RxS is None:
            return self.logits(read_RxE), cache._replace(rows=rows), Aux(maps, {}, state)
        switch_Rx1 = self._switch(told, word_RxE)[:, None]
        scores_Rx1xV = self._mixed(read_RxE[:, None], switch_Rx1, told.weights[:, None], copied_RxS)
        maps = {**maps, **_origins(switch_Rx1, jnp.ones(len(tokens_R), jnp.int32), capture)}
        return scores_Rx1xV[:, 0], cache._replace(rows=rows), Aux(maps, {}, state)

    def _over(
        self, state: PyTree, inputs: Inputs, train: bool, key: Key[Array, ""] | None, capture: Capture | None
    ) -> tuple[Float[Array, "B T E"], Aux, Told, Float[Array, "B T W"], Source]:
        """All steps of a known target: what words are scored from, what was told beside it, the words, the source."""
        source_key, target_key, read_key = (None,) * 3 if key is None or not train else jax.random.split(key, 3)
        target_BxT = jnp.asarray(inputs["target"])
        source, first = self.encode(inputs, source_key)
        lengths_B = target_lengths(target_BxT, source.memory.lengths, self.pad)
        word_BxTxE = self._embedded(self._known(target_BxT, source.words, source.copied), target_key)
        _, told, captured = scan_steps(
            functools.partial(self._step, source=source),
            first,
            word_BxTxE,
            mask=Mask(query_lengths=lengths_B, key_lengths=source.memory.lengths),
            capture=capture_at(SITE, capture),
        )
        losses = {}
        if self.config.coverage is not None:
            total, count = jnp.sum(told.again), jnp.sum(lengths_B).astype(told.again.dtype)
            losses["coverage"] = AuxiliaryLoss(total, count, self.config.coverage)
        aux = Aux({} if captured is None else {SITE: captured}, {}, state, losses)
        return self._read_out(told, read_key), aux, told, word_BxTxE, source

    def _step(
        self, carry: Carry, word_RxE: Array, key: Key[Array, ""] | None, *, source: Source
    ) -> tuple[Carry, Told, Alignment]:
        """One word further: s_t reads the word and what was read before it, and attends."""
        state = self.decoder.step(jnp.concatenate([word_RxE, carry.context], axis=-1), carry.state)
        if self.covered is None or carry.coverage is None:
            context_RxC, alignment = self.attention.step(state.hidden, source.memory)
            weights_RxS = alignment.weights[:, 0]
            again_R, coverage_RxS = jnp.zeros_like(weights_RxS[:, 0]), None
        else:
            context_RxC, alignment = self.attention.step(state.hidden, self.covered(source.memory, carry.coverage))
            weights_RxS = alignment.weights[:, 0]
            again_R = read_again(weights_RxS, carry.coverage)
            coverage_RxS = carry.coverage + weights_RxS.astype(carry.coverage.dtype)
        told = Told(state.hidden, context_RxC, weights_RxS, again_R)
        return Carry(state, context_RxC, coverage_RxS), told, alignment

    def _read_out(self, told: Told, key: Key[Array, ""] | None) -> Float[Array, "*B E"]:
        """V [s_t ; h*_t] + b of equation 4."""
        return dropout(self.readout(jnp.concatenate([told.hidden, told.context], axis=-1)), self.config.dropout, key)

    def _switch(self, told: Told, word: Array) -> Float[Array, " *B"]:
        """The logit of p_gen (equation 8), in at least float32."""
        assert self.switch is not None
        logit = self.switch(jnp.concatenate([told.context, told.hidden, word], axis=-1))[..., 0]
        return logit.astype(jnp.promote_types(logit.dtype, jnp.float32))

    def _mixed(self, read_BxTxE: Array, switch_BxT: Array, weights_BxTxS: Array, copied_BxS: Array) -> Array:
        """The logarithm of equation 9."""
        written_BxTxV = jax.nn.log_softmax(self.logits(read_BxTxE)) + jax.nn.log_sigmoid(switch_BxT)[..., None]
        beyond = self.extended - self.words
        written_BxTxV = jnp.pad(written_BxTxV, ((0, 0), (0, 0), (0, beyond)), constant_values=NO_WORD)

        def copied(weights_TxS: Array, copied_S: Array) -> Array:
            return jnp.zeros((len(weights_TxS), self.extended), weights_TxS.dtype).at[:, copied_S].add(weights_TxS)

        share_BxTxV = jax.vmap(copied)(weights_BxTxS.astype(switch_BxT.dtype), copied_BxS)
        some = share_BxTxV > 0
        log_share_BxTxV = jnp.log(jnp.where(some, share_BxTxV, 1)) + jax.nn.log_sigmoid(-switch_BxT)[..., None]
        return jnp.logaddexp(written_BxTxV, jnp.where(some, log_share_BxTxV, NO_WORD))

    def _known(self, tokens_BxT: Array, words_BxS: Array, copied_BxS: Array | None) -> Array:
        """The tokens, and for those beyond the vocabulary what stands in the source where they are copied from."""
        if copied_BxS is None:
            return tokens_BxT
        place_BxT = jnp.argmax(tokens_BxT[:, :, None] == copied_BxS[:, None], axis=-1)
        there_BxT = jnp.take_along_axis(words_BxS, place_BxT, axis=1)
        return jnp.where(tokens_BxT < self.words, tokens_BxT, there_BxT)

    def _embedded(self, tokens: Int[Array, "..."], key: Key[Array, ""] | None) -> Float[Array, "..."]:
        return dropout(self.embedding(tokens, self.dtype), self.config.dropout, key)


def _origins(switch_BxT: Array, lengths_B: Array, capture: Capture | None) -> dict[str, Captured]:
    """p_gen and 1 - p_gen of every word, as a map over the two ways to say it."""
    both_BxTx2 = jax.nn.sigmoid(jnp.stack([switch_BxT, -switch_BxT], axis=-1))
    both_BxTx2 = jnp.where(real_positions(lengths_B, switch_BxT.shape[1])[..., None], both_BxTx2, 0)
    mask = Mask(query_lengths=lengths_B)
    return captured_at(SWITCH, capture_weights(both_BxTx2[:, None], capture_at(SWITCH, capture), mask=mask), capture)


def build(config: PointerGeneratorConfig, interface: Interface, precision: Precision) -> Model:
    """The model; sources and targets may have any length."""
    sites = [Site(SITE, Axis("target"), Axis("source"), layers=("0",), heads=("0",))]
    if "copied" in interface.inputs:
        origin = Axis("origin", AxisKind.SLOTS, size=2)
        sites.append(Site(SWITCH, Axis("target"), origin, layers=("0",), heads=("0",)))
    return Model(Functional(lambda builder: PointerGenerator(config, interface, builder), precision), tuple(sites))


def operations(config: PointerGeneratorConfig, batch: Mapping[str, Any], vocabularies: Mapping[str, int]) -> Operations:
    """Matrix products of a forward pass by teacher forcing, 2 for each multiplication and addition."""
    (rows, source), target = batch["source"].shape, batch["target"].shape[1]
    width, embedding, annotations = config.width, config.embedding, config.encoder.output_width
    count = source * config.encoder.operations(embedding) + 2 * 2 * annotations * width
    count += AttentionCellConfig().operations(width, annotations, queries=target, keys=source)
    if config.coverage is not None:
        count += 2 * target * source * width
    of_word = config.decoder.operations(embedding + annotations)
    of_word += 2 * width * (width + annotations + vocabularies.get("source", vocabularies["joint"]))
    if "copied" in batch:
        of_word += 2 * (annotations + width + embedding)
    return Operations(float(rows * (count + target * of_word)))


FAMILY = Family(PointerGeneratorConfig, build, frozenset({COPYING, TRANSLATION}), operations)
