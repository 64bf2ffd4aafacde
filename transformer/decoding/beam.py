"""Beam search with length and coverage penalties."""

import dataclasses
import enum
from typing import ClassVar, NamedTuple, assert_never

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from transformer.config import Config, PositiveInt
from transformer.decoding.generation import DecodedSequences, SpecialTokens


class FinishedHypothesisRule(enum.Enum):
    """Which hypotheses that end are kept as finished.

    Attributes:
        ANY: All of them; each competes with the best finished hypotheses.
        AMONG_BEST: Only those among the `num_beams` best extensions, as in fairseq and transformers, so that one beam
            without a length penalty is greedy search.
    """

    ANY = "any"
    AMONG_BEST = "among_best"


class _State(NamedTuple):
    tokens: Int[Array, "B N T"]  # live hypotheses
    log_probability: Float[Array, "B N"]
    penalty: Float[Array, "B N"]  # of live hypotheses beside that of their length
    ended_tokens: Int[Array, "B N T"]  # the best ended hypotheses, with their penalized scores
    ended_scores: Float[Array, "B N"]
    ended_lengths: Int[Array, "B N"]


@dataclasses.dataclass(frozen=True)
class BeamSearch(Config):
    """Beam search by log p(Y | X) / lp(Y) + cp(X; Y), with lp(Y) = ((5 + |Y|) / 6)^length_penalty.

    Both penalties are those of Wu et al. 2016, equation 14; |Y| counts the end token. The coverage penalty cp
    (`CoveragePenalty`) ranks finished hypotheses and does not prune live ones. Vaswani et al. 2017 use 4 beams and a
    length penalty of 0.6 (section 6.1). Hypotheses cut off at the largest length are returned only if fewer than
    `num_beams` have finished.

    Attributes:
        num_beams: The number of live hypotheses of each example.
        length_penalty: The exponent of lp.
        ending: Which hypotheses that end are kept.

    Raises:
        UserError: If `num_beams` is below 1.
    """

    num_beams: PositiveInt = 4
    length_penalty: float = 0.6
    ending: FinishedHypothesisRule = FinishedHypothesisRule.ANY

    limits_log_probabilities: ClassVar[bool] = False

    def start(self, examples: int, length: int, tokens: SpecialTokens, key: Key[Array, ""] | None) -> _State:
        """Return the state with one live hypothesis per example; the other rows are copies of it with probability 0.

        Args:
            examples: Number of examples.
            length: The largest number of generated tokens.
            tokens: The special tokens.
            key: Ignored.

        Returns:
            The state.
        """
        empty = jnp.full((examples, self.num_beams, length), tokens.fill_id, jnp.int32)
        impossible = jnp.full((examples, self.num_beams), -jnp.inf)
        nothing, counts = jnp.zeros(impossible.shape), jnp.zeros(impossible.shape, jnp.int32)
        return _State(empty, impossible.at[:, 0].set(0), nothing, empty, impossible, counts)

    def with_penalty(self, state: _State, penalty_R: Float[Array, " R"]) -> _State:
        """Return the state with the coverage penalties of the live hypotheses."""
        return state._replace(penalty=penalty_R.reshape(state.penalty.shape))

    def choose(
        self,
        state: _State,
        log_probability_RxV: Float[Array, "R V"],
        ends_RxV: Bool[Array, "R V"],
        step: Int[Array, ""],
        tokens: SpecialTokens,
    ) -> tuple[_State, Int[Array, " R"], Int[Array, " R"]]:
        """Extend every live hypothesis by every token; keep the best live and the best finished ones.

        Args:
            state: The state.
            log_probability_RxV: The log-probability of every next token.
            ends_RxV: Which tokens would end a hypothesis.
            step: The index of the step.
            tokens: The special tokens.

        Returns:
            The next state, each row's token, and the row that each row continues.
        """
        examples, num_beams, _ = state.tokens.shape
        vocabulary = log_probability_RxV.shape[-1]
        total_BxNxV = state.log_probability[:, :, None] + log_probability_RxV.reshape(examples, num_beams, vocabulary)
        total_BxM = total_BxNxV.reshape(examples, num_beams * vocabulary)
        ends_BxM = ends_RxV.reshape(total_BxM.shape)

        def best(scores_BxM: Array) -> tuple[Array, Array, Array]:
            scores, index = jax.lax.top_k(scores_BxM, num_beams)
            return scores, index // vocabulary, (index % vocabulary).astype(jnp.int32)

        match self.ending:
            case FinishedHypothesisRule.ANY:
                ending = best(jnp.where(ends_BxM, total_BxM, -jnp.inf))
            case FinishedHypothesisRule.AMONG_BEST:
                scores, parent, token = best(total_BxM)
                ends = jnp.take_along_axis(ends_BxM, parent * vocabulary + token, axis=1)
                ending = jnp.where(ends, scores, -jnp.inf), parent, token
            case _:
                assert_never(self.ending)
        ended = self._best_finished(state, *ending, step)
        log_probability, parent, token = best(jnp.where(ends_BxM, -jnp.inf, total_BxM))
        penalty = jnp.take_along_axis(state.penalty, parent, axis=1)
        state = _State(_append_token(state.tokens, parent, token, step), log_probability, penalty, *ended)
        parents_R = (parent + num_beams * jnp.arange(examples)[:, None]).reshape(-1)
        return state, token.reshape(-1), parents_R

    def _best_finished(
        self, state: _State, log_probability_BxN: Array, parent_BxN: Array, token_BxN: Array, step: Array
    ) -> tuple[Array, Array, Array]:
        """Return the best of the finished hypotheses and those that end now: tokens, penalized scores, lengths."""
        grown_BxNxT = _append_token(state.tokens, parent_BxN, token_BxN, step)
        ending = log_probability_BxN / self.penalty(step + 1) + jnp.take_along_axis(state.penalty, parent_BxN, axis=1)
        return _best_of_both(state, grown_BxNxT, ending, step + 1)

    def done(self, state: _State, step: Int[Array, ""]) -> Bool[Array, ""]:
        """Return whether no live hypothesis can still beat the worst finished one.

        A log-probability only decreases. The most favorable length penalty is that of the greatest length (or of the
        current one if the exponent is negative); the most favorable coverage penalty is 0.
        """
        longest = state.tokens.shape[-1] if self.length_penalty >= 0 else step + 1
        reachable_B = jnp.max(state.log_probability, axis=1) / self.penalty(longest)
        return jnp.all(reachable_B <= jnp.min(state.ended_scores, axis=1))

    def finish(self, state: _State, tokens: SpecialTokens) -> DecodedSequences:
        """Return the finished hypotheses, best first, followed by live ones if there are too few."""
        live_scores = state.log_probability / self.penalty(state.tokens.shape[-1]) + state.penalty
        missing = jnp.isneginf(state.ended_scores)
        order = jnp.argsort(missing, axis=1, stable=True)
        # The k-th gap is filled by the k-th best live hypothesis (both are sorted).
        rank = jnp.cumsum(missing, axis=1) - 1
        filler = jnp.clip(rank, 0)
        scores = jnp.where(missing, jnp.take_along_axis(live_scores, filler, axis=1), state.ended_scores)
        fill_tokens = jnp.take_along_axis(state.tokens, filler[:, :, None], axis=1)
        best = jnp.where(missing[:, :, None], fill_tokens, state.ended_tokens)
        # A score of -inf marks a hypothesis that does not exist.
        lengths = jnp.where(missing, jnp.where(jnp.isneginf(scores), 0, best.shape[-1]), state.ended_lengths)
        best = jnp.where(jnp.arange(best.shape[-1]) < lengths[:, :, None], best, tokens.fill_id)
        return DecodedSequences(
            jnp.take_along_axis(best, order[:, :, None], axis=1),
            jnp.take_along_axis(scores, order, axis=1),
            jnp.take_along_axis(lengths, order, axis=1),
        )

    def penalty(self, length: Array | int) -> Array:
        """Return the length penalty lp."""
        return ((5 + jnp.asarray(length, jnp.float32)) / 6) ** self.length_penalty


