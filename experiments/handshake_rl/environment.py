"""The handshake environment: a person walks toward a robot, or past it, among look-alike objects.

Pure functions: an episode is determined by its seed and the robot's actions, and so is every image of it.
"""

import enum
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt8, UInt32

SIDE, CELL = 8, 3  # cells of the floor along a side, pixels of a cell
PIXELS = SIDE * CELL
NEAR = 6  # the row in which the person stands before the robot; row 0 is far away
SCREENS, PILLARS = 3, 2
ACCEPTED, REFUSED = 1.0, -0.1
# How likely: a step forward, one toward the middle, an answer to a wave, a face that turns to a robot that looks at
# it and to one that does something else, a face and a raised hand on a screen.
FORWARD, INWARD, ANSWERS, FACES_A_LOOK, FACES, SCREEN_FACES, SCREEN_RAISES = 0.8, 0.5, 0.5, 0.9, 0.5, 0.6, 0.4
_NEVER = SIDE
# Which pixels of a cell are a figure's body, its face, its raised hand, and all of what is raised in depth: between two
# things there is always floor.
_BODY = np.array([[0, 1, 0], [1, 1, 0], [0, 0, 0]], bool)
_FACE = np.array([[0, 1, 0], [0, 0, 0], [0, 0, 0]], bool)
_HAND = np.array([[1, 0, 0], [0, 0, 0], [0, 0, 0]], bool)
_BLOCK = np.array([[1, 1, 0], [1, 1, 0], [0, 0, 0]], bool)
_FLOOR, _FIGURE, _PILLAR, _MARK, _NOISE = 50, 130, 90, 220, 32  # gray levels; noise is up to so much added
_RAISED, _DEEPER = 80, 18  # the depth image of what is raised in row 0, and how much more each nearer row


class Action(enum.IntEnum):
    """The robot's actions."""

    WAIT = 0
    LOOK = 1
    WAVE = 2
    HANDSHAKE = 3


class EnvironmentState(NamedTuple):
    """The states of R environments.

    Attributes:
        seed: The seed.
        time: The number of steps so far.
        arrival_time: The time at which the person enters the image.
        person_row: The person's row.
        person_column: The person's column.
        walking_direction: The side (-1 or 1) on which it walks past the robot.
        greeting_row: The row on entering which it raises a hand by itself.
        faces_robot: Whether it faces the robot at this time.
        hand_raised: Whether it raises a hand at this time.
        accepts_handshake: Whether it accepts a handshake; hidden from the robot.
        done: Whether the episode has ended.
        object_cells: The cells of objects: SCREENS first, then PILLARS.
    """

    seed: UInt32[Array, " R"]
    time: Int[Array, " R"]
    arrival_time: Int[Array, " R"]
    person_row: Int[Array, " R"]
    person_column: Int[Array, " R"]
    walking_direction: Int[Array, " R"]
    greeting_row: Int[Array, " R"]
    faces_robot: Bool[Array, " R"]
    hand_raised: Bool[Array, " R"]
    accepts_handshake: Bool[Array, " R"]
    done: Bool[Array, " R"]
    object_cells: Int[Array, "R N"]

    @property
    def person_visible(self) -> Bool[Array, " R"]:
        """Whether the person is in the image."""
        return (self.time >= self.arrival_time) & (self.person_column >= 0) & (self.person_column < SIDE) & ~self.done

    @property
    def person_cell(self) -> Int[Array, " R"]:
        """The cell of the person, counted row by row; meaningless if it is not `person_visible`."""
        return self.person_row * SIDE + self.person_column

    @property
    def within_reach(self) -> Bool[Array, " R"]:
        """Whether the person is within reach."""
        return self.person_visible & (self.person_row >= NEAR)


