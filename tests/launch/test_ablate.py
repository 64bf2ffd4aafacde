"""`launch.ablate`: mistakes told in one line, what is missing completed, and numbers that are those of the runs."""

import csv
import json
import math
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from launch import ablate, cli, flag_parsing, maps, train
from launch.config_files import load_config
from launch.retrain_command import retrain_command
from tests.studies.tiny import BASE, PLAIN
from tests.training import small_run
from tests.training.small_run import without_clock
from transformer.config import from_config
from transformer.studies.ablations import calibration
from transformer.studies.ablations.study_metadata import StudyMetadata
from transformer.studies.sweeps.trial_store import TrialOutcome, TrialState, TrialStore
from transformer.studies.sweeps.trials import Trial, make_trial
from transformer.training import build, partitioning
from transformer.training.config import apply_overrides


def write_study(path: Path, base: Mapping[str, Any], fields: Mapping[str, Any]) -> Path:
    """A config file with these values."""
    path.write_text(
        f"from ml_collections import ConfigDict\n\n\ndef get_config():\n    return ConfigDict({dict(base)!r})\n\n\n"
        f"def get_ablation(ablation):\n    return ablation(**{dict(fields)!r})\n"
    )
    return path


def call(*words: str) -> int:
    """The exit code of the command with these words."""
    return cli.run(ablate.COMMAND, ablate.main, words)


def loss(trial: Trial) -> float:
    """What the made-up runs report: post-norm is worse, by 0.5 for the second seed, and every seed is a little off."""
    config = trial.config
    of_arm = {"pre": 2.0, "post": 2.5 + 0.01 * (config["seed"] - 2)}[config["model"]["norm_placement"]]
    return of_arm + 0.01 * config["seed"] ** 2 + 0.125 * (config["optimizer"]["warmup_steps"] == 0)


