"""The labels of a user's own files: which a config names, and the number of each."""

import collections
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

from transformer.config import UserError, suggest_nearest
from transformer.data.datasets.local_files import format_row, headerless_first_row, join_names

_SHOWN = 100  # labels that a message lists
_FEW = 20  # labels that even a small file may have
_SMALL_FILE = 10  # lines of a file that is too small to tell a header from an example


class FileLabels(NamedTuple):
    """The labels of a user's file.

    Attributes:
        path: The file.
        labels: The label of every example.
        columns: The names of its fields, of which the last is the label.
    """

    path: pathlib.Path
    labels: Sequence[str]
    columns: Sequence[str]


def check_classes(name: str, classes: tuple[str, ...], what: str = "the labels") -> None:
    """Check the classes that a config gives for files.

    Raises:
        UserError: If there are fewer than two, or equal ones.
    """
    if len(classes) < 2 or len(set(classes)) < len(classes):
        raise UserError(f"config.task.classes={classes} must be {what} of {name}, at least two, all different")


def refuse_classes(name: str, classes: tuple[str, ...]) -> None:
    """Refuse classes for a data set that has its own.

    Raises:
        UserError: If there are any.
    """
    if classes:
        raise UserError(f"config.task.classes={classes} goes with files of your own alone: {name} has its own")


def classes_of_labels(name: str, labels: Sequence[str]) -> tuple[str, ...]:
    """Return the different labels of files in alphabetical order: the classes of a config that names none.

    Args:
        name: The name of the data set, for messages.
        labels: The label of every example of all its files.

    Raises:
        UserError: If all labels are equal, or so many differ that they are no classes.
    """
    classes = tuple(sorted(set(labels)))
    if len(classes) < 2:
        raise UserError(f"{name} has the label {classes[0]!r} alone: it needs examples with at least two labels")
    if len(classes) > max(_FEW, len(labels) // 2):
        raise UserError(
            f"{name} has {len(classes)} labels in {len(labels)} examples, such as {', '.join(classes[:3])}: name its "
            "columns text and label in the first line, or the labels by config.task.classes"
        )
    return classes


def classes_of_files(name: str, files: Sequence[FileLabels]) -> tuple[str, ...]:
    """Return the different labels of tables or folders in alphabetical order.

    Args:
        name: The name of the data set, for messages.
        files: The labels of all its files.

    Raises:
        UserError: If the labels are no classes (`classes_of_labels`), or a file of more than 10 lines names no columns
            and no other line has the label of its first, which is then most likely a header with other names.
    """
    classes = classes_of_labels(name, [label for file in files for label in file.labels])
    first_rows = [headerless_first_row(file.path, file.columns) for file in files]
    # Of a file without a header the first line does not count: all files may begin with the same other names.
    counts = collections.Counter(
        label for file, row in zip(files, first_rows, strict=True) for label in file.labels[row is not None :]
    )
    for file, row in zip(files, first_rows, strict=True):
        if row is not None and len(file.labels) > _SMALL_FILE and not counts[file.labels[0]]:
            raise UserError(
                f"{file.path}: its first line, {format_row(row)}, names no columns, and no other line has its label: "
                f"name the columns {join_names(file.columns)} there; if it is an example, name all labels by "
                "config.task.classes"
            )
    return classes


def number_labels(file: FileLabels, classes: tuple[str, ...], unit: str = "example") -> list[int]:
    """Return the number of the class of every label of a file.

    Args:
        file: The labels.
        classes: The classes.
        unit: What has a label, for the message.

    Raises:
        UserError: If a label is none of the classes; the message has the labels of the file.
    """
    numbers = {label: number for number, label in enumerate(classes)}
    for place, label in enumerate(file.labels):
        if label not in numbers:
            file_labels = sorted(set(file.labels))
            label_list = ", ".join(file_labels[:_SHOWN]) + ", ..." * (len(file_labels) > _SHOWN)
            raise UserError(
                f"{file.path}: {unit} {place + 1} has the label {label!r}, which is none of config.task.classes (the "
                f"labels of the file are {label_list}{advise_header(file, place)}): {suggest_nearest(label, classes)}"
            )
    return [numbers[label] for label in file.labels]


def advise_header(file: FileLabels, place: int) -> str:
    """Return the advice to name a file's columns, if the unusable label is that of a first line without names."""
    if place or headerless_first_row(file.path, file.columns) is None:
        return ""
    return f"; its first line names no columns: name {join_names(file.columns)} there"
