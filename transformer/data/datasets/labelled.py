"""One way to open any set of labelled texts."""

import dataclasses
from collections.abc import Mapping, Sequence

from transformer.config import UserError, nearest
from transformer.data.datasets.glue import SETS, glue
from transformer.data.datasets.word_order import CLASSES, word_order
from transformer.data.labelled import Labelled


@dataclasses.dataclass(frozen=True)
class LabelledSet:
    """A set of labelled texts: the names of its classes by number, and its texts by split."""

    name: str
    classes: tuple[str, ...]
    splits: Mapping[str, Sequence[Labelled]]

    def split(self, name: str) -> Sequence[Labelled]:
        """The texts of a split.

        Errors: UserError for a split that the set does not have with labels.
        """
        if name not in self.splits:
            raise UserError(f"{self.name} has no labelled split {name!r}: {nearest(name, self.splits)}")
        return self.splits[name]


def open_labelled(name: str, *, data_dir: str | None = None) -> LabelledSet:
    """Open a set of labelled texts.

    `name` is one of: "word_order" or "word_order/longest=6,train=512", sentences made here
    (transformer.data.datasets.word_order); "glue/SST-2" or "glue/CoLA", whose files lie in `data_dir`
    (transformer.data.datasets.glue).

    Errors: UserError, of one line saying what to do, for an unknown name and for missing or unfit files.
    """
    classes, (kind, _, rest) = classes_of(name), name.partition("/")
    return LabelledSet(name, classes, word_order(rest) if kind == "word_order" else glue(rest, data_dir))


def classes_of(name: str) -> tuple[str, ...]:
    """The names of a set's classes, of which its texts are not read.

    Errors: UserError for an unknown name.
    """
    kind, _, rest = name.partition("/")
    if kind == "word_order":
        return CLASSES
    if kind == "glue" and rest in SETS:
        return SETS[rest].classes
    known = "word_order", *(f"glue/{each}" for each in SETS)
    raise UserError(f"config.task.dataset={name!r} is unknown: {nearest(name, known)}")