class Fakes:
    """Workers that write down runs instead of training them."""

    def __init__(self) -> None:
        self.trained: list[str] = []
        self.fail: set[int] = set()  # seeds whose runs fail
        self.most = 1000  # runs before they stop

    def run_workers(self, command: Sequence[str], trial_store: TrialStore, **how: Any) -> None:
        assert command[:3] == [sys.executable, "-m", "launch.ablate"]
        assert how["total"] == len(trial_store.trials())
        for trial in trial_store.trials():
            if trial_store.outcome(trial) is None and len(self.trained) < self.most:
                self.trained.append(trial.name)
                with trial_store.hold_trial(trial) as lease:
                    lease.record_outcome(self._train(trial, trial_store.directory(trial)))

    def _train(self, trial: Trial, directory: Path) -> TrialOutcome:
        if trial.config["seed"] in self.fail:
            return TrialOutcome(TrialState.FAILED, None, 0, "no luck")
        records = [
            {"step": 2, "split": "train", "loss": 5.0, "flops_per_step": 7.0},
            {"step": 2, "split": "validation", "loss": 4.0, "cross_entropy": 4.0},
            {"step": 4, "split": "train", "loss": 3.0, "flops_per_step": 7.0},
            {"step": 4, "split": "validation", "loss": loss(trial), "cross_entropy": 2 * loss(trial)},
        ]
        (directory / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        return TrialOutcome(TrialState.DONE, loss(trial), 4, "")


def about_the_arms(spec: Any, *rest: Any) -> StudyMetadata:
    of_arm = {
        "differences": [],
        "parameters": 10,
        "shared": {"num_equal_arrays": 1, "num_arrays": 1, "differing_paths": [], "unmatched_paths": []},
    }
    about = {"base": {"name": "tiny"}, "arms": dict.fromkeys(spec.arms, of_arm)}
    return from_config(StudyMetadata, about, "about")


@pytest.fixture
def fakes(monkeypatch) -> Fakes:
    """Nothing is trained, and arms are taken to be fair."""
    found = Fakes()
    monkeypatch.setattr(ablate, "run_workers", found.run_workers)
    monkeypatch.setattr("transformer.studies.ablations.study_metadata.check_and_describe_arms", about_the_arms)
    return found


@pytest.fixture
def study(tmp_path) -> Path:
    fields = {**PLAIN, "seeds": (1, 2, 3), "tuning_grid": {"optimizer.warmup_steps": (0, 2)}}
    return write_study(tmp_path / "study.py", BASE, fields)


def recomputed(run: Path) -> Iterator[tuple[Mapping[str, Any], float, float]]:
    """Config, validation loss and cross-entropy at the end, of every trial, read from its own files."""
    for line in (run / "trials.jsonl").read_text().splitlines():
        trial = json.loads(line)
        file = run / "trials" / trial["name"] / "metrics.jsonl"
        records = [json.loads(each) for each in file.read_text().splitlines()]
        last = [each for each in records if each["split"] == "validation" and "cross_entropy" in each][-1]
        yield trial["config"], last["loss"], last["cross_entropy"]


def test_numbers_are_those_of_the_runs(capsys, tmp_path, study, fakes):
    run = tmp_path / "run"
    assert call(f"--config={study}", f"--workdir={run}") == 0
    result = json.loads((run / "ablation.json").read_text())
    found = list(recomputed(run))
    assert len(found) == len(result["runs"]) == 2 * 3 * 2
    for cell in result["runs"]:
        assert Path(result["about"]["workdir"], cell["directory"], "metrics.jsonl").is_file()
        # What the page shows is pasted: the heads of a run, and the run once more.
        heads = shlex.split(f"{result['about']['maps_command']} --workdir={run / cell['directory']}")
        again = shlex.split(cell["command"])
        assert (heads[:3], again[:3]) == (["python", "-m", "launch.maps"], ["python", "-m", "launch.train"])
        flag_parsing.parse_arguments(maps.COMMAND, heads[3:])
        config = flag_parsing.parse_arguments(train.COMMAND, again[3:]).config
        assert make_trial(config, {}).name == Path(cell["directory"]).name
    words = shlex.split(result["about"]["command"])
    assert words[:3] == ["python", "-m", "launch.ablate"]
    flag_parsing.parse_arguments(ablate.COMMAND, words[3:])
    for arm in result["arms"]:
        # Two updates of warm-up are better than none by 0.125, on every seed.
        assert arm["selected_hyperparameters"] == {"": {"optimizer.warmup_steps": 2}}
        own = [
            (config["seed"], reported)
            for config, _, reported in found
            if config["model"]["norm_placement"] == arm["name"] and config["optimizer"]["warmup_steps"] == 2
        ]
        assert [(each["seed"], each["value"]) for each in arm["seeds"]] == own
        assert arm["mean"] == pytest.approx(math.fsum(value for _, value in own) / 3, rel=1e-12)
    (pair,) = result["comparisons"]
    assert (pair["arm"], pair["difference"]) == ("pre", pytest.approx(-1.0))
    rows = list(csv.DictReader((run / "ablation.csv").open()))
    of_rows = {
        (row["arm"], int(row["seed"]), int(row["optimizer.warmup_steps"])): float(row["reported_value"]) for row in rows
    }
    assert of_rows == {
        (config["model"]["norm_placement"], config["seed"], config["optimizer"]["warmup_steps"]): reported
        for config, _, reported in found
    }
    told = capsys.readouterr().out
    assert str(run / "ablation.html") in told
    assert "pre" in told
    assert "better" in told
    page = (run / "ablation.html").read_text()
    assert repr(result["arms"][0]["mean"]) in page


def test_the_same_command_completes_what_is_missing(capsys, tmp_path, study, fakes):
    run, fakes.most = tmp_path / "run", 5
    words = (f"--config={study}", f"--workdir={run}")
    assert call(*words) == 0
    warned = json.loads((run / "ablation.json").read_text())["warnings"][0]
    assert warned.startswith(
        "7 of 12 runs have not ended: arm 'post', seed 2, optimizer.warmup_steps=2; arm 'pre', seed 2"
    )
    assert "7 of 12 runs have not ended" in capsys.readouterr().out
    fakes.most = 1000
    assert call(*words) == 0
    assert len(fakes.trained) == len(set(fakes.trained)) == 12
    assert not any("not ended" in said for said in json.loads((run / "ablation.json").read_text())["warnings"])
    # More seeds are more runs of the same study, which was judged with three.
    assert json.loads((run / "about.json").read_text())["first_judged_seeds"] == [1, 2, 3]
    assert call(*words, "--seeds=1,2,3,4") == 0
    assert len(fakes.trained) == len(set(fakes.trained)) == 16
    result = json.loads((run / "ablation.json").read_text())
    assert result["exploratory"]
    assert result["summary"][0].startswith("Exploratory: seed 4 was added after the study was judged without.")
    assert "better (exploratory, pre and post at the largest optimizer.warmup_steps)" in capsys.readouterr().out
    assert json.loads((run / "about.json").read_text())["first_judged_seeds"] == [1, 2, 3]
    assert call(*words) == 2
    assert "has runs of seed 4 too" in capsys.readouterr().err


def test_seeds_that_are_added_before_any_verdict_are_seeds_of_the_study(capsys, tmp_path, study, fakes):
    run, fakes.most = tmp_path / "run", 11
    words = (f"--config={study}", f"--workdir={run}")
    assert call(*words) == 0
    assert json.loads((run / "ablation.json").read_text())["comparisons"][0]["verdict"] == "not judged"
    fakes.most = 1000
    assert call(*words, "--seeds=1,2,3,4") == 0
    result = json.loads((run / "ablation.json").read_text())
    assert (result["comparisons"][0]["verdict"], result["exploratory"]) == ("better", False)
    assert not any("Exploratory" in line for line in result["summary"])
    assert "exploratory" not in capsys.readouterr().out
    # The same seeds again are no others.
    assert call(*words, "--seeds=4,3,2,1", "--report_only") == 0
    assert not json.loads((run / "ablation.json").read_text())["exploratory"]


def registered(run: Path, capsys: pytest.CaptureFixture[str], study: Path) -> str:
    """Register the study, and return its hash."""
    assert call(f"--config={study}", f"--workdir={run}", "--register") == 0
    told = capsys.readouterr().out
    registration = json.loads((run / "registration.json").read_text())
    assert f"SHA-256 {registration['sha256']}" in told
    return registration["sha256"]


def test_a_study_as_registered_says_so(capsys, tmp_path, study, fakes):
    run = tmp_path / "run"
    sha256 = registered(run, capsys, study)
    assert fakes.trained == []
    assert registered(run, capsys, study) == sha256  # once more changes nothing
    assert call(f"--config={study}", f"--workdir={run}") == 0
    result = json.loads((run / "ablation.json").read_text())
    assert not result["exploratory"]
    assert result["summary"][0].startswith("Registered on 20")
    assert f" with the hash {sha256[:12]}, before its first run on 20" in result["summary"][0]
    told = capsys.readouterr().out
    assert "exploratory" not in told
    assert told.splitlines()[2] == result["summary"][0]
    assert call(f"--config={study}", f"--workdir={run}", "--register") == 0
    told_again = capsys.readouterr().out
    assert "the study has begun since" in told_again
    assert "then train" not in told_again
    # Each run has a start; the made-up workers record no commit and no hardware.
    assert all(run["started"].startswith("20") for run in result["runs"])
    assert {(run["commit"], run["hardware"]) for run in result["runs"]} == {("unknown", "unknown")}
    rows = list(csv.DictReader((run / "ablation.csv").open()))
    assert [row["started"] for row in rows] == [run["started"] for run in result["runs"]]


def test_a_registration_is_compared_before_training_and_in_the_report(capsys, tmp_path, study, fakes):
    run, other = tmp_path / "run", tmp_path / "other"
    words = (f"--config={study}", f"--workdir={run}")
    assert call(*words) == 0
    registered(other, capsys, study)
    (run / "registration.json").write_text((other / "registration.json").read_text())
    assert call(*words) == 0
    told = capsys.readouterr().out
    assert told.startswith("Exploratory: registered on 20")
    result = json.loads((run / "ablation.json").read_text())
    assert result["exploratory"]
    assert "registration.json was copied or made again" in result["summary"][0]
    assert json.dumps(result["summary"][0]) in (run / "ablation.html").read_text()
    (run / "registration.json").write_text("{")
    assert call(*words) == 2
    assert "registration.json is not JSON" in capsys.readouterr().err


def test_the_commit_of_a_registration_and_its_predictions_are_in_the_report(capsys, tmp_path, study, fakes):
    fields = {
        **PLAIN,
        "seeds": (1, 2, 3),
        "tuning_grid": {"optimizer.warmup_steps": (0, 2)},
        "known_before": "nothing",
        "predictions": [{"arm": "pre", "direction": "better", "at_least": 1.5}],
    }
    write_study(study, BASE, fields)
    run = tmp_path / "run"
    sha256 = registered(run, capsys, study)
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    git = ["git", "-C", str(study.parent), *identity]
    subprocess.run([*git, "init", "--quiet"], check=True)
    subprocess.run([*git, "add", "-f", str(run / "registration.json")], check=True)
    subprocess.run([*git, "commit", "--quiet", "-m", "Register"], check=True)
    assert call(f"--config={study}", f"--workdir={run}") == 0
    result = json.loads((run / "ablation.json").read_text())
    first, known, commit, predicted, *_ = result["summary"]
    assert sha256[:12] in first
    assert known == "Known before the registration: nothing"
    assert "(not signed, not pushed): this clone alone says so until it is pushed." in commit
    assert result["about"]["registration"]["commit"]["commit"][:12] in commit
    assert predicted == (
        "Predicted: pre better than post, by at least 1.5. Did not come out: pre is better by 1.000 in "
        "validation/cross_entropy (95% interval 0.950 to 1.050; 0 of 3 seeds agree)."
    )


def test_one_run_of_a_study_is_trained_alone(capsys, tmp_path, study, fakes):
    run = tmp_path / "run"
    words = (f"--config={study}", f"--workdir={run}")
    assert call(*words, "--only=arm=pre; seed=2; optimizer.warmup_steps=2") == 0
    assert "1 of 12 runs: 2 arms x 3 seeds" in capsys.readouterr().out
    (only,) = json.loads((run / "ablation.json").read_text())["runs"]
    assert (only["arm"], only["seed"], only["hyperparameters"]) == ("pre", 2, {"optimizer.warmup_steps": 2})
    assert call(*words, "--only=seed=3;arm=post") == 0
    assert len(fakes.trained) == 3
    # What was planned and is pending would be trained too.
    fakes.most = 4
    assert call(*words) == 0
    assert call(*words, "--only=arm=pre") == 2
    assert "planned runs that --only does not name" in capsys.readouterr().err
    fakes.most = 1000
    assert call(*words) == 0
    assert len(fakes.trained) == len(set(fakes.trained)) == 12


@pytest.mark.parametrize(
    ("fields", "words", "change"),
    [
        ({}, ("--seeds=1,2,3,4",), "seeds was [1, 2, 3], is [1, 2, 3, 4]"),
        ({"seeds": (1, 2, 3, 4)}, (), "seeds was [1, 2, 3], is [1, 2, 3, 4]"),
        (
            {"reported_metric": "validation/loss"},
            (),
            'reported_metric was "validation/cross_entropy", is "validation/loss"',
        ),
        ({"smallest_effect_of_interest": 0.5}, (), "smallest_effect_of_interest was null, is 0.5"),
        ({"learned_threshold": 9.0}, (), "learned_threshold was null, is 9.0"),
    ],
)
def test_what_differs_from_the_registration_makes_a_study_exploratory(
    capsys, tmp_path, study, fakes, fields, words, change
):
    run = tmp_path / "run"
    registered(run, capsys, study)
    plain = {**PLAIN, "seeds": (1, 2, 3), "tuning_grid": {"optimizer.warmup_steps": (0, 2)}}
    write_study(study, BASE, plain | fields)
    assert call(f"--config={study}", f"--workdir={run}", *words) == 0
    result = json.loads((run / "ablation.json").read_text())
    assert result["exploratory"]
    assert result["summary"][0].startswith("Exploratory: registered on 20")
    assert f"changed since: {change}" in result["summary"][0]
    assert "better (exploratory, pre and post at the largest optimizer.warmup_steps)" in capsys.readouterr().out


def test_only_a_new_study_is_registered_and_its_file_is_not_edited(capsys, tmp_path, study, fakes):
    words = (f"--config={study}", f"--workdir={tmp_path / 'begun'}")
    assert call(*words) == 0
    capsys.readouterr()
    assert call(*words, "--register") == 2
    assert "a study is registered before its first run" in capsys.readouterr().err
    run = tmp_path / "run"
    registered(run, capsys, study)
    assert call(f"--config={study}", f"--workdir={run}", "--seeds=1,2,3,4", "--register") == 2
    assert "has another study registered (seeds was [1, 2, 3], is [1, 2, 3, 4])" in capsys.readouterr().err
    file = run / "registration.json"
    file.write_text(file.read_text().replace('"seeds": [\n      1,', '"seeds": [\n      4,\n      1,'))
    assert call(f"--config={study}", f"--workdir={run}") == 0
    assert "registration.json was changed after it was written" in capsys.readouterr().out.splitlines()[0]
    assert call(f"--config={study}", f"--workdir={run}", "--register", "--report_only") == 2
    assert "--report_only has no effect on --register" in capsys.readouterr().err


def test_the_page_alone_is_written_without_training(tmp_path, study, fakes):
    run, fakes.most = tmp_path / "run", 5
    words = (f"--config={study}", f"--workdir={run}")
    assert call(*words) == 0
    before = (run / "ablation.csv").read_text()
    (run / "ablation.html").unlink()
    fakes.most = 1000
    assert call(*words, "--report_only") == 0
    assert len(fakes.trained) == 5
    assert (run / "ablation.html").is_file()
    assert (run / "ablation.csv").read_text() == before


def test_failed_runs_are_named_and_tried_again_when_asked(capsys, tmp_path, study, fakes):
    run, fakes.fail = tmp_path / "run", {2}
    words = (f"--config={study}", f"--workdir={run}")
    assert call(*words) == 0
    told = capsys.readouterr().out
    assert "failed: arm 'pre', seed 2, optimizer.warmup_steps=0: no luck (trials/" in told
    assert "--retry_failed" in told
    fakes.fail = set()
    assert call(*words) == 0
    assert len(fakes.trained) == 12
    assert call(*words, "--retry_failed") == 0
    assert len(fakes.trained) == 16
    assert "failed:" not in capsys.readouterr().out.rpartition("tried again")[2]


def test_a_plan_is_printed_without_a_directory_and_trains_nothing(capsys, tmp_path, study, fakes):
    assert call(f"--config={study}", "--plan_effect=1.5") == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0].endswith("1.5 standard deviations of the paired differences, at 5% over 1 comparison:")
    # By tables of the paired t test: six pairs see 1.5 deviations in 4 of 5 studies, and five do not.
    assert told[-1] == "80% power takes 6 seeds."
    powers = {int(line.split()[0]): float(line.split()[1]) for line in told[2:-1]}
    assert list(powers) == [3, 5, 6, 8, 12, 20]
    assert powers[5] < 0.8 <= powers[6]
    assert not fakes.trained


