"""Beam search with penalties of length and coverage."""

import dataclasses
import enum
from typing import NamedTuple, assert_never

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from transformer.config import Config, Positive
from transformer.decoding.generate import Rollout, Tokens


class Ending(enum.Enum):
    """Which ended extensions become hypotheses.

    `any`: every ended extension of a live hypothesis competes with the best ended ones. `among_best`: only one that is
    itself among the `beams` best extensions counts, so that one beam without a length penalty is greedy decoding.
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
class Beam(Config):
    """The `beams` best hypotheses by log p(Y | X) / lp(Y) + cp(X; Y), lp(Y) = ((5 + |Y|) / 6)^length_penalty.

    Both penalties are those of Wu et al. 2016, equation 14; |Y| counts the token that ends. cp is 0 without coverage
    (transformer.decoding.generate) and at most 0 with it; it ranks what has ended, and prunes nothing that lives.
    Vaswani et al. 2017 use 4 beams and a length penalty of 0.6 (section 6.1). Hypotheses that are cut off at the
    greatest length count only where fewer than `beams` have ended.

    Raises:
        UserError: For less than one beam.
    """

    beams: Positive = 4
    length_penalty: float = 0.6
    ending: Ending = Ending.ANY

    def start(self, examples: int, length: int, tokens: Tokens, key: Key[Array, ""] | None) -> _State:
        """One live hypothesis an example: the other rows are copies of it and must not compete."""
        empty = jnp.full((examples, self.beams, length), tokens.fill, jnp.int32)
        impossible = jnp.full((examples, self.beams), -jnp.inf)
        nothing, counts = jnp.zeros(impossible.shape), jnp.zeros(impossible.shape, jnp.int32)
        return _State(empty, impossible.at[:, 0].set(0), nothing, empty, impossible, counts)

    def penalized(self, state: _State, penalty_R: Float[Array, " R"]) -> _State:
        """The state whose live hypotheses have these coverage penalties."""
        return state._replace(penalty=penalty_R.reshape(state.penalty.shape))

    def choose(
        self,
        state: _State,
        log_probability_RxV: Float[Array, "R V"],
        ends_RxV: Bool[Array, "R V"],
        step: Int[Array, ""],
        tokens: Tokens,
    ) -> tuple[_State, Int[Array, " R"], Int[Array, " R"]]:
        """Extend every live hypothesis by every token; keep the best live and the best ended ones."""
        examples, beams, _ = state.tokens.shape
        vocabulary = log_probability_RxV.shape[-1]
        total_BxNxV = state.log_probability[:, :, None] + log_probability_RxV.reshape(examples, beams, vocabulary)
        total_BxM = total_BxNxV.reshape(examples, beams * vocabulary)
        ends_BxM = ends_RxV.reshape(total_BxM.shape)

        def best(scores_BxM: Array) -> tuple[Array, Array, Array]:
            scores, index = jax.lax.top_k(scores_BxM, beams)
            return scores, index // vocabulary, (index % vocabulary).astype(jnp.int32)

        match self.ending:
            case Ending.ANY:
                ending = best(jnp.where(ends_BxM, total_BxM, -jnp.inf))
            case Ending.AMONG_BEST:
                scores, parent, token = best(total_BxM)
                ends = jnp.take_along_axis(ends_BxM, parent * vocabulary + token, axis=1)
                ending = jnp.where(ends, scores, -jnp.inf), parent, token
            case _:
                assert_never(self.ending)
        ended = self._pooled(state, *ending, step)
        log_probability, parent, token = best(jnp.where(ends_BxM, -jnp.inf, total_BxM))
        penalty = jnp.take_along_axis(state.penalty, parent, axis=1)
        state = _State(_grown(state.tokens, parent, token, step), log_probability, penalty, *ended)
        parents_R = (parent + beams * jnp.arange(examples)[:, None]).reshape(-1)
        return state, token.reshape(-1), parents_R

    def _pooled(
        self, state: _State, log_probability_BxN: Array, parent_BxN: Array, token_BxN: Array, step: Array
    ) -> tuple[Array, Array, Array]:
        """The best of the hypotheses that have ended and that end now: tokens, penalized scores, lengths."""
        grown_BxNxT = _grown(state.tokens, parent_BxN, token_BxN, step)
        ending = log_probability_BxN / self.penalty(step + 1) + jnp.take_along_axis(state.penalty, parent_BxN, axis=1)
        scores = jnp.concatenate([state.ended_scores, ending], axis=1)
        tokens = jnp.concatenate([state.ended_tokens, grown_BxNxT], axis=1)
        lengths = jnp.concatenate([state.ended_lengths, jnp.full_like(state.ended_lengths, step + 1)], axis=1)
        scores, index = jax.lax.top_k(scores, state.ended_scores.shape[1])
        tokens = jnp.take_along_axis(tokens, index[:, :, None], axis=1)
        return tokens, scores, jnp.take_along_axis(lengths, index, axis=1)

    def done(self, state: _State, step: Int[Array, ""]) -> Bool[Array, ""]:
        """Whether no live hypothesis can still beat the worst ended one.

        A log-probability only falls, and the penalty that favors it most is that of the greatest length
        (of the present one, where the penalty is negative); the best that coverage can become is 0.
        """
        longest = state.tokens.shape[-1] if self.length_penalty >= 0 else step + 1
        reachable_B = jnp.max(state.log_probability, axis=1) / self.penalty(longest)
        return jnp.all(reachable_B <= jnp.min(state.ended_scores, axis=1))

    def finish(self, state: _State, tokens: Tokens) -> Rollout:
        """The ended hypotheses, best first; where too few ended, the live ones behind them."""
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
        best = jnp.where(jnp.arange(best.shape[-1]) < lengths[:, :, None], best, tokens.fill)
        return Rollout(
            jnp.take_along_axis(best, order[:, :, None], axis=1),
            jnp.take_along_axis(scores, order, axis=1),
            jnp.take_along_axis(lengths, order, axis=1),
        )

    def penalty(self, length: Array | int) -> Array:
        """The penalty lp at a length."""
        return ((5 + jnp.asarray(length, jnp.float32)) / 6) ** self.length_penalty


def _grown(tokens_BxNxT: Array, parent_BxN: Array, token_BxN: Array, step: Array) -> Int[Array, "B N T"]:
    """The parents' tokens with one more behind them."""
    return jnp.take_along_axis(tokens_BxNxT, parent_BxN[:, :, None], axis=1).at[:, :, step].set(token_BxN)
