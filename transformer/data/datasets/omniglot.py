"""Omniglot: characters of many alphabets, each drawn once by twenty people (Lake et al. 2015)."""

import pathlib
import re
import zipfile
from collections.abc import Mapping

from transformer.config import UserError
from transformer.data.datasets.own_files import located
from transformer.data.datasets.picture_files import MOST_BYTES, decode, stacked
from transformer.data.pictures import Pictures

# Of the twenty people who drew every character the last validate and test.
_DRAWERS = {"train": range(1, 17), "validation": range(17, 19), "test": range(19, 21)}
_NAME = re.compile(r"[^/]+/([^/]+/character\d+)/\d+_(\d+)\.png")
_ARCHIVES = "images_background*.zip"


def read_omniglot(data_dir: str | None, side: int | None) -> tuple[Mapping[str, Pictures], tuple[str, ...]]:
    """The drawings in all images_background*.zip in `data_dir`, grey, and the characters: "Alphabet/character01".

    A drawing that is in several archives is read once. The people who drew are divided: sixteen train, two validate,
    two test.

    Errors: UserError for a folder without archives, and for archives that cannot be read.
    """
    folder = located(".", data_dir)
    archives = sorted(folder.glob(_ARCHIVES))
    if not archives:
        raise UserError(f"{folder} has no {_ARCHIVES}: give the folder of Omniglot's archives by config.task.data_dir")
    files: dict[tuple[str, int], bytes] = {}
    for path in archives:
        files |= _drawings(path)
    characters = tuple(sorted({character for character, _ in files}))
    numbers = {character: number for number, character in enumerate(characters)}
    splits = {}
    for split, drawers in _DRAWERS.items():
        chosen = sorted(key for key in files if key[1] in drawers)
        pixels = [decode(files[key], f"{folder}: {key[0]}", side, grey=True) for key in chosen]
        splits[split] = stacked("omniglot", pixels, [numbers[character] for character, _ in chosen])
    return splits, characters


def _drawings(path: pathlib.Path) -> dict[tuple[str, int], bytes]:
    """The files of an archive by character and drawer; members are read where they lie."""
    try:
        with zipfile.ZipFile(path) as archive:
            drawings = {}
            for member in archive.infolist():
                if (match := _NAME.fullmatch(member.filename)) is not None:
                    if member.file_size > MOST_BYTES:
                        raise UserError(f"{path}: {member.filename} has {member.file_size:,} bytes: make it smaller")
                    drawings[match[1], int(match[2])] = archive.read(member)
            return drawings
    except (OSError, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise UserError(f"{path} cannot be read as an archive: {error}") from error
