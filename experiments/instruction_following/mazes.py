"""Mazes: halls with different floors between crossings with objects, for an agent that sees along the halls.

A pose is a crossing and a heading, numbered 4 x crossing + heading; crossings are numbered row by row from the
north-west.
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
    """The direction in which the agent looks, clockwise."""

    NORTH = 0
    EAST = 1
    SOUTH = 2
    WEST = 3


class Action(enum.IntEnum):
    """The agent's actions: a step to the next crossing, which a wall stops, or a quarter turn."""

    FORWARD = 0
    LEFT = 1
    RIGHT = 2


class Maze(NamedTuple):
    """A maze of `side_length` x `side_length` crossings.

    Attributes:
        side_length: The crossings of a side.
        floors: The floor of the hall that leaves each crossing in each heading; NONE for a wall.
        objects: The object at each crossing; NONE without one.
    """

    side_length: int
    floors: tuple[tuple[int, ...], ...]
    objects: tuple[int, ...]

    @property
    def num_poses(self) -> int:
        """The number of poses."""
        return 4 * self.side_length**2

    def floor_index_ahead(self, pose: int, turned: int = 0) -> int:
        """Return the floor of a hall.

        Args:
            pose: The pose: four times the crossing, plus the heading.
            turned: The number of quarter turns clockwise from the heading to the hall.

        Returns:
            The floor; NONE for a wall.
        """
        crossing, heading = divmod(pose, 4)
        return self.floors[crossing][(heading + turned) % 4]

    def object_index_at(self, pose: int) -> int:
        """Return the object at the crossing; NONE without one."""
        return self.objects[pose // 4]

    def pose_after(self, pose: int, action: int) -> int:
        """Return the pose after one action.

        Args:
            pose: The pose: four times the crossing, plus the heading.
            action: The action; walking into a wall changes nothing.

        Returns:
            The new pose.
        """
        crossing, heading = divmod(pose, 4)
        if action == Action.FORWARD:
            return pose if self.floor_index_ahead(pose) == NONE else 4 * (crossing + self._stride(heading)) + heading
        return 4 * crossing + (heading + (1 if action == Action.RIGHT else -1)) % 4

    def poses_ahead(self, pose: int, turned: int = 0) -> list[int]:
        """Return the poses along a hall up to the wall.

        Args:
            pose: The pose: four times the crossing, plus the heading.
            turned: The number of quarter turns clockwise from the heading to the hall.

        Returns:
            The poses, with the heading of the hall; not the starting one.
        """
        pose = 4 * (pose // 4) + (pose + turned) % 4
        passed = []
        while self.floor_index_ahead(pose) != NONE:
            pose = self.pose_after(pose, Action.FORWARD)
            passed.append(pose)
        return passed

    def _stride(self, heading: int) -> int:
        return (-self.side_length, 1, self.side_length, -1)[heading]


def sample_maze(random: np.random.Generator, side: int) -> Maze:
    """Sample a maze with all crossings connected: a random tree of halls and some loops; a straight hall has one floor.

    Args:
        random: The random generator.
        side: The crossings of a side.

    Returns:
        The maze.

    Raises:
        ValueError: If `side` is below 2.
    """
    if side < 2:
        raise ValueError(f"side={side} of a maze must be at least 2 crossings")
    east_walls = [(crossing, Heading.EAST) for crossing in range(side**2) if crossing % side < side - 1]
    down = [(crossing, Heading.SOUTH) for crossing in range(side**2) if crossing < side * (side - 1)]
    walls = [*east_walls, *down]
    strides = {Heading.EAST: 1, Heading.SOUTH: side}
    group, opened = list(range(side**2)), set()
    for number, extra in zip(random.permutation(len(walls)), random.random(len(walls)) < LOOPS, strict=True):
        crossing, heading = walls[number]
        group_index, neighbor_group = group[crossing], group[crossing + strides[heading]]
        if group_index != neighbor_group or extra:
            opened.add(walls[number])
            group = [group_index if member_group == neighbor_group else member_group for member_group in group]
    floors = [[NONE] * 4 for _ in range(side**2)]
    floor_indices = random.integers(0, len(FLOORS), len(walls)).tolist()
    for (crossing, heading), floor in zip(walls, floor_indices, strict=True):
        if (crossing, heading) not in opened:
            continue
        # `walls` goes along each row and down each column: the hall behind has its floor already.
        hall_floor = floors[crossing][(heading + 2) % 4]
        floor = floor if hall_floor == NONE else hall_floor
        floors[crossing][heading] = floors[crossing + strides[heading]][(heading + 2) % 4] = floor
    furnished = random.random(side**2) < FURNISHED
    objects = np.where(furnished, random.integers(0, len(OBJECTS), side**2), NONE)
    return Maze(side, tuple(map(tuple, floors)), tuple(objects.tolist()))


def transition_table(maze: Maze) -> Int[np.ndarray, "P A"]:
    """Return the transition table [pose, action]: the pose after each action at each pose."""
    next_poses = [[maze.pose_after(pose, action) for action in Action] for pose in range(maze.num_poses)]
    return np.array(next_poses, np.int32)


# The quarter turns clockwise of the directions in which one sees: ahead, to the left, to the right.
VISIBLE_DIRECTIONS = (0, 3, 1)
_NUM_HALL_FEATURES = len(FLOORS) + 1 + len(OBJECTS)
NUM_OBSERVATION_FEATURES = len(OBJECTS) + len(VISIBLE_DIRECTIONS) * _NUM_HALL_FEATURES


def observation_table(maze: Maze) -> UInt8[np.ndarray, "P F"]:
    """Return the observations of each pose [pose, feature], zeros and ones.

    They are the object here; then, ahead, to the left and to the right, which floor the hall has, whether there is a
    wall, and which objects stand along it, however far: the bag of words per direction of Mei, Bansal and Walter
    (2016).
    """
    observations = np.zeros((maze.num_poses, NUM_OBSERVATION_FEATURES), np.uint8)
    for pose, row in enumerate(observations):
        if maze.object_index_at(pose) != NONE:
            row[maze.object_index_at(pose)] = 1
        for number, turned in enumerate(VISIBLE_DIRECTIONS):
            hall_features = row[len(OBJECTS) + number * _NUM_HALL_FEATURES :][:_NUM_HALL_FEATURES]
            # A wall's floor, NONE, is the last of the floors' numbers.
            hall_features[: len(FLOORS) + 1][maze.floor_index_ahead(pose, turned)] = 1
            objects = [maze.object_index_at(passed) for passed in maze.poses_ahead(pose, turned)]
            hall_features[len(FLOORS) + 1 :][[object_index for object_index in objects if object_index != NONE]] = 1
    return observations