def test_a_design_is_calibrated_before_its_runs_and_with_them(capsys, tmp_path, study, fakes, monkeypatch):
    monkeypatch.setattr(calibration, "NUM_STUDIES", 40)
    run = tmp_path / "run"
    words = (f"--config={study}", f"--workdir={run}")
    assert call(*words, "--calibrate", "--plan_effect=2") == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith("In 40 simulated studies without differences, ")
    assert "(normal noise, correlated by 0.5 between arms with the same seed, one clearly best tuned value)" in told[0]
    assert told[1].startswith("In 40 in which one arm is better by 2 standard deviations")
    assert not fakes.trained
    assert call(*words, "--register") == 0  # a calibration is no run
    assert call(*words) == 0
    result = json.loads((run / "ablation.json").read_text())
    assert told[2].startswith("In 40 studies each of equal means with other noise, ")
    assert result["summary"][-3:] == told[:3]
    assert result["about"]["calibration"] == json.loads((run / "calibration.json").read_text())
    assert json.dumps(told[0]) in (run / "ablation.html").read_text()
    capsys.readouterr()
    # The noise of the made-up runs: the second seed's difference is larger.
    assert call(*words, "--calibrate") == 0
    first, others, hint, _ = capsys.readouterr().out.splitlines()
    assert first.endswith("(noise drawn from 12 of its runs, each arm's from its own).")
    assert "one clearly best tuned value: " in others
    assert "add --plan_effect" in hint
    assert call(*words, "--seeds=1,2,3,4") == 0
    assert "calibration.json is of another design" in (told := capsys.readouterr().out)
    assert "simulated studies" not in told


