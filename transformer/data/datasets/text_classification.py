"""Open any data set of labeled texts."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence

from transformer.config import UserError, suggest_nearest
from transformer.data.datasets.class_labels import (
    FileLabels,
    check_classes,
    classes_of_files,
    number_labels,
    refuse_classes,
)
from transformer.data.datasets.glue import GLUE_DATASETS, read_glue
from transformer.data.datasets.local_files import (
    NOTHING_HELD_OUT,
    HeldOutFiles,
    divide_into_splits,
    is_table_file,
    list_files,
    locate_file,
    read_fields,
    read_own_files,
    read_text,
)
from transformer.data.datasets.word_order import CLASSES, generate_word_order
from transformer.data.labeled_text_batches import LabeledText

TEXT_COLUMNS = ("text", "label")
_BUILT_IN = ("word_order", "glue", "grammar")  # what the names of data sets that are no files begin with


@dataclasses.dataclass(frozen=True)
class LabeledTextDataset:
    """A data set of labeled texts.

    Attributes:
        name: Its name.
        classes: The names of its classes, by number.
        splits: Its texts by split.
    """

    name: str
    classes: tuple[str, ...]
    splits: Mapping[str, Sequence[LabeledText]]

    def split(self, name: str) -> Sequence[LabeledText]:
        """Return the texts of a split.

        Raises:
            UserError: If the data set does not have it with labels.
        """
        if name not in self.splits:
            raise UserError(f"{self.name} has no labeled split {name!r}: {suggest_nearest(name, self.splits)}")
        return self.splits[name]


def open_labeled_texts(
    name: str, *, data_dir: str | None = None, classes: tuple[str, ...] = (), held_out: HeldOutFiles = NOTHING_HELD_OUT
) -> LabeledTextDataset:
    """Open a data set of labeled texts.

    Args:
        name: One of: "word_order" or "word_order/max_length=6,train=512", generated sentences
            (transformer.data.datasets.word_order); "glue/SST-2" or "glue/CoLA", whose files are in `data_dir`
            (transformer.data.datasets.glue); "FILE.tsv", "FILE.csv" or "FILE.jsonl", with the fields text and label; or
            "FOLDER", with a folder for each label and a .txt file for each text.
        data_dir: The folder of the data.
        classes: The labels, for files of your own.
        held_out: The files of splits that have files of their own.

    Raises:
        UserError: If the name is unknown, or files are missing or malformed.
    """
    kind, _, rest = name.partition("/")
    if has_own_labels(name, data_dir):
        return _open_label_files(name, data_dir, classes, held_out)
    dataset_classes = class_names(name, classes)
    held_out.refuse(name)
    return LabeledTextDataset(
        name, dataset_classes, generate_word_order(rest) if kind == "word_order" else read_glue(rest, data_dir)
    )


def labels_of_texts(name: str, data_dir: str | None, held_out: HeldOutFiles) -> tuple[str, ...]:
    """Return the labels of files of the user's own, in alphabetical order.

    Raises:
        UserError: If files are missing or malformed, or their labels are no classes.
    """
    files = read_own_files(name, data_dir, held_out, lambda path: _file_labels(path, _read_labeled(path)))
    return classes_of_files(name, list(files.values()))


def _open_label_files(
    name: str, data_dir: str | None, classes: tuple[str, ...], held_out: HeldOutFiles
) -> LabeledTextDataset:
    class_names(name, classes)

    def read(path: pathlib.Path) -> list[LabeledText]:
        rows = _read_labeled(path)
        numbers = number_labels(_file_labels(path, rows), classes)
        return [LabeledText(text, number) for (text, _), number in zip(rows, numbers, strict=True)]

    read_splits = read_own_files(name, data_dir, held_out, read)
    return LabeledTextDataset(name, classes, divide_into_splits(name, read_splits, lambda example: example.text))


def _read_labeled(path: pathlib.Path) -> list[tuple[str, str]]:
    """Read the text and the label of every example of a file, or of a folder with a folder for each label."""
    if path.is_dir():
        return _read_label_folder(path)
    return [(text.strip(), label.strip()) for text, label in read_fields(path, TEXT_COLUMNS)]


def _file_labels(path: pathlib.Path, rows: Sequence[tuple[str, str]]) -> FileLabels:
    return FileLabels(path, [label for _, label in rows], TEXT_COLUMNS)


def _read_label_folder(folder: pathlib.Path) -> list[tuple[str, str]]:
    """Read every .txt file of a folder as a text, whose label is the name of the folder within that it is in.

    Raises:
        UserError: If a file is in no folder within, is empty or has another ending, or there are none.
    """
    rows = []
    for file in list_files(folder, (".txt",)).files:
        label, *below = file.relative_to(folder).parts
        text = read_text(file).strip()
        if not below:
            raise UserError(f"{file} has no label: put it in a folder in {folder}, whose name is its label")
        if not text:
            raise UserError(f"{file} is empty: fill or remove it")
        rows.append((text, label))
    if not rows:
        raise UserError(f"{folder} holds no texts: it needs a folder for each label, with a .txt file for each text")
    return rows


def has_own_labels(name: str, data_dir: str | None) -> bool:
    """Whether a name is that of labeled files of the user's own: a table, or a folder with a folder for each label."""
    return is_table_file(name) or (not is_built_in(name) and locate_file(name, data_dir).is_dir())


def is_built_in(name: str) -> bool:
    """Whether a name is that of a data set that is generated or published; "./glue" is a folder of the user's own."""
    return name.partition("/")[0] in _BUILT_IN


def class_names(name: str, classes: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the names of a data set's classes without reading its texts.

    Args:
        name: The name of the data set.
        classes: The labels, for files of your own.

    Raises:
        UserError: If the name is unknown, `classes` are given for a data set that has its own, or files have fewer than
            two classes or equal ones.
    """
    kind, _, rest = name.partition("/")
    if is_table_file(name) or (classes and not is_built_in(name)):
        check_classes(name, classes)
        return classes
    refuse_classes(name, classes)
    if kind == "word_order":
        return CLASSES
    if kind == "glue" and rest in GLUE_DATASETS:
        return GLUE_DATASETS[rest].classes
    known_names = (
        "word_order",
        *(f"glue/{glue_name}" for glue_name in GLUE_DATASETS),
        "FILE.tsv",
        "FILE.csv",
        "FILE.jsonl",
        "FOLDER",
    )
    raise UserError(f"config.task.dataset={name!r} is unknown: {suggest_nearest(name, known_names)}")
