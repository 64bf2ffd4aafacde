"""Worlds as tables against walking through them place by place in Python."""

import jax
import jax.numpy as jnp
import numpy as np

from experiments.instruction_following.transition_tables import follow_moves, next_place, observations_at

RNG = np.random.default_rng(0)
MOVES = RNG.integers(0, 7, (3, 7, 4)).astype(np.int32)
SIGHTS = RNG.normal(size=(3, 7, 5)).astype(np.float32)
START = np.array([2, 6, 0], np.int32)


def test_a_sequence_leads_where_its_tokens_do_one_after_another() -> None:
    tokens = RNG.integers(0, 4, (3, 9)).astype(np.int32)
    places = np.asarray(jax.jit(follow_moves)(MOVES, START, tokens))
    sights = np.asarray(observations_at(jnp.asarray(SIGHTS), jnp.asarray(places)))
    for row, place in enumerate(START):
        for step, token in enumerate(tokens[row]):
            place = MOVES[row, place, token]
            assert places[row, step] == place
            np.testing.assert_array_equal(sights[row, step], SIGHTS[row, place])


def test_beams_of_an_example_move_in_its_world() -> None:
    place, tokens = RNG.integers(0, 7, 6), RNG.integers(0, 4, 6)
    found = next_place(jnp.asarray(MOVES), jnp.asarray(place), jnp.asarray(tokens))
    np.testing.assert_array_equal(found, [MOVES[row // 2, place[row], tokens[row]] for row in range(6)])
