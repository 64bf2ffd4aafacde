"""Beam search with a length penalty."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer.decode.generate import Rollout, Tokens


class _State(NamedTuple):
    tokens: Int[Array, "B N T"]  # hypotheses that go on
    log_probability: Float[Array, "B N"]
    ended_tokens: Int[Array, "B N T"]  # the best that have ended, with their penalised scores
    ended_scores: Float[Array, "B N"]


@dataclasses.dataclass(frozen=True)
class Beam:
    """The `beams` best hypotheses by log p(Y | X) / lp(Y), lp(Y) = ((5 + |Y|) / 6)^length_penalty.

    The penalty is that of Wu et al. 2016, equation 14; |Y| counts the end token. Vaswani et al. 2017 use 4
    beams and a length penalty of 0.6 (section 6.1). Hypotheses that are cut off at the greatest length count
    only where fewer than `beams` have ended.
    """

    beams: int = 4
    length_penalty: float = 0.6

    def start(self, examples: int, length: int, tokens: Tokens) -> _State:
        """One live hypothesis an example: the other rows are copies of it and must not compete."""
        empty = jnp.full((examples, self.beams, length), tokens.pad, jnp.int32)
        impossible = jnp.full((examples, self.beams), -jnp.inf)
        return _State(empty, impossible.at[:, 0].set(0), empty, impossible)

    def choose(
        self, state: _State, log_probability_RxV: Array, step: Array, tokens: Tokens
    ) -> tuple[_State, Array, Array]:
        """Extend every live hypothesis by every token; keep the best that go on and the best that end."""
        examples, beams, _ = state.tokens.shape
        vocabulary = log_probability_RxV.shape[-1]
        total_BxNxV = state.log_probability[:, :, None] + log_probability_RxV.reshape(examples, beams, vocabulary)

        ending_BxN = total_BxNxV[:, :, tokens.end] / self.penalty(step + 1)
        pool_scores = jnp.concatenate([state.ended_scores, ending_BxN], axis=1)
        pool_tokens = jnp.concatenate([state.ended_tokens, state.tokens.at[:, :, step].set(tokens.end)], axis=1)
        ended_scores, ended_index = jax.lax.top_k(pool_scores, beams)
        ended_tokens = jnp.take_along_axis(pool_tokens, ended_index[:, :, None], axis=1)

        going_BxNV = total_BxNxV.at[:, :, tokens.end].set(-jnp.inf).reshape(examples, beams * vocabulary)
        log_probability, index = jax.lax.top_k(going_BxNV, beams)
        parent, token = index // vocabulary, (index % vocabulary).astype(jnp.int32)
        live = jnp.take_along_axis(state.tokens, parent[:, :, None], axis=1).at[:, :, step].set(token)

        state = _State(live, log_probability, ended_tokens, ended_scores)
        parents_R = (parent + beams * jnp.arange(examples)[:, None]).reshape(-1)
        return state, token.reshape(-1), parents_R

    def done(self, state: _State, step: Array) -> Bool[Array, ""]:
        """No live hypothesis can still beat the worst that ended.

        A log-probability only falls, and the penalty that favours it most is that of the greatest length
        (of the present one, where the penalty is negative).
        """
        longest = state.tokens.shape[-1] if self.length_penalty >= 0 else step + 1
        reachable_B = jnp.max(state.log_probability, axis=1) / self.penalty(longest)
        return jnp.all(reachable_B <= jnp.min(state.ended_scores, axis=1))

    def finish(self, state: _State, tokens: Tokens) -> Rollout:
        """The ended hypotheses, best first; where too few ended, the live ones behind them."""
        live_scores = state.log_probability / self.penalty(state.tokens.shape[-1])
        missing = jnp.isneginf(state.ended_scores)
        order = jnp.argsort(missing, axis=1, stable=True)
        # The k-th gap is filled by the k-th best live hypothesis (both are sorted).
        rank = jnp.cumsum(missing, axis=1) - 1
        filler = jnp.clip(rank, 0)
        scores = jnp.where(missing, jnp.take_along_axis(live_scores, filler, axis=1), state.ended_scores)
        fill_tokens = jnp.take_along_axis(state.tokens, filler[:, :, None], axis=1)
        best = jnp.where(missing[:, :, None], fill_tokens, state.ended_tokens)
        return Rollout(jnp.take_along_axis(best, order[:, :, None], axis=1), jnp.take_along_axis(scores, order, axis=1))

    def penalty(self, length: Array | int) -> Array:
        """The penalty lp at a length."""
        return ((5 + jnp.asarray(length, jnp.float32)) / 6) ** self.length_penalty
