"""Runs trained by one program: their directories are those of single runs, and one that diverges is alone."""

import dataclasses
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import jax
import numpy as np
import pytest

from tests.training import small_run
from tests.training.small_run import Killed, console_killed_at, without_clock
from transformer.config import UserError
from transformer.maps.store import MapStore
from transformer.models.model import leaves_by_path
from transformer.runs.checkpoint import Checkpoints, last_saved_step
from transformer.runs.exceptions import NonFiniteError
from transformer.runs.jsonl_reading import read_records
from transformer.runs.run_directory import RunDirectory
from transformer.training import build, checkpoint_saver, partitioning, vmapped
from transformer.training import config as experiment
from transformer.training import driver as training
from transformer.training.restore import resume_runs_together
from transformer.training.run_setup import TrainingRun
from transformer.training.update_guard import TrainingDiverged
from transformer.training.vmapped import StackedBatches
from transformer.training.writers.vmapped import VmappedWriters
from transformer.training.writers.writer import Metrics, ProbeMaps, Report, Samples, Writer

STEPS, SAVED, STOPPED, HUGE = 8, 4, 7, 1e30
CONFIG: dict[str, Any] = {**small_run.CONFIG, "name": "vmapped", "maps_every": 4}
LANES = {"one": {}, "two": {"seed": 2, "optimizer": {**CONFIG["optimizer"], "learning_rate": 0.005}}}


def resolved(**changes: Any) -> experiment.ExperimentConfig:
    return experiment.resolve_config({**CONFIG, **changes})


RUNS = {name: resolved(name=name, **changes) for name, changes in LANES.items()}


@pytest.fixture(scope="module", autouse=True)
def one_device() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in (build, vmapped):
            patch.setattr(module, "make_placement", lambda config: partitioning.single_device_placement())
        yield


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each run by itself."""
    folder = tmp_path_factory.mktemp("alone")
    for name, run in RUNS.items():
        training.train(run, folder / name)
    return folder


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All vmapped, killed behind a checkpoint and resumed."""
    folder = tmp_path_factory.mktemp("together")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "ConsoleWriter", console_killed_at(STOPPED))
        with pytest.raises(Killed):
            train(RUNS, folder)
    for name in RUNS:
        assert read_records(folder / name / "metrics.jsonl")[-1]["step"] > SAVED
        assert Checkpoints.open_read_only(folder / name / "checkpoints").latest() == SAVED
    assert train(RUNS, folder) == [None] * len(RUNS)
    return folder


def train(runs: Mapping[str, experiment.ExperimentConfig], folder: Path) -> list[int | None]:
    also = [LossRecorder(folder / name) for name in runs]
    return vmapped.train_vmapped(list(runs.values()), [folder / name for name in runs], also)


class LossRecorder(Writer):
    """Keeps the losses of each run, by its directory."""

    runs: ClassVar[dict[Path, list[tuple[int, str, float]]]] = {}

    def __init__(self, path: Path):
        self._losses = self.runs[path] = []

    def write(self, report: Report) -> None:
        if isinstance(report, Metrics):
            self._losses.append((report.step, report.split, float(report.values["loss"])))


def assert_same_run(one: Path, other: Path) -> None:
    """Two run directories hold the same run, but for rounding and the clock."""
    assert [sorted(r) for r in read_records(one / "metrics.jsonl")] == [
        sorted(r) for r in read_records(other / "metrics.jsonl")
    ]
    for here, there in zip(without_clock(one), without_clock(other), strict=True):
        assert here.pop("split") == there.pop("split")
        assert here == pytest.approx(there, rel=1e-4, abs=1e-6)
    heads = [[json.loads(line) for line in (at / "heads.jsonl").read_text().splitlines()] for at in (one, other)]
    assert [(line["step"], line["site"]) for line in heads[0]] == [(line["step"], line["site"]) for line in heads[1]]
    for here, there in zip(*heads, strict=True):
        for name in ("entropy", "importance", "branch_importance", "feed_forward_importance"):
            np.testing.assert_allclose(here[name], there[name], rtol=1e-3)
    stores = [MapStore.open_existing(at / "maps") for at in (one, other)]
    assert stores[0].steps == stores[1].steps == (0, 4, 8)
    for step in stores[0].steps:
        maps = [store.read("decoder/self", step) for store in stores]
        np.testing.assert_allclose(maps[0], maps[1], atol=1.01 / 255)
    assert states_differ(one, other) == []


