"""The world of the approaching person against plain Python, its images, and what can be reached in it."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.handshake_rl import environment as approaching
from experiments.handshake_rl.environment import (
    Action,
    EnvironmentState,
    oracle_action,
    render,
    reset,
    step_environment,
)

STEPS, ROWS = 14, 500


@jax.jit
def lived(policy: Any, seeds: Any) -> tuple[EnvironmentState, jax.Array, jax.Array, jax.Array]:
    """Worlds before each step, with the last behind them; actions; rewards; the numbers that the steps draw.

    One program serves all policies, of which it is given the place in `POLICIES`.
    """

    def step(world: EnvironmentState, number: jax.Array) -> tuple[EnvironmentState, tuple]:
        action = jax.lax.switch(policy, POLICIES, world, jax.random.fold_in(jax.random.key(3), number))
        after, reward = step_environment(world, action, STEPS)
        keys = jax.vmap(lambda seed: jax.random.fold_in(jax.random.key(seed), 1 + 2 * number))(seeds)
        return after, (world, action, reward, jax.vmap(lambda key: jax.random.uniform(key, (4,)))(keys))

    last, (trajectory, *rest) = jax.lax.scan(step, reset(seeds), jnp.arange(STEPS))
    return jax.tree.map(lambda all_but, one: jnp.concatenate([all_but, one[None]]), trajectory, last), *rest


def at_random(world: EnvironmentState, key: jax.Array) -> jax.Array:
    return jax.random.randint(key, world.time.shape, 0, len(Action))


def who_knows(world: EnvironmentState, key: jax.Array) -> jax.Array:
    return oracle_action(world)


def who_forgets(world: EnvironmentState, key: jax.Array) -> jax.Array:
    """The best of those tried who go by what is seen now: wave from afar in one row, shake a hand that can be."""
    ready, greet = (
        world.within_reach & world.faces_robot,
        world.person_visible & world.faces_robot & (world.person_row == 2),
    )
    return jnp.where(ready, Action.HANDSHAKE, jnp.where(greet, Action.WAVE, Action.LOOK))


def who_is_half_random(world: EnvironmentState, key: jax.Array) -> jax.Array:
    """Sees all that can happen: handshakes at random alone end most episodes before anything does."""
    random = at_random(world, key)
    return jnp.where((random == Action.HANDSHAKE) & ~world.within_reach, Action.LOOK, random)


POLICIES = (at_random, who_knows, who_forgets, who_is_half_random)


@functools.cache
def told(policy: Any) -> Any:
    """What `ROWS` worlds lived through by one of `POLICIES`, [step, world, ...]."""
    return jax.device_get(lived(POLICIES.index(policy), np.arange(ROWS, dtype=np.uint32)))


def expected(now: dict[str, Any], action: int, uniform: np.ndarray) -> tuple[dict[str, Any], float]:
    """One step of one world, in words."""
    if now["done"]:
        return now, 0.0
    here = now["time"] >= now["arrival_time"] and 0 <= now["person_column"] <= 7
    near = here and now["person_row"] >= 6
    after = {**now, "time": now["time"] + 1, "hand_raised": False}
    reward = 0.0
    if action == 3:
        reward = 1.0 if near and now["faces_robot"] and now["accepts_handshake"] else -0.1
        after["done"] = True
    if action == 2 and here and now["faces_robot"]:
        if now["accepts_handshake"]:
            after["accepts_handshake"] = False
        elif uniform[2] < 0.5:
            after["accepts_handshake"] = after["hand_raised"] = True
    if here and not near:
        if uniform[0] < 0.8:
            after["person_row"] += 1
            if after["person_row"] == now["greeting_row"] and not after["accepts_handshake"]:
                after["accepts_handshake"] = after["hand_raised"] = True
        if uniform[1] < 0.5 and now["person_column"] not in (3, 4):
            after["person_column"] += 1 if now["person_column"] < 3 else -1
    elif near and not after["accepts_handshake"]:
        after["person_column"] += now["walking_direction"]
    after["faces_robot"] = bool(uniform[3] < (0.9 if action == 1 else 0.5))
    after["done"] = after["done"] or not 0 <= after["person_column"] <= 7 or after["time"] >= STEPS
    return after, reward


def test_every_step_is_that_of_the_rules_in_words() -> None:
    seen = {"accepted": 0, "refused": 0, "raised": 0, "gone": 0}
    for policy in (who_is_half_random, who_knows):
        trajectory, actions, rewards, uniforms = told(policy)
        for row in range(100):
            states = [{name: value[t, row] for name, value in trajectory._asdict().items()} for t in range(STEPS + 1)]
            for t in range(STEPS):
                after, reward = expected(states[t], int(actions[t, row]), uniforms[t, row])
                for name, value in after.items():
                    assert np.array_equal(states[t + 1][name], value), f"{name}, world {row}, step {t}"
                assert abs(rewards[t, row] - reward) < 1e-6
                seen["accepted"] += reward == 1
                seen["refused"] += reward < 0
                seen["raised"] += bool(after["hand_raised"])
                seen["gone"] += not 0 <= after["person_column"] <= 7
    assert min(seen.values()) > 5


def test_memory_reaches_nearly_all_and_neither_chance_nor_a_reflex_does() -> None:
    """What a policy of the images of one step alone reaches is far from what one reaches that remembers the hand."""
    success = {policy.__name__: (told(policy)[2] > 0).any(0).mean() for policy in (who_knows, at_random, who_forgets)}
    assert success["who_knows"] > 0.97
    assert success["at_random"] < 0.08
    assert 0.4 < success["who_forgets"] < 0.7


def test_begins_differ_and_are_those_of_their_seeds() -> None:
    begin = jax.jit(reset)
    trajectory = jax.device_get(begin(np.arange(ROWS, dtype=np.uint32)))
    assert set(trajectory.arrival_time) == set(trajectory.person_row) == {0, 1, 2}
    assert set(trajectory.person_column) == set(range(8))
    assert 0.4 < (trajectory.greeting_row < 8).mean() < 0.6
    assert all(
        len(set(things)) == approaching.SCREENS + approaching.PILLARS for things in trajectory.object_cells.tolist()
    )
    others = jax.device_get(begin(np.arange(ROWS, dtype=np.uint32)[::-1]))
    for one, other in zip(trajectory, others, strict=True):
        np.testing.assert_array_equal(one, other[::-1])


def test_a_image_shows_the_person_in_both_streams_and_things_in_one() -> None:
    trajectory, *_ = told(who_knows)
    world = jax.tree.map(lambda leaf: leaf[:STEPS, :100].reshape(-1, *leaf.shape[2:]), trajectory)
    images, here = jax.device_get(jax.jit(lambda world: (render(world), world.person_visible))(world))
    gray, depth = (image.astype(int) for image in images)
    found = {"person": 0, "hand": 0, "screen": 0, "pillar": 0}
    for row in range(0, len(gray), 7):
        cells = {name: image[row].reshape(8, 3, 8, 3).swapaxes(1, 2).reshape(64, 3, 3) for name, image in
                 (("gray", gray), ("depth", depth))}  # fmt: skip
        person = int(world.person_row[row] * 8 + world.person_column[row]) if here[row] else -1
        for cell in range(64):
            of_gray, of_depth = cells["gray"][cell], cells["depth"][cell]
            raised = 80 + 18 * (cell // 8)
            # Between two things there is floor: the last row and column of every cell.
            edge = np.concatenate([of_gray[2], of_gray[:, 2]])
            assert 50 <= edge.min() <= edge.max() < 82
            assert max(of_depth[2].max(), of_depth[:, 2].max()) < 32
            block = of_depth[:2, :2]
            body = of_gray[1, :2]
            if cell == person:
                assert raised <= block.min() <= block.max() < raised + 32
                assert (of_gray[0, 1] >= 220) == world.faces_robot[row]
                assert (of_gray[0, 0] >= 220) == world.hand_raised[row]
                assert 130 <= body.min() <= body.max() < 162
                found["person"], found["hand"] = found["person"] + 1, found["hand"] + int(world.hand_raised[row])
            elif cell in world.object_cells[row][3:]:
                assert raised <= block.min()
                assert 90 <= of_gray[:2, :2].min() <= of_gray[:2, :2].max() < 122
                found["pillar"] += 1
            elif cell in world.object_cells[row][:3]:
                assert block.max() < 32
                assert body.min() >= 130
                found["screen"] += 1
            else:
                assert block.max() < 32
                assert 50 <= of_gray.min() <= of_gray.max() < 82
    assert min(found.values()) > 5
