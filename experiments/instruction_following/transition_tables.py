"""Environments as tables: where each action leads from each place, and what is seen there.

`moves` [B, P, V] holds the place after each of V actions, or other tokens, at each of P places; `sights` [B, P, F]
holds features of what is seen. Rows are examples x beams, as everywhere in decoding: tables are never tiled.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.layers.beam_rows import flatten_beam_axis, unflatten_beam_axis


def next_place(
    moves_BxPxV: Int[Array, "B P V"], place_R: Int[Array, " R"], tokens_R: Int[Array, " R"]
) -> Int[Array, " R"]:
    """Return the place of every row after one more token.

    Args:
        moves_BxPxV: The transition table of each example.
        place_R: The place of each row.
        tokens_R: The token of each row.

    Returns:
        The new place of each row.
    """
    examples, _, vocabulary = moves_BxPxV.shape
    entry_BxM = unflatten_beam_axis(place_R * vocabulary + tokens_R, examples)
    return flatten_beam_axis(jnp.take_along_axis(moves_BxPxV.reshape(examples, -1), entry_BxM, axis=1))


def follow_moves(
    moves_BxPxV: Int[Array, "B P V"], start_B: Int[Array, " B"], tokens_BxT: Int[Array, "B T"]
) -> Int[Array, "B T"]:
    """Return the place after each token of a sequence.

    Args:
        moves_BxPxV: The transition table of each example.
        start_B: The first place of each example.
        tokens_BxT: The tokens.

    Returns:
        The places [example, token].
    """

    def step(place_B: Array, tokens_B: Array) -> tuple[Array, Array]:
        place_B = next_place(moves_BxPxV, place_B, tokens_B)
        return place_B, place_B

    first_B = jnp.asarray(start_B, moves_BxPxV.dtype)
    return jax.lax.scan(step, first_B, jnp.asarray(tokens_BxT).T)[1].T


def observations_at(sights_BxPxF: Float[Array, "B P F"], place_BxN: Int[Array, "B N"]) -> Float[Array, "B N F"]:
    """Look up the observations at some places.

    Args:
        sights_BxPxF: The observation at each of P places of each example's maze.
        place_BxN: The places.

    Returns:
        The observations.
    """
    return jnp.take_along_axis(sights_BxPxF, place_BxN[:, :, None], axis=1)
