"""Greedy decoding: the most probable token of every step."""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from transformer.decode.generate import Rollout, Tokens
from transformer.decode.rows import Rows


@dataclasses.dataclass(frozen=True)
class Greedy:
    """y_t = argmax p(y | y_<t, x); a rollout's score is the sum of its log-probabilities."""

    @property
    def beams(self) -> int:
        return 1

    def start(self, examples: int, length: int, tokens: Tokens, key: Key[Array, ""] | None) -> Rows:
        return Rows.empty(examples, length, tokens)

    def choose(
        self,
        state: Rows,
        log_probability_RxV: Float[Array, "R V"],
        ends_RxV: Bool[Array, "R V"],
        step: Int[Array, ""],
        tokens: Tokens,
    ) -> tuple[Rows, Int[Array, " R"], None]:
        best_R = jnp.argmax(log_probability_RxV, axis=-1)
        state, next_R = state.append(best_R, jnp.max(log_probability_RxV, axis=-1), ends_RxV, step, tokens)
        return state, next_R, None

    def done(self, state: Rows, step: Int[Array, ""]) -> Bool[Array, ""]:
        return jnp.all(state.ended)

    def finish(self, state: Rows, tokens: Tokens) -> Rollout:
        return state.rollout(1)
