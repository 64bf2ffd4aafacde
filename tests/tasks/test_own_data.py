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
    "90, 5 and 5% of them",
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


def test_without_their_classes_labeled_files_say_which_they_have(files: Path) -> None:
    config = task_config({**TASKS["x.tsv"], "classes": (), "data_dir": str(files)})
    with pytest.raises(UserError, match=r"classes is empty: say the 2 labels of x.tsv, as in a,b"):
        build_task(config, files / "run")
    with pytest.raises(UserError, match=r"config.task.classes=\(\) must be the labels of x.tsv"):
        build_synthetic_task(config)


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
