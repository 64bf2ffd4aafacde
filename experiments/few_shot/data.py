"""Few-shot episodes of Omniglot's characters or of synthetic ones."""

import dataclasses
import enum
from collections.abc import Mapping
from typing import Annotated, NamedTuple, assert_never

import numpy as np
from jaxtyping import Int, UInt8

from transformer.config import Config, PositiveInt, Range, UserError, from_config, suggest_nearest
from transformer.data.datasets.dataset_name_options import parse_int_options
from transformer.data.datasets.local_files import join_notes
from transformer.data.datasets.omniglot import BACKGROUND, EVALUATION, describe_unread_archives, read_alphabets
from transformer.data.datasets.synthetic_symbols import SPLITS
from transformer.data.synthetic_glyphs import GlyphVariation, rasterize_strokes, vary_strokes

_STROKES = (2, 4)  # from fewest to most
_POINTS = 6  # of the line that stands for a bent stroke
_EDGE = 0.14  # of the unit square around a character
_HAND_DEVIATION = 0.03  # deviation of each hand's own ends and bends
_HAND = GlyphVariation(turn=0.025, slant=0.12, scale=0.1, shift=0.05, jitter=0.0, thickness=(0.05, 0.09))
_RENDER_BATCH_SIZE, _OUTSIDE = 256, 1e3


def render_characters(
    random: np.random.Generator, count: int, num_drawers: int, image_size: int
) -> UInt8[np.ndarray, "count drawers size size"]:
    """Render synthetic characters, each by several drawers; ink is bright.

    A stroke is a parabola (a quadratic Bezier curve) anywhere in the square. A drawer moves the control points of every
    stroke a little, and rotates, slants, scales and shifts the whole.

    Args:
        random: The random generator.
        count: The number of characters.
        num_drawers: The number of drawings of each.
        image_size: Height and width of a drawing in pixels.

    Returns:
        Drawings [character, drawer, height, width], 0 to 255.
    """
    points_SxT = np.linspace(0, 1, _POINTS)[:, None]
    weights_Px3 = np.concatenate([(1 - points_SxT) ** 2, 2 * points_SxT * (1 - points_SxT), points_SxT**2], axis=1)
    most = _STROKES[1]
    segments = np.full((count, num_drawers, most * (_POINTS - 1), 2, 2), _OUTSIDE, np.float32)
    for character in range(count):
        strokes = int(random.integers(_STROKES[0], most + 1))
        bends_Kx3x2 = random.random((strokes, 3, 2))
        low, high = bends_Kx3x2.min(axis=(0, 1)), bends_Kx3x2.max(axis=(0, 1))
        bends_Kx3x2 = _EDGE + (1 - 2 * _EDGE) * (bends_Kx3x2 - low) / (high - low)
        for hand in range(num_drawers):
            moved_Kx3x2 = bends_Kx3x2 + _HAND_DEVIATION * random.standard_normal(bends_Kx3x2.shape)
            line_KxPx2 = weights_Px3 @ moved_Kx3x2
            pairs = np.stack([line_KxPx2[:, :-1], line_KxPx2[:, 1:]], axis=2).reshape(-1, 2, 2)
            segments[character, hand, : len(pairs)] = vary_strokes(pairs, random, _HAND)
    flat = segments.reshape(count * num_drawers, -1, 2, 2)
    thickness = random.uniform(*_HAND.thickness, len(flat)).astype(np.float32)
    ink_batches = [
        rasterize_strokes(flat[start : start + _RENDER_BATCH_SIZE], np.zeros(len(part), bool), part, image_size)
        for start in range(0, len(flat), _RENDER_BATCH_SIZE)
        for part in (thickness[start : start + _RENDER_BATCH_SIZE],)
    ]
    ink = np.concatenate(ink_batches).reshape(count, num_drawers, image_size, image_size)
    return np.round(255 * ink).astype(np.uint8)


STROKES, OMNIGLOT, OF_ALL_ALPHABETS = "strokes", "omniglot", "omniglot_characters"
Drawings = UInt8[np.ndarray, "characters drawers size size"]


@dataclasses.dataclass(frozen=True)
class CharacterSet:
    """Drawings of each split's characters; no character is in two splits.

    Attributes:
        name: The name of the set, with its options.
        splits: Drawings [character, drawer, height, width] by split; ink is bright.
        split_note: A note on how characters were divided.
    """

    name: str
    splits: Mapping[str, Drawings]
    split_note: str = ""


