"""Tasks over a user's own files: their runs say how the files were cut, and notice when one has changed."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from launch import train
from launch.cli import run
from transformer.attention import Axis, Site
from transformer.config import UserError
from transformer.tasks.registry import build_synthetic_task, build_task, task_config

# The folder of compiled programs stays that of the tests.
COMMAND = dataclasses.replace(train.COMMAND, before_jax=None)
CONFIG = """
from ml_collections import ConfigDict

def get_config():
    return ConfigDict({
        "name": "own",
        "steps": 1,
        "task": {"name": "translation", "dataset": "x.en,x.de"},
        "model": {"family": "encoder_decoder", "width": 8, "heads": 2, "encoder_layers": 1, "decoder_layers": 1},
        "optimizer": {"learning_rate": 0.1},
    })
"""
TEXT = {"tokenizer": "bytes", "context_length": 8, "batch_size": 2, "num_probe_examples": 1, "probe_length": 4}
TASKS: dict[str, dict[str, Any]] = {
    "x.en": {
        "name": "translation",
        "dataset": "x.en,x.de",
        "vocab_size": 60,
        "bucket_lengths": (32,),
        "num_probe_examples": 2,
    },
    "x.tsv": {"name": "classification", "dataset": "x.tsv", "classes": ("a", "b"), "tokenizer": "bytes"},
    "x.jsonl": {"name": "language_modeling", "dataset": "x.jsonl", **TEXT},
    "books/one.txt": {"name": "masked_lm", "dataset": "books", **TEXT},
}
SAID = {
    "x.en": "data x.en,x.de: 86 train, 3 validation, 11 test pairs; "
    "train, validation, test cut by the SHA-256 of each example's text (in NFC, with single spaces, case kept), "
    "90, 5 and 5% of them",
    "x.tsv": "data x.tsv: 86 train, 3 validation, 11 test texts; "
    "train, validation, test cut by the SHA-256 of each example's text (in NFC, with single spaces, case kept), "
    '90, 5 and 5% of them; x.tsv has no header: columns 1 and 2 are text and label, the first row is "fox 000" -> "a"; '
    "classes a, b",
    "x.jsonl": "data x.jsonl: 720 train, 40 validation, 40 test tokens; "
    "train, validation, test cut by position, 90, 5 and 5% of the characters",
    "books/one.txt": "data books: 1,001 train, 65 validation, 39 test tokens; "
    "train, validation, test cut by position, 90, 5 and 5% of the characters",
}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    texts = [f"fox {number:03}" for number in range(100)]
    (tmp_path / "books").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "x.en").write_text("".join(f"{text}\n" for text in texts))
    (tmp_path / "x.de").write_text("".join(f"Fuchs {text}\n" for text in texts))
    (tmp_path / "x.tsv").write_text("".join(f"{text}\t{'ab'[number % 2]}\n" for number, text in enumerate(texts)))
    (tmp_path / "x.jsonl").write_text("".join(json.dumps({"text": f"{text}\n"}) + "\n" for text in texts))
    (tmp_path / "books/one.txt").write_text("A line of it\n" * 85)
    return tmp_path


@pytest.mark.parametrize("file", TASKS)
def test_a_task_says_how_its_files_were_cut_and_knows_their_contents(file: str, files: Path) -> None:
    config = task_config({**TASKS[file], "data_dir": str(files)})
    task = build_task(config, files / "run")
    assert list(task.data_summary) == [SAID[file]]
    before = dict(task.fingerprint())
    assert set(before) == {"train", "validation", "test"}
    assert dict(build_task(config, files / "run").fingerprint()) == before
    path = files / file
    path.write_text(path.read_text().replace("fox 042", "fox 04x").replace("A line", "A lime", 1))
    after = dict(build_task(config, files / "run").fingerprint())
    assert [split for split in before if after[split] != before[split]] == ["train"]
    # What is compiled ahead reads no file.
    assert build_synthetic_task(task_config({**TASKS[file], "data_dir": str(files / "absent")})).interface.inputs


def test_labels_of_files_are_the_classes_of_a_config_that_names_none(files: Path) -> None:
    values = {**TASKS["x.tsv"], "classes": (), "data_dir": str(files)}
    config = task_config(values)
    assert config.classes == ("a", "b")
    assert config == task_config({**values, "classes": ("a", "b")})
    assert build_task(config, files / "run").interface.class_names == ("a", "b")
    # A label of a held-out file is a class, too; an order that the config names stays.
    (files / "dev.tsv").write_text("a dog\tc\n")
    assert task_config({**values, "validation_files": "dev.tsv"}).classes == ("a", "b", "c")
    assert task_config({**values, "classes": ("b", "a")}).classes == ("b", "a")
    with pytest.raises(UserError, match=r"there is no file .*gone\.tsv"):
        task_config({**values, "dataset": "gone.tsv"})


def test_a_task_says_that_a_table_of_pairs_has_no_header(files: Path) -> None:
    table = "".join(f"fox {number}\tFuchs {number}\n" for number in range(200))
    (files / "y.tsv").write_text("English\tGerman\n" + table)
    values = {**TASKS["x.en"], "dataset": "y.tsv", "data_dir": str(files)}
    said = build_task(task_config(values), files / "run").data_summary[0]
    expected = 'y.tsv has no header: columns 1 and 2 are source and target, the first row is "English" -> "German"'
    assert said.endswith(f"; {expected}")
    values["languages"] = ("English", "German")
    assert "no header" not in build_task(task_config(values), files / "run").data_summary[0]


@pytest.mark.parametrize("name", ["classification", "fine_tuning"])
def test_a_folder_with_a_folder_for_each_label_is_a_labeled_data_set(name: str, files: Path) -> None:
    table = [line.split("\t") for line in (files / "x.tsv").read_text().splitlines()]
    for number, (text, label) in enumerate(table):
        folder = files / "labeled" / label / f"part{number % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.txt").write_text(f"{text}\n")
    (files / "labeled" / "README.md").write_text("about it")
    (files / "x.tsv").write_text("text\tlabel\n" + (files / "x.tsv").read_text())
    values = {"name": name, "tokenizer": "bytes", "data_dir": str(files), "dataset": "labeled"}
    config = task_config(values)
    assert config.classes == ("a", "b")
    task, of_table = (build_task(each, files / "run") for each in (config, task_config({**values, "dataset": "x.tsv"})))
    assert task.data_summary[0] == of_table.data_summary[0].replace("x.tsv", "labeled")
    for split in ("train", "validation", "test"):
        assert sorted(task.splits[split].examples) == sorted(of_table.splits[split].examples)
    # What has the recorded classes needs no folder to be compiled.
    absent = {**values, "classes": ("a", "b"), "data_dir": str(files / "absent")}
    assert build_synthetic_task(task_config(absent)).interface.class_names == ("a", "b")


def test_what_is_no_folder_of_labels_is_refused(files: Path) -> None:
    folder = files / "labeled"
    (folder / "good").mkdir(parents=True)
    values = {"name": "classification", "tokenizer": "bytes", "data_dir": str(files), "dataset": "labeled"}
    with pytest.raises(UserError, match=r"labeled holds no texts: it needs a folder for each label, with a \.txt file"):
        task_config(values)
    (folder / "good" / "1.txt").write_text("fine")
    with pytest.raises(UserError, match=r"labeled has the label 'good' alone: it needs examples with at least two"):
        task_config(values)
    (folder / "2.txt").write_text("poor")
    with pytest.raises(UserError, match=r"2\.txt has no label: put it in a folder in .*labeled, whose name is its"):
        task_config(values)
    (folder / "2.txt").write_text("poor")
    (folder / "2.txt").rename(folder / "good" / "2.txt")
    (folder / "good" / "2.txt").write_text(" \n")
    with pytest.raises(UserError, match=r"good/2\.txt is empty: fill or remove it"):
        task_config(values)
    with pytest.raises(UserError, match=r"config\.task\.dataset='labelled' is unknown: known: FILE\.csv, .*FOLDER"):
        task_config({**values, "dataset": "labelled"})


def test_values_that_are_no_classes_are_refused(files: Path) -> None:
    (files / "scores.tsv").write_text("".join(f"text {n}\t{n / 7:.3f}\n" for n in range(50)))
    with pytest.raises(
        UserError, match=r"scores\.tsv has 50 labels in 50 examples, such as 0\.000, 0\.143, 0\.286: name"
    ):
        task_config({"name": "classification", "data_dir": str(files), "dataset": "scores.tsv"})


def test_few_or_long_pairs_are_mapped_as_they_are_labeled(files: Path) -> None:
    long, short = "a fox " * 40, "fox 1"
    (files / "dev.tsv").write_text("".join(f"{text}\t{text}\n" for text in (long, short, long, "fox 2")))
    config = task_config(
        {**TASKS["x.en"], "data_dir": str(files), "validation_files": "dev.tsv", "num_probe_examples": 8}
    )
    task = build_task(config, files / "run")
    labels = task.axis_labels(
        (Site("encoder/self", query=Axis("source"), key=Axis("source"), layers=("0",), heads=("0",)),)
    )
    assert [len(tokens) for tokens in labels.tokens["source"]] == [
        int((row != 0).sum()) for row in task.probe_batch["source"]
    ]
    assert len(task.probe_batch["source"]) == 2
    assert task.data_summary[1].startswith(
        "of these 2 validation pairs are longer than max(config.task.bucket_lengths)=32 tokens: "
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "x.en has 100 lines and "),
        (("--config.task.dataset=empty.en,empty.en",), "empty.en is empty"),
        (("--config.task.dataset=x.tsv", "--config.task.test_files=x.none"), "x.none alone holds no pairs"),
        (("--config.task.dataset=phrases", "--config.task.test_files=x.tsv"), "goes with files of your own alone"),
        (("--config.task.name=language_modeling", "--config.task.dataset=books"), "one.txt is empty"),
    ],
)
def test_unfit_files_end_a_run_with_one_line(
    words: tuple[str, ...], says: str, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (files / "x.de").write_text("Fuchs\n")
    (files / "empty.en").write_text("")
    (files / "books/one.txt").write_text("")
    (files / "config.py").write_text(CONFIG)
    flags = (f"--config={files / 'config.py'}", f"--workdir={files / 'new'}", f"--data_dir={files}")
    assert run(COMMAND, train.main, [*flags, *words]) == 2
    told = capsys.readouterr().err
    assert says in told
    assert told.count("\n") == 1
    assert not [each.name for each in (files / "new").glob("*") if each.name != "lock"]
