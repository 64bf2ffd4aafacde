"""Checks for NaN and infinity in the arrays of a state."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from transformer.models.model import PyTree


def is_finite(tree: PyTree) -> Bool[Array, ""]:
    """Whether all floating-point leaves are finite; may be traced."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)]
    return jnp.all(jnp.stack([_is_array_finite(leaf) for leaf in leaves])) if leaves else jnp.array(True)


def find_non_finite(arrays: Mapping[str, Any]) -> str | None:
    """Return the name of the first array that holds NaN or infinity; None if none does.

    Leaves other than floating-point arrays are passed over. With several processes, all call it together.
    """
    floats = {
        name: array
        for name, array in arrays.items()
        if isinstance(array, np.ndarray | jax.Array) and jnp.issubdtype(array.dtype, jnp.inexact)
    }
    # NumPy arrays are checked where they lie, and in their own type.
    finite = {name: np.isfinite(array).all() for name, array in floats.items() if isinstance(array, np.ndarray)}
    finite |= jax.device_get(_are_finite({name: array for name, array in floats.items() if name not in finite}))
    return next((name for name in floats if not finite[name]), None)


@jax.jit
def _are_finite(arrays: Mapping[str, Array]) -> dict[str, Bool[Array, ""]]:
    return {name: _is_array_finite(array) for name, array in arrays.items()}


def _is_array_finite(array: Array) -> Bool[Array, ""]:
    # A maximum is NaN if any value is. XLA reduces it in one pass on CPUs, where `jnp.isfinite(array).all()` writes a
    # byte for every value first: half of a bfloat16 model again.
    return jnp.max(jnp.abs(array), initial=0) < jnp.inf