WRONG = {
    "calibrated with two seeds": ({}, ("--calibrate",), "fewer than 3 seeds gives no verdict"),
    "calibrated by two": ({}, ("--calibrate", "--num_workers=2"), "--num_workers has no effect on --calibrate"),
    "calibrated and reported": ({}, ("--calibrate", "--report_only"), "--report_only has no effect on --calibrate"),
    "calibrated and registered": ({}, ("--calibrate", "--register"), "--calibrate has no effect on --register"),
    "calibrated for nothing": (
        {"seeds": (1, 2, 3)},
        ("--calibrate", "--plan_effect=0"),
        "--plan_effect=0 must be 0.01 or more",
    ),
    "some of a registration": ({}, ("--register", "--only=seed=1"), "--only has no effect on --register"),
    "some of a report": ({}, ("--report_only", "--only=seed=1"), "--only has no effect on --report_only"),
    "some of a plan": ({}, ("--plan_effect=1", "--only=seed=1"), "--only has no effect on --plan_effect"),
    "some of a calibration": ({}, ("--calibrate", "--only=seed=1"), "--only has no effect on --calibrate"),
    "no value to train": ({}, ("--only=seed",), "--only='seed' must be written as"),
    "one key twice": ({}, ("--only=seed=1;seed=2",), "has seed twice"),
    "a run of no arm": ({}, ("--only=arm=prae",), "no run has arm=prae"),
    "a run of no seed": ({}, ("--only=seed=9",), "--only: no run has seed=9"),
    "a run of no key": ({}, ("--only=sed=1",), "'sed' is nothing that runs differ in"),
    "no effect": ({}, ("--plan_effect=0",), "--plan_effect=0 must be 0.01 or more"),
    "one arm": ({"arms": {"post": {}}}, (), "ablation.arms has 1 of them"),
    "seed twice": ({"seeds": (1, 1)}, (), "ablation.seeds=(1, 1) must hold different values"),
    "seed missing": ({}, ("--seeds=1,,2",), "--seeds='1,,2' lacks a seed"),
    "override": (
        {"arms": {"post": {"model.norm_placement": "post"}, "pre": {"model.norms": 1}}},
        (),
        "unknown key config.model.norms",
    ),
    "equal arms": ({"arms": {"post": {}, "pre": {}}}, (), "'post' and 'pre' resolve to the same config"),
    "an arm's key": (
        {},
        ("--config.model.norm_placement=sandwich",),
        "--config.model.norm_placement would not reach every run: arm 'post' sets model.norm_placement; omit it",
    ),
    "an arm's key, registered": ({}, ("--register", "--config.model.norm_placement=pre"), "would not reach every run"),
    "a key in an arm's group": (
        {"arms": {"post": {}, "pre": {"model.lora": {"rank": 2}}}},
        ("--plan_effect=1", "--config.model.lora.rank=3"),
        "--config.model.lora.rank would not reach every run: arm 'pre' sets model.lora",
    ),
    "the grid's key": (
        {"tuning_grid": {"optimizer.warmup_steps": (0, 2)}},
        ("--config.optimizer.warmup_steps=1",),
        "--config.optimizer.warmup_steps would not reach every run: tuning_grid sets optimizer.warmup_steps",
    ),
    "a task's key": (
        {"tasks": {"short": {}, "long": {"steps": 8}}},
        ("--config.steps=2",),
        "--config.steps would not reach every run: task 'long' sets steps",
    ),
    "the seed": ({}, ("--config.seed=7",), "--config.seed would not reach every run: ablation.seeds sets seed"),
    "nothing to report": ({}, ("--report_only",), "holds no sweep"),
    "no workers": ({}, ("--num_workers=0",), "--num_workers=0 must be at least 1"),
    "a flag": ({}, ("--seed=1",), "unknown flag --seed"),
}


