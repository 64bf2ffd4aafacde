"""Constraints on decoded tokens: repetition, least length, forbidden tokens, stop strings, and a task's rules."""

import dataclasses
import functools
import itertools
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
        occurred: Which tokens have occurred in prompt or output.
        stop: The state of the stop strings' automaton.
        rule: The state of the rule, a tree of arrays [row, ...].
        history: The tokens of prompt and output.
    """

    occurred: Bool[Array, "R V"] | None
    stop: Int[Array, " R"] | None
    rule: Any = None
    history: "TokenHistory | None" = None


class TokenHistory(NamedTuple):
    """The tokens of each row: of its prompt and of what was generated.

    Attributes:
        tokens: The tokens, with room behind them.
        lengths: How many there are.
    """

    tokens: Int[Array, "R T"]
    lengths: Int[Array, " R"]

    @classmethod
    def after_prompt(cls, prompt: Prompt | None, rows: int, length: int) -> "TokenHistory":
        """Return the history before the first of `length` new tokens."""
        if prompt is None:
            return cls(jnp.zeros((rows, length), jnp.int32), jnp.zeros(rows, jnp.int32))
        tokens_BxP, lengths_B = jnp.asarray(prompt.tokens), jnp.asarray(prompt.lengths)
        beams = rows // len(lengths_B)
        tokens_BxT = jnp.pad(tokens_BxP, ((0, 0), (0, length)))
        return cls(*(jnp.repeat(x, beams, axis=0).astype(jnp.int32) for x in (tokens_BxT, lengths_B)))

    def append(self, tokens_R: Int[Array, " R"]) -> "TokenHistory":
        """Return the history with one more token of every row."""
        row_R = jnp.arange(len(tokens_R))
        return TokenHistory(self.tokens.at[row_R, self.lengths].set(tokens_R, mode="drop"), self.lengths + 1)

    def last(self, count: int) -> Int[Array, "R N"]:
        """Return the last tokens of each row; -1 where it has fewer."""
        place_RxN = self.lengths[:, None] - count + jnp.arange(count)
        return jnp.where(place_RxN >= 0, jnp.take_along_axis(self.tokens, jnp.maximum(place_RxN, 0), axis=1), -1)

    def would_repeat(self, size: int, vocabulary: int) -> Bool[Array, "R V"]:
        """Return the tokens that would complete a sequence of `size` tokens that the row has already."""
        starts = self.tokens.shape[1] - size + 1
        last_RxN = self.last(size - 1)
        begins_RxS = jnp.arange(starts) + size - 1 < self.lengths[:, None]
        for place in range(size - 1):
            begins_RxS &= self.tokens[:, place : place + starts] == last_RxN[:, place : place + 1]
        # Tokens that complete nothing get the index V, outside of the vocabulary, and are dropped.
        index_RxS = jnp.where(begins_RxS, self.tokens[:, size - 1 :], vocabulary)
        rows = len(self.lengths)
        return jnp.zeros((rows, vocabulary), bool).at[jnp.arange(rows)[:, None], index_RxS].set(True, mode="drop")


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
    meta_fields=[
        "repetition_penalty",
        "forbidden_ids",
        "forbidden_sequences",
        "no_repeat_ngram_size",
        "min_new_tokens",
        "forced_first_id",
        "forced_last_id",
    ],
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
        forbidden_sequences: Sequences of tokens that are never generated, prompt and output taken together.
        no_repeat_ngram_size: No sequence of so many tokens occurs twice in prompt and output (Paulus et al. 2018,
            section 2.5); 0 for no limit.
        min_new_tokens: No token ends an output of fewer tokens; a stop string may.
        forced_first_id: The token that begins every output, with probability 1, such as that of the language to
            translate into (Fan et al. 2021); None for none.
        forced_last_id: The last token of an output of the greatest length, with probability 1; None for none.

    Raises:
        UserError: If the penalty is not above 0 and finite, if a forbidden token is negative, if a forbidden sequence
            is empty, or if a number is negative.
    """

    repetition_penalty: float = 1.0
    forbidden_ids: tuple[int, ...] = ()
    stop_table: Int[Array | np.ndarray, "S V"] | None = None
    rule: TokenRule | None = None
    forbidden_sequences: tuple[tuple[int, ...], ...] = ()
    no_repeat_ngram_size: int = 0
    min_new_tokens: int = 0
    forced_first_id: int | None = None
    forced_last_id: int | None = None

    @property
    def _named_ids(self) -> tuple[int, ...]:
        """All tokens that are forbidden or forced."""
        forced = (token for token in (self.forced_first_id, self.forced_last_id) if token is not None)
        return (*self.forbidden_ids, *itertools.chain(*self.forbidden_sequences), *forced)

    def __post_init__(self) -> None:
        for name in ("no_repeat_ngram_size", "min_new_tokens"):
            if getattr(self, name) < 0:
                raise UserError(f"{name}={getattr(self, name)} must be at least 0")
        if not all(self.forbidden_sequences):
            raise UserError(f"forbidden_sequences={self.forbidden_sequences} has an empty sequence")
        if not 0 < self.repetition_penalty < math.inf:
            raise UserError(f"repetition_penalty={self.repetition_penalty} must be above 0 (1: no penalty)")
        if min(self._named_ids, default=0) < 0:
            raise UserError(
                f"forbidden and forced tokens {self._named_ids} have a negative number; token numbers begin at 0"
            )

    def check(self, vocabulary: int) -> None:
        """Check that forbidden tokens and stop strings fit the vocabulary.

        Raises:
            ValueError: If they do not.
        """
        if max(self._named_ids, default=0) >= vocabulary:
            raise ValueError(f"forbidden and forced tokens {self._named_ids} go beyond the vocabulary of {vocabulary}")
        if self.stop_table is not None and self.stop_table.shape[1] != vocabulary:
            raise ValueError(
                f"stop_table knows {self.stop_table.shape[1]} tokens and the model {vocabulary}: build the table from "
                "one entry of bytes for each logit, b'' for tokens without text"
            )

    def start(self, rows: int, vocabulary: int, prompt: Prompt | None, length: int) -> ConstraintState:
        """Return the state before the first step: the prompt's tokens have occurred, but no part of a stop string.

        Args:
            rows: Number of rows.
            vocabulary: Number of logits.
            prompt: The prompts; None for none.
            length: The largest number of generated tokens.

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
        reads_history = self.no_repeat_ngram_size or any(len(sequence) > 1 for sequence in self.forbidden_sequences)
        return ConstraintState(
            occurred_RxV,
            None if self.stop_table is None else jnp.zeros(rows, jnp.int32),
            rule_state,
            TokenHistory.after_prompt(prompt, rows, length) if reads_history else None,
        )

    def apply(
        self,
        logits_RxV: Float[Array, "R V"],
        state: ConstraintState,
        step: Int[Array, ""],
        end_V: Bool[np.ndarray, " V"],
    ) -> Float[Array, "R V"]:
        """Return the penalized logits, -inf for tokens that are forbidden or not allowed.

        Args:
            logits_RxV: The logits.
            state: The state of the constraints.
            step: How many tokens are generated already.
            end_V: The tokens that end an output.
        """
        if state.occurred is not None:
            theta = self.repetition_penalty
            penalized_RxV = jnp.where(logits_RxV > 0, logits_RxV / theta, logits_RxV * theta)
            logits_RxV = jnp.where(state.occurred, penalized_RxV, logits_RxV)
        if self.forbidden_ids:
            logits_RxV = logits_RxV.at[:, jnp.array(self.forbidden_ids)].set(-jnp.inf)
        for *before, last in self.forbidden_sequences:
            hidden_R = jnp.ones(len(logits_RxV), bool)
            if before:
                assert state.history is not None
                hidden_R = jnp.all(state.history.last(len(before)) == jnp.array(before), axis=1)
            logits_RxV = logits_RxV.at[:, last].set(jnp.where(hidden_R, -jnp.inf, logits_RxV[:, last]))
        if self.no_repeat_ngram_size:
            assert state.history is not None
            repeats_RxV = state.history.would_repeat(self.no_repeat_ngram_size, logits_RxV.shape[1])
            logits_RxV = jnp.where(repeats_RxV, -jnp.inf, logits_RxV)
        if self.min_new_tokens:
            logits_RxV = jnp.where((step < self.min_new_tokens) & end_V, -jnp.inf, logits_RxV)
        if self.rule is not None:
            logits_RxV = jnp.where(self.rule.allowed_tokens(state.rule), logits_RxV, -jnp.inf)
        return logits_RxV

    def force(self, logits_RxV: Float[Array, "R V"], step: Int[Array, ""], length: int) -> Float[Array, "R V"]:
        """Return logits under which a forced token has probability 1, whatever else is forbidden.

        Args:
            logits_RxV: The logits.
            step: How many tokens are generated already.
            length: The largest number of generated tokens.
        """
        for token, forced_step in ((self.forced_first_id, 0), (self.forced_last_id, length - 1)):
            if token is not None:
                certain_V = jnp.where(jnp.arange(logits_RxV.shape[1]) == token, 0, -jnp.inf).astype(logits_RxV.dtype)
                logits_RxV = jnp.where(step == forced_step, certain_V, logits_RxV)
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
            occurred_RxV,
            None if state.stop is None else jnp.asarray(self.stop_table)[state.stop, tokens_R],
            rule_state,
            None if state.history is None else state.history.append(tokens_R),
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
