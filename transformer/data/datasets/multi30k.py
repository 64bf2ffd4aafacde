"""Multi30k, image captions in English, German and French, from files that its user already has.

Elliott et al. 2016 and 2017. The folder holds `raw/<split>.<language>.gz`, cased and untokenized, and
`tok/<split>.lc.norm.tok.<language>`, lower-cased, normalized and tokenized; the lines are parallel.
"""

import gzip
import pathlib
from collections.abc import Sequence

from transformer.config import UserError, lookup_by_name
from transformer.data.line_splitting import split_lines

FILES = {
    "train": "train",
    "validation": "val",
    "test_2016_flickr": "test_2016_flickr",
    "test_2017_flickr": "test_2017_flickr",
}
"""The name of each split in file names."""

TEXTS = ("raw", "tokenized")
DIRECTIONS = (("en", "de"), ("en", "fr"), ("de", "en"), ("fr", "en"))


def locate_split_file(folder: pathlib.Path, text: str, split: str, language: str) -> pathlib.Path:
    """Return the path of one split in one language."""
    if text == "raw":
        return folder / "raw" / f"{FILES[split]}.{language}.gz"
    return folder / "tok" / f"{FILES[split]}.lc.norm.tok.{language}"


def read_multi30k(
    name: str, parts: Sequence[str], data_dir: str | None
) -> tuple[tuple[str, str], dict[str, list[tuple[str, str]]]]:
    """Read the pairs of a direction by split, in the order of their files, as published scores use them.

    Args:
        name: The full name of the data set, for messages.
        parts: The text ("raw" or "tokenized") and "<source>-<target>".
        data_dir: The folder of the files.

    Returns:
        The languages, source first, and the pairs of every split.

    Raises:
        UserError: If the text or the direction is unknown, or files are missing, damaged or not parallel.
    """
    known_names = [f"{text}/{'-'.join(pair)}" for text in TEXTS for pair in DIRECTIONS]
    lookup_by_name("/".join(parts), dict.fromkeys(known_names), f"{name}: <text>/<source>-<target>")
    text, direction = parts
    source, target = direction.split("-")
    how = (
        "obtain task 1 of the multi30k project and give its folder by --data_dir, holding "
        "raw/<split>.<language>.gz and tok/<split>.lc.norm.tok.<language> for the splits "
        f"{', '.join(FILES.values())} and the languages en, de, fr"
    )
    if data_dir is None:
        raise UserError(f"multi30k needs its files: {how}")
    folder = pathlib.Path(data_dir).expanduser()
    paths = {split: [locate_split_file(folder, text, split, side) for side in (source, target)] for split in FILES}
    for path in (path for pair in paths.values() for path in pair):
        if not path.is_file():
            raise UserError(f"multi30k: no file {path}: {how}")
    return (source, target), {split: _read_parallel(*pair) for split, pair in paths.items()}


def _read_parallel(source: pathlib.Path, target: pathlib.Path) -> list[tuple[str, str]]:
    sources, targets = read_lines(source), read_lines(target)
    if len(sources) != len(targets):
        raise UserError(
            f"multi30k: {source} has {len(sources)} lines and {target} has {len(targets)}: parallel files have the "
            "same number; obtain both again"
        )
    return list(zip(sources, targets, strict=True))


def read_lines(path: pathlib.Path) -> list[str]:
    """Read the lines of a UTF-8 file, gzipped if its name ends in .gz.

    Raises:
        UserError: If the file is damaged or not UTF-8.
    """
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        text = content.decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise UserError(f"multi30k: cannot read {path} ({error}): obtain the file again") from error
    return [line.strip() for line in split_lines(text)]
