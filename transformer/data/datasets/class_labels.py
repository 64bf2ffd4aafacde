"""The labels of a user's own files: which a config names, and the number of each."""

import pathlib
from collections.abc import Iterable

from transformer.config import UserError, suggest_nearest

_SHOWN = 100  # labels that a message lists


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


def missing_classes_error(name: str, labels: Iterable[str]) -> UserError:
    """Return the error for files whose config names no classes, which lists the labels of the files."""
    names = sorted(set(labels))
    example = ",".join(names[:_SHOWN]) + (",..." if len(names) > _SHOWN else "")
    return UserError(f"config.task.classes is empty: say the {len(names)} labels of {name}, as in {example}")


def class_number(label: str, classes: tuple[str, ...], path: pathlib.Path) -> int:
    """Return the number of the class of a label that a file has.

    Raises:
        UserError: If it is none of the classes.
    """
    if label not in classes:
        raise UserError(
            f"{path} has the label {label!r}, which is none of config.task.classes: {suggest_nearest(label, classes)}"
        )
    return classes.index(label)
