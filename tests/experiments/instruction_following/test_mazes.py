"""Mazes against a plain account of what stands where, and images of walks in them."""

import itertools

import numpy as np
import pytest

from experiments.instruction_following.maze_images import CELL, paint_maze, paint_walk
from experiments.instruction_following.mazes import (
    FLOORS,
    NONE,
    NUM_OBSERVATION_FEATURES,
    OBJECTS,
    Action,
    Maze,
    observation_table,
    sample_maze,
    transition_table,
)

MAZES = [sample_maze(np.random.default_rng(seed), 5) for seed in range(4)]
NORTH, EAST, SOUTH, WEST = range(4)
# Down, right: how far each heading leads.
STEPS = ((-1, 0), (0, 1), (1, 0), (0, -1))


def hall_of(maze: Maze, crossing: int, heading: int) -> str | None:
    floor = maze.floors[crossing][heading]
    return None if floor == NONE else FLOORS[floor]


def objects_along(maze: Maze, crossing: int, heading: int) -> set[str]:
    """What stands between a crossing and the wall."""
    row, column = divmod(crossing, 5)
    found = set()
    while hall_of(maze, 5 * row + column, heading):
        row, column = row + STEPS[heading][0], column + STEPS[heading][1]
        thing = maze.objects[5 * row + column]
        found |= {OBJECTS[thing]} if thing != NONE else set()
    return found


def test_halls_lead_both_ways_inside_and_reach_every_crossing() -> None:
    for maze in MAZES:
        reached, waiting = {0}, [0]
        while waiting:
            row, column = divmod(waiting.pop(), 5)
            for heading, (down, right) in enumerate(STEPS):
                if hall_of(maze, 5 * row + column, heading) is None:
                    continue
                assert 0 <= row + down < 5
                assert 0 <= column + right < 5
                there = 5 * (row + down) + column + right
                assert hall_of(maze, there, (heading + 2) % 4) == hall_of(maze, 5 * row + column, heading)
                waiting += [] if there in reached else [there]
                reached.add(there)
        assert reached == set(range(25))
    floors = [maze.floors for maze in MAZES]
    assert len(set(floors)) == len(floors)


def test_a_straight_hall_has_one_floor() -> None:
    for maze, crossing, heading in itertools.product(MAZES, range(25), range(4)):
        ahead, behind = hall_of(maze, crossing, heading), hall_of(maze, crossing, (heading + 2) % 4)
        assert ahead == behind or None in (ahead, behind)


def test_tables_are_what_is_seen_and_where_one_comes() -> None:
    names = [f"here {name}" for name in OBJECTS]
    for side in ("ahead", "left", "right"):
        names += [f"{side} {floor}" for floor in (*FLOORS, "wall")] + [f"{side} {name}" for name in OBJECTS]
    for maze in MAZES[:2]:
        table, seen = transition_table(maze), observation_table(maze)
        assert seen.shape == (100, NUM_OBSERVATION_FEATURES)
        for crossing, heading in itertools.product(range(25), range(4)):
            pose = 4 * crossing + heading
            down, right = STEPS[heading] if hall_of(maze, crossing, heading) else (0, 0)
            assert table[pose, Action.FORWARD] == 4 * (crossing + 5 * down + right) + heading
            assert table[pose, Action.LEFT] == 4 * crossing + (heading - 1) % 4
            assert table[pose, Action.RIGHT] == 4 * crossing + (heading + 1) % 4
            expected = set()
            if maze.objects[crossing] != NONE:
                expected.add(f"here {OBJECTS[maze.objects[crossing]]}")
            for side, looking in (("ahead", heading), ("left", (heading - 1) % 4), ("right", (heading + 1) % 4)):
                expected.add(f"{side} {hall_of(maze, crossing, looking) or 'wall'}")
                expected |= {f"{side} {name}" for name in objects_along(maze, crossing, looking)}
            assert {name for name, value in zip(names, seen[pose], strict=True) if value} == expected


def test_a_maze_needs_two_crossings_a_side() -> None:
    with pytest.raises(ValueError, match="side=1 of a maze must be at least 2"):
        sample_maze(np.random.default_rng(0), 1)


def test_images_show_halls_where_there_are_any_and_who_walks() -> None:
    maze = MAZES[0]
    image = paint_maze(maze).astype(int)
    assert image.shape == (5 * CELL, 5 * CELL, 3)
    rock = image[0, 0]
    for crossing, heading in itertools.product(range(25), (EAST, SOUTH)):
        row, column = divmod(crossing, 5)
        y, x = (
            CELL * pose + CELL // 2 + CELL // 2 * step for pose, step in zip((row, column), STEPS[heading], strict=True)
        )
        if y < len(image) and x < len(image):
            assert (image[y, x] == rock).all() == (hall_of(maze, crossing, heading) is None)
    pose = next(4 * c + EAST for c in range(25) if hall_of(maze, c, EAST))
    walk = [pose, pose + 4, pose + 5]
    images = paint_walk(maze, walk).astype(int)
    for number, where in enumerate(walk):
        changed = np.abs(images[number] - image).max(axis=-1).reshape(5, CELL, 5, CELL).max(axis=(1, 3)) > 0
        # Every crossing that was come through, and no other.
        assert set(np.flatnonzero(changed)) == {pose // 4 for pose in walk[: number + 1]}
        row, column = divmod(where // 4, 5)
        square = images[number, row * CELL : (row + 1) * CELL, column * CELL : (column + 1) * CELL]
        arrow = (square == (200, 20, 110)).all(axis=-1)
        assert arrow.sum() > 40
        # The tip, in the narrower half, points to where one looks.
        halves = {
            NORTH: arrow[: CELL // 2],
            SOUTH: arrow[CELL // 2 :],
            WEST: arrow[:, : CELL // 2],
            EAST: arrow[:, CELL // 2 :],
        }
        assert min(halves, key=lambda heading: halves[heading].sum()) == where % 4
