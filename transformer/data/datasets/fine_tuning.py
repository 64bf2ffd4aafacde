"""Open any data set of examples for fine-tuning: of one text, of two, or of several to choose from."""

import dataclasses
import enum
import math
import pathlib
from collections.abc import Mapping, Sequence

from transformer.config import UserError, suggest_nearest
from transformer.data.datasets.class_labels import (
    FileLabels,
    advise_header,
    check_classes,
    classes_of_files,
    number_labels,
    refuse_classes,
)
from transformer.data.datasets.glue import GLUE_DATASETS
from transformer.data.datasets.local_files import (
    NOTHING_HELD_OUT,
    HeldOutFiles,
    divide_into_splits,
    is_table_file,
    read_fields,
    read_own_files,
)
from transformer.data.datasets.split_overlap import normalize_text
from transformer.data.datasets.synthetic_fine_tuning import PROBLEMS, find_problem, generate_grammar_examples
from transformer.data.datasets.text_classification import (
    TEXT_COLUMNS,
    class_names,
    has_own_labels,
    is_built_in,
    labels_of_texts,
    open_labeled_texts,
)
from transformer.data.fine_tuning_sequence_layouts import SequenceLayout
from transformer.data.labeled_text_batches import LabeledExample, LabeledText

# Squared errors of greater scores, summed over a batch, would be infinite in float32.
_GREATEST_SCORE = 1e15


class FineTuningProblem(enum.Enum):
    """The problem that files of your own pose, which determines their columns in addition to `label`.

    Attributes:
        CLASSIFICATION: `text`.
        REGRESSION: `text`, whose label is a score.
        ENTAILMENT: `premise` and `hypothesis`.
        SIMILARITY: `first` and `second`.
        CHOICE: `context` and a column for each answer.
    """

    CLASSIFICATION = "classification"
    REGRESSION = "regression"
    ENTAILMENT = "entailment"
    SIMILARITY = "similarity"
    CHOICE = "choice"


_COLUMNS = {
    FineTuningProblem.CLASSIFICATION: TEXT_COLUMNS[:-1],
    FineTuningProblem.REGRESSION: ("text",),
    FineTuningProblem.ENTAILMENT: ("premise", "hypothesis"),
    FineTuningProblem.SIMILARITY: ("first", "second"),
    FineTuningProblem.CHOICE: ("context",),
}


@dataclasses.dataclass(frozen=True)
class ExampleShape:
    """The shape of a data set's examples.

    Attributes:
        layout: The layout of their sequences.
        num_texts: The number of texts in an example.
        classes: The names of the classes; empty for scores and choices.
    """

    layout: SequenceLayout
    num_texts: int
    classes: tuple[str, ...] = ()

    @property
    def num_sequences(self) -> int:
        """The number of sequences of an example."""
        return self.layout.num_sequences(self.num_texts)

    @property
    def num_outputs(self) -> int:
        """The number of outputs of a model for each sequence: one for each class, or a single one."""
        return max(len(self.classes), 1)

    @property
    def has_scores(self) -> bool:
        """Whether a label is a score, and not the number of a class or an answer."""
        return not self.classes and self.layout is not SequenceLayout.CHOICE


def example_shape(
    name: str, classes: tuple[str, ...] = (), problem: FineTuningProblem = FineTuningProblem.CLASSIFICATION
) -> ExampleShape:
    """Return the shape of a data set's examples without reading them.

    Args:
        name: The name of the data set.
        classes: The labels, or the columns of the answers, for files of your own.
        problem: The problem, for files of your own.

    Raises:
        UserError: If the name is unknown, `classes` or `problem` are given for a data set that has its own, or files
            have no classes.
    """
    kind, _, problem_spec = name.partition("/")
    is_own_file = is_table_file(name) or (bool(classes) and not is_built_in(name))
    if problem is not FineTuningProblem.CLASSIFICATION and not is_own_file:
        raise UserError(f"config.task.problem={problem.value} goes with files of your own alone, not with {name!r}")
    glue_names = tuple(f"glue/{glue_name}" for glue_name in GLUE_DATASETS)
    if is_own_file and problem is not FineTuningProblem.CLASSIFICATION:
        return _file_example_shape(name, classes, problem)
    if is_own_file or kind == "word_order" or name in glue_names:
        return ExampleShape(SequenceLayout.SINGLE, 1, class_names(name, classes))
    if kind != "grammar":
        known_names = (
            *(f"grammar/{grammar_name}" for grammar_name in PROBLEMS),
            *glue_names,
            "word_order",
            "FILE.tsv",
            "FILE.csv",
            "FILE.jsonl",
            "FOLDER",
        )
        raise UserError(f"config.task.dataset={name!r} is unknown: {suggest_nearest(name, known_names)}")
    grammar_problem = find_problem(problem_spec)
    refuse_classes(name, classes)
    return ExampleShape(grammar_problem.layout, grammar_problem.num_texts, grammar_problem.classes)


