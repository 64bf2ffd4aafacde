"""Targets, losses and exploration of Q-learning, and its replay, against NumPy and plain lists."""

import jax
import jax.numpy as jnp
import numpy as np

from experiments.handshake_rl.q_learning import (
    add_episodes,
    create_buffer,
    epsilon_greedy,
    sample_episodes,
    td_errors,
    td_targets,
)

ROWS, STEPS, ACTIONS, DISCOUNT = 3, 5, 4, 0.9
LENGTHS = np.array([5, 1, 3])


def test_targets_and_errors_are_those_of_the_equation() -> None:
    rng = np.random.default_rng(0)
    rewards, values = rng.normal(size=(ROWS, STEPS)), rng.normal(size=(ROWS, STEPS, ACTIONS))
    of_target, chosen = rng.normal(size=(ROWS, STEPS, ACTIONS)), rng.integers(0, ACTIONS, (ROWS, STEPS))

    @jax.jit
    def run(rewards: jax.Array, of_target: jax.Array, values: jax.Array) -> tuple:
        made = td_targets(rewards, of_target, jnp.asarray(LENGTHS), DISCOUNT)
        return made, td_errors(values, jnp.asarray(chosen), made)

    with jax.enable_x64(True):
        made, wrong = jax.device_get(run(rewards, of_target, values))
    for row, length in enumerate(LENGTHS):
        for t in range(STEPS):
            best = max(of_target[row, t + 1]) if t + 1 < length else 0
            y = rewards[row, t] + DISCOUNT * best if t < length else 0
            d = values[row, t, chosen[row, t]] - y
            np.testing.assert_allclose([made[row, t], wrong[row, t]], [y, d], atol=1e-12)


def test_no_more_than_a_share_of_epsilon_is_tried() -> None:
    values = np.tile(np.float32([0.0, 3.0, 1.0, 2.0]), (4000, 1))
    choose = jax.jit(epsilon_greedy)
    shares = {
        epsilon: np.bincount(choose(values, np.float32(epsilon), jax.random.key(1)), minlength=4) / 4000
        for epsilon in (0, 0.4, 1)
    }
    np.testing.assert_array_equal(shares[0], [0, 1, 0, 0])
    np.testing.assert_allclose(shares[0.4], [0.1, 0.7, 0.1, 0.1], atol=0.03)
    np.testing.assert_allclose(shares[1], 0.25, atol=0.03)


def test_the_buffer_keeps_the_newest_and_draws_from_nothing_else() -> None:
    capacity, rows = 7, 3
    replay = create_buffer({"seed": np.zeros(rows, np.uint32), "x": np.zeros((rows, 2), np.float32)}, capacity)
    add, draw = jax.jit(add_episodes), jax.jit(sample_episodes, static_argnums=1)
    kept: list[int] = []
    for turn in range(6):
        new = np.arange(turn * rows, turn * rows + rows) + 1
        replay = add(replay, {"seed": new.astype(np.uint32), "x": (new[:, None] * np.ones(2)).astype(np.float32)})
        kept = [*kept, *new.tolist()][-capacity:]
        drawn = draw(replay, 300, jax.random.key(turn))
        assert set(np.asarray(drawn["seed"]).tolist()) == set(kept)
        np.testing.assert_array_equal(drawn["x"][:, 1], drawn["seed"])
        counts = np.bincount(np.asarray(drawn["seed"]))[kept]
        assert counts.min() > 300 / len(kept) / 3
    assert int(replay.written) == 18
