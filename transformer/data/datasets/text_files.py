"""Text files that their user already has: any, tiny Shakespeare's, and WikiText's."""

import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from transformer.config import UserError
from transformer.data.datasets.own_files import check_inside, read_fields, read_text

_NAMES = {"train": ("train",), "validation": ("validation", "valid", "val", "dev"), "test": ("test",)}
_SUFFIXES = (".txt", ".jsonl")
# An article's heading stands alone between two empty lines; its sections have more of the signs.
_HEADING = re.compile(r"^ ?\n = [^=\n]+ = \n(?= ?\n)", re.MULTILINE)


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


def read_files(
    path: pathlib.Path, held_out: Mapping[str, pathlib.Path] = MappingProxyType({})
) -> tuple[dict[str, list[str]], bool]:
    """The documents of text files by split, and whether the splits were cut here.

    A text file is a document, and so is the field text of every line of a .jsonl; a folder has those of all .txt and
    .jsonl files in it and beneath it, in the order of their names. In a folder whose files are called train.txt,
    validation.txt (or valid, val, dev) and test.txt, or .jsonl, those are the splits. `held_out` are files or folders
    of splits that have their own. Otherwise the first 90 % of the characters train, 5 % validate and 5 % test; cuts
    are at line ends.

    Errors: UserError for a folder without texts, a text that is empty, a link that leads out of the folder, and for
    text too short to have its parts.
    """
    files = _files_of(path)
    by_split = {split: [file for file in files if file.stem in names] for split, names in _NAMES.items()}
    own = {split: _documents(_files_of(held)) for split, held in held_out.items()}
    if path.is_dir() and by_split["train"]:
        return {split: _documents(named) for split, named in by_split.items() if named} | own, False
    documents = _documents(files)
    if len(own) == len(_NAMES) - 1:
        return {"train": documents, **own}, False
    total = sum(map(len, documents))
    # Of a split with files of its own nothing is cut: its part trains.
    train, rest = _cut(documents, total * (18 + len(own)) // 20)
    validation, test = _cut(rest, 0 if "validation" in own else total if "test" in own else total // 20)
    splits = {"train": train, "validation": validation, "test": test} | own
    for split, texts in splits.items():
        if not texts:
            raise UserError(f"{path} has too little text: nothing is left for {split}; give more lines")
    return splits, True


def _files_of(path: pathlib.Path) -> list[pathlib.Path]:
    """The file, or the text files in a folder and beneath it.

    Errors: UserError for a folder without any, and for a link in it that leads out of it.
    """
    if not path.is_dir():
        return [path]
    files = sorted(each for each in path.rglob("*") if each.suffix in _SUFFIXES and each.is_file())
    if not files:
        raise UserError(f"{path} holds no .txt file, and no .jsonl: name a folder with texts, or a file")
    for file in files:
        check_inside(file, path)
    return files


def _documents(files: Sequence[pathlib.Path]) -> list[str]:
    """The documents of files.

    Errors: UserError for a file that is empty or not UTF-8, and for a line of a .jsonl without text.
    """
    documents: list[str] = []
    for file in files:
        texts = [text for (text,) in read_fields(file, ("text",))] if file.suffix == ".jsonl" else [read_text(file)]
        if not any(map(str.strip, texts)):
            raise UserError(f"{file} is empty: give it text, or remove it")
        documents += texts
    return documents


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
