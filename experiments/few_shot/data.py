"""Episodes of characters: published, or drawn here by many hands, a few drawings of a few shown at a time."""

import dataclasses
import enum
from collections.abc import Mapping
from typing import Annotated, NamedTuple, assert_never

import numpy as np
from jaxtyping import Int, UInt8

from transformer.config import Config, Positive, Range, UserError, from_config, nearest
from transformer.data.datasets.omniglot import BACKGROUND, EVALUATION, read_alphabets, said_of_unread
from transformer.data.datasets.options import whole_numbers
from transformer.data.datasets.symbols import SPLITS
from transformer.data.datasets.user_files import join_notes
from transformer.data.synthetic_glyphs import Variation, cover, varied

_STROKES = (2, 4)  # from fewest to most
_POINTS = 6  # of the line that stands for a bent stroke
_EDGE = 0.14  # of the unit square around a character
_SHIFTED = 0.03  # deviation of each hand's own ends and bends
_HAND = Variation(turn=0.025, slant=0.12, scale=0.1, shift=0.05, jitter=0.0, thickness=(0.05, 0.09))
_AT_ONCE, _FAR = 256, 1e3


def draw_characters(
    random: np.random.Generator, count: int, hands: int, side: int
) -> UInt8[np.ndarray, "count hands side side"]:
    """So many characters, each drawn by so many hands: ink is bright.

    A stroke is a parabola (a Bezier curve of three points) anywhere in the square. A hand moves the points of every
    stroke a little, and turns, slants, scales and shifts the whole.
    """
    points_SxT = np.linspace(0, 1, _POINTS)[:, None]
    weights_Px3 = np.concatenate([(1 - points_SxT) ** 2, 2 * points_SxT * (1 - points_SxT), points_SxT**2], axis=1)
    most = _STROKES[1]
    segments = np.full((count, hands, most * (_POINTS - 1), 2, 2), _FAR, np.float32)
    for character in range(count):
        strokes = int(random.integers(_STROKES[0], most + 1))
        bends_Kx3x2 = random.random((strokes, 3, 2))
        low, high = bends_Kx3x2.min(axis=(0, 1)), bends_Kx3x2.max(axis=(0, 1))
        bends_Kx3x2 = _EDGE + (1 - 2 * _EDGE) * (bends_Kx3x2 - low) / (high - low)
        for hand in range(hands):
            moved_Kx3x2 = bends_Kx3x2 + _SHIFTED * random.standard_normal(bends_Kx3x2.shape)
            line_KxPx2 = weights_Px3 @ moved_Kx3x2
            pairs = np.stack([line_KxPx2[:, :-1], line_KxPx2[:, 1:]], axis=2).reshape(-1, 2, 2)
            segments[character, hand, : len(pairs)] = varied(pairs, random, _HAND)
    flat = segments.reshape(count * hands, -1, 2, 2)
    thickness = random.uniform(*_HAND.thickness, len(flat)).astype(np.float32)
    drawn = [
        cover(flat[start : start + _AT_ONCE], np.zeros(len(part), bool), part, side)
        for start in range(0, len(flat), _AT_ONCE)
        for part in (thickness[start : start + _AT_ONCE],)
    ]
    ink = np.concatenate(drawn).reshape(count, hands, side, side)
    return np.round(255 * ink).astype(np.uint8)


STROKES, OMNIGLOT, OF_ALL_ALPHABETS = "strokes", "omniglot", "omniglot_characters"
Drawings = UInt8[np.ndarray, "characters hands side side"]


@dataclasses.dataclass(frozen=True)
class CharacterSet:
    """Drawings of each split's characters, no character in two splits; ink is bright. `cut` says how they were cut."""

    name: str
    splits: Mapping[str, Drawings]
    cut: str = ""


@dataclasses.dataclass(frozen=True)
class DrawnCharacters(Config):
    """So many characters of bent strokes for each split, each drawn by so many `hands`, from `seed` and the split.

    Raises:
        UserError: For less than one character, and for less than two hands.
    """

    train: Positive = 200
    validation: Positive = 40
    test: Positive = 60
    hands: Annotated[int, Range(2)] = 20
    seed: int = 0

    def draw(self, split: str, side: int) -> Drawings:
        """The drawings of a split."""
        random = np.random.default_rng((self.seed, SPLITS.index(split)))
        return draw_characters(random, getattr(self, split), self.hands, side)


@dataclasses.dataclass(frozen=True)
class HeldOutAlphabets(Config):
    """How many alphabets of the background validate, and how many test where there are no archives of evaluation.

    They are the last by name, those that test at the end.

    Raises:
        UserError: For less than one.
    """

    validation: Positive = 1
    test: Positive = 2


@dataclasses.dataclass(frozen=True)
class HeldOutCharacters(Config):
    """How many characters of all alphabets, in an order drawn from `seed`, validate, and how many test.

    Raises:
        UserError: For less than one.
    """

    validation: Positive = 20
    test: Positive = 60
    seed: int = 0


