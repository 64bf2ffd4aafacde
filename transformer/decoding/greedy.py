"""Greedy search: the most probable token of every step."""

import dataclasses
from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from transformer.decoding.generation import DecodedSequences, SpecialTokens


class Hypotheses(NamedTuple):
    """One hypothesis per row, for strategies that never reorder rows.

    Attributes:
        tokens: The tokens, then fill tokens.
        log_probability: The sum of their log-probabilities.
        lengths: The number of tokens.
        ended: Whether the row has ended.
    """

    tokens: Int[Array, "R T"]
    log_probability: Float[Array, " R"]
    lengths: Int[Array, " R"]
    ended: Bool[Array, " R"]

    @staticmethod
    def empty(rows: int, length: int, tokens: SpecialTokens) -> "Hypotheses":
        """Return hypotheses without tokens."""
        return Hypotheses(
            jnp.full((rows, length), tokens.fill_id, jnp.int32),
            jnp.zeros(rows),
            jnp.zeros(rows, jnp.int32),
            jnp.zeros(rows, bool),
        )

    def append(
        self,
        chosen_R: Int[Array, " R"],
        log_probability_R: Float[Array, " R"],
        ends_RxV: Bool[Array, "R V"],
        step: Int[Array, ""],
        tokens: SpecialTokens,
    ) -> tuple["Hypotheses", Int[Array, " R"]]:
        """Append the chosen tokens.

        Args:
            chosen_R: The chosen tokens.
            log_probability_R: Their log-probabilities.
            ends_RxV: Which tokens would end a row.
            step: The index of the step.
            tokens: The special tokens.

        Returns:
            The hypotheses, and each row's next token: the fill token if it had ended.
        """
        ends_R = jnp.take_along_axis(ends_RxV, chosen_R[:, None], axis=1)[:, 0]
        next_R = jnp.where(self.ended, tokens.fill_id, chosen_R).astype(jnp.int32)
        grown = Hypotheses(
            self.tokens.at[:, step].set(next_R),
            self.log_probability + jnp.where(self.ended, 0, log_probability_R),
            self.lengths + ~self.ended,
            self.ended | ends_R,
        )
        return grown, next_R

    def to_decoded_sequences(self, samples: int) -> DecodedSequences:
        """Return the result, with `samples` rows of each example."""
        examples = self.tokens.shape[0] // samples
        return DecodedSequences(
            self.tokens.reshape(examples, samples, -1),
            self.log_probability.reshape(examples, samples),
            self.lengths.reshape(examples, samples),
        )


@dataclasses.dataclass(frozen=True)
class GreedySearch:
    """Greedy search, y_t = argmax p(y | y_<t, x); the score is the sum of the log-probabilities."""

    limits_log_probabilities: ClassVar[bool] = False

    @property
    def num_beams(self) -> int:
        return 1

    def start(self, examples: int, length: int, tokens: SpecialTokens, key: Key[Array, ""] | None) -> Hypotheses:
        return Hypotheses.empty(examples, length, tokens)

    def choose(
        self,
        state: Hypotheses,
        log_probability_RxV: Float[Array, "R V"],
        ends_RxV: Bool[Array, "R V"],
        step: Int[Array, ""],
        tokens: SpecialTokens,
    ) -> tuple[Hypotheses, Int[Array, " R"], None]:
        best_R = jnp.argmax(log_probability_RxV, axis=-1)
        state, next_R = state.append(best_R, jnp.max(log_probability_RxV, axis=-1), ends_RxV, step, tokens)
        return state, next_R, None

    def done(self, state: Hypotheses, step: Int[Array, ""]) -> Bool[Array, ""]:
        return jnp.all(state.ended)

    def finish(self, state: Hypotheses, tokens: SpecialTokens) -> DecodedSequences:
        return state.to_decoded_sequences(1)