@pytest.mark.parametrize("case", WRONG)
def test_mistakes_are_told_in_one_line_and_leave_nothing_behind(capsys, tmp_path, fakes, case):
    fields, words, says = WRONG[case]
    file = write_study(tmp_path / "study.py", BASE, {**PLAIN, **fields})
    assert call(f"--config={file}", f"--workdir={tmp_path / 'run'}", *words) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_calibration_needs_a_directory(capsys, study):
    assert call(f"--config={study}", "--calibrate", "--plan_effect=1") == 2
    assert "--calibrate needs --workdir" in capsys.readouterr().err


def test_arms_whose_data_differ_leave_nothing_behind(capsys, tmp_path):
    arms = {"post": {"model.norm_placement": "post"}, "pre": {"task.tokens_per_batch": 96}}
    file = write_study(tmp_path / "study.py", BASE, {**PLAIN, "arms": arms})
    assert call(f"--config={file}", f"--workdir={tmp_path / 'run'}") == 2
    said = capsys.readouterr().err
    assert said.startswith("error: arms whose data differ: 'post' and 'pre' ")
    assert "config.task.tokens_per_batch=384 against 96" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("", "has no get_ablation(ablation)"),
        ("def get_ablation(ablation):\n    return {}\n", "get_ablation returned a dict"),
        ("def get_ablation(ablation):\n    return 1 / 0\n", "ZeroDivisionError"),
        ("def get_ablation(ablation):\n    return ablation(question='Q?', arms={})\n", "ablation.reference is missing"),
    ],
    ids=["none", "a dict", "fails", "a missing field"],
)
def test_config_files_without_a_study_are_told_in_one_line(capsys, tmp_path, body, says):
    file = write_study(tmp_path / "study.py", BASE, PLAIN)
    file.write_text(file.read_text().partition("def get_ablation")[0] + body)
    assert call(f"--config={file}", f"--workdir={tmp_path / 'run'}") == 2
    assert says in capsys.readouterr().err


