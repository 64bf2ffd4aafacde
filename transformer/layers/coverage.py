"""An attention that knows what it has read: the coverage vector in its score, and the loss that it gives."""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer.layers.attention_cell import AttentionMemory
from transformer.layers.beams import repeat_rows
from transformer.layers.initialisation import Role
from transformer.layers.module import Builder, Module


class CoveredKeys(Module):
    """v' tanh(W1 k_i + W2 q + w_c c_i): of each key the coverage c_i beside it (See et al. 2017, equation 11).

    It moves the prepared keys of a score with a hidden layer of `hidden` units for each of `heads` heads. The paper's
    b, which moves all keys alike, is in neither score, this one or the one that knows of no coverage.
    """

    def __init__(self, heads: int, hidden: int, *, builder: Builder):
        rule = builder.rule(Role.DENSE, 1, hidden)
        self.weight = builder.parameter(rule, (heads, hidden), ("groups", "head_dim"))

    def __call__(self, memory: AttentionMemory, coverage_RxK: Float[Array, "R K"]) -> AttentionMemory:
        """A memory for each row, whose keys know how much of them that row has read already.

        Rows are examples x beams, as those of `AttentionCell.step`, which reads the result with one query for each.
        """
        rows = repeat_rows(memory, len(coverage_RxK) // len(memory.lengths))
        keys_RxKxHxA = rows.keys.keys
        covered_RxKx1x1 = coverage_RxK[:, :, None, None].astype(keys_RxKxHxA.dtype)
        moved = keys_RxKxHxA + covered_RxKx1x1 * jnp.asarray(self.weight[...], keys_RxKxHxA.dtype)[None, None]
        return rows._replace(keys=dataclasses.replace(rows.keys, keys=moved))


def read_again(weights_RxK: Float[Array, "R K"], coverage_RxK: Float[Array, "R K"]) -> Float[Array, " R"]:
    """sum_i min(a_i, c_i), from 0 to 1: how much of a step's attention lies where it has lain (equation 12)."""
    return jnp.sum(jnp.minimum(weights_RxK, coverage_RxK), axis=-1)