def open_characters(name: str, *, data_dir: str | None, side: int) -> CharacterSet:
    """Open a set of characters, drawn `side` x `side` pixels large.

    `name` is one of: "strokes", with options as in "strokes/train=100,hands=10", random strokes drawn here; "omniglot",
    whose archives lie in `data_dir`, with options as in "omniglot/validation=1,test=2": alphabets that validate and,
    where there is no images_evaluation*.zip, whose alphabets test, test; "omniglot_characters", with options as in
    "omniglot_characters/validation=20,test=60": characters that are held out of all alphabets of both archives.

    Raises:
        UserError: Of one line saying what to do, for an unknown name or option and for missing or unfit files.
    """
    kind, _, options = name.partition("/")
    if kind == OMNIGLOT:
        given = from_config(HeldOutAlphabets, whole_numbers(kind, options, "validation=1,test=2"), kind)
        return _of_alphabets(
            name, read_alphabets(data_dir, side), given, said_of_unread(data_dir, BACKGROUND, EVALUATION)
        )
    if kind == OF_ALL_ALPHABETS:
        held_out = from_config(HeldOutCharacters, whole_numbers(kind, options, "validation=20,test=60"), kind)
        return _of_characters(
            name, read_alphabets(data_dir, side), held_out, said_of_unread(data_dir, BACKGROUND, EVALUATION)
        )
    drawn = _drawn(name)
    if data_dir is not None:
        raise UserError(f"config.task.data_dir={data_dir!r} is for omniglot: {kind} are drawn here")
    return CharacterSet(name, {split: drawn.draw(split, side) for split in SPLITS})


def made_up(name: str, *, classes: int, hands: int, side: int) -> CharacterSet:
    """So many empty characters in every split: nothing is read or drawn.

    Raises:
        UserError: As `open_characters`, of the name.
    """
    if name.partition("/")[0] not in (OMNIGLOT, OF_ALL_ALPHABETS):
        _drawn(name)
    return CharacterSet(name, dict.fromkeys(SPLITS, np.zeros((classes, hands, side, side), np.uint8)))


def _drawn(name: str) -> DrawnCharacters:
    kind, _, options = name.partition("/")
    if kind != STROKES:
        known = (STROKES, OMNIGLOT, OF_ALL_ALPHABETS)
        raise UserError(f"config.task.dataset={name!r} is unknown: {nearest(name, known)}")
    return from_config(DrawnCharacters, whole_numbers(kind, options, "train=100,hands=10"), kind)


def _of_alphabets(
    name: str, read: Mapping[str, Mapping[str, Drawings]], given: HeldOutAlphabets, unread: str
) -> CharacterSet:
    background = dict(sorted(read[BACKGROUND].items()))
    test = dict(read[EVALUATION]) or {key: background.pop(key) for key in list(background)[-given.test :]}
    validation = {key: background.pop(key) for key in list(background)[-given.validation :]}
    if not background:
        raise UserError(f"{name} leaves no alphabet to train on: hold out fewer")
    parts = dict(zip(SPLITS, (background, validation, test), strict=True))
    # Ink is dark on the paper that was scanned.
    splits = {split: 255 - np.concatenate(list(alphabets.values())) for split, alphabets in parts.items()}
    names = "; ".join(f"{split}: {', '.join(alphabets)}" for split, alphabets in parts.items())
    return CharacterSet(name, splits, join_notes((names, unread)))


def _of_characters(
    name: str, read: Mapping[str, Mapping[str, Drawings]], given: HeldOutCharacters, unread: str
) -> CharacterSet:
    every = [drawings for alphabets in read.values() for _, drawings in sorted(alphabets.items())]
    if len({drawings.shape[1] for drawings in every}) > 1:
        raise UserError(f"{name}: characters of {BACKGROUND} and {EVALUATION} have different numbers of drawings")
    ink = 255 - np.concatenate(every)
    if given.validation + given.test >= len(ink):
        raise UserError(f"{name} leaves none of {len(ink)} characters to train on: hold out fewer")
    order = np.random.default_rng(given.seed).permutation(len(ink))
    test, validation, train = np.split(order, [given.test, given.test + given.validation])
    splits = {"train": ink[train], "validation": ink[validation], "test": ink[test]}
    cut = f"characters of {len(every)} alphabets, each in one split"
    return CharacterSet(name, splits, join_notes((cut, unread)))


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

    images: UInt8[np.ndarray, "B T side side"]
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
    images = drawings[picked_BxW[row, classes_BxT], drawn_BxWxH[row, classes_BxT, which_BxT]]
    return Episodes(images, classes_BxT.astype(np.int32))


def _different(random: np.random.Generator, rows: int, of: int, count: int) -> Int[np.ndarray, "rows count"]:
    """In each row so many different ones of the numbers below `of`, in a random order."""
    return np.argsort(random.random((rows, of)), axis=1)[:, :count]
