"""Rules: which tokens may follow in each row, given what was chosen so far. A task knows the rule, decoding applies it.

A rule is a pytree, so that what it knows of each example is an argument of the compiled program.
"""

import dataclasses
import functools
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int


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


class _Chosen(NamedTuple):
    """What `Once` knows of a row."""

    used: Bool[Array, "R V"]
    chosen: Int[Array, " R"]
    least: Int[Array, " R"]


@functools.partial(jax.tree_util.register_dataclass, data_fields=["least"], meta_fields=["end"])
@dataclasses.dataclass(frozen=True)
class Once:
    """No token twice, and the token `end` from the `least` other tokens of each example on; it alone behind itself.

    Tokens that an example does not have must be impossible by their logits: of those nothing is known here.
    """

    least: Int[Array | np.ndarray, " B"]
    end: int

    def start(self, rows: int, vocabulary: int) -> _Chosen:
        """Nothing is used yet."""
        least_B = jnp.asarray(self.least)
        least_R = jnp.repeat(least_B, rows // len(least_B))
        return _Chosen(jnp.zeros((rows, vocabulary), bool), jnp.zeros(rows, jnp.int32), least_R)

    def allowed(self, state: _Chosen) -> Bool[Array, "R V"]:
        """What is not used; the end by the count."""
        ended_R = state.used[:, self.end]
        may_end_R = ended_R | (state.chosen >= state.least)
        return (~state.used & ~ended_R[:, None]).at[:, self.end].set(may_end_R)

    def advance(self, state: _Chosen, tokens_R: Int[Array, " R"]) -> _Chosen:
        """One more is used."""
        used_RxV = state.used.at[jnp.arange(len(tokens_R)), tokens_R].set(True)
        return _Chosen(used_RxV, state.chosen + (tokens_R != self.end), state.least)
