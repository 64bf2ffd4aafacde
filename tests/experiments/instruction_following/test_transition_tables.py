"""Worlds as tables against walking through them pose by pose in Python."""

import jax
import jax.numpy as jnp
import numpy as np

from experiments.instruction_following.transition_tables import follow_transitions, next_pose, observations_at

RNG = np.random.default_rng(0)
TRANSITIONS = RNG.integers(0, 7, (3, 7, 4)).astype(np.int32)
OBSERVATIONS = RNG.normal(size=(3, 7, 5)).astype(np.float32)
START = np.array([2, 6, 0], np.int32)


def test_a_sequence_leads_where_its_tokens_do_one_after_another() -> None:
    tokens = RNG.integers(0, 4, (3, 9)).astype(np.int32)
    poses = np.asarray(jax.jit(follow_transitions)(TRANSITIONS, START, tokens))
    observations = np.asarray(observations_at(jnp.asarray(OBSERVATIONS), jnp.asarray(poses)))
    for row, pose in enumerate(START):
        for step, token in enumerate(tokens[row]):
            pose = TRANSITIONS[row, pose, token]
            assert poses[row, step] == pose
            np.testing.assert_array_equal(observations[row, step], OBSERVATIONS[row, pose])


def test_beams_of_an_example_move_in_its_world() -> None:
    pose, tokens = RNG.integers(0, 7, 6), RNG.integers(0, 4, 6)
    found = next_pose(jnp.asarray(TRANSITIONS), jnp.asarray(pose), jnp.asarray(tokens))
    np.testing.assert_array_equal(found, [TRANSITIONS[row // 2, pose[row], tokens[row]] for row in range(6)])
