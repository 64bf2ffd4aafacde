"""`experiments.reproduce`: every record has its commands in one form, and a run is trained by them and compared."""

import itertools
import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from experiments import reproduce
from experiments.record_comparison import Verdict, compare_curves, compare_studies, read_curve
from experiments.records import CHECKOUT, Record, RecordedRun, list_records, read_record
from launch import cli
from launch.config_files import load_config, load_function
from tests.markdown import ROOT
from tests.studies.tiny import BASE, PLAIN
from transformer.studies.ablations.ablation import build_ablation
from transformer.studies.ablations.run_plan import plan_runs
from transformer.training.config import resolve_config

RECORDS = {name: read_record(name, page) for name, page in list_records(ROOT).items()}
PAGE = """# Two letters

- Commit: 1234567
- Hardware: one core of a lamp, jax 0.12.0.1,
  float32

| a | b |

## Reproduce

```
python -m launch.train --config=experiments/demo.py --workdir=RUN  # letters.jsonl seed=1
python -m launch.train --config=experiments/demo.py --workdir=RUN --config.seed=2  # letters.jsonl seed=2
python -m launch.train --config=experiments/demo.py --workdir=RUN --config.seed=3  # letters.jsonl seed=3
python -m launch.train --config=experiments/demo.py --workdir=RUN --data_dir=DIR  # more.jsonl
python -m launch.train --config=experiments/demo.py --workdir=RUN --config.initialize_from.run=runs/gone  # more.jsonl
python -m launch.ablate --config=experiments/demo.py --workdir=RUN  # study.json
```

The last needs the first.
"""


CONFIG = """from ml_collections import ConfigDict


def get_config():
    return ConfigDict({base!r})


def get_ablation(ablation):
    return ablation(**{ablation!r})
"""


def call(*words: str) -> int:
    """The exit code of the command with these words."""
    return cli.run(reproduce.COMMAND, reproduce.main, words)


