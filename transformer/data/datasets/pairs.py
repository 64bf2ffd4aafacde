"""Sentence pairs in files that their user has: two parallel files, or one .tsv or .jsonl file."""

import pathlib

from transformer.config import UserError
from transformer.data.datasets.own_files import HeldOut, divide, has_fields, located, read_fields, read_lines

_FIELDS = ("source", "target")
HOW = "write FILE.en,FILE.de, FILE.tsv or FILE.jsonl"


def open_pairs(
    name: str, *, data_dir: str | None, languages: tuple[str, str] | None, held_out: HeldOut
) -> tuple[tuple[str, str], dict[str, list[tuple[str, str]]]]:
    """The languages, source first, and the pairs of every split.

    `name` is "FILE.en,FILE.de", files of a sentence a line whose endings name the languages, or one file, "FILE.tsv" or
    "FILE.jsonl", with the fields source and target, or those that `languages` names.

    Errors: UserError for missing or unfit files, unequal numbers of lines, and too few pairs.
    """
    direction = direction_of(name, languages)
    fields = languages or _FIELDS
    held = {split: _read(own, data_dir, fields) for split, own in held_out.named.items()}
    return direction, divide(name, _read(name, data_dir, fields), lambda pair: pair[0], held)


def direction_of(name: str, languages: tuple[str, str] | None) -> tuple[str, str]:
    """The source's and the target's language: by the endings of two files, else `languages`, else source and target.

    Errors: UserError where `languages` are not those of the endings.
    """
    files = name.split(",")
    endings = tuple(pathlib.PurePath(file).suffix.removeprefix(".") for file in files)
    if len(endings) != 2 or not all(endings) or endings[0] == endings[1]:
        return languages or _FIELDS
    if languages not in (None, endings):
        raise UserError(f"languages={languages} contradicts {name}: the first file is the source, say it there alone")
    return endings[0], endings[1]


def _read(files: str, data_dir: str | None, fields: tuple[str, str]) -> list[tuple[str, str]]:
    named = files.split(",")
    if len(named) > 2 or not all(map(str.strip, named)):
        raise UserError(f"{files!r} names no pairs: {HOW}")
    paths = [located(each, data_dir) for each in named]
    if len(paths) == 1:
        if not has_fields(paths[0].name):
            raise UserError(f"{paths[0]} alone holds no pairs: {HOW}")
        return [(source.strip(), target.strip()) for source, target in read_fields(paths[0], fields)]
    sources, targets = map(read_lines, paths)
    if len(sources) != len(targets):
        raise UserError(
            f"{paths[0]} has {len(sources)} lines and {paths[1]} has {len(targets)}: parallel files have a line of "
            "one for each line of the other"
        )
    return list(zip(sources, targets, strict=True))
