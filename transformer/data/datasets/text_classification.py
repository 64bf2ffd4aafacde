"""Open any data set of labeled texts."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence

from transformer.config import UserError, suggest_nearest
from transformer.data.datasets.class_labels import check_classes, class_number, missing_classes_error, refuse_classes
from transformer.data.datasets.glue import GLUE_DATASETS, read_glue
from transformer.data.datasets.local_files import (
    NOTHING_HELD_OUT,
    HeldOutFiles,
    divide_into_splits,
    is_table_file,
    read_fields,
    read_own_files,
)
from transformer.data.datasets.word_order import CLASSES, generate_word_order
from transformer.data.labeled_text_batches import LabeledText

_FIELDS = ("text", "label")


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
            (transformer.data.datasets.glue); "FILE.tsv", "FILE.csv" or "FILE.jsonl", with the fields text and label.
        data_dir: The folder of the data.
        classes: The labels, for files of your own.
        held_out: The files of splits that have files of their own.

    Raises:
        UserError: If the name is unknown, or files are missing or malformed.
    """
    kind, _, rest = name.partition("/")
    if is_table_file(name):
        return _open_label_files(name, data_dir, classes, held_out)
    dataset_classes = class_names(name, classes)
    held_out.refuse(name)
    return LabeledTextDataset(
        name, dataset_classes, generate_word_order(rest) if kind == "word_order" else read_glue(rest, data_dir)
    )


def _open_label_files(
    name: str, data_dir: str | None, classes: tuple[str, ...], held_out: HeldOutFiles
) -> LabeledTextDataset:
    if not classes:
        rows = read_own_files(name, data_dir, held_out, lambda path: read_fields(path, _FIELDS))
        raise missing_classes_error(name, (label.strip() for split in rows.values() for _, label in split))

    def read(path: pathlib.Path) -> list[LabeledText]:
        return [
            LabeledText(text.strip(), class_number(label.strip(), classes, path))
            for text, label in read_fields(path, _FIELDS)
        ]

    read_splits = read_own_files(name, data_dir, held_out, read)
    return LabeledTextDataset(name, classes, divide_into_splits(name, read_splits, lambda example: example.text))


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
    if is_table_file(name):
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
    )
    raise UserError(f"config.task.dataset={name!r} is unknown: {suggest_nearest(name, known_names)}")
