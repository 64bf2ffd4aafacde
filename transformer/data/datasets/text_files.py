"""Text files that their user already has: any, tiny Shakespeare's, and WikiText's."""

import pathlib
import re
from collections.abc import Iterator, Sequence

from transformer.config import UserError

_NAMES = {"train": ("train",), "validation": ("validation", "valid", "val", "dev"), "test": ("test",)}
# An article's heading stands alone between two empty lines; its sections have more of the signs.
_HEADING = re.compile(r"^ ?\n = [^=\n]+ = \n(?= ?\n)", re.MULTILINE)


def read_text(path: pathlib.Path) -> str:
    """The content of a UTF-8 file, its line ends as they are, without a byte-order mark.

    Errors: UserError for a file that cannot be read, or is not UTF-8.
    """
    try:
        return path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path} as UTF-8 text: {error}") from error


def tinyshakespeare(folder: pathlib.Path) -> dict[str, list[str]]:
    """Tiny Shakespeare (Karpathy 2015): the first 90 % of its characters train, the others validate.

    Errors: UserError where its file, input.txt, is missing.
    """
    path = folder / "input.txt"
    if not path.is_file():
        raise UserError(
            f"tinyshakespeare: no file {path}: obtain input.txt of char-rnn's tinyshakespeare and give its folder by "
            "config.task.data_dir"
        )
    text = read_text(path)
    cut = len(text) * 9 // 10
    return {"train": [text[:cut]], "validation": [text[cut:]]}


def wikitext(folder: pathlib.Path) -> dict[str, list[str]]:
    """WikiText (Merity et al. 2017), an article a document, from the splits whose files exist.

    A split is <split>.txt, or wiki.<split>.tokens or .raw as it is published; validation is called valid.

    Errors: UserError where no split has a file.
    """
    splits: dict[str, list[str]] = {}
    for split, names in _NAMES.items():
        for name in names:
            for path in (folder / f"{name}.txt", folder / f"wiki.{name}.tokens", folder / f"wiki.{name}.raw"):
                if split not in splits and path.is_file():
                    splits[split] = list(_articles(read_text(path)))
    if not splits:
        raise UserError(
            f"wikitext-2: {folder} has no train.txt, valid.txt or test.txt: obtain the data set and give its folder "
            "by config.task.data_dir"
        )
    return splits


def _articles(text: str) -> Iterator[str]:
    """The text cut before every heading of an article; nothing is lost."""
    starts = [heading.start() for heading in _HEADING.finditer(text)] or [0]
    for start, stop in zip([0, *starts[1:]], [*starts[1:], len(text)], strict=True):
        yield text[start:stop]


def read_files(path: pathlib.Path) -> dict[str, list[str]]:
    """A text file, or every .txt file in a folder and those beneath, a document each in the order of their names.

    In a folder whose files are called train.txt, validation.txt (or valid, val, dev) and test.txt, those are the
    splits. Otherwise the first 90 % of the characters train, 5 % validate and 5 % test; cuts are at line ends.

    Errors: UserError for a folder without text files, and for text too short to have three parts.
    """
    files = [path] if path.is_file() else sorted(path.rglob("*.txt"))
    if not files:
        raise UserError(f"{path} holds no .txt file")
    by_split = {split: [file for file in files if file.stem in names] for split, names in _NAMES.items()}
    if path.is_dir() and by_split["train"]:
        return {split: [read_text(file) for file in named] for split, named in by_split.items() if named}
    documents = [read_text(file) for file in files]
    total = sum(map(len, documents))
    train, rest = _cut(documents, total * 18 // 20)
    validation, test = _cut(rest, total // 20)
    splits = {"train": train, "validation": validation, "test": test}
    for split, texts in splits.items():
        if not texts:
            raise UserError(f"{path} has too little text: nothing is left for {split}; give more lines")
    return splits


def _cut(documents: Sequence[str], size: int) -> tuple[list[str], list[str]]:
    """The first `size` characters, up to the end of their last line, and the others; no empty documents."""
    before: list[str] = []
    for number, text in enumerate(documents):
        if size <= len(text):
            place = text.find("\n", max(size - 1, 0)) + 1 or len(text)
            kept = [text[:place]] if size else []
            left = text[place:] if size else text
            return [t for t in (*before, *kept) if t], [t for t in (left, *documents[number + 1 :]) if t]
        before.append(text)
        size -= len(text)
    return before, []
