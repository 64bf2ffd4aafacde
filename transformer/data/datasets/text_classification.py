"""Open any data set of labeled texts."""

import dataclasses
from collections.abc import Mapping, Sequence

from transformer.config import UserError, suggest_nearest
from transformer.data.datasets.glue import GLUE_DATASETS, read_glue
from transformer.data.datasets.local_files import (
    NOTHING_HELD_OUT,
    HeldOutFiles,
    divide_into_splits,
    is_tsv_or_jsonl,
    locate_file,
    read_fields,
)
from transformer.data.datasets.word_order import CLASSES, generate_word_order
from transformer.data.labeled_text_batches import LabeledText

_FIELDS = ("text", "label")
_SHOWN = 100  # classes that a message lists


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
            (transformer.data.datasets.glue); "FILE.tsv" or "FILE.jsonl", with the fields text and label.
        data_dir: The folder of the data.
        classes: The labels, for files of your own.
        held_out: The files of splits that have files of their own.

    Raises:
        UserError: If the name is unknown, or files are missing or malformed.
    """
    kind, _, rest = name.partition("/")
    if is_tsv_or_jsonl(name):
        return _open_label_files(name, data_dir, classes, held_out)
    dataset_classes = class_names(name, classes)
    held_out.refuse(name)
    return LabeledTextDataset(
        name, dataset_classes, generate_word_order(rest) if kind == "word_order" else read_glue(rest, data_dir)
    )


def _open_label_files(
    name: str, data_dir: str | None, classes: tuple[str, ...], held_out: HeldOutFiles
) -> LabeledTextDataset:
    files = {"train": name, **held_out.by_split}
    paths = {split: locate_file(file, data_dir) for split, file in files.items()}
    rows = {
        split: [(text.strip(), label.strip()) for text, label in read_fields(path, _FIELDS)]
        for split, path in paths.items()
    }
    if not classes:
        labels = sorted({label for split_rows in rows.values() for _, label in split_rows})
        example_labels = ",".join(labels[:_SHOWN]) + (",..." if len(labels) > _SHOWN else "")
        raise UserError(f"config.task.classes is empty: say the {len(labels)} labels of {name}, as in {example_labels}")
    numbers = {label: number for number, label in enumerate(classes)}
    read = {}
    for split, split_rows in rows.items():
        if unknown := [label for _, label in split_rows if label not in numbers]:
            raise UserError(
                f"{paths[split]} has the label {unknown[0]!r}, which is none of config.task.classes: "
                f"{suggest_nearest(unknown[0], classes)}"
            )
        read[split] = [LabeledText(text, numbers[label]) for text, label in split_rows]
    return LabeledTextDataset(
        name, classes, divide_into_splits(name, read.pop("train"), lambda example: example.text, read)
    )


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
    if is_tsv_or_jsonl(name):
        if len(classes) < 2 or len(set(classes)) < len(classes):
            raise UserError(f"config.task.classes={classes} must be the labels of {name}, at least two, all different")
        return classes
    if classes:
        raise UserError(f"config.task.classes={classes} goes with files of your own alone: {name} has its own")
    if kind == "word_order":
        return CLASSES
    if kind == "glue" and rest in GLUE_DATASETS:
        return GLUE_DATASETS[rest].classes
    known_names = "word_order", *(f"glue/{glue_name}" for glue_name in GLUE_DATASETS), "FILE.tsv", "FILE.jsonl"
    raise UserError(f"config.task.dataset={name!r} is unknown: {suggest_nearest(name, known_names)}")