def test_metrics_that_runs_do_not_report_are_told_with_theirs_and_can_be_corrected(capsys, tmp_path, fakes):
    run = tmp_path / "run"
    file = write_study(tmp_path / "study.py", BASE, {**PLAIN, "reported_metric": "test/bleu"})
    assert call(f"--config={file}", f"--workdir={run}") == 2
    said = capsys.readouterr().err
    assert "metric 'test/bleu' is not reported" in said
    assert "train/flops_per_step, train/loss, validation/cross_entropy, validation/loss" in said
    write_study(tmp_path / "study.py", BASE, PLAIN)
    assert call(f"--config={file}", f"--workdir={run}") == 0
    assert len(fakes.trained) == 4


def test_another_study_in_the_directory_is_refused_with_the_difference(capsys, tmp_path, study, fakes):
    words = (f"--config={study}", f"--workdir={tmp_path / 'run'}")
    assert call(*words) == 0
    assert call(*words, "--config.steps=6") == 2
    assert "holds another sweep: base.steps=4, not 6" in capsys.readouterr().err


def test_a_command_resolves_to_the_run_s_own_config(tmp_path, study):
    base = apply_overrides(load_config(str(study)).to_dict(), {"model.width": 16})
    trial = make_trial(base, {"seed": 3, "task.bucket_lengths": (48, 96), "optimizer.learning_rate": 3e-3})
    words = shlex.split(
        retrain_command(str(study), ["--config.model.width=16"], trial, recorded="there", workdir="a b", data_dir="d")
    )
    assert words[:4] == ["python", "-m", "launch.train", f"--config={study}"]
    assert words[-2:] == ["--workdir=a b", "--data_dir=d"]
    config = flag_parsing.parse_arguments(train.COMMAND, words[3:]).config
    assert make_trial(config, {}).name == trial.name
    # Without the study's own words it would be another run.
    assert make_trial(load_config(str(study)).to_dict(), trial.overrides).name != trial.name


