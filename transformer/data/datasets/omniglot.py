"""Omniglot: characters of many alphabets, each drawn once by twenty people (Lake et al. 2015)."""

import pathlib
import re
from collections.abc import Mapping

import numpy as np
from jaxtyping import UInt8

from transformer.config import UserError
from transformer.data.datasets.image_files import MAX_IMAGE_BYTES, Resizing, decode_image, stack_labeled_images
from transformer.data.datasets.local_files import describe_left_out, locate_file, read_members, unread_members
from transformer.data.images import LabeledImages

# The twenty people who drew every character, by split.
_DRAWERS = {"train": range(1, 17), "validation": range(17, 19), "test": range(19, 21)}
_NAME = re.compile(r"[^/]+/([^/]+/character\d+)/\d+_(\d+)\.png")
# Archives of the training alphabets and of the evaluation alphabets (Lake et al. 2015).
BACKGROUND, EVALUATION = "images_background*.zip", "images_evaluation*.zip"


def read_omniglot(data_dir: str | None, resizing: Resizing) -> tuple[Mapping[str, LabeledImages], tuple[str, ...], str]:
    """Read the drawings in all images_background*.zip in `data_dir`, in gray.

    A drawing that is in several archives is read once. Splits are by the people who drew: sixteen for training, two for
    validation, two for test.

    Args:
        data_dir: The folder of the archives.
        resizing: How images are resized.

    Returns:
        The images by split, the names of the characters ("Alphabet/character01"), and which members are not read.

    Raises:
        UserError: If there are no archives, or one cannot be read.
    """
    folder = locate_file(".", data_dir)
    files = _read_drawings(folder, BACKGROUND, resizing)
    if not files:
        raise _missing_archives_error(folder)
    characters = tuple(sorted({character for character, _ in files}))
    numbers = {character: number for number, character in enumerate(characters)}
    splits = {}
    for split, drawers in _DRAWERS.items():
        keys = sorted(key for key in files if key[1] in drawers)
        pixels = [files[key] for key in keys]
        splits[split] = stack_labeled_images("omniglot", pixels, [numbers[character] for character, _ in keys])
    return splits, characters, describe_unread_archives(data_dir, BACKGROUND)


def read_alphabets(data_dir: str | None, side: int) -> dict[str, dict[str, UInt8[np.ndarray, "C H side side"]]]:
    """Read all drawings in gray, by archives (`BACKGROUND` and `EVALUATION`, which may be empty) and alphabet.

    Args:
        data_dir: The folder of the archives.
        side: The side in pixels to which images are resized.

    Returns:
        For each alphabet its characters, each drawn by H people.

    Raises:
        UserError: If there are no background archives, one cannot be read, or characters have different numbers of
            drawings.
    """
    folder = locate_file(".", data_dir)
    read: dict[str, dict[str, UInt8[np.ndarray, "C H side side"]]] = {}
    for archives in (BACKGROUND, EVALUATION):
        files = _read_drawings(folder, archives, Resizing(side))
        characters: dict[str, list[np.ndarray]] = {}
        for key in sorted(files):
            characters.setdefault(key[0], []).append(files[key][..., 0])
        if len(counts := {len(drawings) for drawings in characters.values()}) > 1:
            raise UserError(f"{folder}: characters of {archives} have from {min(counts)} to {max(counts)} drawings")
        alphabets: dict[str, list[np.ndarray]] = {}
        for character, drawings in characters.items():
            alphabets.setdefault(character.partition("/")[0], []).append(np.stack(drawings))
        read[archives] = {alphabet: np.stack(drawings) for alphabet, drawings in alphabets.items()}
    if not read[BACKGROUND]:
        raise _missing_archives_error(folder)
    return read


def describe_unread_archives(data_dir: str | None, *archives: str) -> str:
    """Describe which members of the archives are not read.

    Raises:
        UserError: If an archive cannot be read, or an image is not named as drawings are.
    """
    paths = sorted(path for name in archives for path in locate_file(".", data_dir).glob(name))
    return describe_left_out([member for path in paths for member in unread_members(path, _NAME, ".png")])


def _missing_archives_error(folder: pathlib.Path) -> UserError:
    return UserError(f"{folder} has no {BACKGROUND}: give the folder of Omniglot's archives by config.task.data_dir")


def _read_drawings(
    folder: pathlib.Path, archives: str, resizing: Resizing
) -> dict[tuple[str, int], UInt8[np.ndarray, "height width 1"]]:
    """Decode the files of all archives of this name, by character and drawer."""
    return {
        (match[1], int(match[2])): decode_image(drawing, f"{folder}: {match[1]}", resizing, gray=True)
        for path in sorted(folder.glob(archives))
        for match, _, drawing in read_members(path, _NAME, MAX_IMAGE_BYTES)
    }
