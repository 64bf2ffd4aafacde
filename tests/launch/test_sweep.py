"""The command that trains a sweep: one real tiny sweep from end to end, and every mistake as one line."""

import csv
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from launch import cli, sweep, train
from launch.config_files import load_function
from launch.flag_parsing import parse_arguments
from launch.workers import run_as_worker
from transformer.config import UserError
from transformer.studies.sweeps.trial_store import TrialOutcome, TrialState, TrialStore
from transformer.studies.sweeps.trials import make_trial
from transformer.studies.sweeps.worker import TooManyFailures

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """
from ml_collections import ConfigDict

def get_config():
    return ConfigDict({
        "name": "smallest", "seed": 1, "steps": 4,
        "log_every": 2, "eval_every": 0, "maps_every": 0, "checkpoint_every": 0,
        "task": {
            "name": "language_modeling", "tokenizer": "characters", "context_length": 32, "batch_size": 8,
            "prompts": (),
            "dataset": "repeated/num_symbols=8,min_segment_length=4,max_segment_length=8,length=32,"
            "train=64,validation=8,test=8",
            "num_probe_examples": 2, "probe_length": 8, "num_repeated_sequences": 0,
        },
        "model": {
            "family": "decoder", "vocab_size": 128, "layers": 1, "width": 8, "heads": 2, "feed_forward": 16,
            "norm_placement": "pre", "max_length": 32,
        },
        "optimizer": {"learning_rate": 1e-2, "warmup_steps": 2},
    })

def get_sweep(sweep):
    return SPACE
"""


@pytest.fixture
def config_file(tmp_path):
    """Writes a config file with this space, and gives its name."""

    def write(space="sweep.choice('optimizer.learning_rate', [1e-3, 1e-2])"):
        path = tmp_path / "smallest.py"
        path.write_text(CONFIG.replace("SPACE", space))
        return str(path)

    return write


def call(capsys, *words):
    code = cli.run(sweep.COMMAND, sweep.main, words)
    said = capsys.readouterr()
    return code, said.out, said.err


def refusal(capsys, *words):
    code, _, err = call(capsys, *words)
    assert code == 2, err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err


