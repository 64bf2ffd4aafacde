"""Examples by name: own files of two and several texts, sets of one text, what is refused."""

from pathlib import Path
from typing import Any

import pytest

from transformer.config import UserError
from transformer.data.datasets.fine_tuning import ExampleShape, FineTuningProblem, example_shape, open_examples
from transformer.data.datasets.local_files import HeldOutFiles
from transformer.data.fine_tuning_sequence_layouts import SequenceLayout
from transformer.data.labeled_text_batches import LabeledExample

PAIRS = "".join(f"premise {n}\thypothesis {n}\t{('no', 'yes')[n % 2]}\n" for n in range(80))
SCORES = "first\tsecond\tlabel\n" + "".join(f"one {n}\tother {n}\t{n / 4}\n" for n in range(80))
CHOICES = "context\ta\tb\tlabel\n" + "".join(f"story {n}\tgood {n}\tbad {n}\t{'ab'[n % 2]}\n" for n in range(80))
UNNAMED = CHOICES.partition("\n")[2]
FILES = {"pairs.tsv": PAIRS, "scores.tsv": SCORES, "choices.tsv": CHOICES, "bad.tsv": "one\tother\tgood\n"}
FILES["graded.tsv"] = "text\tlabel\n" + "".join(f"essay {n}\t{-n / 4}\n" for n in range(80))
FILES |= {"unnamed.tsv": UNNAMED, "misnamed.tsv": CHOICES.replace("context", "story", 1)}


@pytest.fixture
def folder(tmp_path: Path) -> str:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return str(tmp_path)


@pytest.mark.parametrize(
    ("problem", "name", "classes", "shape", "example"),
    [
        (
            "entailment",
            "pairs.tsv",
            ("no", "yes"),
            ExampleShape(SequenceLayout.PAIR, 2, ("no", "yes")),
            ("premise 3", "hypothesis 3", 1),
        ),
        ("similarity", "scores.tsv", (), ExampleShape(SequenceLayout.UNORDERED, 2), ("one 3", "other 3", 0.75)),
        ("regression", "graded.tsv", (), ExampleShape(SequenceLayout.SINGLE, 1), ("essay 3", -0.75)),
        ("similarity", "pairs.tsv", ("no", "yes"), ExampleShape(SequenceLayout.UNORDERED, 2, ("no", "yes")), None),
        (
            "choice",
            "choices.tsv",
            ("a", "b"),
            ExampleShape(SequenceLayout.CHOICE, 3),
            ("story 3", "good 3", "bad 3", 1),
        ),
        # Its lines hold the name of a column as well, that of the right answer.
        (
            "choice",
            "unnamed.tsv",
            ("a", "b"),
            ExampleShape(SequenceLayout.CHOICE, 3),
            ("story 3", "good 3", "bad 3", 1),
        ),
    ],
)
def test_own_files_of_several_texts_are_read_by_their_columns(
    problem: str, name: str, classes: tuple[str, ...], shape: ExampleShape, example: Any, folder: str
) -> None:
    assert example_shape(name, classes, FineTuningProblem(problem)) == shape
    splits = open_examples(name, data_dir=folder, classes=classes, problem=FineTuningProblem(problem))
    assert sum(map(len, splits.values())) == 80
    assert all(splits.values())
    read = [each for split in splits.values() for each in split]
    assert all(len(each.texts) == shape.num_texts for each in read)
    if example is not None:
        assert LabeledExample(example[:-1], example[-1]) in read


def test_a_split_may_have_a_file_of_its_own(folder: str) -> None:
    splits = open_examples(
        "scores.tsv", data_dir=folder, problem=FineTuningProblem.SIMILARITY, held_out=HeldOutFiles("scores.tsv")
    )
    assert len(splits["validation"]) == 80


def test_sets_of_one_text_are_those_of_the_task_of_classification() -> None:
    assert example_shape("glue/CoLA") == ExampleShape(SequenceLayout.SINGLE, 1, ("unacceptable", "acceptable"))
    splits = open_examples("word_order/train=3,validation=2,test=1")
    assert [len(splits[name]) for name in ("train", "validation", "test")] == [6, 4, 2]
    assert example_shape("grammar/choice").num_outputs == 1
    assert example_shape("grammar/similarity").has_scores
    assert not example_shape("grammar/choice").has_scores