def test_the_command_of_a_run_on_a_part_of_the_machine_starts_on_any_machine(tmp_path, study):
    starts = [{"cpus": 1, "devices": {"platform": "cpu", "kind": "cpu", "count": 1}}]
    (tmp_path / "environment.json").write_text(json.dumps(starts))
    trial = make_trial(load_config(str(study)).to_dict(), {"seed": 3})
    command = retrain_command(str(study), [], trial, recorded=str(tmp_path), workdir="again")
    assert command.startswith("python -m launch.train ")


def test_a_group_that_is_replaced_is_copied_from_the_run(study):
    trial = make_trial(load_config(str(study)).to_dict(), {"optimizer": {"learning_rate": 1e-3}})
    command = retrain_command(str(study), [], trial, recorded="run/trials/x", workdir="again/x")
    assert command == (
        "mkdir -p again/x && cp run/trials/x/config.json again/x && python -m launch.train --workdir=again/x"
    )


def test_a_value_that_a_command_line_reads_otherwise_is_copied_from_the_run(study):
    # Of a key that may be None, the word none says that.
    trial = make_trial(load_config(str(study)).to_dict(), {"task.data_dir": "none"})
    command = retrain_command(str(study), [], trial, recorded="run/trials/x", workdir="again/x")
    assert command.startswith("mkdir -p again/x && cp run/trials/x/config.json again/x && ")


