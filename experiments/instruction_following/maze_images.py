"""Images of walks: a maze from above, its floors, the first letters of its objects, and the agent."""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Bool, Int, UInt8

from experiments.instruction_following.mazes import FLOORS, NONE, OBJECTS, Heading, Maze
from transformer.data.synthetic_glyphs import NO_VARIATION, draw_glyphs, rasterize_strokes

CELL = 24  # pixels from crossing to crossing
_HALF_HALL, _HALF_PATH, _LETTER = 7, 1, 13  # pixels
_ROCK, _CROSSING, _INK, _PATH, _WALKER = (38, 40, 46), (222, 222, 222), (40, 40, 40), (130, 10, 70), (200, 20, 110)
_SHADE = 0.72  # of what a floor's pattern darkens
# Looking north; x to the right and y downwards in the square of a crossing.
_ARROW = np.array([[0.5, 0.1], [0.84, 0.84], [0.5, 0.68], [0.16, 0.84], [0.5, 0.1]])

# A color, and where the pattern is darker.
_FLOORS: dict[str, tuple[tuple[int, int, int], Callable[[np.ndarray, np.ndarray], np.ndarray]]] = {
    "blue": ((86, 130, 226), lambda y, x: y + x < 0),
    "brick": ((190, 88, 66), lambda y, x: (y % 4 == 0) | ((x + 3 * (y // 4 % 2)) % 6 == 0)),
    "flower": ((236, 150, 190), lambda y, x: (y % 6 - 3) ** 2 + (x % 6 - 3) ** 2 <= 2),
    "grass": ((98, 172, 84), lambda y, x: (x + 2 * y) % 5 == 0),
    "wood": ((176, 124, 70), lambda y, x: y % 4 == 0),
    "yellow": ((240, 208, 72), lambda y, x: y + x < 0),
}


def paint_maze(maze: Maze) -> UInt8[np.ndarray, "S S 3"]:
    """Paint the maze from above, north at the top.

    Args:
        maze: The maze.

    Returns:
        The image [height, width, 3].
    """
    size = maze.side_length * CELL
    image = np.full((size, size, 3), _ROCK, np.uint8)
    y, x = np.mgrid[:size, :size]
    patterns: dict[int, Bool[np.ndarray, "S S"]] = {}
    for crossing in range(maze.side_length**2):
        for hall_heading in (Heading.EAST, Heading.SOUTH):
            floor = maze.floors[crossing][hall_heading]
            if floor == NONE:
                continue
            color, pattern = _FLOORS[FLOORS[floor]]
            shaded = patterns.setdefault(floor, pattern(y, x))
            hall = _slices_between(
                maze, crossing, crossing + (1 if hall_heading == Heading.EAST else maze.side_length), _HALF_HALL
            )
            image[hall] = np.where(shaded[hall][..., None], np.multiply(color, _SHADE), color)
    letters = draw_glyphs([name[0].upper() for name in OBJECTS], _LETTER, np.random.default_rng(0), NO_VARIATION)
    for crossing, thing in enumerate(maze.objects):
        image[_slices_between(maze, crossing, crossing, _HALF_HALL)] = _CROSSING
        if thing != NONE:
            _blend(image[_slices_between(maze, crossing, crossing, _LETTER // 2)], letters[thing], _INK)
    return image


def paint_walk(maze: Maze, poses: Sequence[int]) -> UInt8[np.ndarray, "N S S 3"]:
    """Paint the maze at each pose of a walk: the path so far, and the agent as an arrow in its heading.

    Args:
        maze: The maze.
        poses: The poses of the walk.

    Returns:
        An image for each pose [pose, height, width, 3].
    """
    path, images = paint_maze(maze), []
    for number, pose in enumerate(poses):
        before, crossing = poses[max(number - 1, 0)] // 4, pose // 4
        path[_slices_between(maze, before, crossing, _HALF_PATH)] = _PATH
        image = path.copy()
        row, column = divmod(crossing, maze.side_length)
        square = image[row * CELL : (row + 1) * CELL, column * CELL : (column + 1) * CELL]
        _blend(square, _draw_arrow(pose % 4), _WALKER)
        images.append(image)
    return np.stack(images)


def _draw_arrow(heading: int) -> np.ndarray:
    """Return how much of every pixel of a crossing's square an arrow covers."""
    angle = heading * np.pi / 2
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    corners = (_ARROW - 0.5) @ turn.T + 0.5
    segments = np.stack([corners[:-1], corners[1:]], axis=1).astype(np.float32)
    return rasterize_strokes(segments[None], np.array([True]), np.zeros(1, np.float32), CELL)[0]


def _slices_between(maze: Maze, crossing: int, neighbor: int, half_width: int) -> tuple[slice, slice]:
    """Return the pixels within `half_width` of the straight line between the centers of two crossings."""
    ends: Int[np.ndarray, "2 2"] = (
        np.array([divmod(end, maze.side_length) for end in (crossing, neighbor)]) * CELL + CELL // 2
    )
    (top, start), (bottom, stop) = ends.min(axis=0) - half_width, ends.max(axis=0) + half_width + 1
    return slice(top, bottom), slice(start, stop)


def _blend(pixels: np.ndarray, share: np.ndarray, color: tuple[int, int, int]) -> None:
    """Blend a color into pixels, in place, by its share of each."""
    pixels[:] = np.round(pixels + share[..., None] * (np.array(color) - pixels.astype(np.float32)))
