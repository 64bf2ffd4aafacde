"""Constraints on decoded tokens: repetition penalty, forbidden tokens, stop strings, and a task's rules."""

import dataclasses
import functools
import math
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from transformer.config import UserError


class Prompt(NamedTuple):
    """The prompts.

    Attributes:
        tokens: The tokens of each prompt, padded at the end.
        lengths: How many of them are real.
    """

    tokens: Int[Array | np.ndarray, "B P"]
    lengths: Int[Array | np.ndarray, " B"]


class ConstraintState(NamedTuple):
    """The state of the constraints of each row during decoding; None for a constraint that is not used.

    Attributes:
        seen: Which tokens have occurred in prompt or output.
        stop: The state of the stop strings' automaton.
        rule: The state of the rule, a tree of arrays [row, ...].
    """

    occurred: Bool[Array, "R V"] | None  # the tokens that have occurred in prompt or output
    stop: Int[Array, " R"] | None  # the state of the stop strings' automaton
    rule: Any = None  # the state of the rule, [row, ...]


class TokenRule(Protocol):
    """Decides which tokens may come next in each row (rows are examples x beams).

    Its state is a tree of arrays [row, ...], which beam search reorders with its hypotheses. At least one token must
    be allowed in every state, also after the end and after a token that was not allowed: beam search continues
    impossible hypotheses when it has too few, and without an allowed token a row has no probabilities.
    """

    def start(self, rows: int, vocabulary: int) -> Any:
        """Return the state before the first token.

        Args:
            rows: Number of rows.
            vocabulary: Number of logits.

        Returns:
            A tree of arrays [row, ...].
        """

    def allowed_tokens(self, state: Any) -> Bool[Array, "R V"]:
        """Return which tokens may come next."""

    def advance(self, state: Any, tokens_R: Int[Array, " R"]) -> Any:
        """Return the state after one more token of every row."""


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["stop_table", "rule"],
    meta_fields=["repetition_penalty", "forbidden_ids"],
)
@dataclasses.dataclass(frozen=True)
class Constraints:
    """Constraints that every decoding strategy applies.

    The logit x of a token that has occurred in the prompt or the output becomes x / penalty if x > 0, else x * penalty
    (Keskar et al. 2019, CTRL, section 4.1; they divide negative logits too, which would reward repetition).

    Attributes:
        repetition_penalty: The penalty; 1 for none.
        forbidden_ids: Tokens that are never generated.
        stop_table: The table of `transformer.decoding.stop_sequences.build_stop_table`; a complete stop string ends a
            row.
        rule: Which tokens may come next in each row.

    Raises:
        UserError: If the penalty is not above 0 and finite, or if a forbidden token is negative.
    """

    repetition_penalty: float = 1.0
    forbidden_ids: tuple[int, ...] = ()
    stop_table: Int[Array | np.ndarray, "S V"] | None = None
    rule: TokenRule | None = None

    def __post_init__(self) -> None:
        if not 0 < self.repetition_penalty < math.inf:
            raise UserError(f"repetition_penalty={self.repetition_penalty} must be above 0 (1: no penalty)")
        if min(self.forbidden_ids, default=0) < 0:
            raise UserError(f"forbidden={self.forbidden_ids} has a negative number; token numbers begin at 0")

    def check(self, vocabulary: int) -> None:
        """Check that forbidden tokens and stop strings fit the vocabulary.

        Raises:
            ValueError: If they do not.
        """
        if max(self.forbidden_ids, default=0) >= vocabulary:
            raise ValueError(f"forbidden={self.forbidden_ids} has a token beyond the vocabulary of {vocabulary}")
        if self.stop_table is not None and self.stop_table.shape[1] != vocabulary:
            raise ValueError(
                f"stop_table knows {self.stop_table.shape[1]} tokens and the model {vocabulary}: build the table from "
                "one entry of bytes for each logit, b'' for tokens without text"
            )

    def start(self, rows: int, vocabulary: int, prompt: Prompt | None) -> ConstraintState:
        """Return the state before the first step: the prompt's tokens have occurred, but no part of a stop string.

        Args:
            rows: Number of rows.
            vocabulary: Number of logits.
            prompt: The prompts; None for none.

        Returns:
            The state.
        """
        occurred_RxV = None
        if self.repetition_penalty != 1:
            occurred_RxV = jnp.zeros((rows, vocabulary), bool)
            if prompt is not None:
                occurred_BxV = _prompt_tokens(prompt, vocabulary)
                occurred_RxV = jnp.repeat(occurred_BxV, rows // occurred_BxV.shape[0], axis=0)
        rule_state = None if self.rule is None else self.rule.start(rows, vocabulary)
        return ConstraintState(
            occurred_RxV, None if self.stop_table is None else jnp.zeros(rows, jnp.int32), rule_state
        )

    def apply(self, logits_RxV: Float[Array, "R V"], state: ConstraintState) -> Float[Array, "R V"]:
        """Return the penalized logits, -inf for tokens that are forbidden or not allowed by the rule."""
        if state.occurred is not None:
            theta = self.repetition_penalty
            penalized_RxV = jnp.where(logits_RxV > 0, logits_RxV / theta, logits_RxV * theta)
            logits_RxV = jnp.where(state.occurred, penalized_RxV, logits_RxV)
        if self.forbidden_ids:
            logits_RxV = logits_RxV.at[:, jnp.array(self.forbidden_ids)].set(-jnp.inf)
        if self.rule is not None:
            logits_RxV = jnp.where(self.rule.allowed_tokens(state.rule), logits_RxV, -jnp.inf)
        return logits_RxV

    def stop_string_ends(self, state: ConstraintState) -> Bool[Array, "R V"] | bool:
        """Return which tokens would complete a stop string."""
        if state.stop is None:
            return False
        table_SxV = jnp.asarray(self.stop_table)
        return table_SxV[state.stop] == table_SxV.shape[0] - 1

    def advance(self, state: ConstraintState, tokens_R: Int[Array, " R"]) -> ConstraintState:
        """Return the state after one more token of every row."""
        occurred_RxV = state.occurred
        if occurred_RxV is not None:
            occurred_RxV = occurred_RxV.at[jnp.arange(tokens_R.shape[0]), tokens_R].set(True)
        rule_state = None if self.rule is None else self.rule.advance(state.rule, tokens_R)
        return ConstraintState(
            occurred_RxV, None if state.stop is None else jnp.asarray(self.stop_table)[state.stop, tokens_R], rule_state
        )


def _prompt_tokens(prompt: Prompt, vocabulary: int) -> Any:
    """Return which tokens occur in each prompt."""
    tokens_BxP = jnp.asarray(prompt.tokens)
    examples, width = tokens_BxP.shape
    inside_BxP = jnp.arange(width) < jnp.asarray(prompt.lengths)[:, None]
    # Padding gets the index V, outside of the vocabulary, and is dropped.
    index_BxP = jnp.where(inside_BxP, tokens_BxP, vocabulary)
    return jnp.zeros((examples, vocabulary), bool).at[jnp.arange(examples)[:, None], index_BxP].set(True, mode="drop")


class _UsedTokens(NamedTuple):
    """The state of `NoRepeatedTokens`: used tokens, how many were chosen, and how many must be."""

    used: Bool[Array, "R V"]
    num_chosen: Int[Array, " R"]
    min_tokens: Int[Array, " R"]


@functools.partial(jax.tree_util.register_dataclass, data_fields=["min_tokens"], meta_fields=["eos_id"])
@dataclasses.dataclass(frozen=True)
class NoRepeatedTokens:
    """A `TokenRule`: no token twice, and `eos_id` only after `min_tokens` other tokens; after `eos_id` only `eos_id`.

    Tokens that an example does not have must be excluded by their logits; the rule does not know them.

    Attributes:
        min_tokens: The least number of tokens before the end, of each example.
        eos_id: The token that ends a sequence.
    """

    min_tokens: Int[Array | np.ndarray, " B"]
    eos_id: int

    def start(self, rows: int, vocabulary: int) -> _UsedTokens:
        """Return the state in which no token is used."""
        min_tokens_B = jnp.asarray(self.min_tokens)
        min_tokens_R = jnp.repeat(min_tokens_B, rows // len(min_tokens_B))
        return _UsedTokens(jnp.zeros((rows, vocabulary), bool), jnp.zeros(rows, jnp.int32), min_tokens_R)

    def allowed_tokens(self, state: _UsedTokens) -> Bool[Array, "R V"]:
        """Return the unused tokens, and the end once enough were chosen."""
        ended_R = state.used[:, self.eos_id]
        may_end_R = ended_R | (state.num_chosen >= state.min_tokens)
        return (~state.used & ~ended_R[:, None]).at[:, self.eos_id].set(may_end_R)

    def advance(self, state: _UsedTokens, tokens_R: Int[Array, " R"]) -> _UsedTokens:
        """Mark one more token of every row as used."""
        used_RxV = state.used.at[jnp.arange(len(tokens_R)), tokens_R].set(True)
        return _UsedTokens(used_RxV, state.num_chosen + (tokens_R != self.eos_id), state.min_tokens)
