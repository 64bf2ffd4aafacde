"""One way to open any set of examples for fine-tuning: of one text, of two, or of several to choose from."""

import dataclasses
from collections.abc import Mapping, Sequence

from transformer.config import UserError, nearest
from transformer.data.datasets.glue import SETS
from transformer.data.datasets.grammar import PROBLEMS, grammar, problem_of
from transformer.data.datasets.labelled import PREFIX, classes_of, open_labelled
from transformer.data.datasets.own_files import NONE_HELD, HeldOut, divide, located, read_fields
from transformer.data.input_forms import Form
from transformer.data.labelled import Example

# The names of own files of several texts, and the columns of the two.
_OF_SEVERAL = {"entailment": Form.PAIR, "similarity": Form.UNORDERED, "choice": Form.CHOICE}
_COLUMNS = {"entailment": ("premise", "hypothesis"), "similarity": ("first", "second"), "choice": ("context",)}


@dataclasses.dataclass(frozen=True)
class Shape:
    """What the examples of a set are: their form, how many texts each has, and its classes; none for scores or choices.

    The outputs of a model for each sequence are the classes, or one number.
    """

    form: Form
    texts: int
    classes: tuple[str, ...] = ()

    @property
    def sequences(self) -> int:
        """The sequences that an example makes."""
        return self.form.sequences(self.texts)

    @property
    def outputs(self) -> int:
        """The numbers that a model gives for each sequence."""
        return max(len(self.classes), 1)

    @property
    def scores(self) -> bool:
        """Whether an example's label is a score, not the number of a class or of an answer."""
        return not self.classes and self.form is not Form.CHOICE


def own_files(name: str) -> bool:
    """Whether the name of a set is that of files of one's own."""
    return name.partition("/")[0] in (PREFIX, *_OF_SEVERAL)


def shape_of(name: str, classes: tuple[str, ...] = ()) -> Shape:
    """What a set's examples are, of which nothing is read.

    Errors: UserError for an unknown name, for `classes` of a set that has its own, and for own files without them.
    """
    kind, _, rest = name.partition("/")
    if kind == "grammar":
        problem = problem_of(rest)
        if classes:
            raise UserError(f"config.task.classes={classes} goes with files of your own alone: {name} has its own")
        return Shape(problem.form, problem.texts, problem.classes)
    sets_of_glue = tuple(f"glue/{each}" for each in SETS)
    if kind in (PREFIX, "word_order") or name in sets_of_glue:
        return Shape(Form.SINGLE, 1, classes_of(name, classes))
    if kind not in _OF_SEVERAL:
        files = tuple(f"{each}/FILE.tsv" for each in (PREFIX, *_OF_SEVERAL))
        known = *(f"grammar/{each}" for each in PROBLEMS), *sets_of_glue, "word_order", *files
        raise UserError(f"config.task.dataset={name!r} is unknown: {nearest(name, known)}")
    if kind == "similarity" and not classes:
        return Shape(Form.UNORDERED, 2)
    if len(classes) < 2 or len(set(classes)) < len(classes):
        what = "the columns of the answers" if kind == "choice" else "the labels"
        raise UserError(f"config.task.classes={classes} must be {what} of {name}, at least two, all different")
    if kind == "choice":
        return Shape(Form.CHOICE, 1 + len(classes))
    return Shape(_OF_SEVERAL[kind], 2, classes)


def open_examples(
    name: str, *, data_dir: str | None = None, classes: tuple[str, ...] = (), held_out: HeldOut = NONE_HELD
) -> Mapping[str, Sequence[Example]]:
    """The examples of a set by split.

    `name` is one of: "grammar/acceptability", "grammar/entailment", "grammar/similarity" or "grammar/choice", made here
    (transformer.data.datasets.grammar); "glue/...", "word_order" and "labelled/FILE" as in
    transformer.data.datasets.labelled, of one text; or files of two and more, .tsv or .jsonl: "entailment/FILE" with
    premise, hypothesis and label; "similarity/FILE" with first, second and label, a score where there are no `classes`;
    "choice/FILE" with context, a column for each answer, which `classes` name, and in label the right one's name.

    Errors: UserError, of one line saying what to do, for an unknown name and for missing or unfit files.
    """
    kind, _, rest = name.partition("/")
    if kind == "grammar":
        shape_of(name, classes)
        held_out.refuse(name)
        return grammar(rest)
    if kind not in _OF_SEVERAL:
        if not own_files(name):
            shape_of(name, classes)
        opened = open_labelled(name, data_dir=data_dir, classes=classes, held_out=held_out)
        return {
            split: [Example((text,), label) for text, label in examples] for split, examples in opened.splits.items()
        }
    shape = shape_of(name, classes)
    columns = (*_COLUMNS[kind], *(classes if shape.form is Form.CHOICE else ()), "label")
    files = {"train": rest, **held_out.named}
    read = {}
    for split, file in files.items():
        path = located(file, data_dir)
        read[split] = [
            Example(tuple(map(str.strip, texts)), _label(label.strip(), classes, str(path)))
            for *texts, label in read_fields(path, columns)
        ]
    return divide(name, read.pop("train"), lambda each: each.texts[0], read)


def _label(label: str, classes: tuple[str, ...], path: str) -> float:
    """The number of a class, or a score."""
    if classes:
        if label not in classes:
            raise UserError(
                f"{path} has the label {label!r}, which is none of config.task.classes: {nearest(label, classes)}"
            )
        return classes.index(label)
    try:
        score = float(label)
    except ValueError:
        score = float("nan")
    if not abs(score) < 1e6:
        raise UserError(
            f"{path} has the label {label!r}, which is no score: give a number, or name the labels by "
            "config.task.classes"
        )
    return score