def reset(seed_R: UInt32[Array, " R"]) -> EnvironmentState:
    """Return the initial states of some seeds: half of the people greet by themselves, the others must be waved at."""
    num_rows = len(seed_R)

    def sample_world(key: Array) -> tuple[Array, ...]:
        keys = jax.random.split(key, 6)
        arrives, row = jax.random.randint(keys[0], (2,), 0, 3)
        column = jax.random.randint(keys[1], (), 0, SIDE)
        greets = jax.random.randint(keys[2], (), 1, NEAR)
        by_itself = jax.random.bernoulli(keys[3])
        facing = jax.random.bernoulli(keys[4], FACES)
        things = jax.random.permutation(keys[5], SIDE * SIDE)[: SCREENS + PILLARS]
        return arrives, row, column, jnp.where(by_itself, greets, _NEVER), facing, things

    arrives_R, row_R, column_R, greets_R, facing_R, things_RxN = jax.vmap(sample_world)(_seed_keys(seed_R, 0))
    nothing = jnp.zeros(num_rows, bool)
    # Past the robot is across the middle: whoever comes near can be seen there for four steps and more.
    heading_R = jnp.where(column_R < SIDE // 2, 1, -1)
    time_R = jnp.zeros(num_rows, jnp.int32)
    return EnvironmentState(
        jnp.asarray(seed_R, jnp.uint32),
        time_R,
        arrives_R,
        row_R,
        column_R,
        heading_R,
        greets_R,
        facing_R,
        nothing,
        nothing,
        nothing,
        things_RxN.astype(jnp.int32),
    )


def step_environment(
    state: EnvironmentState, action_R: Int[Array, " R"], steps: int
) -> tuple[EnvironmentState, Float[Array, " R"]]:
    """Take one action in each environment.

    A handshake ends the episode: it is accepted by a person who is near, facing and engaged. Only a person who faces
    the robot sees it wave: a person who is not engaged may answer by raising a hand for one step, and is engaged
    from then on; to an engaged person it means goodbye, which cannot be seen. Engaged people stay near, all others
    walk past. A finished episode stays as it is, without reward.

    Args:
        state: The states.
        action_R: The actions.
        steps: The most steps of an episode.

    Returns:
        The new states, and the rewards.
    """
    uniform_Rx4 = jax.vmap(lambda key: jax.random.uniform(key, (4,)))(_seed_keys(state.seed, 1 + 2 * state.time))
    forward_R, inward_R, answer_R, face_R = uniform_Rx4.T
    shakes_R = action_R == Action.HANDSHAKE
    accepted_R = shakes_R & state.within_reach & state.faces_robot & state.accepts_handshake
    reward_R = jnp.where(shakes_R, jnp.where(accepted_R, ACCEPTED, REFUSED), 0.0)
    seen_R = (action_R == Action.WAVE) & state.person_visible & state.faces_robot
    answered_R = seen_R & ~state.accepts_handshake & (answer_R < ANSWERS)
    engaged_R = (state.accepts_handshake & ~seen_R) | answered_R
    walks_R = state.person_visible & (state.person_row < NEAR)
    row_R = state.person_row + (walks_R & (forward_R < FORWARD))
    middle_R = jnp.where(state.person_column < SIDE // 2, 1, -1) * ~_is_middle_column(state.person_column)
    aside_R = jnp.where(
        walks_R, middle_R * (inward_R < INWARD), state.walking_direction * (state.within_reach & ~engaged_R)
    )
    column_R = state.person_column + aside_R
    greets_R = walks_R & (row_R == state.greeting_row) & (row_R != state.person_row) & ~engaged_R
    after = EnvironmentState(
        state.seed,
        state.time + 1,
        state.arrival_time,
        row_R,
        column_R,
        state.walking_direction,
        state.greeting_row,
        face_R < jnp.where(action_R == Action.LOOK, FACES_A_LOOK, FACES),
        answered_R | greets_R,
        engaged_R | greets_R,
        shakes_R | (column_R < 0) | (column_R >= SIDE) | (state.time + 1 >= steps),
        state.object_cells,
    )
    after = jax.tree.map(lambda new, old: jnp.where(_expand_to(state.done, new), old, new), after, state)
    return after, jnp.where(state.done, 0.0, reward_R)


def render(state: EnvironmentState) -> tuple[UInt8[Array, "R Y X"], UInt8[Array, "R Y X"]]:
    """Render what the robot sees.

    In the grayscale image a person and what a screen shows look alike, in the depth image a person and a pillar; only
    the person is both a figure and raised.

    Args:
        state: The states.

    Returns:
        A grayscale image and a depth image, in which nearer things are lighter, for each environment.
    """

    def sample_frame(key: Array) -> tuple[Array, Array]:
        screen_key, noise_key = jax.random.split(key)
        return jax.random.uniform(screen_key, (2, SCREENS)), jax.random.bits(noise_key, (2, PIXELS, PIXELS), jnp.uint8)

    uniform_Rx2xS, noise_Rx2xYxX = jax.vmap(sample_frame)(_seed_keys(state.seed, 2 + 2 * state.time))
    screens_RxS, pillars_RxP = state.object_cells[:, :SCREENS], state.object_cells[:, SCREENS:]
    cells = jnp.arange(SIDE * SIDE)
    person_RxC = state.person_visible[:, None] & (state.person_cell[:, None] == cells[None])
    screen_RxSxC = (screens_RxS[..., None] == cells[None, None]) & ~person_RxC[:, None]
    pillar_RxC = jnp.any(pillars_RxP[..., None] == cells[None, None], axis=1) & ~person_RxC
    figure_RxC = person_RxC | jnp.any(screen_RxSxC, axis=1)
    faces_RxS, raises_RxS = uniform_Rx2xS[:, 0] < SCREEN_FACES, uniform_Rx2xS[:, 1] < SCREEN_RAISES
    face_RxC = (person_RxC & state.faces_robot[:, None]) | jnp.any(screen_RxSxC & faces_RxS[..., None], axis=1)
    hand_RxC = (person_RxC & state.hand_raised[:, None]) | jnp.any(screen_RxSxC & raises_RxS[..., None], axis=1)
    raised_RxC = (person_RxC | pillar_RxC) * (_RAISED + _DEEPER * (cells // SIDE))[None]
    pillar_RxYxX = _draw_cells(pillar_RxC, _BLOCK)
    gray_RxYxX = jnp.where(pillar_RxYxX, _PILLAR, _FLOOR)
    gray_RxYxX = jnp.where(_draw_cells(figure_RxC, _BODY), _FIGURE, gray_RxYxX)
    gray_RxYxX = jnp.where(_draw_cells(face_RxC, _FACE) | _draw_cells(hand_RxC, _HAND), _MARK, gray_RxYxX)
    depth_RxYxX = _draw_cells(raised_RxC, _BLOCK.astype(np.int32))
    noise_Rx2xYxX = noise_Rx2xYxX // (256 // _NOISE)
    return (
        (gray_RxYxX + noise_Rx2xYxX[:, 0]).astype(jnp.uint8),
        (depth_RxYxX + noise_Rx2xYxX[:, 1]).astype(jnp.uint8),
    )


def oracle_action(state: EnvironmentState) -> Int[Array, " R"]:
    """Return the action of a policy that sees the state, an upper bound on success.

    It looks until the person faces the robot, waves until it answers, looks again until it is near, and shakes its
    hand.
    """
    ready = state.accepts_handshake & state.within_reach & state.faces_robot
    greet = state.person_visible & ~state.accepts_handshake & state.faces_robot
    return jnp.where(ready, Action.HANDSHAKE, jnp.where(greet, Action.WAVE, Action.LOOK)).astype(jnp.int32)


def _seed_keys(seed_R: Array, purpose: Array | int) -> Array:
    """Return a random key for each seed and purpose."""
    purposes_R = jnp.broadcast_to(jnp.asarray(purpose, jnp.uint32), seed_R.shape)
    return jax.vmap(lambda seed, purpose: jax.random.fold_in(jax.random.key(seed), purpose))(seed_R, purposes_R)


def _is_middle_column(column_R: Array) -> Array:
    return (column_R == SIDE // 2 - 1) | (column_R == SIDE // 2)


def _draw_cells(values_RxC: Array, mask: np.ndarray) -> Array:
    """Return images in which every cell has its value where `mask` [CELL, CELL] is set."""
    grid_RxUxWx1x1 = values_RxC.reshape(-1, SIDE, SIDE, 1, 1)
    return jnp.swapaxes(grid_RxUxWx1x1 * mask[None, None, None], 2, 3).reshape(-1, PIXELS, PIXELS)


def _expand_to(over_R: Array, leaf: Array) -> Array:
    return over_R.reshape(-1, *(1,) * (leaf.ndim - 1))
