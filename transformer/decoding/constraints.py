"""Constraints of every decoding method: a repetition penalty, forbidden tokens, stop strings, rules of a task."""

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
    """The tokens before the first generated one: `lengths` a row, padding behind them."""

    tokens: Int[Array | np.ndarray, "B P"]
    lengths: Int[Array | np.ndarray, " B"]


class ConstraintState(NamedTuple):
    """The state of the constraints of each row; a field that no constraint needs is None."""

    seen: Bool[Array, "R V"] | None  # the tokens that have occurred
    stop: Int[Array, " R"] | None  # the state of the stop strings' automaton
    rule: Any = None  # the state of the rule, [row, ...]


class Rule(Protocol):
    """Which tokens may follow; its state is a tree of arrays [row, ...], which beams re-order with their hypotheses.

    Rows are examples x beams. At least one token is allowed in every state, behind the end and behind tokens that were
    not allowed too, since beams that are short of hypotheses go on with impossible ones: of a row without an allowed
    token no probability is defined.
    """

    def start(self, rows: int, vocabulary: int) -> Any:
        """The state before the first token."""

    def allowed(self, state: Any) -> Bool[Array, "R V"]:
        """Which tokens may come next."""

    def advance(self, state: Any, tokens_R: Int[Array, " R"]) -> Any:
        """The state behind one more token of every row."""


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["stops", "rule"], meta_fields=["repetition_penalty", "forbidden"]
)
@dataclasses.dataclass(frozen=True)
class Constraints:
    """A repetition penalty (1: none), forbidden tokens, stop strings, and a task's rule.

    `stops` is a table of `transformer.decoding.stop_sequences.stop_table`. The rule says at every step which tokens may
    follow in each row (`Rule`).

    The logit x of a token that has occurred in the prompt or the rollout becomes x / penalty where x > 0, else
    x * penalty (Keskar et al. 2019, CTRL, section 4.1, with the sign minded, so that a penalty above 1 always costs).

    Raises:
        UserError: For a penalty that is not above 0, and for a negative token number.
    """

    repetition_penalty: float = 1.0
    forbidden: tuple[int, ...] = ()
    stops: Int[Array | np.ndarray, "S V"] | None = None
    rule: Rule | None = None

    def __post_init__(self) -> None:
        if not 0 < self.repetition_penalty < math.inf:
            raise UserError(f"repetition_penalty={self.repetition_penalty} must be above 0 (1: no penalty)")
        if min(self.forbidden, default=0) < 0:
            raise UserError(f"forbidden={self.forbidden} has a negative number; token numbers begin at 0")

    def check(self, vocabulary: int) -> None:
        """Raise ValueError for a forbidden token or a table of stop strings that does not fit the vocabulary."""
        if max(self.forbidden, default=0) >= vocabulary:
            raise ValueError(f"forbidden={self.forbidden} has a token beyond the vocabulary of {vocabulary}")
        if self.stops is not None and self.stops.shape[1] != vocabulary:
            raise ValueError(
                f"stops knows {self.stops.shape[1]} tokens and the model {vocabulary}: build the table from one entry "
                "of bytes for each logit, b'' for tokens without text"
            )

    def start(self, rows: int, vocabulary: int, prompt: Prompt | None) -> ConstraintState:
        """The state before the first step: the prompt's tokens have occurred, and no part of a stop string."""
        seen_RxV = None
        if self.repetition_penalty != 1:
            seen_RxV = jnp.zeros((rows, vocabulary), bool)
            if prompt is not None:
                seen_BxV = _occurring(prompt, vocabulary)
                seen_RxV = jnp.repeat(seen_BxV, rows // seen_BxV.shape[0], axis=0)
        of_rule = None if self.rule is None else self.rule.start(rows, vocabulary)
        return ConstraintState(seen_RxV, None if self.stops is None else jnp.zeros(rows, jnp.int32), of_rule)

    def apply(self, logits_RxV: Float[Array, "R V"], said: ConstraintState) -> Float[Array, "R V"]:
        """The logits after the penalty, -inf for tokens that are forbidden or that the rule does not allow."""
        if said.seen is not None:
            theta = self.repetition_penalty
            penalized_RxV = jnp.where(logits_RxV > 0, logits_RxV / theta, logits_RxV * theta)
            logits_RxV = jnp.where(said.seen, penalized_RxV, logits_RxV)
        if self.forbidden:
            logits_RxV = logits_RxV.at[:, jnp.array(self.forbidden)].set(-jnp.inf)
        if self.rule is not None:
            logits_RxV = jnp.where(self.rule.allowed(said.rule), logits_RxV, -jnp.inf)
        return logits_RxV

    def ends(self, said: ConstraintState) -> Bool[Array, "R V"] | bool:
        """Which tokens would complete a stop string."""
        if said.stop is None:
            return False
        table_SxV = jnp.asarray(self.stops)
        return table_SxV[said.stop] == table_SxV.shape[0] - 1

    def advance(self, said: ConstraintState, tokens_R: Int[Array, " R"]) -> ConstraintState:
        """The state after one more token a row."""
        seen_RxV = said.seen
        if seen_RxV is not None:
            seen_RxV = seen_RxV.at[jnp.arange(tokens_R.shape[0]), tokens_R].set(True)
        of_rule = None if self.rule is None else self.rule.advance(said.rule, tokens_R)
        return ConstraintState(
            seen_RxV, None if said.stop is None else jnp.asarray(self.stops)[said.stop, tokens_R], of_rule
        )


def _occurring(prompt: Prompt, vocabulary: int) -> Any:
    """Which tokens occur in each prompt."""
    tokens_BxP = jnp.asarray(prompt.tokens)
    examples, width = tokens_BxP.shape
    inside_BxP = jnp.arange(width) < jnp.asarray(prompt.lengths)[:, None]
    # Padding gets the index V, outside of the vocabulary, and is dropped.
    index_BxP = jnp.where(inside_BxP, tokens_BxP, vocabulary)
    return jnp.zeros((examples, vocabulary), bool).at[jnp.arange(examples)[:, None], index_BxP].set(True, mode="drop")


class _UsedTokens(NamedTuple):
    """What `NoRepeats` knows of a row."""

    used: Bool[Array, "R V"]
    chosen: Int[Array, " R"]
    least: Int[Array, " R"]


@functools.partial(jax.tree_util.register_dataclass, data_fields=["least"], meta_fields=["end"])
@dataclasses.dataclass(frozen=True)
class NoRepeats:
    """No token twice, and the token `end` from the `least` other tokens of each example on; it alone behind itself.

    Tokens that an example does not have must be impossible by their logits: of those nothing is known here.
    """

    least: Int[Array | np.ndarray, " B"]
    end: int

    def start(self, rows: int, vocabulary: int) -> _UsedTokens:
        """Nothing is used yet."""
        least_B = jnp.asarray(self.least)
        least_R = jnp.repeat(least_B, rows // len(least_B))
        return _UsedTokens(jnp.zeros((rows, vocabulary), bool), jnp.zeros(rows, jnp.int32), least_R)

    def allowed(self, state: _UsedTokens) -> Bool[Array, "R V"]:
        """What is not used; the end by the count."""
        ended_R = state.used[:, self.end]
        may_end_R = ended_R | (state.chosen >= state.least)
        return (~state.used & ~ended_R[:, None]).at[:, self.end].set(may_end_R)

    def advance(self, state: _UsedTokens, tokens_R: Int[Array, " R"]) -> _UsedTokens:
        """One more is used."""
        used_RxV = state.used.at[jnp.arange(len(tokens_R)), tokens_R].set(True)
        return _UsedTokens(used_RxV, state.chosen + (tokens_R != self.end), state.least)