def states_differ(one: Path, other: Path) -> list[str]:
    """The leaves of the last states that are not those of the other, beyond rounding."""
    abstract = build.build_components(RUNS["one"], one).abstract_state
    states = [Checkpoints.open_read_only(at / "checkpoints").read(STEPS).restore(abstract) for at in (one, other)]
    here, there = (leaves_by_path(s._replace(key=jax.random.key_data(s.key))) for s in states)
    scales = {path: 1e-4 * max(np.abs(leaf).max(initial=0), 1e-6) for path, leaf in here.items()}
    return [path for path in here if not np.allclose(here[path], there[path], rtol=0, atol=scales[path])]


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_vmapped_runs_directory_is_that_of_a_run_alone(alone: Path, together: Path, name: str) -> None:
    assert_same_run(together / name, alone / name)
    logs = [re.findall(r"(?m)step +(\d+).*?  (\w+)", (at / name / "log.txt").read_text()) for at in (alone, together)]
    # What was seen behind the checkpoint is there twice; nothing of the other runs is.
    assert sorted(set(logs[0])) == sorted(set(logs[1]))
    assert len(logs[0]) <= len(logs[1]) < 2 * len(logs[0])
    assert (together / name / "tensorboard").is_dir()
    assert RunDirectory.open(together / name).config() == json.loads(json.dumps(RUNS[name].to_config()))
    assert "parameters" in RunDirectory.open(together / name).facts()


@pytest.mark.slow
def test_a_sink_beside_each_run_is_told_of_it_alone(together: Path) -> None:
    for name in RUNS:
        records = read_records(together / name / "metrics.jsonl")
        resumed = [(each["step"], each["split"], each["loss"]) for each in records if each["step"] > SAVED]
        assert resumed
        assert LossRecorder.runs[together / name] == resumed


@pytest.mark.slow
def test_vmapped_differ_where_their_configs_do(together: Path) -> None:
    one, two = (without_clock(together / name, "train")[0] for name in RUNS)
    assert one["loss"] != pytest.approx(two["loss"], rel=1e-3)
    assert one["learning_rate"] == pytest.approx(2 * two["learning_rate"])
    assert one["flops_per_step"] == two["flops_per_step"] > 0


@pytest.mark.slow
def test_a_complete_run_is_left_alone(together: Path) -> None:
    before = (together / "one" / "metrics.jsonl").read_bytes()
    assert train(RUNS, together) == [None] * len(RUNS)
    assert (together / "one" / "metrics.jsonl").read_bytes() == before


@pytest.mark.slow
def test_single_runs_go_on_vmapped_and_vmapped_runs_alone(alone: Path, together: Path, tmp_path: Path) -> None:
    for name in RUNS:
        shutil.copytree(alone / name, tmp_path / "resumed" / name)
        shutil.rmtree(tmp_path / "resumed" / name / "checkpoints" / str(STEPS))
    train(RUNS, tmp_path / "resumed")
    assert_same_run(tmp_path / "resumed" / "two", alone / "two")
    shutil.copytree(together / "two", tmp_path / "two")
    shutil.rmtree(tmp_path / "two" / "checkpoints" / str(STEPS))
    training.train(RUNS["two"], tmp_path / "two")
    assert_same_run(tmp_path / "two", alone / "two")


@pytest.mark.slow
def test_a_run_that_diverges_leaves_the_others_alone(alone: Path, tmp_path: Path) -> None:
    rate = {**CONFIG["optimizer"], "learning_rate": HUGE}
    huge = resolved(name="huge", optimizer=rate, update_guard={"max_consecutive_skips": 1})
    with pytest.raises(TrainingDiverged) as diverged:
        training.train(huge, tmp_path / "alone")
    runs = {"huge": huge, "one": RUNS["one"]}
    ends = [diverged.value.step, None]
    assert train(runs, tmp_path) == ends
    assert_same_run(tmp_path / "one", alone / "one")
    # Its files stop where a run's do that has diverged alone.
    assert without_clock(tmp_path / "huge") == without_clock(tmp_path / "alone")
    for name in ("checkpoints", "maps"):
        there = {path.relative_to(at).parts[:2] for at in (tmp_path / "alone",) for path in (at / name).iterdir()}
        assert {path.relative_to(tmp_path / "huge").parts[:2] for path in (tmp_path / "huge" / name).iterdir()} == there
    # It is not begun again, and holds nobody back.
    log = (tmp_path / "huge" / "log.txt").read_bytes()
    assert train(runs, tmp_path) == ends
    assert (tmp_path / "huge" / "log.txt").read_bytes() == log
    # When none is left, all is over.
    assert train({"again": huge, "too": huge}, tmp_path) == 2 * ends[:1]