class EarlyStopping(enum.Enum):
    """When `LengthPowerBeamSearch` stops looking for better hypotheses of an example, by transformers' values.

    Attributes:
        ESTIMATE: Once the best live hypothesis, with the length that it has, is no better than the worst finished one
            (False). A longer one could still become better.
        FULL: Once `num_beams` hypotheses have finished (True).
        NEVER: As `ESTIMATE`, but a positive power compares with the greatest length ("never").
    """

    ESTIMATE = "estimate"
    FULL = "full"
    NEVER = "never"


class _LengthPowerState(NamedTuple):
    tokens: Int[Array, "B N T"]  # live hypotheses
    log_probability: Float[Array, "B N"]
    ended_tokens: Int[Array, "B N T"]  # the best ended hypotheses, with their scores
    ended_scores: Float[Array, "B N"]
    ended_lengths: Int[Array, "B N"]
    can_improve: Bool[Array, " B"]


@dataclasses.dataclass(frozen=True)
class LengthPowerBeamSearch(Config):
    """Beam search by log p(Y | X) / |Y|^length_power, step by step as in transformers 5.24.0.

    |Y| counts the end token. Of the `num_beams` best extensions of each step, those that end are finished; at the
    greatest length all of them are. Limits on tokens change log-probabilities, which then do not sum to one: a
    repetition penalty multiplies the log-probability of each token that has occurred.

    Attributes:
        num_beams: The number of live hypotheses of each example.
        length_power: The exponent of the length; transformers calls it `length_penalty`.
        early_stopping: When an example is done.

    Raises:
        UserError: If `num_beams` is below 1.
    """

    num_beams: PositiveInt = 4
    length_power: float = 1.0
    early_stopping: EarlyStopping = EarlyStopping.ESTIMATE

    limits_log_probabilities: ClassVar[bool] = True

    def start(self, examples: int, length: int, tokens: SpecialTokens, key: Key[Array, ""] | None) -> _LengthPowerState:
        """Return the state with one live hypothesis per example, as `BeamSearch.start` does."""
        empty = jnp.full((examples, self.num_beams, length), tokens.fill_id, jnp.int32)
        impossible = jnp.full((examples, self.num_beams), -jnp.inf)
        counts = jnp.zeros(impossible.shape, jnp.int32)
        can_improve_B = jnp.ones(examples, bool)
        return _LengthPowerState(empty, impossible.at[:, 0].set(0), empty, impossible, counts, can_improve_B)

    def choose(
        self,
        state: _LengthPowerState,
        log_probability_RxV: Float[Array, "R V"],
        ends_RxV: Bool[Array, "R V"],
        step: Int[Array, ""],
        tokens: SpecialTokens,
    ) -> tuple[_LengthPowerState, Int[Array, " R"], Int[Array, " R"]]:
        """Extend every live hypothesis by every token; keep the best live and the best finished ones."""
        examples, num_beams, length = state.tokens.shape
        vocabulary = log_probability_RxV.shape[-1]
        total_BxNxV = state.log_probability[:, :, None] + log_probability_RxV.reshape(examples, num_beams, vocabulary)
        total_BxM = total_BxNxV.reshape(examples, num_beams * vocabulary)
        ends_BxM = ends_RxV.reshape(total_BxM.shape)
        scores_BxN, index_BxN = jax.lax.top_k(total_BxM, num_beams)
        ends_BxN = jnp.take_along_axis(ends_BxM, index_BxN, axis=1) | (step + 1 == length)
        grown_BxNxT = _append_token(
            state.tokens, index_BxN // vocabulary, (index_BxN % vocabulary).astype(jnp.int32), step
        )
        is_counted_BxN = ends_BxN & (state.can_improve & ~self._is_full(state))[:, None]
        ending_BxN = jnp.where(is_counted_BxN, scores_BxN / self._divisor(step + 1), -jnp.inf)
        ended = _best_of_both(state, grown_BxNxT, ending_BxN, step + 1)
        log_probability_BxN, index_BxN = jax.lax.top_k(jnp.where(ends_BxM, -jnp.inf, total_BxM), num_beams)
        parent_BxN, token_BxN = index_BxN // vocabulary, (index_BxN % vocabulary).astype(jnp.int32)
        tokens_BxNxT = _append_token(state.tokens, parent_BxN, token_BxN, step)
        state = _LengthPowerState(tokens_BxNxT, log_probability_BxN, *ended, state.can_improve)
        state = state._replace(can_improve=state.can_improve & self._may_improve(state, step + 1))
        parents_R = (parent_BxN + num_beams * jnp.arange(examples)[:, None]).reshape(-1)
        return state, token_BxN.reshape(-1), parents_R

    def _is_full(self, state: _LengthPowerState) -> Bool[Array, " B"]:
        """Return the examples that take no further hypothesis, however good it is."""
        is_full_B = jnp.all(~jnp.isneginf(state.ended_scores), axis=1)
        return is_full_B & (self.early_stopping is EarlyStopping.FULL)

    def _may_improve(self, state: _LengthPowerState, generated: Int[Array, ""]) -> Bool[Array, " B"]:
        """Return the examples whose best live hypothesis could be better than their worst finished one."""
        uses_greatest = self.early_stopping is EarlyStopping.NEVER and self.length_power > 0
        length = state.tokens.shape[-1] if uses_greatest else generated
        reachable_B = state.log_probability[:, 0] / self._divisor(length)
        return reachable_B > jnp.min(state.ended_scores, axis=1)

    def done(self, state: _LengthPowerState, step: Int[Array, ""]) -> Bool[Array, ""]:
        """Return whether no example can improve, or all are full."""
        return ~jnp.any(state.can_improve) | jnp.all(self._is_full(state))

    def finish(self, state: _LengthPowerState, tokens: SpecialTokens) -> DecodedSequences:
        """Return the finished hypotheses, best first; one that does not exist has no tokens."""
        lengths_BxN = jnp.where(jnp.isneginf(state.ended_scores), 0, state.ended_lengths)
        inside_BxNxT = jnp.arange(state.ended_tokens.shape[-1]) < lengths_BxN[:, :, None]
        tokens_BxNxT = jnp.where(inside_BxNxT, state.ended_tokens, tokens.fill_id)
        return DecodedSequences(tokens_BxNxT, state.ended_scores, lengths_BxN)

    def _divisor(self, length: Array | int) -> Array:
        return jnp.asarray(length, jnp.float32) ** self.length_power


def _best_of_both(
    state: _State | _LengthPowerState, grown_BxNxT: Array, scores_BxN: Array, length: Array
) -> tuple[Array, Array, Array]:
    """Return the best of the finished hypotheses and those that end now: tokens, scores and lengths."""
    scores = jnp.concatenate([state.ended_scores, scores_BxN], axis=1)
    tokens = jnp.concatenate([state.ended_tokens, grown_BxNxT], axis=1)
    lengths = jnp.concatenate([state.ended_lengths, jnp.full_like(state.ended_lengths, length)], axis=1)
    scores, index = jax.lax.top_k(scores, state.ended_scores.shape[1])
    tokens = jnp.take_along_axis(tokens, index[:, :, None], axis=1)
    return tokens, scores, jnp.take_along_axis(lengths, index, axis=1)


def _append_token(tokens_BxNxT: Array, parent_BxN: Array, token_BxN: Array, step: Array) -> Int[Array, "B N T"]:
    """Return the parents' tokens with one more token."""
    return jnp.take_along_axis(tokens_BxNxT, parent_BxN[:, :, None], axis=1).at[:, :, step].set(token_BxN)
