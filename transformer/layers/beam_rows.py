"""Rows of decoding and their examples: row = example x beams + beam."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Shaped


def unflatten_beam_axis(x_R: Shaped[Array, "R ..."], examples: int) -> Shaped[Array, "B M ..."]:
    """Reshape rows to [example, beam, ...], so that an example's beams can be queries of one attention over its memory.

    Raises:
        ValueError: If the number of examples does not divide the number of rows.
    """
    if x_R.shape[0] % examples:
        raise ValueError(f"{x_R.shape[0]} rows are no whole number of beams for each of {examples} examples")
    return x_R.reshape(examples, -1, *x_R.shape[1:])


def flatten_beam_axis(x_BxM: Shaped[Array, "B M ..."]) -> Shaped[Array, "R ..."]:
    """The inverse of `unflatten_beam_axis`."""
    return x_BxM.reshape(-1, *x_BxM.shape[2:])


def beam_queries_to_rows(x_BxHxM: Shaped[Array, "B H M ..."]) -> Shaped[Array, "R H ..."]:
    """Convert maps whose queries are the beams of an example to maps of rows with one query each."""
    return flatten_beam_axis(jnp.moveaxis(x_BxHxM, 2, 1))


def repeat_per_beam(tree: Any, num_beams: int, axis: int = 0) -> Any:
    """Repeat each example's entry along `axis` of every array of a tree, once per beam."""
    return jax.tree.map(lambda leaf: jnp.repeat(leaf, num_beams, axis=axis), tree)