# A state without any would be that of a converted run, before its optimizers are made.
HYPERPARAMETERS = {"hyperparameters": {"rate": np.zeros(1, np.float32)}}


def made(folder: Path, **steps: tuple[int, ...]) -> list[TrainingRun]:
    """Runs that have checkpoints of these steps."""
    runs = []
    for name, of_run in steps.items():
        (folder / name).mkdir()
        checkpoints = Checkpoints(folder / name / "checkpoints", max_to_keep=3)
        for step in of_run:
            checkpoints.save(step, {"x": np.full(2, step), **HYPERPARAMETERS}, {})
        assert checkpoints.steps() == list(of_run)
        runs.append(TrainingRun(RUNS["one"], RunDirectory(folder / name), checkpoints, NOTHING))
    return runs


NOTHING = {"data": {}, "batches": {"parts": 1, "content": ""}, "commit": None}
SHAPE = SimpleNamespace(abstract_state={"x": np.zeros(2, int), **HYPERPARAMETERS})


def test_vmapped_go_back_to_the_latest_step_that_all_have(tmp_path: Path) -> None:
    runs = made(tmp_path, one=(2, 4), two=(2, 4, 6), three=(4, 6))
    resumed = resume_runs_together(runs, SHAPE)  # type: ignore[arg-type]
    assert [(point.step, point.state["x"][0]) for point in resumed] == [(4, 4)] * 3  # type: ignore[index]
    assert [each.checkpoints.steps() for each in runs] == [[2, 4], [2, 4], [4]]


def test_vmapped_go_back_to_the_latest_step_that_is_sound_in_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = made(tmp_path, one=(2, 4), two=(2, 4))
    (tmp_path / "two" / "checkpoints" / "4" / "manifest" / "metadata").write_text("")
    assert resume_runs_together(runs, SHAPE)[0].step == 2  # type: ignore[arg-type]
    assert "it is kept as damaged-4; step 2 is used instead" in capsys.readouterr().err
    assert [each.checkpoints.steps() for each in runs] == [[2], [2]]


def test_vmapped_lose_nothing_where_one_has_lost_its_checkpoints(tmp_path: Path) -> None:
    runs = made(tmp_path, one=(2, 4), two=())
    with pytest.raises(UserError, match=r"no checkpoint of one step: .*one has .2, 4.; .*two has none"):
        resume_runs_together(runs, SHAPE)  # type: ignore[arg-type]
    assert [each.checkpoints.steps() for each in runs] == [[2, 4], []]


def test_vmapped_begin_again_where_they_were_killed_in_the_midst_of_the_first_save(tmp_path: Path) -> None:
    runs = made(tmp_path, one=(2,), two=())
    assert resume_runs_together(runs, SHAPE) == []  # type: ignore[arg-type]
    assert [each.checkpoints.steps() for each in runs] == [[], []]
    assert last_saved_step(tmp_path / "one" / "checkpoints") is None


def test_programs_are_equal_but_for_what_a_state_holds() -> None:
    program = vmapped.program_key(RUNS["one"])
    assert {vmapped.program_key(run) for run in RUNS.values()} == {program}
    optimizer = CONFIG["optimizer"]
    assert vmapped.program_key(resolved(optimizer={**optimizer, "beta2": 0.9, "clip_norm": 2.0})) == program
    linear = {**optimizer, "schedule": "linear"}
    of_linear = vmapped.program_key(resolved(optimizer=linear))
    assert vmapped.program_key(resolved(optimizer={**linear, "final_lr_fraction": 0.1})) == of_linear != program
    for changes in (
        {"optimizer": {**optimizer, "clip_norm": 0.0}},
        {"optimizer": {**optimizer, "algorithm": "adamw"}},
        {"model": {**CONFIG["model"], "dropout": 0.0}},
        {"steps": 9},
    ):
        assert vmapped.program_key(resolved(**changes)) != program


@dataclasses.dataclass(frozen=True)
class Lengths:
    """Batches whose lengths are given."""

    lengths: tuple[int, ...]

    def __getitem__(self, step: int) -> dict[str, np.ndarray]:
        return {"tokens": np.zeros((2, self.lengths[step]))}


