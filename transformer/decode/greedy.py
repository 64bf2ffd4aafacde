"""Greedy decoding: the most probable token of every step."""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer.decode.generate import Rollout, Tokens


class _State(NamedTuple):
    tokens: Int[Array, "B T"]
    log_probability: Float[Array, " B"]
    ended: Bool[Array, " B"]


@dataclasses.dataclass(frozen=True)
class Greedy:
    """y_t = argmax p(y | y_<t, x); a rollout's score is the sum of its log-probabilities."""

    beams: int = 1

    def start(self, examples: int, length: int, tokens: Tokens) -> _State:
        """All padding, nothing ended."""
        return _State(
            jnp.full((examples, length), tokens.pad, jnp.int32),
            jnp.zeros(examples),
            jnp.zeros(examples, bool),
        )

    def choose(
        self, state: _State, log_probability_RxV: Array, step: Array, tokens: Tokens
    ) -> tuple[_State, Array, None]:
        """The most probable token; padding behind an end."""
        best_R = jnp.argmax(log_probability_RxV, axis=-1).astype(jnp.int32)
        best_R = jnp.where(state.ended, tokens.pad, best_R)
        gained_R = jnp.where(state.ended, 0, jnp.max(log_probability_RxV, axis=-1))
        state = _State(
            state.tokens.at[:, step].set(best_R),
            state.log_probability + gained_R,
            state.ended | (best_R == tokens.end),
        )
        return state, best_R, None

    def done(self, state: _State, step: Array) -> Bool[Array, ""]:
        """All have ended."""
        return jnp.all(state.ended)

    def finish(self, state: _State, tokens: Tokens) -> Rollout:
        """One hypothesis an example."""
        return Rollout(state.tokens[:, None], state.log_probability[:, None])
