"""Pointer-generator network: a recurrent decoder that generates or copies words (See et al. 2017)."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from experiments.summarization.signature import TRANSLATION_WITH_COPYING
from transformer.attention.capture import (
    Capture,
    CapturedAttention,
    capture_for_site,
    capture_weights,
    single_layer_maps,
)
from transformer.attention.inverted_dropout import dropout
from transformer.attention.masks import Mask
from transformer.attention.sites import Axis, AxisKind, Site
from transformer.config import Config, NonNegativeFloat, PositiveInt, Rate
from transformer.layers.attention_cell import Alignment, AttentionCell, AttentionCellConfig, AttentionMemory
from transformer.layers.beam_rows import repeat_per_beam
from transformer.layers.embedding import Embedding
from transformer.layers.functional_module import Module, ParameterBuilder
from transformer.layers.initialization import ParameterRole
from transformer.layers.linear import Linear
from transformer.layers.recurrent import CellState, Direction, RecurrentConfig, RecurrentLayer
from transformer.layers.sequence_lengths import real_lengths, real_positions
from transformer.models.model import Aux, AuxiliaryLoss, Cache, ForwardPass, Inputs, PyTree
from transformer.models.model_family import ModelFamily
from transformer.models.recurrent_attention_decoder_base import SITE, DecoderSteps, RecurrentAttentionDecoder, StepInput
from transformer.models.task_interface import TRANSLATION, TaskInterface


class CoverageScore(Module):
    """Additive attention score with coverage: v' tanh(W1 k_i + W2 q + w_c c_i) (See et al. 2017, equation 11)."""

    def __init__(self, heads: int, hidden: int, *, builder: ParameterBuilder):
        rule = builder.rule(ParameterRole.DENSE, 1, hidden)
        self.weight = builder.parameter(rule, (heads, hidden), ("groups", "head_dim"))

    def __call__(self, memory: AttentionMemory, coverage_RxK: Float[Array, "R K"]) -> AttentionMemory:
        """Return a memory for each row, whose keys include how much of each position the row has already attended to.

        Rows are examples x beams, as those of `AttentionCell.step`, which reads the result with one query for each.
        """
        rows = repeat_per_beam(memory, len(coverage_RxK) // len(memory.lengths))
        keys_RxKxHxA = rows.keys.keys
        covered_RxKx1x1 = coverage_RxK[:, :, None, None].astype(keys_RxKxHxA.dtype)
        moved = keys_RxKxHxA + covered_RxKx1x1 * jnp.asarray(self.weight[...], keys_RxKxHxA.dtype)[None, None]
        return rows._replace(keys=dataclasses.replace(rows.keys, keys=moved))


def coverage_overlap(weights_RxK: Float[Array, "R K"], coverage_RxK: Float[Array, "R K"]) -> Float[Array, " R"]:
    """Compute the coverage loss sum_i min(a_i, c_i) of a step (equation 12).

    Args:
        weights_RxK: The attention weights a over the source.
        coverage_RxK: The coverage c: the sum of the weights of all earlier steps.

    Returns:
        The loss of each row, from 0 to 1.
    """
    return jnp.sum(jnp.minimum(weights_RxK, coverage_RxK), axis=-1)


SWITCH = "decoder/switch"
# The logit of a word that can be neither written nor copied: finite, so that no gradient through it is NaN.
NO_WORD = -1e9


@dataclasses.dataclass(frozen=True)
class PointerGeneratorConfig(Config, path="config.model"):
    """The configuration of a bidirectional LSTM encoder and an attentive LSTM decoder that may copy.

    The paper's widths are 256 and 128. The model copies if the task provides the numbers of copied words
    (`TRANSLATION_WITH_COPYING`), else it only generates.

    Attributes:
        width: Features of the decoder's state and of each direction of the encoder.
        embedding_width: Features of the word embeddings.
        coverage_loss_weight: Weight of the coverage loss sum_i min(a_i, c_i) (equation 13); None for attention without
            coverage (equation 11).
        dropout: The rate of dropout on embeddings and on the input of the output layer.
    """

    width: PositiveInt = 256
    embedding_width: PositiveInt = 128
    coverage_loss_weight: NonNegativeFloat | None = None
    dropout: Rate = 0.0

    @property
    def encoder(self) -> RecurrentConfig:
        """The config of the encoder's layer."""
        return RecurrentConfig(width=self.width, direction=Direction.BIDIRECTIONAL)

    @property
    def decoder(self) -> RecurrentConfig:
        """The config of the decoder's layer."""
        return RecurrentConfig(width=self.width)


class EncodedArticle(NamedTuple):
    """What every step reads.

    Attributes:
        memory: The annotations.
        words: The words of the source.
        copied: The numbers under which they are copied; None without copying.
    """

    memory: AttentionMemory
    words: Int[Array, "B S"]
    copied: Int[Array, "B S"] | None

    @property
    def lengths(self) -> Int[Array, " B"]:
        """The number of words of each source."""
        return self.memory.lengths


class Carry(NamedTuple):
    """The decoder's state between steps.

    Attributes:
        state: s_t.
        context: The last context.
        coverage: The coverage c; None without it.
    """

    state: CellState
    context: Float[Array, "R C"]
    coverage: Float[Array, "R S"] | None


class StepOutput(NamedTuple):
    """The outputs of a step.

    Attributes:
        hidden: The state.
        context: The context.
        weights: The attention weights.
        coverage_overlap: The coverage loss: how much was already attended to before.
    """

    hidden: Float[Array, "*B F"]
    context: Float[Array, "*B C"]
    weights: Float[Array, "*B S"]
    coverage_overlap: Float[Array, " *B"]


class PointerGenerator(RecurrentAttentionDecoder):
    """A pointer-generator network: P(w) = p_gen P_vocab(w) + (1 - p_gen) sum_{i: w_i = w} a_i (equation 9).

    s_t = LSTM([x_t ; h*_{t-1}], s_{t-1}), e_i = v' tanh(W_h h_i + W_s s_t + w_c c_i), a = softmax(e), h*_t = sum_i
    a_i h_i, c the sum of all previous a, with coverage; P_vocab = softmax(V' (V [s_t ; h*_t] + b) + b') and p_gen =
    sigmoid(w' [h*_t ; s_t ; x_t] + b); the b of equation 1 is left out of e_i.

    Inputs: `source` and `target`, words by number, padded at their ends; `copied`, the numbers under which the source's
    words are copied, beyond the vocabulary for out-of-vocabulary words, which `target` may contain as well: x_t is then
    the embedding of the token that stands for them in `source`. Outputs: log P of both kinds of words; without `copied`
    the logits of P_vocab.
    """

    streams = ("source", "target", "readout")

    def __init__(self, config: PointerGeneratorConfig, interface: TaskInterface, builder: ParameterBuilder):
        super().__init__(interface, builder)
        self.config = config
        self.extended = interface.vocabularies["joint"]
        self.vocabulary = interface.vocabularies.get("source", self.extended)
        self.copies = "copied" in interface.inputs
        width, embedding, annotations = config.width, config.embedding_width, config.encoder.output_width
        self.embedding = Embedding(self.vocabulary, embedding, builder=builder)
        self.encoder = RecurrentLayer(config.encoder, embedding, builder=builder)

        def linear(inputs: int, name: str, outputs: int) -> Linear:
            return Linear((("features", inputs),), ((name, outputs),), bias=True, builder=builder)

        self.first_hidden = linear(annotations, "embed", width)
        self.first_memory = linear(annotations, "embed", width)
        self.attention = AttentionCell(AttentionCellConfig(), width, annotations, builder=builder)
        self.covered = None if config.coverage_loss_weight is None else CoverageScore(1, width, builder=builder)
        self.decoder = RecurrentLayer(config.decoder, embedding + annotations, builder=builder)
        self.readout = linear(width + annotations, "embed", width)
        self.output = Linear((("embed", width),), (("vocabulary", self.vocabulary),), bias=True, builder=builder)
        self.switch = linear(annotations + width + embedding, "features", 1) if self.copies else None

    def encode(self, inputs: Inputs, key: Key[Array, ""] | None) -> tuple[EncodedArticle, Carry]:
        """Return the encoded source, and s_0: tanh of a linear map of the encoder's final states."""
        words_BxS = jnp.asarray(inputs["source"])
        lengths_B = real_lengths(words_BxS, self.pad)
        h_BxSxC, last = self.encoder(self._embed(words_BxS, self.random_stream_key(key, "source")), lengths_B)
        memory = self.attention.prepare(h_BxSxC, lengths_B)
        assert last.memory is not None
        first = CellState(jnp.tanh(self.first_hidden(last.hidden)), jnp.tanh(self.first_memory(last.memory)))
        coverage_BxS = None if self.covered is None else jnp.zeros(words_BxS.shape, h_BxSxC.dtype)
        copied_BxS = jnp.asarray(inputs["copied"]) if self.copies else None
        return EncodedArticle(memory, words_BxS, copied_BxS), Carry(first, jnp.zeros_like(h_BxSxC[:, 0]), coverage_BxS)

    def step_inputs(
        self, state: PyTree, inputs: Inputs, source: EncodedArticle, key: Key[Array, ""] | None
    ) -> StepInput:
        """Return the embedding of each previous word; for a copied word, that of its token in the source."""
        target_BxT = self._replace_oov_tokens(jnp.asarray(inputs["target"]), source.words, source.copied)
        return StepInput(self._embed(target_BxT, self.random_stream_key(key, "target")))

    def next_step_input(self, tokens_R: Int[Array, " R"], source: EncodedArticle, carry: Carry) -> StepInput:
        """Return the embeddings of the chosen words, including copied ones."""
        words_RxS, copied_RxS = repeat_per_beam((source.words, source.copied), len(tokens_R) // len(source.words))
        return StepInput(self._embed(self._replace_oov_tokens(tokens_R[:, None], words_RxS, copied_RxS), None)[:, 0])

    def advance(
        self, source: EncodedArticle, carry: Carry, step_input: StepInput, forward_pass: ForwardPass
    ) -> tuple[Carry, StepOutput, Alignment]:
        """Compute s_t from the word and the last context, and attend."""
        state = self.decoder.step(jnp.concatenate([step_input.word, carry.context], axis=-1), carry.state)
        if self.covered is None or carry.coverage is None:
            context_RxC, alignment = self.attention.step(state.hidden, source.memory)
            weights_RxS = alignment.weights[:, 0]
            again_R, coverage_RxS = jnp.zeros_like(weights_RxS[:, 0]), None
        else:
            context_RxC, alignment = self.attention.step(state.hidden, self.covered(source.memory, carry.coverage))
            weights_RxS = alignment.weights[:, 0]
            again_R = coverage_overlap(weights_RxS, carry.coverage)
            coverage_RxS = carry.coverage + weights_RxS.astype(carry.coverage.dtype)
        outputs = StepOutput(state.hidden, context_RxC, weights_RxS, again_R)
        return Carry(state, context_RxC, coverage_RxS), outputs, alignment

    def output_features(self, step_inputs: StepInput, outputs: StepOutput) -> Float[Array, "*B E"]:
        """Return V [s_t ; h*_t] + b of equation 4."""
        return self.readout(jnp.concatenate([outputs.hidden, outputs.context], axis=-1))

    def unroll(self, state: PyTree, inputs: Inputs, forward_pass: ForwardPass) -> tuple[DecoderSteps, Aux]:
        """Run all steps; with coverage, return the loss `coverage`, a sum over the positions of the target."""
        steps, aux = super().unroll(state, inputs, forward_pass)
        if self.config.coverage_loss_weight is None:
            return steps, aux
        total, count = (
            jnp.sum(steps.outputs.coverage_overlap),
            jnp.sum(steps.lengths).astype(steps.outputs.coverage_overlap.dtype),
        )
        return steps, aux._replace(losses={"coverage": AuxiliaryLoss(total, count, self.config.coverage_loss_weight)})

    def hidden(self, state: PyTree, inputs: Inputs, forward_pass: ForwardPass) -> tuple[Float[Array, "B T E"], Aux]:
        """Return the features from which `logits` scores the words of the vocabulary, for a model that does not copy.

        Raises:
            ValueError: If the model copies; call `forward`.
        """
        if self.copies:
            raise ValueError("copies are scored from the attention: call forward")
        steps, aux = self.unroll(state, inputs, forward_pass)
        return self._readout_features(steps), aux

    def forward(self, state: PyTree, inputs: Inputs, forward_pass: ForwardPass) -> tuple[Float[Array, "B T V"], Aux]:
        """Return the score of every word at every position of the target; if it copies, `extras` has `p_gen` [B, T]."""
        if not self.copies:
            return super().forward(state, inputs, forward_pass)
        steps, aux = self.unroll(state, inputs, forward_pass)
        switch_BxT = self._p_gen_logit(steps.outputs, steps.inputs.word)
        scores_BxTxV = self._mixture_log_probabilities(
            self._readout_features(steps), switch_BxT, steps.outputs.weights, steps.source.copied
        )
        maps = {**aux.maps, **_origin_maps(switch_BxT, steps.lengths, forward_pass.capture)}
        return scores_BxTxV, aux._replace(maps=maps, extras={"p_gen": jax.nn.sigmoid(switch_BxT)})

    def step(
        self, state: PyTree, cache: Cache, tokens_R: Int[Array, " R"], forward_pass: ForwardPass
    ) -> tuple[Float[Array, "R V"], Cache, Aux]:
        """Return the score of every next word, including copies."""
        if not self.copies:
            return super().step(state, cache, tokens_R, forward_pass)
        steps, cache, aux = self.extend(state, cache, tokens_R, forward_pass)
        switch_Rx1 = self._p_gen_logit(steps.outputs, steps.inputs.word)[:, None]
        copied_RxS = repeat_per_beam(steps.source.copied, len(tokens_R) // len(steps.source.copied))
        scores_Rx1xV = self._mixture_log_probabilities(
            self._readout_features(steps)[:, None], switch_Rx1, steps.outputs.weights[:, None], copied_RxS
        )
        maps = {**aux.maps, **_origin_maps(switch_Rx1, steps.lengths, forward_pass.capture)}
        return scores_Rx1xV[:, 0], cache, aux._replace(maps=maps)

    def _readout_features(self, steps: DecoderSteps) -> Float[Array, "*B E"]:
        """Return the features of the output layer, with dropout in training."""
        return dropout(
            self.output_features(steps.inputs, steps.outputs),
            self.config.dropout,
            self.random_stream_key(steps.key, "readout"),
        )

    def _p_gen_logit(self, outputs: StepOutput, word: Array) -> Float[Array, " *B"]:
        """Return the logit of p_gen (equation 8), in at least float32."""
        assert self.switch is not None
        logit = self.switch(jnp.concatenate([outputs.context, outputs.hidden, word], axis=-1))[..., 0]
        return logit.astype(jnp.promote_types(logit.dtype, jnp.float32))

    def _mixture_log_probabilities(
        self, read_BxTxE: Array, switch_BxT: Array, weights_BxTxS: Array, copied_BxS: Array
    ) -> Array:
        """Return the logarithm of equation 9."""
        written_BxTxV = jax.nn.log_softmax(self.logits(read_BxTxE)) + jax.nn.log_sigmoid(switch_BxT)[..., None]
        beyond = self.extended - self.vocabulary
        written_BxTxV = jnp.pad(written_BxTxV, ((0, 0), (0, 0), (0, beyond)), constant_values=NO_WORD)

        def copied(weights_TxS: Array, copied_S: Array) -> Array:
            return jnp.zeros((len(weights_TxS), self.extended), weights_TxS.dtype).at[:, copied_S].add(weights_TxS)

        share_BxTxV = jax.vmap(copied)(weights_BxTxS.astype(switch_BxT.dtype), copied_BxS)
        can_copy_BxTxV = share_BxTxV > 0
        log_share_BxTxV = (
            jnp.log(jnp.where(can_copy_BxTxV, share_BxTxV, 1)) + jax.nn.log_sigmoid(-switch_BxT)[..., None]
        )
        return jnp.logaddexp(written_BxTxV, jnp.where(can_copy_BxTxV, log_share_BxTxV, NO_WORD))

    def _replace_oov_tokens(self, tokens_BxT: Array, words_BxS: Array, copied_BxS: Array | None) -> Array:
        """Replace tokens beyond the vocabulary by the token in the source that they are copied from."""
        if copied_BxS is None:
            return tokens_BxT
        place_BxT = jnp.argmax(tokens_BxT[:, :, None] == copied_BxS[:, None], axis=-1)
        there_BxT = jnp.take_along_axis(words_BxS, place_BxT, axis=1)
        return jnp.where(tokens_BxT < self.vocabulary, tokens_BxT, there_BxT)

    def _embed(self, tokens: Int[Array, "..."], key: Key[Array, ""] | None) -> Float[Array, "..."]:
        return dropout(self.embedding(tokens, self.dtype), self.config.dropout, key)


def _origin_maps(switch_BxT: Array, lengths_B: Array, capture: Capture | None) -> dict[str, CapturedAttention]:
    """Return p_gen and 1 - p_gen of every word, as a map over the two ways to produce it."""
    both_BxTx2 = jax.nn.sigmoid(jnp.stack([switch_BxT, -switch_BxT], axis=-1))
    both_BxTx2 = jnp.where(real_positions(lengths_B, switch_BxT.shape[1])[..., None], both_BxTx2, 0)
    mask = Mask(query_lengths=lengths_B)
    return single_layer_maps(
        SWITCH, capture_weights(both_BxTx2[:, None], capture_for_site(SWITCH, capture), mask=mask), capture
    )


def attention_sites(config: PointerGeneratorConfig, interface: TaskInterface) -> tuple[Site, ...]:
    """Return the attention site of the decoder, and the switch of models that copy."""
    sites = [Site(SITE, Axis("target"), Axis("source"), layers=("0",), heads=("0",))]
    if "copied" in interface.inputs:
        origin = Axis("origin", AxisKind.SLOTS, num_positions=2)
        sites.append(Site(SWITCH, Axis("target"), origin, layers=("0",), heads=("0",)))
    return tuple(sites)


FAMILY = ModelFamily(
    PointerGeneratorConfig, PointerGenerator, frozenset({TRANSLATION_WITH_COPYING, TRANSLATION}), sites=attention_sites
)
