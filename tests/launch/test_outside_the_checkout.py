"""The family and the task of docs/guides/your_own_model.md, in a folder of their own: every command runs on them."""

import io
import json
import os
import shlex
import string
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launch import cli, compile, evaluate, generate, maps, model_sizes, sweep, train
from tests import documented
from transformer.maps.store import MapStore
from transformer.studies.sweeps.trial_store import TrialState, TrialStore
from transformer.training import build, partitioning

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = {module.COMMAND.name: module for module in (compile, evaluate, generate, maps, model_sizes, train)}
SMALL = ("--config.log_every=1", "--config.checkpoint_every=2", "--config.head_statistics_every=2")
SMALL += ("--config.eval_every=4", "--config.maps_every=2", "--config.model.width=8")
SORTING = ("--config=lab/config.py:sorting", *SMALL, "--config.task.batch_size=8")
TRANSLATION = (
    "--config=lab/config.py",
    *SMALL,
    "--config.steps=4",
    "--config.task.dataset=phrases/train=32,validation=8,test=8",
    "--config.task.vocab_size=200",
    "--config.task.bucket_lengths=(48,)",
    "--config.task.tokens_per_batch=192",
)
TRUST = "--trust=lab.bahdanau,lab.sorting"


def forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "lab"]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of one's own with the page's files: the current one, and on Python's path."""
    folder = tmp_path_factory.mktemp("research")
    assert not folder.is_relative_to(ROOT)
    documented.write(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            build, "make_placement", lambda config: partitioning.single_device_placement()
        )  # meshes have their tests
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        yield folder
    forget()


def call(capsys: pytest.CaptureFixture[str], command: str, *words: str) -> str:
    code = cli.run(COMMANDS[command].COMMAND, COMMANDS[command].main, words)
    said = capsys.readouterr()
    assert code == 0, said.err
    return said.out


def refused(capsys: pytest.CaptureFixture[str], command: str, *words: str) -> str:
    code = cli.run(COMMANDS[command].COMMAND, COMMANDS[command].main, words)
    said = capsys.readouterr()
    assert (code, said.out, said.err.count("\n")) == (2, "", 1)
    return said.err


