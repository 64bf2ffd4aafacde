"""Open any data set of texts with a label for every word."""

import itertools
import pathlib
import re
from collections.abc import Mapping, Sequence

from transformer.config import UserError, suggest_nearest
from transformer.data.datasets.class_labels import (
    FileLabels,
    check_classes,
    classes_of_labels,
    number_labels,
    refuse_classes,
)
from transformer.data.datasets.local_files import (
    NOTHING_HELD_OUT,
    HeldOutFiles,
    divide_into_splits,
    read_own_files,
    read_text,
)
from transformer.data.datasets.synthetic_entities import LABELS, sample_entities
from transformer.data.datasets.synthetic_fine_tuning import sample_splits
from transformer.data.labeled_words import LabeledWords
from transformer.data.line_splitting import split_lines

GENERATED = "grammar/entities"
ENDINGS = (".conll", ".txt")
_DOCUMENT = "-DOCSTART-"  # of CoNLL-2003, between documents
_COLUMN_GAP = re.compile("[\t ]+")


def is_conll_file(name: str) -> bool:
    """Whether a name is that of a file in CoNLL format."""
    return pathlib.PurePath(name).suffix.lower() in ENDINGS


def word_classes(name: str, classes: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the names of the classes of a data set's words without reading it.

    Args:
        name: The name of the data set.
        classes: The labels, for files of your own.

    Raises:
        UserError: If the name is unknown, `classes` are given for a data set that has its own, or files have fewer than
            two classes or equal ones.
    """
    if is_conll_file(name):
        check_classes(name, classes)
        return classes
    refuse_classes(name, classes)
    if _is_generated(name):
        return LABELS
    raise UserError(f"config.task.dataset={name!r} is unknown: {suggest_nearest(name, (GENERATED, 'FILE.conll'))}")


def open_word_labels(
    name: str, *, data_dir: str | None = None, classes: tuple[str, ...] = (), held_out: HeldOutFiles = NOTHING_HELD_OUT
) -> Mapping[str, Sequence[LabeledWords]]:
    """Read the texts of a data set by split.

    Args:
        name: "grammar/entities" or "grammar/entities/train=512,test=64", generated sentences
            (transformer.data.datasets.synthetic_entities); or "FILE.conll" or "FILE.txt" in CoNLL format: a word a line
            in the first column, its label in the last, tabs or spaces between, and an empty line after each text.
        data_dir: The folder of the data.
        classes: The labels, for files of your own.
        held_out: The files of splits that have files of their own.

    Raises:
        UserError: If the name is unknown, or files are missing or malformed.
    """
    if not is_conll_file(name):
        word_classes(name, classes)
        held_out.refuse(name)
        options = name.removeprefix(GENERATED).removeprefix("/")
        return sample_splits(GENERATED, options, sample_entities, lambda sampled: sampled[0].texts[0])
    word_classes(name, classes)

    def read_numbered(path: pathlib.Path) -> list[LabeledWords]:
        texts = read_conll(path)
        file = FileLabels(path, [label for _, labels in texts for label in labels], ())
        numbers = iter(number_labels(file, classes, unit="word"))
        return [LabeledWords(words, tuple(itertools.islice(numbers, len(labels)))) for words, labels in texts]

    numbered = read_own_files(name, data_dir, held_out, read_numbered)
    return divide_into_splits(name, numbered, lambda example: example.texts[0])


def labels_of_words(name: str, data_dir: str | None, held_out: HeldOutFiles) -> tuple[str, ...]:
    """Return the labels of files of the user's own, in alphabetical order.

    Raises:
        UserError: If files are missing or malformed, or their labels are no classes.
    """
    splits = read_own_files(name, data_dir, held_out, read_conll)
    return classes_of_labels(name, [label for texts in splits.values() for _, labels in texts for label in labels])


def read_conll(path: pathlib.Path) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Read the words and labels of every text of a file in CoNLL format.

    Tabs and spaces part columns. Any other white space, such as a no-break space, belongs to a word.

    Raises:
        UserError: If the file is unreadable or has no words, a line has a word and no label or other columns than the
            first, or both tabs and spaces between columns, or a carriage return alone ends lines.
    """
    texts: list[list[tuple[str, str]]] = [[]]
    first: tuple[int, int] | None = None
    for number, line in enumerate(split_lines(read_text(path)), 1):
        where = f"{path}: line {number}"
        if "\r" in line:
            raise UserError(f"{where} has a carriage return within it: end lines with a line feed")
        cells = _split_columns(line, where)
        if cells == [""] or cells[0] == _DOCUMENT:
            texts.append([])
            continue
        if len(cells) == 1:
            raise UserError(
                f"{where} has one column: it needs a word, a tab or space and the word's label, with an empty line "
                "after each text"
            )
        if not cells[0].strip():
            raise UserError(f"{where} has no visible character in its word: remove the line")
        first = first or (number, len(cells))
        if len(cells) != first[1]:
            raise UserError(
                f"{where} has {len(cells)} columns and line {first[0]} has {first[1]}: every word has as many, parted "
                "by tabs or spaces"
            )
        texts[-1].append((cells[0], cells[-1]))
    if not any(texts):
        raise UserError(f"{path} is empty: it needs a line for each word")
    return [(tuple(word for word, _ in text), tuple(label for _, label in text)) for text in texts if text]


def _split_columns(line: str, where: str) -> list[str]:
    """Return the columns of a line.

    Raises:
        UserError: If tabs part them and one holds a space, which may part two columns or two words of one.
    """
    stripped = line.strip("\t ")
    if "\t" in stripped and (twofold := [cell for cell in stripped.split("\t") if " " in cell.strip(" ")]):
        raise UserError(
            f"{where} has tabs between columns and a space within {twofold[0].strip(' ')!r:.60}: part columns by tabs "
            "or by spaces, and write one word a line"
        )
    return _COLUMN_GAP.split(stripped)


def _is_generated(name: str) -> bool:
    return name == GENERATED or name.startswith(f"{GENERATED}/")
