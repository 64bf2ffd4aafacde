"""The labels of a user's own files: which a config names, and the number of each."""

import pathlib
from collections.abc import Sequence

from transformer.config import UserError, suggest_nearest

_SHOWN = 100  # labels that a message lists
_FEW = 20  # labels that even a small file may have


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


def number_labels(labels: Sequence[str], classes: tuple[str, ...], path: pathlib.Path) -> list[int]:
    """Return the number of the class of every label of a file.

    Raises:
        UserError: If a label is none of the classes; the message has the labels of the file.
    """
    numbers = {label: number for number, label in enumerate(classes)}
    for label in labels:
        if label not in numbers:
            has = sorted(set(labels))
            raise UserError(
                f"{path} has the label {label!r}, which is none of config.task.classes: "
                f"{suggest_nearest(label, classes)} The labels of the file are {', '.join(has[:_SHOWN])}"
                + (", ..." if len(has) > _SHOWN else "")
            )
    return [numbers[label] for label in labels]