def start(*words):
    command = [sys.executable, "-m", "launch.sweep", *words]
    # Without a folder of programs from outside, as a user has none: each sweep has its own.
    environment = {key: value for key, value in os.environ.items() if key != "JAX_COMPILATION_CACHE_DIR"}
    environment["JAX_PLATFORMS"] = "cpu"
    environment["XLA_FLAGS"] = "--xla_backend_optimization_level=0"  # one device, as a user has
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.mark.slow
def test_a_worker_trains_real_trials_and_the_command_sums_them_up(tmp_path, capsys, config_file):
    words = [f"--config={config_file()}", f"--workdir={tmp_path / 's'}"]
    done = start(*words, "--worker")
    assert done.returncode == 0, done.stdout + done.stderr
    trial_store = TrialStore.open_existing(tmp_path / "s")
    trials = trial_store.trials()
    assert [dict(trial.overrides) for trial in trials] == [
        {"optimizer.learning_rate": 1e-3},
        {"optimizer.learning_rate": 1e-2},
    ]
    values = {}
    for trial in trials:
        directory = trial_store.directory(trial)
        assert json.loads((directory / "config.json").read_text()) == trial.config
        lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
        last = [line["loss"] for line in lines if line["split"] == "validation" and "loss" in line][-1]
        assert trial_store.outcome(trial) == TrialOutcome(TrialState.DONE, last, 4, "")
        values[trial.name] = last
    with (tmp_path / "s" / "trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["trial"]: float(row["validation/loss"]) for row in rows} == values
    # All is done, so that no process is started; and the best is named.
    code, out, err = call(capsys, *words)
    assert (code, err) == (0, "")
    best = min(values, key=lambda name: values[name])
    rate = {trial.name: trial.overrides["optimizer.learning_rate"] for trial in trials}[best]
    assert f"best: validation/loss {values[best]:.6g}" in out
    assert f"--config.optimizer.learning_rate={rate} --workdir=runs/best" in out
    line = refusal(capsys, *words, "--config.steps=6")
    assert "holds another sweep: config.steps=4, not 6" in line


@pytest.mark.slow
def test_a_mistaken_metric_is_told_and_put_right_without_training_again(tmp_path, config_file):
    words = [f"--config={config_file()}", f"--workdir={tmp_path / 's'}"]
    wrong = start(*words, "--num_trials=1", "--metric=validation/lost")
    assert wrong.returncode == 2, wrong.stdout + wrong.stderr
    assert "metric validation/lost is unknown to the first trial that finished; it reports test/" in wrong.stderr
    assert "validation/loss" in wrong.stderr
    done = start(*words, "--num_workers", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    trial_store = TrialStore.open_existing(tmp_path / "s")
    assert {trial_store.state(trial) for trial in trial_store.trials()} == {TrialState.DONE}
    first = trial_store.directory(trial_store.trials()[0])
    assert len(json.loads((first / "environment.json").read_text())) == 2
    steps = [json.loads(line)["step"] for line in (first / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(steps)


@pytest.mark.parametrize(
    ("space", "words", "says"),
    [
        ("sweep.product()", [], "product() is empty: give it at least one space"),
        ("sweep.choice('seed', [])", [], "choice('seed') is empty"),
        ("None", [], "get_sweep returned a NoneType; it must return what sweep.product"),
        ("1 / 0", [], "fails at line 23: ZeroDivisionError"),
        ("sweep.choice('model.norm_placment', ['pre'])", [], "did you mean config.model.norm_placement"),
        ("sweep.log_uniform('model.widht', 1, 2)", ["--num_trials=2"], "unknown key config.model.widht"),
        ("sweep.uniform('model.width', 8, 16)", ["--num_trials=2"], "is a float; it must be a int (in the trial"),
        ("sweep.choice('model.heads', [2, 3])", [], "(in the trial model.heads=3)"),
        (
            "sweep.choice('optimizer.learning_rate', [1e-3, 1e-2])",
            ["--config.optimizer.learning_rate=0.5"],
            "--config.optimizer.learning_rate would not reach every run: get_sweep() sets optimizer.learning_rate",
        ),
        (
            "sweep.chain(sweep.choice('steps', [4]), sweep.choice('seed', [1, 2]))",
            ["--config.seed=3"],
            "--config.seed would not reach every run: get_sweep() sets seed",
        ),
        (
            "sweep.choice('model.lora', [{'rank': 1}])",
            ["--config.model.lora.rank=2"],
            "--config.model.lora.rank would not reach every run: get_sweep() sets model.lora",
        ),
        (
            "sweep.choice('task.data_dir', ['a', 'b'])",
            ["--data_dir=c"],
            "--data_dir would replace config.task.data_dir, which get_sweep() sets",
        ),
        ("sweep.choice('seed', [1, 2])", ["--num_trials=0"], "--num_trials=0 must be at least 1"),
        ("sweep.choice('seed', [1, 2])", ["--num_workers=0"], "--num_workers=0 must be at least 1"),
        ("sweep.choice('seed', [1, 2])", ["--search_algorithm=annealing"], "--search_algorithm=annealing is unknown"),
        ("sweep.choice('seed', [1, 2])", ["--metric=loss"], "--metric=loss is no metric: write split/name"),
        ("sweep.choice('seed', [1, 2])", ["--direction=greater"], "--direction: invalid choice: 'greater'"),
        ("sweep.choice('seed', [1, 2])", ["--seed=1"], "--seed has no effect on a grid"),
        (
            "sweep.choice('seed', [1, 2])",
            ["--search_algorithm=hyperband", "--vmap=2"],
            "--search_algorithm=hyperband suggests one after",
        ),
        (
            "sweep.choice('seed', [1, 2])",
            ["--search_algorithm=tpe", "--vmap=2"],
            "--search_algorithm=tpe suggests one after another",
        ),
        ("sweep.choice('seed', [1, 2])", ["--vmap=0"], "--vmap"),
        ("sweep.choice('seed', [1, 2])", ["--search_algorithm=gp"], "needs "),
        ("sweep.log_uniform('optimizer.learning_rate', 1e-3, 1)", [], "say how many trials there are to be"),
        ("sweep.log_uniform('optimizer.learning_rate', 1e-3, 1)", ["--search_algorithm=grid"], "needs a finite space"),
        ("sweep.choice('seed', [1, 2])", ["--worker", "--num_workers=2"], "--worker is one worker itself"),
    ],
)
def test_mistakes_are_one_line_and_leave_no_directory(tmp_path, capsys, config_file, space, words, says):
    line = refusal(capsys, f"--config={config_file(space)}", f"--workdir={tmp_path / 's'}", *words)
    assert says in line.replace('"', "'")
    assert not (tmp_path / "s").exists()


def test_a_worker_of_an_unfit_machine_ends_with_a_line_and_a_code_of_its_own(tmp_path, capsys, monkeypatch):
    def work(*about, **settings):
        raise TooManyFailures("3 trials in a row failed here, the last with: OSError: disk full")

    monkeypatch.setattr("transformer.studies.sweeps.worker.run_worker", work)
    with pytest.raises(SystemExit) as ended:
        run_as_worker(None, None, total=1, metric="validation/loss", vmap=1, data_dir=None, trusted_names=())
    assert ended.value.code == 3
    said = capsys.readouterr().err
    assert said == "error: 3 trials in a row failed here, the last with: OSError: disk full\n"


def test_a_directory_that_holds_something_else_is_refused(tmp_path, capsys, config_file):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").touch()
    line = refusal(capsys, f"--config={config_file()}", f"--workdir={tmp_path / 'thesis'}")
    assert "holds 'thesis.tex' but no sweep.json" in line
    assert [entry.name for entry in (tmp_path / "thesis").iterdir()] == ["thesis.tex"]


def test_a_config_without_get_sweep_is_told_so(tmp_path, capsys, config_file):
    path = Path(config_file())
    path.write_text(path.read_text().replace("get_sweep", "get_swept"))
    assert "has no get_sweep(sweep): define one" in refusal(capsys, f"--config={path}", f"--workdir={tmp_path / 's'}")
    assert load_function(str(path), "get_sweep") is None
    swept = load_function(f"{path}:argument", "get_swept")
    assert swept is not None
    with pytest.raises(UserError, match="fails at line 23: AttributeError"):
        swept(None)


def test_workers_are_given_the_words_but_those_of_their_starter(tmp_path, capsys, config_file, monkeypatch):
    given = []
    monkeypatch.setattr(sweep, "run_workers", lambda *about, **settings: given.append((about, settings)))
    words = [
        "--config",
        config_file(),
        f"--workdir={tmp_path / 's'}",
        "--num_workers",
        "2",
        "--search_algorithm=random",
    ]
    code, out, err = call(capsys, *words, "--num_trials=9", "--config.seed=4", "--retry_failed", "--vmap=2")
    assert code == 0, err
    (command, trial_store), settings = given[0]
    assert command == [
        *(sys.executable, "-m", "launch.sweep"),
        f"--config={config_file()}",
        f"--workdir={tmp_path / 's'}",
        "--search_algorithm=random",
        "--num_trials=9",
        "--config.seed=4",
        "--vmap=2",
    ]
    assert (settings["workers"], settings["total"]) == (2, 2)
    # What the page shows is pasted: the sweep goes on, and a trial is trained again.
    page = settings["on_progress"].__self__
    module, *pasted = shlex.split(page._about.command.removeprefix("python -m "))
    assert module == "launch.sweep"
    parsed = parse_arguments(sweep.COMMAND, pasted)
    assert (parsed.num_workers, parsed.omit_flags("num_workers")) == (2, command[3:])
    for trial in trial_store.trials():
        module, *pasted = shlex.split(page._retrain_command(trial).removeprefix("python -m "))
        assert module == "launch.train"
        assert make_trial(parse_arguments(train.COMMAND, pasted).config, {}).name == trial.name
    assert "the space holds 2 different trials, fewer than --num_trials=9: all are tried" in out
    assert {trial.config["seed"] for trial in trial_store.trials()} == {4}
    assert "0 of 2 finished; 2 pending" in out


@pytest.mark.parametrize("engine", ["grid", "random", "tpe"])
@pytest.mark.parametrize(
    ("space", "total"),
    [
        (
            "sweep.chain(sweep.choice('optimizer.learning_rate', [1e-3, 1e-2]), "
            "sweep.choice('optimizer.learning_rate', [1e-2, 1e-1]))",
            3,
        ),
        # A value written out and the base config's own are one config.
        ("sweep.chain(sweep.choice('model.heads', [2, 4]), sweep.choice('optimizer.warmup_steps', [2]))", 2),
    ],
)
def test_points_that_are_one_config_are_counted_once(capsys, tmp_path, config_file, monkeypatch, engine, space, total):
    """A sweep that waits for more different trials than its space has ends with some that are pending for ever."""
    totals = []
    monkeypatch.setattr(sweep, "run_workers", lambda *words, **settings: totals.append(settings["total"]))
    words = [f"--config={config_file(space)}", f"--search_algorithm={engine}"]
    code, out, err = call(capsys, *words, f"--workdir={tmp_path / 'whole'}")
    assert (code, err, totals) == (0, "", [total])
    assert "fewer than" not in out
    _, out, _ = call(capsys, *words, f"--workdir={tmp_path / 'more'}", "--num_trials=9")
    assert totals == [total, total]
    assert f"the space holds {total} different trials, fewer than --num_trials=9: all are tried" in out
    if engine != "grid":
        call(capsys, *words, f"--workdir={tmp_path / 'less'}", "--num_trials=1")
        assert totals[2:] == [1]
