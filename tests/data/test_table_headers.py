"""The first line of a .tsv or .csv: what is a header, what is an example, and what is refused as neither."""

import csv
import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from transformer.config import UserError
from transformer.data.datasets.fine_tuning import FineTuningProblem, labels_of_examples, open_examples
from transformer.data.datasets.local_files import NOTHING_HELD_OUT, HeldOutFiles, describe_missing_headers, read_fields
from transformer.data.datasets.text_classification import labels_of_texts, open_labeled_texts

REVIEWS = [(f"film {number}", ("bad", "good")[number % 2]) for number in range(40)]
IMDB = [("review", "sentiment"), *REVIEWS]


def write(path: Path, rows: Sequence[Sequence[str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",").writerows(rows)


def labels(folder: Path, name: str, held_out: HeldOutFiles = NOTHING_HELD_OUT) -> tuple[str, ...]:
    return labels_of_texts(name, str(folder), held_out)


def refusal(act: Callable[[], object]) -> str:
    with pytest.raises(UserError) as refused:
        act()
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("name", ["x.csv", "x.tsv"])
def test_a_first_line_whose_label_no_other_line_has_is_refused(name: str, tmp_path: Path) -> None:
    write(tmp_path / name, IMDB)
    assert refusal(lambda: labels(tmp_path, name)) == (
        f'{tmp_path / name}: its first line, "review" -> "sentiment", names no columns, and no other line has its '
        "label: name the columns text and label there; if it is an example, name all labels by config.task.classes"
    )
    # The classes that a config names are its labels, whatever the first line is.
    write(tmp_path / name, [("film", "awful"), *REVIEWS])
    splits = open_labeled_texts(name, data_dir=str(tmp_path), classes=("awful", "bad", "good")).splits
    assert sum(map(len, splits.values())) == 41


def test_quoted_line_ends_and_control_characters_stay_in_one_line(tmp_path: Path) -> None:
    write(tmp_path / "x.csv", [('the\n"review"\x1b[2J' + " word" * 40, "senti\r\nment"), *REVIEWS])
    message = refusal(lambda: labels(tmp_path, "x.csv"))
    assert (
        r"""its first line, "the \"review\"\u001b[2J word word word word wor..." -> "senti ment", names no columns"""
        in message
    )


@pytest.mark.parametrize(
    "rows",
    [
        REVIEWS,
        [("text", "label"), ("a film", "awful"), *REVIEWS],  # the first example of a file with a header
        [("label", "text"), ("awful", "a film"), *((label, text) for text, label in REVIEWS)],
        IMDB[:10],  # too few lines to tell
        [("a film", "awful"), *REVIEWS, ("another film", "awful")],
    ],
)
def test_other_first_lines_are_read(rows: Sequence[tuple[str, str]], tmp_path: Path) -> None:
    write(tmp_path / "x.csv", rows)
    has_header = {"text", "label"} == set(rows[0])
    column = rows[0].index("label") if has_header else 1
    assert labels(tmp_path, "x.csv") == tuple(sorted({row[column] for row in rows[has_header:]}))


def test_small_files_are_read_and_eleven_lines_are_not_few(tmp_path: Path) -> None:
    for number in (1, 2, 10):
        write(tmp_path / "x.tsv", [(f"film {n}", f"label {n}") for n in range(number)])
        if number == 1:
            assert "has the label 'label 0' alone" in refusal(lambda: labels(tmp_path, "x.tsv"))
        else:
            assert len(labels(tmp_path, "x.tsv")) == number
    write(tmp_path / "x.tsv", [(f"film {n}", f"label {n}") for n in range(11)])
    assert 'its first line, "film 0" -> "label 0", names no columns' in refusal(lambda: labels(tmp_path, "x.tsv"))


def test_a_header_is_found_in_every_file_and_labels_of_all_files_count(tmp_path: Path) -> None:
    write(tmp_path / "named.csv", [("text", "label"), *REVIEWS])
    write(tmp_path / "train.csv", [("a film", "awful"), *REVIEWS])
    write(tmp_path / "dev.csv", IMDB)
    write(tmp_path / "test.csv", IMDB)
    message = refusal(lambda: labels(tmp_path, "named.csv", HeldOutFiles("dev.csv", "test.csv")))
    assert "dev.csv: its first line" in message
    write(tmp_path / "dev.csv", [("text", "label"), ("some film", "awful"), *REVIEWS])
    assert labels(tmp_path, "train.csv", HeldOutFiles("dev.csv")) == ("awful", "bad", "good")


def test_the_first_line_of_two_texts_and_a_label_is_checked_too(tmp_path: Path) -> None:
    rows = [("a", f"b {number}", ("no", "yes")[number % 2]) for number in range(40)]
    write(tmp_path / "x.tsv", [("sentence1", "sentence2", "gold_label"), *rows])
    message = refusal(
        lambda: labels_of_examples("x.tsv", str(tmp_path), FineTuningProblem.ENTAILMENT, NOTHING_HELD_OUT)
    )
    assert 'its first line, "sentence1", "sentence2" -> "gold_label", names no columns' in message
    assert "name the columns premise, hypothesis and label there" in message
    message = refusal(
        lambda: open_examples("x.tsv", data_dir=str(tmp_path), problem=FineTuningProblem.SIMILARITY, classes=())
    )
    assert message == (
        f"{tmp_path / 'x.tsv'}: example 1 has the label 'gold_label', which is no score: give a number, or name the "
        "labels by config.task.classes; its first line names no columns: name first, second and label there"
    )


def test_an_unknown_label_is_told_with_its_example_and_the_labels_of_the_file(tmp_path: Path) -> None:
    write(tmp_path / "x.csv", IMDB)
    read = functools.partial(open_labeled_texts, "x.csv", data_dir=str(tmp_path), classes=("bad", "good"))
    assert refusal(read) == (
        f"{tmp_path / 'x.csv'}: example 1 has the label 'sentiment', which is none of config.task.classes (the labels "
        "of the file are bad, good, sentiment; its first line names no columns: name text and label there): known: "
        "bad, good"
    )
    write(tmp_path / "x.csv", [*REVIEWS, ("a film", "ugly")])
    message = refusal(read)
    assert "x.csv: example 41 has the label 'ugly'" in message
    assert message.endswith("config.task.classes (the labels of the file are bad, good, ugly): known: bad, good")


@pytest.mark.parametrize("header", [("Source", "TARGET"), (" source", "target "), ("id", "Target", "Source")])
def test_names_of_columns_in_another_spelling_are_no_example(header: tuple[str, ...], tmp_path: Path) -> None:
    write(tmp_path / "x.csv", [header, *[("a", "b", "c")[: len(header)]] * 3])
    message = refusal(lambda: read_fields(tmp_path / "x.csv", ("source", "target")))
    assert "x.csv: its first line names " in message
    assert message.endswith(": write source and target there")


def test_a_missing_header_is_described_with_the_first_row(tmp_path: Path) -> None:
    write(tmp_path / "x.tsv", [("English", "German", "id"), ("a", "b", "1")])
    write(tmp_path / "named.csv", [("target", "id", "source"), ("a", "1", "b")])
    write(tmp_path / "dev.csv", [("a\nlong " + "word " * 20, "b")])
    (tmp_path / "y.jsonl").write_text('{"source": "a", "target": "b"}\n')
    names = ("source", "target")
    assert describe_missing_headers(("x.tsv", "named.csv", "dev.csv", "y.jsonl"), names, str(tmp_path)) == (
        'x.tsv has no header: columns 1 and 2 are source and target, the first row is "English" -> "German"; '
        "dev.csv has no header: columns 1 and 2 are source and target, the first row is "
        '"a long word word word word word word wor..." -> "b"'
    )
    assert describe_missing_headers(("named.csv", "y.jsonl", "x.en,x.de"), names, str(tmp_path)) == ""