def metrics(run: str) -> list[dict]:
    return [json.loads(line) for line in Path(run, "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def sorting(folder: Path) -> str:
    assert cli.run(train.COMMAND, train.main, [*SORTING, "--config.steps=4", "--workdir=sorting"]) == 0
    return "--workdir=sorting"


@pytest.fixture(scope="module")
def translating(folder: Path) -> str:
    assert cli.run(train.COMMAND, train.main, [*TRANSLATION, "--workdir=translating"]) == 0
    return "--workdir=translating"


def test_an_own_task_trains_on_an_own_family_and_goes_on_where_it_stopped(folder: Path) -> None:
    for steps in (2, 4):
        words = [*SORTING, f"--config.steps={steps}", "--workdir=stopped"]
        assert cli.run(train.COMMAND, train.main, words) == 0
    assert [line["step"] for line in metrics("stopped") if line["split"] == "train"] == [1, 2, 3, 4]
    assert len(json.loads(Path("stopped", "environment.json").read_text())) == 2
    recorded = json.loads(Path("stopped", "config.json").read_text())
    assert (recorded["model"]["family"], recorded["task"]["name"]) == ("lab.bahdanau", "lab.sorting")
    heads = [json.loads(line) for line in Path("stopped", "heads.jsonl").read_text().splitlines()]
    assert {(line["step"], line["site"]) for line in heads} == {(2, "decoder/attention"), (4, "decoder/attention")}
    store = MapStore.open_existing("stopped/maps")
    # Gold alignments are of the site with the task's axes: its alignment error is measured.
    assert (store.steps, set(store.labels.gold_alignments or {})) == ((0, 2, 4), {"decoder/attention"})
    assert "alignment_error" in store.statistics("decoder/attention").names


def test_the_commands_that_train_ends_with_run_as_they_are_printed(
    sorting: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = call(capsys, "train", sorting, TRUST)
    printed = [shlex.split(line.partition("python -m launch.")[2]) for line in said.splitlines() if "launch." in line]
    assert [name for name, *_ in printed] == ["maps", "evaluate"]
    for name, *words in printed:
        call(capsys, name, *words)


def test_evaluate_measures_what_training_measured(sorting: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = call(capsys, "evaluate", sorting, TRUST)
    (recorded,) = [line for line in metrics("sorting") if line["split"] == "validation" and line["step"] == 4]
    assert f"loss                               {recorded['loss']:.4f}" in said


def test_generate_answers_by_the_task(
    sorting: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = call(capsys, "generate", sorting, TRUST, "--text=hkdba")
    assert set(said.strip()) <= set(string.ascii_lowercase)
    assert Path("sorting", "generated", "0001", "report.html").is_file()
    assert "'dad' cannot be sorted" in refused(capsys, "generate", sorting, TRUST, "--text=dad")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\nhkdba\n\n  \nabdhk")))
    lines = call(capsys, "generate", sorting, TRUST, "--no_maps").split("\n")
    assert [bool(line) for line in lines] == [False, True, False, False, True, False]
    assert lines[1] == said.strip()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\n\n")))
    assert call(capsys, "generate", sorting, TRUST) == "\n\n"


def test_generate_searches_with_beams_too(sorting: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = call(capsys, "generate", sorting, TRUST, "--text=hkdba", "--num_beams=2", "--no_maps")
    assert set(said.strip()) <= set(string.ascii_lowercase)


def test_the_page_is_written_and_no_code_is_needed_for_it(sorting: str, capsys: pytest.CaptureFixture[str]) -> None:
    forget()
    call(capsys, "maps", sorting)
    assert "decoder/attention" in Path("sorting", "report.html").read_text(encoding="utf-8")
    assert not any(name.startswith("lab") for name in sys.modules)


def test_sizes_counts_the_run(sorting: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(call(capsys, "model_sizes", sorting, TRUST, "--json"))
    width, vocabulary = 8, 29
    gru = {inputs: 3 * width * (inputs + width + 1) for inputs in (width, 3 * width)}
    assert found["parts"] == {
        "attention": width * (2 * width + width + 1),
        "decoder": gru[3 * width],
        "deep": (4 * width + 1) * 2 * width,
        "embedding": vocabulary * width,
        "encoder": 2 * gru[width],
        "first": width * width,
        "output": width * vocabulary,
    }
    # Of 8 rows of 8 letters and 9 answers: 2 for each weight that a letter, an answer or a row meets, but for biases,
    # and scores and sums of every pair; a training step is three forward passes.
    letter = 2 * 3 * width * 2 * width + width * 2 * width
    answer = width * width + 3 * width * 4 * width + 4 * width * 2 * width + width * vocabulary
    pairs = 8 * 9 * (width + 2 * width)
    assert found["flops_per_step"] == 3 * 8 * 2 * (8 * letter + 9 * answer + pairs + width * width)


def test_compile_fits_it_to_a_topology(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "environ", os.environ.copy())
        found = json.loads(call(capsys, "compile", *SORTING, "--config.steps=4", "--topology=cpu:1", "--json"))
    assert (found["fits"], found["batch_size"]) == (True, 8)
    assert found["flops"] > 0


def test_code_that_only_a_run_names_is_not_followed_without_the_flag(
    sorting: str, capsys: pytest.CaptureFixture[str]
) -> None:
    forget()
    for command in ("evaluate", "generate", "model_sizes", "train"):
        words = ["--text=ab"] if command == "generate" else []
        assert "add --trust=lab.sorting,lab.bahdanau if" in refused(capsys, command, sorting, *words)
    more = refused(capsys, "evaluate", sorting, "--trust=lab.sorting")
    assert "config.model.family='lab.bahdanau' is code from outside" in more
    assert "add --trust=lab.sorting,lab.bahdanau if" in more
    assert not any(name.startswith("lab.bahdanau") for name in sys.modules)
    # A config file that a person names vouches for what it names.
    assert "nothing to train" in call(capsys, "train", sorting, *SORTING, "--config.steps=4")
    forget()
    assert "nothing to train" in call(capsys, "train", sorting, TRUST)


# tests/contracts trains the family on translation in every test run.
def test_the_familys_translations_are_searched_measured_and_mapped(
    translating: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (aligned,) = [line for line in metrics("translating") if "alignment_error_rate" in line]
    assert (aligned["split"], aligned["step"]) == ("test", 4)
    said = call(capsys, "evaluate", translating, TRUST, "--split=test", "--num_beams=2")
    assert "decoder/attention, layer 0, head 0" in said
    assert f"alignment_error_rate               {aligned['alignment_error_rate']:.4f}" in said
    words = ["--target_language=de", "--text=half past four"]
    call(capsys, "generate", translating, "--trust=lab.bahdanau", *words, "--num_beams=2")
    assert Path("translating", "generated", "0001", "report.html").is_file()


def test_a_sweep_trains_two_trials(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By one worker, in this process: test_sweep.py starts one as the command does."""
    monkeypatch.setattr(sweep, "become_worker", lambda: None)
    words = ["--config=lab/config.py:sorting", *SMALL, "--config.task.batch_size=8", "--workdir=sweep", "--worker"]
    assert cli.run(sweep.COMMAND, sweep.main, [*words, "--config.steps=2"]) == 0
    trial_store = TrialStore.open_existing(folder / "sweep")
    assert [trial.overrides["optimizer.learning_rate"] for trial in trial_store.trials()] == [1e-3, 3e-3]
    outcomes = [trial_store.outcome(trial) for trial in trial_store.trials()]
    assert [outcome and outcome.state for outcome in outcomes] == [TrialState.DONE] * 2
