"""Episodes that show a few drawings of a few characters, and ask which of them the last one is of."""

import enum
from typing import NamedTuple, assert_never

import numpy as np
from jaxtyping import Int, UInt8

from transformer.data.datasets.characters import Drawings


class Turned(enum.Enum):
    """Which characters count as new ones beside those of the alphabets.

    none: no others. rotations: each turned by 90, 180 and 270 degrees (Santoro et al. 2016). reflections: these, and
    the mirror image of each of the four.
    """

    NONE = "none"
    ROTATIONS = "rotations"
    REFLECTIONS = "reflections"

    def __call__(self, drawings: Drawings) -> Drawings:
        """The characters, and behind them those that are made from them."""
        match self:
            case Turned.NONE:
                return drawings
            case Turned.ROTATIONS:
                return np.concatenate([np.rot90(drawings, turns, axes=(2, 3)) for turns in range(4)])
            case Turned.REFLECTIONS:
                return Turned.ROTATIONS(np.concatenate([drawings, drawings[..., ::-1]]))
            case _:
                assert_never(self)


class Episodes(NamedTuple):
    """Ways x shots drawings in any order and one more; the class of each, from 0, that of the last being asked for."""

    pictures: UInt8[np.ndarray, "B T side side"]
    classes: Int[np.ndarray, "B T"]


def draw_episodes(random: np.random.Generator, drawings: Drawings, rows: int, ways: int, shots: int) -> Episodes:
    """Different characters in a random order, of each different hands; the last is a hand that is not shown."""
    characters, hands = drawings.shape[:2]
    picked_BxW = _different(random, rows, characters, ways)
    drawn_BxWxH = _different(random, rows * ways, hands, shots + 1).reshape(rows, ways, shots + 1)
    order_BxS = _different(random, rows, ways * shots, ways * shots)
    asked_B = random.integers(0, ways, rows)
    classes_BxT = np.concatenate([order_BxS // shots, asked_B[:, None]], axis=1)
    which_BxT = np.concatenate([order_BxS % shots, np.full((rows, 1), shots)], axis=1)
    row = np.arange(rows)[:, None]
    pictures = drawings[picked_BxW[row, classes_BxT], drawn_BxWxH[row, classes_BxT, which_BxT]]
    return Episodes(pictures, classes_BxT.astype(np.int32))


def _different(random: np.random.Generator, rows: int, of: int, count: int) -> Int[np.ndarray, "rows count"]:
    """In each row so many different ones of the numbers below `of`, in a random order."""
    return np.argsort(random.random((rows, of)), axis=1)[:, :count]
