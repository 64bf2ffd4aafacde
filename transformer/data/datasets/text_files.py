"""Texts from files: files of any kind, tiny Shakespeare, WikiText, and CPython's own documentation."""

import hashlib
import pathlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from transformer.config import UserError
from transformer.data.datasets.local_files import (
    SPLITS,
    FolderListing,
    list_files,
    read_fields,
    read_text,
    refuse_as_plain_text,
    split_from_file_name,
    split_spellings,
)
from transformer.data.line_splitting import split_lines
from transformer.system.terminal import pluralize

_SUFFIXES = (".txt", ".jsonl")
# An article's heading is alone between two empty lines; headings of sections have more equals signs.
_HEADING = re.compile(r"^ ?\n = [^=\n]+ = \n(?= ?\n)", re.MULTILINE)
# About one topic in ten is for validation, and one for test.
_TOPIC_PARTS = 10


def read_tinyshakespeare(folder: pathlib.Path) -> dict[str, list[str]]:
    """Read tiny Shakespeare (Karpathy 2015): the first 90% of its characters for training, the rest for validation.

    Raises:
        UserError: If its file, input.txt, is missing.
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


def read_wikitext(folder: pathlib.Path) -> dict[str, list[str]]:
    """Read WikiText (Merity et al. 2017), an article per document, from the splits whose files exist.

    A split is <split>.txt, or wiki.<split>.tokens or .raw as published; validation is called valid.

    Raises:
        UserError: If no split has a file.
    """
    splits: dict[str, list[str]] = {}
    for split in SPLITS:
        for name in split_spellings(split):
            for path in (folder / f"{name}.txt", folder / f"wiki.{name}.tokens", folder / f"wiki.{name}.raw"):
                if split not in splits and path.is_file():
                    splits[split] = list(_split_articles(read_text(path)))
    if not splits:
        raise UserError(
            f"wikitext-2: {folder} has no train.txt, valid.txt or test.txt: obtain the data set and give its folder "
            "by config.task.data_dir"
        )
    return splits


def _split_articles(text: str) -> Iterator[str]:
    """Cut the text before every heading of an article; nothing is lost."""
    starts = [heading.start() for heading in _HEADING.finditer(text)] or [0]
    for start, stop in zip([0, *starts[1:]], [*starts[1:], len(text)], strict=True):
        yield text[start:stop]


class SplitTexts(NamedTuple):
    """The documents of files.

    Attributes:
        splits: The documents by split.
        named_splits: The splits that names of files and folders say.
        left_out: The names of files that are not read.
    """

    splits: dict[str, list[str]]
    named_splits: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


def read_text_splits(path: pathlib.Path, held_out: Mapping[str, pathlib.Path] = MappingProxyType({})) -> SplitTexts:
    """Read the documents of text files by split.

    A text file is a document, and so is the field "text" of every line of a .jsonl; a folder has those of all .txt and
    .jsonl files in it and its subfolders, in the order of their names. A file or folder whose name says a split, such
    as train.txt, valid.jsonl or test-00001.txt, belongs to that split. If no name says "train", the first 90% of the
    other files' characters are for training, 5% for validation and 5% for test, cut at line ends; nothing is cut for
    a split that has files.

    Args:
        path: The file or folder.
        held_out: The files or folders of splits that have their own.

    Raises:
        UserError: If a folder has no texts or other files, has files of train next to files that say no split, or says
            a split twice, or a text is empty or has too few lines to be cut.
    """
    listing = _list_text_files(path)
    unassigned, by_name = files_by_split(path, listing.files)
    held_out_listings = {split: _list_text_files(files) for split, files in held_out.items()}
    left_out = (*listing.left_out, *(name for files in held_out_listings.values() for name in files.left_out))
    if twice := [split for split in held_out_listings if split in by_name]:
        raise UserError(
            f"{path} has {by_name[twice[0]][0].relative_to(path)}, but config.task.{twice[0]}_files names others: "
            "remove one of the two"
        )
    files = {**by_name, **{split: held_out_listing.files for split, held_out_listing in held_out_listings.items()}}
    own_splits = {split: _read_documents(files[split]) for split in SPLITS if split in files}
    if "train" in own_splits:
        return SplitTexts(own_splits, tuple(by_name), left_out)
    documents = _read_documents(unassigned)
    if len(own_splits) == len(SPLITS) - 1:
        return SplitTexts({"train": documents, **own_splits}, tuple(by_name), left_out)
    total = sum(map(len, documents))
    # Nothing is cut for a split that has files; its share stays in training.
    train, remainder = _cut_at_line_end(documents, total * (18 + len(own_splits)) // 20)
    validation, test = _cut_at_line_end(
        remainder, 0 if "validation" in own_splits else total if "test" in own_splits else total // 20
    )
    splits = {"train": train, "validation": validation, "test": test} | own_splits
    for split, texts in splits.items():
        if not texts:
            num_lines = sum(len(split_lines(text)) for text in documents)
            own_files = "" if split == "train" else f", or give files by config.task.{split}_files"
            raise UserError(
                f"{path} has too few lines: its {total:,} characters are cut at line ends, and stand in "
                f"{pluralize(num_lines, 'line')}, so nothing is left for {split}; break it into more lines{own_files}"
            )
    return SplitTexts(splits, tuple(by_name), left_out)


def files_by_split(
    path: pathlib.Path, files: Sequence[pathlib.Path]
) -> tuple[Sequence[pathlib.Path], dict[str, list[pathlib.Path]]]:
    """Return the files of a folder that are to be cut, and those of the splits that their names say."""
    if not path.is_dir():
        return files, {}
    unassigned: list[pathlib.Path] = []
    by_name: dict[str, list[pathlib.Path]] = {split: [] for split in SPLITS}
    for file in files:
        top, *beneath = file.relative_to(path).parts
        split = (split_from_file_name(top) if beneath else None) or split_from_file_name(file.stem)
        (unassigned if split is None else by_name[split]).append(file)
    by_name = {split: split_files for split, split_files in by_name.items() if split_files}
    if set(by_name) <= {"train"} and not unassigned:
        return files, {}
    if unassigned and "train" in by_name:
        more = f" and {len(unassigned) - 1:,} more" if len(unassigned) > 1 else ""
        raise UserError(
            f"{path} has {by_name['train'][0].relative_to(path)}, and beside it "
            f"{unassigned[0].relative_to(path)}{more}, whose names say no split: "
            "rename them, such as train-2.txt, or remove them"
        )
    if not unassigned and "train" not in by_name:
        raise UserError(f"{path} has texts for {', '.join(by_name)} alone: add a train.txt")
    return unassigned, by_name


def _list_text_files(path: pathlib.Path) -> FolderListing:
    """Return the file, or the text files in a folder and its subfolders.

    Raises:
        UserError: If a folder has none, or has other files, or the file is a table or a JSON document.
    """
    if not path.is_dir():
        refuse_as_plain_text(str(path))
        return FolderListing((path,), ())
    listing = list_files(path, _SUFFIXES)
    if not listing.files:
        raise UserError(f"{path} holds no .txt file, and no .jsonl: name a folder with texts, or a file")
    return listing


def _read_documents(files: Sequence[pathlib.Path]) -> list[str]:
    """Read the documents of files.

    Raises:
        UserError: If a file is empty or not UTF-8, or a line of a .jsonl has no text.
    """
    documents: list[str] = []
    for file in files:
        texts = (
            [text for (text,) in read_fields(file, ("text",))] if file.suffix.lower() == ".jsonl" else [read_text(file)]
        )
        if not any(map(str.strip, texts)):
            raise UserError(f"{file} is empty: give it text, or remove it")
        documents += texts
    return documents


def _cut_at_line_end(documents: Sequence[str], size: int) -> tuple[list[str], list[str]]:
    """Return the first `size` characters, up to the end of their last line, and the rest; without empty documents."""
    before: list[str] = []
    for number, text in enumerate(documents):
        if size <= len(text):
            place = text.find("\n", max(size - 1, 0)) + 1 or len(text)
            head = [text[:place]] if size else []
            tail = text[place:] if size else text
            return [t for t in (*before, *head) if t], [t for t in (tail, *documents[number + 1 :]) if t]
        before.append(text)
        size -= len(text)
    return before, []


def read_python_docs() -> tuple[dict[str, list[str]], str]:
    """Return the topics of Python's documentation by split, and the version of Python, as versions differ a little.

    A topic's split depends only on its name, so that most of a split stays the same across versions. A topic with the
    text of another is left out, so that no split has a text of another.

    Raises:
        UserError: If Python was installed without its documentation.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise UserError(
            f"python_docs: this Python ({sys.executable}) was installed without its documentation, pydoc_data; "
            "use another, or name a text file by config.task.dataset"
        ) from error
    splits: dict[str, list[str]] = {"train": [], "validation": [], "test": []}
    seen_topics = set()
    for name in sorted(topics):
        if topics[name] not in seen_topics:
            seen_topics.add(topics[name])
            splits[_assign_topic_split(name)].append(topics[name])
    return splits, f"Python {sys.version}"


def _assign_topic_split(name: str) -> str:
    bucket = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % _TOPIC_PARTS
    return {8: "validation", 9: "test"}.get(bucket, "train")