@pytest.mark.parametrize(
    ("problem", "name", "classes", "says"),
    [
        ("classification", "glue/COLA", (), "did you mean 'glue/CoLA'?"),
        ("classification", "pairs.xml", (), "config.task.dataset='pairs.xml' is unknown: known: FILE.csv, FILE.jsonl"),
        ("entailment", "glue/CoLA", (), "config.task.problem=entailment goes with files of your own alone, not with"),
        ("entailment", "pairs.tsv", (), "config.task.classes=() must be the labels of pairs.tsv"),
        ("choice", "choices.tsv", ("a",), "must be the columns of the answers of choices.tsv"),
        ("classification", "grammar/choice", ("a", "b"), "goes with files of your own alone"),
        ("entailment", "pairs.tsv", ("no", "ja"), "has the label 'yes', which is none of config.task.classes"),
        (
            "choice",
            "misnamed.tsv",
            ("a", "b"),
            "misnamed.tsv: its first line names a, b, label but not context: let it",
        ),
        ("similarity", "bad.tsv", (), "has the label 'good', which is no score: give a number"),
        ("regression", "graded.tsv", ("no", "yes"), "config.task.classes=('no', 'yes') are labels, and those of"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(
    problem: str, name: str, classes: tuple[str, ...], says: str, folder: str
) -> None:
    with pytest.raises(UserError) as told:
        open_examples(name, data_dir=folder, classes=classes, problem=FineTuningProblem(problem))
    assert says in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("classes", [(), ("no", "yes")], ids=("scores", "classes"))
def test_a_pair_in_no_order_is_in_the_split_of_its_swapped_pair(classes: tuple[str, ...], tmp_path: Path) -> None:
    pairs = [(f"one {n}", f"other {n * 7 % 400}") for n in range(400)]
    both = [*pairs, *(pair[::-1] for pair in pairs)]
    (tmp_path / "pairs.tsv").write_text("".join(f"{a}\t{b}\t{'yes' if classes else 1}\n" for a, b in both))
    splits = open_examples("pairs.tsv", data_dir=str(tmp_path), classes=classes, problem=FineTuningProblem.SIMILARITY)
    found = {name: {each.texts for each in split} for name, split in splits.items()}
    for name, of_split in found.items():
        assert of_split == {texts[::-1] for texts in of_split}, name


@pytest.mark.parametrize(
    ("problem", "classes", "label", "expected"),
    [
        ("regression", (), "3.8", 3.8),
        ("regression", (), "-2.5e6", -2.5e6),
        ("regression", (), "1234567", 1234567),
        ("regression", (), "1e15", 1e15),
        ("classification", ("true", "false"), "true", 0),
        ("classification", ("true", "false"), "false", 1),
        ("classification", ("3.8", "4.0"), "4.0", 1),
    ],
)
def test_labels_of_a_jsonl_are_numbers_and_truths_too(
    problem: str, classes: tuple[str, ...], label: str, expected: float, tmp_path: Path
) -> None:
    lines = "".join(f'{{"text": "essay {n}", "label": {label}}}\n' for n in range(80))
    (tmp_path / "own.jsonl").write_text(lines)
    splits = open_examples("own.jsonl", data_dir=str(tmp_path), classes=classes, problem=FineTuningProblem(problem))
    assert {each.label for split in splits.values() for each in split} == {expected}


@pytest.mark.parametrize(
    ("label", "says"),
    [
        ("null", "line 1 has no text in 'label' but a NoneType"),
        ("[1]", "line 1 has no text in 'label' but a list"),
        ("NaN", "has the label 'nan', which is no score"),
        ("Infinity", "has the label 'inf', which is no score"),
        ("1e999", "has the label 'inf', which is no score"),
        ("true", "has the label 'true', which is no score"),
        ('"1_000"', "has the label '1_000', which is no score"),
        ("1.1e15", "has the score 1100000000000000.0, beyond 1e+15: divide all scores by a constant"),
        ('"-1.7e308"', "has the score -1.7e308, beyond 1e+15: divide all scores by a constant"),
    ],
)
def test_labels_that_are_no_scores_are_refused(label: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "own.jsonl").write_text(f'{{"text": "essay", "label": {label}}}\n' * 80)
    with pytest.raises(UserError) as told:
        open_examples("own.jsonl", data_dir=str(tmp_path), problem=FineTuningProblem.REGRESSION)
    assert says in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(("text", "what"), [("true", "a bool"), ("null", "a NoneType"), ("{}", "a dict")])
def test_a_text_is_no_truth_value(text: str, what: str, tmp_path: Path) -> None:
    (tmp_path / "own.jsonl").write_text(f'{{"text": {text}, "label": 1}}\n')
    with pytest.raises(UserError, match=f"line 1 has no text in 'text' but {what}"):
        open_examples("own.jsonl", data_dir=str(tmp_path), problem=FineTuningProblem.REGRESSION)