def work_in_this_process(command: Sequence[str], trial_store: TrialStore, **how: Any) -> None:
    """The work of one worker, without a process of its own: test_sweep.py and test_workers.py start those."""
    assert command[:3] == [sys.executable, "-m", "launch.ablate"]
    assert call(*command[3:], "--worker") == 0


@pytest.mark.slow
def test_a_study_that_is_trained_is_what_its_files_say_and_a_cell_reproduces_bit_for_bit(tmp_path, monkeypatch):
    monkeypatch.setattr(ablate, "run_workers", work_in_this_process)
    monkeypatch.setattr(ablate, "become_worker", lambda: None)
    monkeypatch.setattr(
        build, "make_placement", lambda config: partitioning.single_device_placement()
    )  # meshes have their tests
    file = write_study(
        tmp_path / "study.py",
        {**small_run.CONFIG, "seed": 1},
        {
            **PLAIN,
            # One program trains both: that arms may be of several, test_comparability.py says.
            "arms": {"slow": {}, "fast": {"optimizer.learning_rate": 3e-2}},
            "reference": "slow",
            "reported_metric": "test/loss",
        },
    )
    run = tmp_path / "run"
    assert call(f"--config={file}", f"--workdir={run}") == 0
    result = json.loads((run / "ablation.json").read_text())
    page = (run / "ablation.html").read_text()
    rows = {row["directory"]: row for row in csv.DictReader((run / "ablation.csv").open())}
    assert len(result["runs"]) == len(rows) == 4
    for cell in result["runs"]:
        records = [json.loads(line) for line in (run / cell["directory"] / "metrics.jsonl").read_text().splitlines()]
        assert cell["reported_value"] == [each["loss"] for each in records if each["split"] == "test"][-1]
        assert cell["selection_value"] == [each["loss"] for each in records if each["split"] == "validation"][-1]
        assert float(rows[cell["directory"]]["reported_value"]) == cell["reported_value"]
        assert repr(cell["reported_value"]) in page
    differences = {
        seed: arms["fast"] - arms["slow"]
        for seed in (1, 2)
        for arms in [{cell["arm"]: cell["reported_value"] for cell in result["runs"] if cell["seed"] == seed}]
    }
    (pair,) = result["comparisons"]
    assert {each["seed"]: each["value"] for each in pair["differences"]} == pytest.approx(differences, rel=1e-12)
    assert pair["difference"] == pytest.approx(sum(differences.values()) / 2, rel=1e-12)
    for arm in result["arms"]:
        assert set(arm["bands"]) == {"validation/loss", "train/loss"}
        assert set(arm["heads"]) == {"entropy", "sink"}
        assert arm["shared"]["num_equal_arrays"] > 0
    cell = result["runs"][0]
    words = shlex.split(cell["command"])
    words = words[words.index("launch.train") + 1 :]
    words = [f"--workdir={tmp_path / 'again'}" if word.startswith("--workdir=") else word for word in words]
    assert cli.run(train.COMMAND, train.main, words) == 0
    assert without_clock(tmp_path / "again") == without_clock(run / cell["directory"])