@dataclasses.dataclass(frozen=True)
class SyntheticCharacters(Config):
    """The numbers of synthetic characters of each split.

    Attributes:
        train: Training characters.
        validation: Validation characters.
        test: Test characters.
        num_drawers: Drawings of each character.
        seed: The seed of all splits.

    Raises:
        UserError: If a split has no character, or there are fewer than two drawers.
    """

    train: PositiveInt = 200
    validation: PositiveInt = 40
    test: PositiveInt = 60
    num_drawers: Annotated[int, Range(2)] = 20
    seed: int = 0

    def render_split(self, split: str, image_size: int) -> Drawings:
        """Render the drawings of a split."""
        random = np.random.default_rng((self.seed, SPLITS.index(split)))
        return render_characters(random, getattr(self, split), self.num_drawers, image_size)


@dataclasses.dataclass(frozen=True)
class HeldOutAlphabets(Config):
    """The numbers of background alphabets that are held out, the last ones by name.

    Attributes:
        validation: Alphabets of the validation set.
        test: Alphabets of the test set, used only without images_evaluation.zip; they are the very last.

    Raises:
        UserError: If a number is less than 1.
    """

    validation: PositiveInt = 1
    test: PositiveInt = 2


@dataclasses.dataclass(frozen=True)
class HeldOutCharacters(Config):
    """The numbers of characters of all alphabets that are held out, in random order.

    Attributes:
        validation: Characters of the validation set.
        test: Characters of the test set.
        seed: The seed of the order.

    Raises:
        UserError: If a number is less than 1.
    """

    validation: PositiveInt = 20
    test: PositiveInt = 60
    seed: int = 0


def open_character_set(name: str, *, data_dir: str | None, image_size: int) -> CharacterSet:
    """Load or render a character set.

    Args:
        name: One of "strokes", synthetic characters, with options as in "strokes/train=100,num_drawers=10"; "omniglot",
            with options as in "omniglot/validation=1,test=2" (alphabets held out); "omniglot_characters", with options
            as in "omniglot_characters/validation=20,test=60" (characters of all alphabets held out).
        data_dir: The folder of Omniglot's archives.
        image_size: Height and width of a drawing in pixels.

    Returns:
        The character set.

    Raises:
        UserError: If the name or an option is unknown, or files are missing or invalid.
    """
    kind, _, options = name.partition("/")
    if kind == OMNIGLOT:
        held_out_alphabets = from_config(
            HeldOutAlphabets, parse_int_options(kind, options, "validation=1,test=2"), kind
        )
        return _split_by_alphabet(
            name,
            read_alphabets(data_dir, image_size),
            held_out_alphabets,
            describe_unread_archives(data_dir, BACKGROUND, EVALUATION),
        )
    if kind == OF_ALL_ALPHABETS:
        held_out_characters = from_config(
            HeldOutCharacters, parse_int_options(kind, options, "validation=20,test=60"), kind
        )
        return _split_by_character(
            name,
            read_alphabets(data_dir, image_size),
            held_out_characters,
            describe_unread_archives(data_dir, BACKGROUND, EVALUATION),
        )
    synthetic = _synthetic_characters(name)
    if data_dir is not None:
        raise UserError(f"config.task.data_dir={data_dir!r} is for omniglot: {kind} are drawn here")
    return CharacterSet(name, {split: synthetic.render_split(split, image_size) for split in SPLITS})


def make_placeholder_characters(name: str, *, classes: int, num_drawers: int, image_size: int) -> CharacterSet:
    """Return a set of blank characters of the right shape, without reading or rendering any.

    Raises:
        UserError: If the name is not that of a set.
    """
    if name.partition("/")[0] not in (OMNIGLOT, OF_ALL_ALPHABETS):
        _synthetic_characters(name)
    return CharacterSet(name, dict.fromkeys(SPLITS, np.zeros((classes, num_drawers, image_size, image_size), np.uint8)))


def _synthetic_characters(name: str) -> SyntheticCharacters:
    kind, _, options = name.partition("/")
    if kind != STROKES:
        known_kinds = (STROKES, OMNIGLOT, OF_ALL_ALPHABETS)
        raise UserError(f"config.task.dataset={name!r} is unknown: {suggest_nearest(name, known_kinds)}")
    return from_config(SyntheticCharacters, parse_int_options(kind, options, "train=100,num_drawers=10"), kind)


