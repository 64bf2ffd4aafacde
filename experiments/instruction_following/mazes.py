"""Mazes: halls of different floors between crossings where objects stand, for one who sees along the halls.

A place in one is a crossing and a heading, counted as 4 x crossing + heading, crossings row by row from the north-west.
"""

import enum
from typing import NamedTuple

import numpy as np
from jaxtyping import Int, UInt8

FLOORS = ("blue", "brick", "flower", "grass", "wood", "yellow")
OBJECTS = ("barrel", "chair", "easel", "hatrack", "lamp", "sofa")
NONE = -1  # the floor of a wall, the object where none stands
LOOPS, FURNISHED = 0.3, 0.6  # the share of walls that are opened beyond a tree of halls, and of crossings with objects


class Heading(enum.IntEnum):
    """Where one looks, clockwise."""

    NORTH = 0
    EAST = 1
    SOUTH = 2
    WEST = 3


class Action(enum.IntEnum):
    """What one can do: a step to the next crossing, which a wall stops, or a quarter turn."""

    FORWARD = 0
    LEFT = 1
    RIGHT = 2


class Maze(NamedTuple):
    """The `floors` of the halls that leave each of `side` x `side` crossings in each heading, and the objects there."""

    side: int
    floors: tuple[tuple[int, ...], ...]
    objects: tuple[int, ...]

    @property
    def places(self) -> int:
        """How many places there are."""
        return 4 * self.side**2

    def floor(self, place: int, turned: int = 0) -> int:
        """The floor of the hall ahead, or of that so many quarter turns clockwise from there; NONE: a wall."""
        crossing, heading = divmod(place, 4)
        return self.floors[crossing][(heading + turned) % 4]

    def here(self, place: int) -> int:
        """The object at the crossing."""
        return self.objects[place // 4]

    def after(self, place: int, action: int) -> int:
        """The place behind one action."""
        crossing, heading = divmod(place, 4)
        if action == Action.FORWARD:
            return place if self.floor(place) == NONE else 4 * (crossing + self._stride(heading)) + heading
        return 4 * crossing + (heading + (1 if action == Action.RIGHT else -1)) % 4

    def ahead(self, place: int, turned: int = 0) -> list[int]:
        """The places that one comes to on the way along the hall ahead, or along another, up to the wall at its end."""
        place = 4 * (place // 4) + (place + turned) % 4
        passed = []
        while self.floor(place) != NONE:
            place = self.after(place, Action.FORWARD)
            passed.append(place)
        return passed

    def _stride(self, heading: int) -> int:
        return (-self.side, 1, self.side, -1)[heading]


def draw_maze(random: np.random.Generator, side: int) -> Maze:
    """A maze in which every crossing is reached: a random tree of halls, some loops; a straight hall has one floor.

    Raises:
        ValueError: For fewer than two crossings a side.
    """
    if side < 2:
        raise ValueError(f"side={side} of a maze must be at least 2 crossings")
    across = [(crossing, Heading.EAST) for crossing in range(side**2) if crossing % side < side - 1]
    down = [(crossing, Heading.SOUTH) for crossing in range(side**2) if crossing < side * (side - 1)]
    walls = [*across, *down]
    strides = {Heading.EAST: 1, Heading.SOUTH: side}
    group, opened = list(range(side**2)), set()
    for number, extra in zip(random.permutation(len(walls)), random.random(len(walls)) < LOOPS, strict=True):
        crossing, heading = walls[number]
        here, there = group[crossing], group[crossing + strides[heading]]
        if here != there or extra:
            opened.add(walls[number])
            group = [here if each == there else each for each in group]
    floors = [[NONE] * 4 for _ in range(side**2)]
    drawn = random.integers(0, len(FLOORS), len(walls)).tolist()
    for (crossing, heading), floor in zip(walls, drawn, strict=True):
        if (crossing, heading) not in opened:
            continue
        # `walls` goes along each row and down each column: the hall behind has its floor already.
        behind = floors[crossing][(heading + 2) % 4]
        floor = floor if behind == NONE else behind
        floors[crossing][heading] = floors[crossing + strides[heading]][(heading + 2) % 4] = floor
    furnished = random.random(side**2) < FURNISHED
    objects = np.where(furnished, random.integers(0, len(OBJECTS), side**2), NONE)
    return Maze(side, tuple(map(tuple, floors)), tuple(objects.tolist()))


def moves(maze: Maze) -> Int[np.ndarray, "P A"]:
    """The place behind each action at each place."""
    behind = [[maze.after(place, action) for action in Action] for place in range(maze.places)]
    return np.array(behind, np.int32)


# The quarter turns clockwise of the directions in which one sees: ahead, to the left, to the right.
SEEN = (0, 3, 1)
_OF_HALL = len(FLOORS) + 1 + len(OBJECTS)
FEATURES = len(OBJECTS) + len(SEEN) * _OF_HALL


def sights(maze: Maze) -> UInt8[np.ndarray, "P F"]:
    """What is seen at each place, zeros and ones.

    The object here; then ahead, to the left and to the right which floor the hall has, whether there is a wall, and
    which objects stand along it, however far. As the bags of words a direction of Mei, Bansal and Walter (2016).
    """
    seen = np.zeros((maze.places, FEATURES), np.uint8)
    for place, row in enumerate(seen):
        if maze.here(place) != NONE:
            row[maze.here(place)] = 1
        for number, turned in enumerate(SEEN):
            of_hall = row[len(OBJECTS) + number * _OF_HALL :][:_OF_HALL]
            # A wall's floor, NONE, is the last of the floors' numbers.
            of_hall[: len(FLOORS) + 1][maze.floor(place, turned)] = 1
            objects = [maze.here(passed) for passed in maze.ahead(place, turned)]
            of_hall[len(FLOORS) + 1 :][[each for each in objects if each != NONE]] = 1
    return seen
