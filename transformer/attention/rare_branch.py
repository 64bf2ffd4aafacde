"""Branches of conditionals that few steps take."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

# The scope in which the operations of such a branch are traced, by which `transformer.costs` knows it.
RARE_BRANCH = "rare_branch"


def rare_branch(branch: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a branch of `jax.lax.cond` as one that few steps take: costs are those of the other branch.

    Args:
        branch: The branch.

    Returns:
        The branch, whose operations have the scope `RARE_BRANCH` in their names.
    """

    @functools.wraps(branch)
    def marked(*operands: Any) -> Any:
        with jax.named_scope(RARE_BRANCH):
            return branch(*operands)

    return marked


def compute_if[T](condition: Bool[Array, ""] | None, compute: Callable[[], T]) -> T:
    """Return `compute()`, or zeros of the same shapes without running it where a condition that rarely holds is False.

    Args:
        condition: The traced condition; None always computes.
        compute: A function to arrays.
    """
    if condition is None:
        return compute()
    shapes = jax.eval_shape(compute)
    return jax.lax.cond(
        condition,
        rare_branch(compute),
        lambda: jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes),
    )
