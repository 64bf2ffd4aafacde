"""Environments as tables: where each action leads from each pose, and what is seen there.

`transitions` [B, P, V] holds the pose after each of V actions, or other tokens, at each of P poses; `observations`
[B, P, F] holds features of what is seen. Rows are examples x beams, as everywhere in decoding: tables are never tiled.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.layers.beam_rows import flatten_beam_axis, unflatten_beam_axis


def next_pose(
    transitions_BxPxV: Int[Array, "B P V"], pose_R: Int[Array, " R"], tokens_R: Int[Array, " R"]
) -> Int[Array, " R"]:
    """Return the pose of every row after one more token.

    Args:
        transitions_BxPxV: The transition table of each example.
        pose_R: The pose of each row.
        tokens_R: The token of each row.

    Returns:
        The new pose of each row.
    """
    examples, _, vocabulary = transitions_BxPxV.shape
    entry_BxM = unflatten_beam_axis(pose_R * vocabulary + tokens_R, examples)
    return flatten_beam_axis(jnp.take_along_axis(transitions_BxPxV.reshape(examples, -1), entry_BxM, axis=1))


def follow_transitions(
    transitions_BxPxV: Int[Array, "B P V"], start_B: Int[Array, " B"], tokens_BxT: Int[Array, "B T"]
) -> Int[Array, "B T"]:
    """Return the pose after each token of a sequence.

    Args:
        transitions_BxPxV: The transition table of each example.
        start_B: The first pose of each example.
        tokens_BxT: The tokens.

    Returns:
        The poses [example, token].
    """

    def step(pose_B: Array, tokens_B: Array) -> tuple[Array, Array]:
        pose_B = next_pose(transitions_BxPxV, pose_B, tokens_B)
        return pose_B, pose_B

    first_B = jnp.asarray(start_B, transitions_BxPxV.dtype)
    return jax.lax.scan(step, first_B, jnp.asarray(tokens_BxT).T)[1].T


def observations_at(observations_BxPxF: Float[Array, "B P F"], pose_BxN: Int[Array, "B N"]) -> Float[Array, "B N F"]:
    """Look up the observations at some poses.

    Args:
        observations_BxPxF: The observation at each of P poses of each example's maze.
        pose_BxN: The poses.

    Returns:
        The observations.
    """
    return jnp.take_along_axis(observations_BxPxF, pose_BxN[:, :, None], axis=1)