def _split_by_alphabet(
    name: str, drawings: Mapping[str, Mapping[str, Drawings]], held_out: HeldOutAlphabets, unread: str
) -> CharacterSet:
    background = dict(sorted(drawings[BACKGROUND].items()))
    test = dict(drawings[EVALUATION]) or {key: background.pop(key) for key in list(background)[-held_out.test :]}
    validation = {key: background.pop(key) for key in list(background)[-held_out.validation :]}
    if not background:
        raise UserError(f"{name} leaves no alphabet to train on: hold out fewer")
    parts = dict(zip(SPLITS, (background, validation, test), strict=True))
    # Ink is dark on the paper that was scanned.
    splits = {split: 255 - np.concatenate(list(alphabets.values())) for split, alphabets in parts.items()}
    alphabets_note = "; ".join(f"{split}: {', '.join(alphabets)}" for split, alphabets in parts.items())
    return CharacterSet(name, splits, join_notes((alphabets_note, unread)))


def _split_by_character(
    name: str, read: Mapping[str, Mapping[str, Drawings]], held_out: HeldOutCharacters, unread: str
) -> CharacterSet:
    every = [drawings for alphabets in read.values() for _, drawings in sorted(alphabets.items())]
    if len({drawings.shape[1] for drawings in every}) > 1:
        raise UserError(f"{name}: characters of {BACKGROUND} and {EVALUATION} have different numbers of drawings")
    ink = 255 - np.concatenate(every)
    if held_out.validation + held_out.test >= len(ink):
        raise UserError(f"{name} leaves none of {len(ink)} characters to train on: hold out fewer")
    order = np.random.default_rng(held_out.seed).permutation(len(ink))
    test, validation, train = np.split(order, [held_out.test, held_out.test + held_out.validation])
    splits = {"train": ink[train], "validation": ink[validation], "test": ink[test]}
    split_note = f"characters of {len(every)} alphabets, each in one split"
    return CharacterSet(name, splits, join_notes((split_note, unread)))


class RotationAugmentation(enum.Enum):
    """Which transformed characters are added as new classes.

    none: no others. rotations: each rotated by 90, 180 and 270 degrees (Santoro et al. 2016). reflections: these, and
    the mirror image of each of the four.
    """

    NONE = "none"
    ROTATIONS = "rotations"
    REFLECTIONS = "reflections"

    def __call__(self, drawings: Drawings) -> Drawings:
        """Return the characters followed by the augmented ones."""
        match self:
            case RotationAugmentation.NONE:
                return drawings
            case RotationAugmentation.ROTATIONS:
                return np.concatenate([np.rot90(drawings, turns, axes=(2, 3)) for turns in range(4)])
            case RotationAugmentation.REFLECTIONS:
                return RotationAugmentation.ROTATIONS(np.concatenate([drawings, drawings[..., ::-1]]))
            case _:
                assert_never(self)


class EpisodeBatch(NamedTuple):
    """Episodes of ways x shots drawings in random order and a query drawing.

    Attributes:
        images: The drawings [episode, time, height, width]; the query is the last.
        classes: The class of each drawing from 0.
    """

    images: UInt8[np.ndarray, "B T size size"]
    classes: Int[np.ndarray, "B T"]


def sample_episodes(random: np.random.Generator, drawings: Drawings, rows: int, ways: int, shots: int) -> EpisodeBatch:
    """Sample episodes of distinct characters and distinct drawers of each; the query is by another drawer.

    Args:
        random: The random generator.
        drawings: The drawings [character, drawer, height, width].
        rows: The number of episodes.
        ways: The number of characters of an episode.
        shots: The number of drawings of each in the support set.

    Returns:
        The episodes.
    """
    characters, num_drawers = drawings.shape[:2]
    picked_BxW = _sample_distinct(random, rows, characters, ways)
    drawn_BxWxH = _sample_distinct(random, rows * ways, num_drawers, shots + 1).reshape(rows, ways, shots + 1)
    order_BxS = _sample_distinct(random, rows, ways * shots, ways * shots)
    asked_B = random.integers(0, ways, rows)
    classes_BxT = np.concatenate([order_BxS // shots, asked_B[:, None]], axis=1)
    which_BxT = np.concatenate([order_BxS % shots, np.full((rows, 1), shots)], axis=1)
    row = np.arange(rows)[:, None]
    images = drawings[picked_BxW[row, classes_BxT], drawn_BxWxH[row, classes_BxT, which_BxT]]
    return EpisodeBatch(images, classes_BxT.astype(np.int32))


def _sample_distinct(
    random: np.random.Generator, rows: int, population: int, count: int
) -> Int[np.ndarray, "rows count"]:
    """Sample, in each row, `count` distinct numbers below `of` in random order."""
    return np.argsort(random.random((rows, population)), axis=1)[:, :count]