def _file_example_shape(name: str, classes: tuple[str, ...], problem: FineTuningProblem) -> ExampleShape:
    """Return the shape of examples in files, other than texts of one class each."""
    if problem is FineTuningProblem.REGRESSION:
        if classes:
            raise UserError(
                f"config.task.classes={classes} are labels, and those of config.task.problem=regression are scores: "
                "leave out one of them"
            )
        return ExampleShape(SequenceLayout.SINGLE, 1)
    if problem is FineTuningProblem.SIMILARITY and not classes:
        return ExampleShape(SequenceLayout.UNORDERED, 2)
    check_classes(name, classes, "the columns of the answers" if problem is FineTuningProblem.CHOICE else "the labels")
    if problem is FineTuningProblem.CHOICE:
        return ExampleShape(SequenceLayout.CHOICE, 1 + len(classes))
    return ExampleShape(
        SequenceLayout.PAIR if problem is FineTuningProblem.ENTAILMENT else SequenceLayout.UNORDERED, 2, classes
    )


def open_examples(
    name: str,
    *,
    data_dir: str | None = None,
    classes: tuple[str, ...] = (),
    problem: FineTuningProblem = FineTuningProblem.CLASSIFICATION,
    held_out: HeldOutFiles = NOTHING_HELD_OUT,
) -> Mapping[str, Sequence[LabeledExample]]:
    """Read the examples of a data set by split.

    Args:
        name: One of: "grammar/acceptability", "grammar/entailment", "grammar/similarity" or "grammar/choice", which are
            generated (transformer.data.datasets.synthetic_fine_tuning); "glue/..." or "word_order"
            (transformer.data.datasets.text_classification); or files, "FILE.tsv", "FILE.csv" or
            "FILE.jsonl", with the columns of `problem`.
        data_dir: The folder of the data.
        classes: The labels, for files of your own. A similarity without classes is a score. For a choice, the columns
            of the answers; its label is the column of the correct one.
        problem: The problem, for files of your own.
        held_out: The files of splits that have files of their own.

    Raises:
        UserError: If the name is unknown, or files are missing or malformed.
    """
    kind, _, problem_spec = name.partition("/")
    if problem is FineTuningProblem.CLASSIFICATION and has_own_labels(name, data_dir):
        return _wrap_single_texts(
            open_labeled_texts(name, data_dir=data_dir, classes=classes, held_out=held_out).splits
        )
    shape = example_shape(name, classes, problem)
    if is_table_file(name):
        columns = file_columns(problem, classes)

        def read(path: pathlib.Path) -> list[LabeledExample]:
            rows = read_fields(path, columns)
            labels = _convert_labels(_file_labels(path, rows, columns), classes)
            return [
                LabeledExample(tuple(map(str.strip, row[:-1])), label) for row, label in zip(rows, labels, strict=True)
            ]

        # A pair in no order belongs where its swapped pair does: by the text that comes first in the alphabet.
        return divide_into_splits(
            name,
            read_own_files(name, data_dir, held_out, read),
            lambda example: shape.layout.canonical_texts(list(map(normalize_text, example.texts)))[0],
        )
    if kind == "grammar":
        held_out.refuse(name)
        return generate_grammar_examples(problem_spec)
    return _wrap_single_texts(open_labeled_texts(name, data_dir=data_dir, classes=classes, held_out=held_out).splits)


def _wrap_single_texts(splits: Mapping[str, Sequence[LabeledText]]) -> dict[str, list[LabeledExample]]:
    return {split: [LabeledExample((text,), label) for text, label in examples] for split, examples in splits.items()}


def labels_of_examples(
    name: str, data_dir: str | None, problem: FineTuningProblem, held_out: HeldOutFiles
) -> tuple[str, ...]:
    """Return the labels of files of the user's own, in alphabetical order; () where labels are no classes.

    Raises:
        UserError: If files are missing or malformed, or their labels are no classes.
    """
    if problem is FineTuningProblem.CLASSIFICATION:
        return labels_of_texts(name, data_dir, held_out) if has_own_labels(name, data_dir) else ()
    if problem is not FineTuningProblem.ENTAILMENT:
        return ()
    columns = file_columns(problem)
    files = read_own_files(
        name, data_dir, held_out, lambda path: _file_labels(path, read_fields(path, columns), columns)
    )
    return classes_of_files(name, list(files.values()))


def file_columns(problem: FineTuningProblem, classes: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the columns of files of the user's own; `classes` are those of the answers of a choice."""
    return (*_COLUMNS[problem], *(classes if problem is FineTuningProblem.CHOICE else ()), TEXT_COLUMNS[-1])


def _file_labels(path: pathlib.Path, rows: Sequence[tuple[str, ...]], columns: Sequence[str]) -> FileLabels:
    return FileLabels(path, [row[-1].strip() for row in rows], columns)


def _convert_labels(file: FileLabels, classes: tuple[str, ...]) -> Sequence[float]:
    """Convert the labels of a file to the numbers of their classes, or to scores."""
    return number_labels(file, classes) if classes else [_convert_score(file, n) for n in range(len(file.labels))]


def _convert_score(file: FileLabels, place: int) -> float:
    """Convert the label of an example to a score."""
    label = file.labels[place]
    try:
        # Python takes an underscore between digits, which no other program writes.
        score = float("" if "_" in label else label)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise UserError(
            f"{file.path}: example {place + 1} has the label {label!r}, which is no score: give a number, or name the "
            f"labels by config.task.classes{advise_header(file, place)}"
        )
    if abs(score) > _GREATEST_SCORE:
        raise UserError(
            f"{file.path}: example {place + 1} has the score {label}, beyond {_GREATEST_SCORE:g}: divide all scores "
            "by a constant, since their squares must be numbers of 32 bits"
        )
    return score