def test_what_cannot_be_vmapped_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = resolved(model={**CONFIG["model"], "width": 32})
    with pytest.raises(
        UserError, match=r"config\.model\.width=32 of .*/b and 16 of .*/a make two programs: vmapped runs "
    ):
        train({"a": RUNS["one"], "b": wide}, tmp_path)
    with pytest.raises(UserError, match="every run needs a run directory of its own"):
        vmapped.train_vmapped([RUNS["one"], RUNS["two"]], [tmp_path / "a", tmp_path / "." / "a"])
    batches = StackedBatches([Lengths((3, 4)), Lengths((3, 5))])
    assert batches[0]["tokens"].shape == (2, 2, 3)
    says = (
        r"differ in shape at step 2: 'tokens' is \(2, 5\) and \(2, 4\), .* config\.task\.bucket_lengths a single length"
    )
    with pytest.raises(UserError, match=says):
        batches[1]
    with monkeypatch.context() as patch:
        patch.setattr(vmapped, "StackedBatches", lambda sources: StackedBatches([Lengths((3,)), Lengths((4,))]))
        with pytest.raises(UserError, match="differ in shape at step 1"):
            train({"a": RUNS["one"], "b": RUNS["two"]}, tmp_path)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(vmapped, "make_placement", partitioning.make_placement)
    with pytest.raises(UserError, match=r"on one device, not by 1 on 8: leave one device visible"):
        train(RUNS, tmp_path / "several")


class CallRecorder(Writer):
    """Keeps the calls that it gets."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def write(self, report: Report) -> None:
        match report:
            case Metrics(step, split, values):
                self.calls.append((step, split, dict(values)))
            case Samples(step, split, samples):
                self.calls.append((step, split, list(samples)))

    def close(self) -> None:
        self.calls.append("closed")


def test_maps_that_are_not_finite_end_the_run_whose_they_are() -> None:
    class Refusing(Writer):
        def write(self, report: Report) -> None:
            raise NonFiniteError(report.step, "maps['self'] holds NaN")

    class Maps(Writer):
        def __init__(self) -> None:
            self.kept: list[Any] = []

        def write(self, report: Report) -> None:
            assert isinstance(report, ProbeMaps)
            self.kept.append((report.step, report.maps))

    kept, ended = Maps(), []
    writers = VmappedWriters(
        [Refusing(), kept], not_finite=lambda run, found: (ended.append(run), writers.stop(run))[1]
    )
    for step in (1, 2):
        writers.write(ProbeMaps(step, {"self": {0: "nan", 1: "sound"}}))
    assert ended == [0]
    assert kept.kept == [(1, {"self": "sound"}), (2, {"self": "sound"})]
    with pytest.raises(NonFiniteError):
        VmappedWriters([Refusing()]).write(ProbeMaps(1, {"self": {0: "nan"}}))


@pytest.mark.slow
def test_a_state_that_is_not_finite_ends_its_run_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = checkpoint_saver.CheckpointSaver.first_not_finite

    def spoilt(self: checkpoint_saver.CheckpointSaver, state: Any) -> str | None:
        last = int(state.step) == STEPS and self._run.directory.path.name == "two"
        return "optimizers/x" if last else found(self, state)

    monkeypatch.setattr(checkpoint_saver.CheckpointSaver, "first_not_finite", spoilt)
    assert train(RUNS, tmp_path) == [None, STEPS]
    assert f"optimizers/x is not finite at step {STEPS}" in capsys.readouterr().out


def test_every_run_is_told_its_own_until_it_is_stopped() -> None:
    one, two, shared = CallRecorder(), CallRecorder(), CallRecorder()
    writers = VmappedWriters([one, two], shared)
    writers.write(Metrics(1, "train", {"loss": np.array([1.0, 3.0]), "rate": 7.0}))
    writers.write(Samples(1, "test", [[], [{"output": "x"}]]))
    writers.write(Metrics(2, "test", {"bleu": (None, 5.0)}))
    writers.stop(1)
    writers.write(Metrics(3, "train", {"loss": np.array([2.0, np.nan])}))
    writers.close()
    assert one.calls == [(1, "train", {"loss": 1.0, "rate": 7.0}), (3, "train", {"loss": 2.0}), "closed"]
    told = [(1, "train", {"loss": 3.0, "rate": 7.0}), (1, "test", [{"output": "x"}]), (2, "test", {"bleu": 5.0})]
    assert two.calls == [*told, "closed"]
    assert shared.calls == [(1, "train", {"loss": 2.0, "rate": 7.0}), (3, "train", {"loss": 2.0}), "closed"]