def write_lines(path: Path, lines: Sequence[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def curve(seed: int) -> list[dict[str, Any]]:
    return [{"step": step, "split": "validation", "loss": 1.0 / step + 0.01 * seed**2} for step in (1, 2)]


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with one record, whose runs are written down instead of trained."""
    root = tmp_path / "checkout"
    results = root / "experiments" / "letters" / "results"
    write_lines(results / "letters.jsonl", [{"seed": seed, **line} for seed in (1, 2, 3) for line in curve(seed)])
    write_lines(results / "more.jsonl", curve(1))
    (root / "experiments" / "demo.py").write_text(CONFIG.format(base=BASE, ablation=PLAIN))
    facts = {"commit": "7654321", "hardware": "2 cores of a clock", "versions": {"jax": "0.11.2", "flax": "0.12.12"}}
    metrics = {"selection_metric": "validation/loss", "reported_metric": "test/loss"}
    runs = [
        {
            **{"arm": each.arm_name, "task": each.task_name, "seed": each.seed, "hyperparameters": {}},
            **{"selection_value": number / 8, "reported_value": number / 4, "directory": f"trials/{each.trial.name}"},
        }
        for number, each in enumerate(plan_runs(build_ablation(**PLAIN), BASE))
    ]
    (results / "study.json").write_text(json.dumps({"runs": runs, **metrics, "about": facts}))
    (results / "letters.md").write_text(PAGE)
    (results / "times.md").write_text("# Times\n\n- Commit: 1234567\n\n## Reproduce\n\nTimes of a machine.\n")
    monkeypatch.setattr(reproduce, "CHECKOUT", root)
    monkeypatch.chdir(tmp_path)
    return root


@pytest.fixture
def trained(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that were run."""
    commands: list[list[str]] = []

    def train(command: list[str], *, cwd: Path, check: bool) -> Any:
        assert (cwd, check) == (checkout, False)
        commands.append(command)
        (workdir,) = (Path(word.partition("=")[2]) for word in command if word.startswith("--workdir="))
        if command[2] == "launch.ablate":
            workdir.mkdir(parents=True)
            shutil.copy(checkout / "experiments/letters/results/study.json", workdir / "ablation.json")
        else:
            seed = next((int(word.partition("=")[2]) for word in command if word.startswith("--config.seed=")), 1)
            write_lines(workdir / "metrics.jsonl", curve(seed))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", train)
    return commands


def test_runs_are_trained_by_the_record_s_commands_and_compared(capsys, checkout, trained):
    assert call("--name=letters/letters", "--runs=1,2,6", "--workdir=again") == 0
    again = checkout.parent / "again"
    assert [command[2:] for command in trained] == [
        ["launch.train", "--config=experiments/demo.py", f"--workdir={again}/letters_1"],
        ["launch.train", "--config=experiments/demo.py", "--config.seed=2", f"--workdir={again}/letters_2"],
        ["launch.ablate", "--config=experiments/demo.py", f"--workdir={again}/study"],
    ]
    told = capsys.readouterr().out
    assert told.count(": equal\n") == 3
    assert "$ python -m launch.train --config=experiments/demo.py --config.seed=2" in told
    assert "  processor: one core of a lamp, jax 0.12.0.1, float32; here unknown" in told
    assert "  versions: jax 0.12.0.1, here unknown; the record does not name python, jaxlib, flax, optax" in told
    assert "  commit: 7654321; here 7654321\n  processor: 2 cores of a clock; here 2 cores of a clock" in told
    assert "  versions: as in the record; the record does not name python, jaxlib, optax" in told


def test_a_run_that_was_trained_already_is_compared_without_training(capsys, checkout, trained):
    run = checkout.parent / "mine"
    write_lines(run / "metrics.jsonl", curve(1))
    (run / "config.json").write_text(json.dumps(resolve_config(BASE).to_config()))
    environment = [{"processor": "a sundial", "cpus": 1, "devices": {"platform": "cpu", "kind": "cpu", "count": 1}}]
    (run / "environment.json").write_text(json.dumps(environment))
    words = ("--name=letters/letters", f"--trained={run}")
    assert call(*words, "--runs=1") == 0
    assert "here 1 x cpu, 1 CPU core of a sundial a run" in capsys.readouterr().out
    # Another seed than that of the record is no run of it, and neither is another arm.
    assert call(*words, "--runs=2") == 2
    said = f"error: --trained={run} is not of run 2 of letters/letters: config.seed is 2 there, 1 here\n"
    assert capsys.readouterr().err == said
    near = [{**line, "loss": line["loss"] + 0.008} for line in curve(1)]
    write_lines(run / "metrics.jsonl", near)
    assert call(*words, "--runs=1") == 0
    assert "run 1 (letters_1): within its spread\n" in capsys.readouterr().out
    write_lines(run / "metrics.jsonl", [*near[:-1], {**near[-1], "loss": 5.0}])
    assert call(*words, "--runs=1") == 1
    told = capsys.readouterr()
    assert "run 1 (letters_1): not reproduced\n" in told.out
    assert "validation/loss is 0.51 in the record, 5 here; seeds differ by 0.08" in told.out
    assert told.err == "error: 1 of 1 runs are neither equal to the record nor within its spread\n"
    renamed = [{"accuracy" if name == "loss" else name: value for name, value in line.items()} for line in curve(1)]
    write_lines(run / "metrics.jsonl", renamed)
    assert call(*words, "--runs=1") == 1
    assert "run 1 (letters_1): not reproduced, as numbers of the record were not compared" in capsys.readouterr().out
    assert not trained


def test_a_study_whose_arms_are_exchanged_is_not_that_of_the_record(capsys, checkout, trained):
    run = checkout.parent / "mine"
    run.mkdir()
    text = (checkout / "experiments/letters/results/study.json").read_text()
    (run / "ablation.json").write_text(text)
    words = ("--name=letters/letters", "--runs=6", f"--trained={run}")
    assert call(*words) == 0
    (run / "ablation.json").write_text(text.replace('"pre"', '"x"').replace('"post"', '"pre"').replace('"x"', '"post"'))
    assert call(*words) == 2
    assert "is not of run 6 of letters/letters: its run trials/" in capsys.readouterr().err
    assert not trained


@pytest.mark.parametrize("code", [1, 2, 75])
def test_a_command_that_fails_is_told(capsys, checkout, monkeypatch, code):
    monkeypatch.setattr(subprocess, "run", lambda command, **how: subprocess.CompletedProcess(command, code))
    assert call("--name=letters/letters", "--runs=1", "--workdir=again") == (2 if code == 2 else 1)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "run 1 of letters/letters" in said


WRONG = {
    "no record": (("--name=letters/leters",), "--name=letters/leters is no record: did you mean 'letters/letters'"),
    "no such run": (("--name=letters/letters", "--runs=1,9"), "has no run '9': its runs are 1 (letters_1); 2"),
    "no data": (("--name=letters/letters",), "run 4 of letters/letters needs data: add --data_dir=DIR"),
    "no start": (("--name=letters/letters", "--runs=5"), "begins with the run runs/gone of the checkout"),
    "no command": (("--name=letters/times",), "has no command that gives its numbers: Times of a machine."),
    "no name": (("--runs=1",), "--runs=1 needs --name: add --name, or omit --runs"),
    "two for one": (("--name=letters/letters", "--trained=mine"), "is one run, and --name=letters/letters has 6"),
    "trained and where": (
        ("--name=letters/letters", "--runs=1", "--trained=mine", "--workdir=x"),
        "--workdir has no effect on --trained",
    ),
    "no run": (("--name=letters/letters", "--runs=1", "--trained=mine"), "mine is no run: it has no metrics.jsonl"),
    "no study": (("--name=letters/letters", "--runs=6", "--trained=mine"), "mine is no study with a report"),
}


@pytest.mark.parametrize("case", WRONG)
def test_mistakes_are_told_in_one_line_before_anything_is_trained(capsys, checkout, trained, case):
    words, says = WRONG[case]
    assert call(*words) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
    assert not trained


@pytest.mark.parametrize("content", ["{}", '{"runs": [1]}', '{"runs": 3}', '{"runs": [{"arm": "a"}], "about": []}'])
def test_a_report_that_is_none_is_told(capsys, checkout, content):
    (checkout.parent / "mine").mkdir()
    (checkout.parent / "mine" / "ablation.json").write_text(content)
    assert call("--name=letters/letters", "--runs=6", "--trained=mine") == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_records_are_listed_with_what_they_need(capsys, checkout):
    assert call() == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == "letters/letters  6 commands, needs --data_dir. The last needs the first."
    assert second == "letters/times    no command. Times of a machine."


def test_a_record_is_found_by_its_page(capsys, checkout, trained):
    page = checkout / "experiments/letters/results/letters.md"
    assert call(f"--name={page}", "--runs=1", "--workdir=again") == 0
    assert len(trained) == 1


# What tests/test_documented_commands.py says of them besides: their flags are ones that the commands take.
@pytest.mark.parametrize("name", RECORDS)
def test_every_record_can_be_trained_again_or_says_why_not(name):
    record = RECORDS[name]
    assert record.runs or record.note, f"{name} has no section Reproduce: give it the commands, or say why not"
    assert record.provenance.commit or not record.runs
    assert len({each.label for each in record.runs}) == len(record.runs)
    for each in record.runs:
        assert each.command in ("train", "ablate")
        if each.command == "ablate":
            assert json.loads(each.file.read_text())["arms"]
            continue
        (file,) = (word.removeprefix("--config=") for word in each.words if word.startswith("--config="))
        config = load_config(str(ROOT / file)).to_dict()
        overrides = dict(word.removeprefix("--config.").split("=", 1) for word in each.words if "--config." in word)
        # The file has lines of this run alone: they end where the run does, and are of its seed.
        assert max(line["step"] for line in each.lines()) == int(overrides.get("steps", config["steps"]))
        assert each.selected.get("seed", overrides.get("seed", "1")) == overrides.get("seed", "1")


def pairs_that_pass(record: Record) -> list[tuple[RecordedRun, RecordedRun]]:
    """The runs of a record, each with another recorded run that passes as it, by its numbers alone."""
    found = []
    runs = [each for each in record.runs if each.command == "train"]
    curves = {each.number: read_curve(each.lines()) for each in runs}
    for one, other in itertools.permutations(runs, 2):
        seeds = [curves[each.number] for each in runs if each.setting == one.setting]
        others = {each.label: curves[each.number] for each in runs if each is not one}
        verdict = compare_curves(curves[one.number], curves[other.number], seeds, others).verdict
        if verdict in (Verdict.EQUAL, Verdict.WITHIN_SPREAD):
            found.append((one, other))
    return found


def arms_that_pass(recorded: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The arms of a study, each with another whose runs pass as its own, by their numbers alone."""
    runs = {(run["arm"], run["task"], run["seed"], str(run["hyperparameters"])): run for run in recorded["runs"]}
    for arm, other in itertools.permutations(dict.fromkeys(key[0] for key in runs), 2):
        exchanged = [
            {**run, "selection_value": there["selection_value"], "reported_value": there["reported_value"]}
            for key, run in runs.items()
            for there in [runs.get((other, *key[1:]), run) if key[0] == arm else run]
        ]
        verdict = compare_studies(recorded, {**recorded, "runs": exchanged}).verdict
        if verdict in (Verdict.EQUAL, Verdict.WITHIN_SPREAD):
            yield arm, other


# Arms that no figure of their study tells apart: all learn the task. A study of them is told by its configs.
SAME_FIGURES = {
    "attention_probes/two_places": {"two heads", "one head, then a network"},
    "graphs/distances": {"typed mask, 4 layers", "vectors, 5 layers"},
}


@pytest.mark.parametrize("name", RECORDS)
def test_no_run_of_another_arm_or_seed_passes_as_a_run_of_its_record(name):
    for one, other in pairs_that_pass(RECORDS[name]):
        # At the base width, muP is the standard parametrization: only the config of --trained tells them apart.
        assert {one.selected["parametrization"], other.selected["parametrization"]} == {"standard", "muP"}
        assert one.selected["width"] == other.selected["width"] == "32"
        assert one.words != other.words
    for each in RECORDS[name].runs:
        if each.command == "ablate":
            for arms in arms_that_pass(json.loads(each.file.read_text())):
                assert set(arms) == SAME_FIGURES[name]


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_is_equal_to_itself(name):
    for each in RECORDS[name].runs:
        if each.command == "ablate":
            recorded = json.loads(each.file.read_text())
            assert compare_studies(recorded, recorded).verdict is Verdict.EQUAL
        else:
            curve = read_curve(each.lines())
            assert compare_curves(curve, curve).verdict is Verdict.EQUAL


def test_the_metrics_of_a_recorded_study_are_those_of_its_config():
    for record in RECORDS.values():
        for each in record.runs:
            if each.command != "ablate":
                continue
            recorded = json.loads(each.file.read_text())
            (file,) = (word.removeprefix("--config=") for word in each.words if word.startswith("--config="))
            get_ablation = load_function(str(ROOT / file), "get_ablation")
            spec = get_ablation(build_ablation)
            assert (recorded["selection_metric"], recorded["reported_metric"]) == (
                spec.selection_metric,
                spec.reported_metric,
            )
            assert {run["arm"] for run in recorded["runs"]} == set(spec.arms)
            assert {run["task"] for run in recorded["runs"]} == set(spec.tasks)


def test_every_file_of_a_record_has_a_command_that_gives_it():
    files = {each.file for record in RECORDS.values() for each in record.runs}
    curves = set(ROOT.glob("experiments/*/results/*.jsonl"))
    assert curves - files == {ROOT / "experiments/pointer_networks/results/pointer_hull_one_layer.jsonl"}
    assert CHECKOUT == ROOT


def test_one_cell_and_one_seed_of_a_study_is_trained_and_compared(capsys, checkout, trained):
    file = checkout / "experiments/letters/results/study.json"
    ablation = {
        "question": "Which rate?",
        "arms": {"a": {}, "b": {"model.norm_placement": "post"}},
        "reference": "a",
        "tasks": {"x, y": {}},
        "seeds": (1, 2, 3),
        "tuning_grid": {"optimizer.learning_rate": (0.01,)},
    }
    (checkout / "experiments" / "demo.py").write_text(CONFIG.format(base=BASE, ablation=ablation))
    values = {("a", 1): 0.50, ("a", 2): 0.51, ("a", 3): 0.52, ("b", 1): 0.70, ("b", 2): 0.72, ("b", 3): 0.71}
    runs = [
        {
            **{"arm": each.arm_name, "task": each.task_name, "seed": each.seed},
            **{"hyperparameters": {"optimizer.learning_rate": 0.01}, "directory": f"trials/{each.trial.name}"},
            **dict.fromkeys(("selection_value", "reported_value"), values[each.arm_name, each.seed]),
        }
        for each in plan_runs(build_ablation(**ablation), BASE)
    ]
    facts: dict[str, Any] = {"commit": None, "hardware": None, "versions": {}}
    study = {"selection_metric": "validation/loss", "reported_metric": "test/loss", "runs": runs, "about": facts}
    file.write_text(json.dumps(study))
    words = ("--name=letters/letters", "--runs=6", "--workdir=again")
    only = "arm=a; task=x, y; seed=2; optimizer.learning_rate=1e-2"
    assert call(*words, f"--only={only}") == 0
    assert trained[0][-1] == f"--only={only}"
    assert "2 of 2 values of runs are those of the record" in capsys.readouterr().out
    again = checkout.parent / "again" / "study" / "ablation.json"
    trained_again = ("--name=letters/letters", "--runs=6", f"--trained={again.parent}")
    # By the spread of all seeds of the cell, of which one was trained; another arm's value is not within it.
    for value, code, verdict in ((0.53, 0, "within its spread"), (0.72, 1, "not reproduced")):
        (ours,) = (run for run in runs if (run["arm"], run["seed"]) == ("a", 2))
        ours = {**ours, "selection_value": value, "reported_value": value}
        again.write_text(json.dumps({**study, "runs": [ours]}))
        assert call(*trained_again, f"--only={only}") == code
        assert f"run 6 (study): {verdict}" in capsys.readouterr().out
        assert call(*trained_again) == 1
        assert "10 of 12 values of the record have no counterpart" in capsys.readouterr().out
    for wrong, said in (
        ("--only=arm=c", "--only: no run has arm=c"),
        ("--only=rat=1", "'rat' is nothing that runs differ in"),
        ("--only=seed", "must be written as"),
    ):
        assert call(*words, wrong) == 2
        assert said in capsys.readouterr().err
    assert call("--name=letters/letters", "--runs=1", "--only=seed=1") == 2
    assert "--only selects runs of a study, and run 1 of letters/letters is a single run" in capsys.readouterr().err
    assert call("--only=seed=1") == 2
