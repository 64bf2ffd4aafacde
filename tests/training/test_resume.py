"""A whole run: stopped and resumed it equals an uninterrupted one, and refuses what is not its own."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.training import small_run
from tests.training.small_run import Killed, console_killed_at, without_clock
from tests.training.test_loop import Until
from transformer.config import UserError
from transformer.maps.store import MapStore
from transformer.models.model import leaves_by_path
from transformer.runs.checkpoint import Checkpoints, RestoredCheckpoint
from transformer.runs.exceptions import RunFailed, RunStopped
from transformer.runs.jsonl_reading import read_records
from transformer.runs.run_directory import RunDirectory
from transformer.storage.json_checksum import add_checksum
from transformer.training import (
    build,
    checkpoint_metadata,
    checkpoint_saver,
    driver,
    partitioning,
    restore,
    run_loading,
    run_setup,
)
from transformer.training import config as experiment
from transformer.training.compiled_probe import Probe
from transformer.training.rollback import RollbackRequest
from transformer.training.state import TrainState
from transformer.training.writers import open_writers as files
from transformer.training.writers.map_writer import MapWriter
from transformer.training.writers.writer import ProbeMaps, Report

STEPS, SAVED, STOPPED = 8, 4, 7
PROMPTS = {"prompts": ("the ", "of "), "max_new_tokens": 4}
CONFIG: dict[str, Any] = {
    **small_run.CONFIG,
    "name": "resume",
    "seed": 3,
    "task": {**small_run.CONFIG["task"], **PROMPTS},
}

# An uninterrupted run in a process of its own, which also says what it imported.
ALONE = """
import json, sys
from pathlib import Path
from transformer.tasks.task import EvaluationReport
from transformer.training import build, config, driver
from transformer.training.partitioning import single_device_placement
build.make_placement = lambda config: single_device_placement()
driver.train(config.resolve_config(json.loads(sys.argv[1])), Path(sys.argv[2]))
print("imported:", sorted({"tensorflow", "torch"} & set(sys.modules)))
"""


@pytest.fixture(scope="module")
def workdirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module", autouse=True)
def one_device() -> Iterator[None]:
    """Sharding has its tests; eight fake devices would make these slow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "make_placement", lambda config: partitioning.single_device_placement())
        yield


def config(**changes: Any) -> dict[str, Any]:
    return {**CONFIG, **changes}


@pytest.fixture(scope="module")
def alone(workdirs: Path, root: Path) -> tuple[Path, str]:
    """The directory of an uninterrupted run in its own process, and what that printed."""
    command = [sys.executable, "-c", ALONE, json.dumps(CONFIG), str(workdirs / "alone")]
    done = subprocess.run(
        command, cwd=root, env={**os.environ, "PYTHONPATH": str(root)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return workdirs / "alone", done.stdout


@pytest.fixture(scope="module")
def stopped(workdirs: Path) -> Path:
    """A run that was killed behind its checkpoint, and resumed: its metrics went further than its checkpoint."""
    folder = workdirs / "stopped"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "ConsoleWriter", console_killed_at(STOPPED))
        with pytest.raises(Killed):
            driver.train(experiment.resolve_config(CONFIG), folder)
    assert read_records(folder / "metrics.jsonl")[-1]["step"] > SAVED
    assert Checkpoints.open_read_only(folder / "checkpoints").latest() == SAVED
    assert MapStore.open_existing(folder / "maps").steps == (0, 2, 4, 6)
    shutil.copytree(folder, workdirs / "half")
    driver.train(experiment.resolve_config(CONFIG), folder)
    return folder


@pytest.fixture(scope="module")
def half(stopped: Path, workdirs: Path) -> Path:
    """The run as it was when it was killed."""
    return workdirs / "half"


def final_state(folder: Path) -> TrainState:
    setting = build.build_components(experiment.resolve_config(CONFIG), folder)
    checkpoints = Checkpoints.open_read_only(folder / "checkpoints")
    assert checkpoints.latest() == STEPS
    return checkpoints.read(STEPS).restore(setting.abstract_state)


def leaf_bytes(state: Any) -> dict[str, bytes]:
    leaves = leaves_by_path(state._replace(key=jax.random.key_data(state.key)))
    return {path: np.asarray(leaf).tobytes() for path, leaf in leaves.items()}


def contents(folder: Path, *names: str) -> dict[str, bytes]:
    files = [path for name in names for path in sorted((folder / name).rglob("*")) or [folder / name]]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files if path.is_file()}


def test_stopped_and_resumed_equals_uninterrupted(alone: tuple[Path, str], stopped: Path) -> None:
    assert_one_state(alone[0], stopped)


def test_a_run_prints_its_precision(alone: tuple[Path, str]) -> None:
    assert "\nprecision: float32 parameters, float32 computation, float32 logits\n" in alone[1]


def assert_one_state(alone: Path, other: Path) -> None:
    one, two = leaf_bytes(final_state(alone)), leaf_bytes(final_state(other))
    assert one.keys() == two.keys()
    assert {"variables", "optimizers", "averages"} <= {path.split("/")[0] for path in one}
    assert [path for path in one if one[path] != two[path]] == []


def test_the_records_are_those_of_one_run(alone: tuple[Path, str], stopped: Path) -> None:
    assert_one_record(alone[0], stopped)


def assert_one_record(alone: Path, other: Path) -> None:
    records = without_clock(alone)
    assert [r["step"] for r in records if r["split"] == "train"] == [2, 4, 6, 8]
    assert [r["step"] for r in records if r["split"] == "validation"] == [4, 8]
    assert records == without_clock(other)
    for name in ("samples.jsonl", "heads.jsonl"):
        assert (alone / name).read_bytes() == (other / name).read_bytes()


def test_the_maps_are_those_of_one_run(alone: tuple[Path, str], stopped: Path) -> None:
    assert_one_store(alone[0], stopped)


def assert_one_store(alone: Path, other: Path) -> None:
    one, two = (MapStore.open_existing(folder / "maps") for folder in (alone, other))
    assert one.steps == two.steps == (0, 2, 4, 6, 8)
    for site in one.sites:
        for step in one.steps:
            np.testing.assert_array_equal(one.read(site.name, step), two.read(site.name, step))


def stop_before(unit: str, folder: Path, **asked: Any) -> None:
    with pytest.raises(RunStopped):
        driver.train(experiment.resolve_config(CONFIG), folder, monitor=Until(unit), **asked)


@pytest.fixture(scope="module")
def unlooked(workdirs: Path) -> Path:
    """A run that was told to stop behind a step, and before the evaluation and the maps of it."""
    stop_before(f"the maps of step {SAVED}", workdirs / "unlooked")
    assert [r["split"] for r in read_records(workdirs / "unlooked" / "metrics.jsonl")] == ["train"] * 2
    return workdirs / "unlooked"


class KilledMaps(MapWriter):
    """The maps of a process that dies as soon as one step of them is on disk."""

    def write(self, report: Report) -> None:
        super().write(report)
        if isinstance(report, ProbeMaps):
            raise Killed


@pytest.mark.parametrize(
    ("name", "killed"),
    [
        ("ConsoleWriter", (driver, console_killed_at(STOPPED))),  # later on, and before the next checkpoint
        pytest.param("MapWriter", (files, KilledMaps), marks=pytest.mark.slow),  # in the midst of reporting
    ],
)
def test_what_is_reported_later_is_there_once_whatever_kills_the_run_that_reports_it(
    alone: tuple[Path, str], unlooked: Path, tmp_path: Path, name: str, killed: tuple[Any, type]
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(unlooked, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(killed[0], name, killed[1])
        with pytest.raises(Killed):
            driver.train(experiment.resolve_config(CONFIG), folder)
    assert SAVED in MapStore.open_existing(folder / "maps").steps
    driver.train(experiment.resolve_config(CONFIG), folder)
    assert_one_state(alone[0], folder)
    assert_one_record(alone[0], folder)
    assert_one_store(alone[0], folder)


@pytest.mark.slow
def test_a_step_that_a_run_comes_back_to_is_reported_again(alone: tuple[Path, str], half: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(half, folder)
    stop_before(f"the maps of step {STEPS}", folder)
    driver.train(experiment.resolve_config(CONFIG), folder)
    assert_one_record(alone[0], folder)
    shutil.copytree(folder, tmp_path / "longer")
    stop_before(f"the maps of step {STEPS}", folder, rewind=RollbackRequest(SAVED, 0))
    driver.train(experiment.resolve_config(CONFIG), folder)
    assert_one_state(alone[0], folder)
    assert_one_record(alone[0], folder)
    assert_one_store(alone[0], folder)
    # What the end of a shorter run has measured stays where the run is made longer.
    driver.train(experiment.resolve_config(config(steps=STEPS + 2)), tmp_path / "longer")
    assert without_clock(tmp_path / "longer")[: len(without_clock(alone[0]))] == without_clock(alone[0])


@pytest.mark.slow
def test_a_copy_by_hard_links_shares_nothing_that_is_written(
    half: Path, tmp_path: Path, alone: tuple[Path, str]
) -> None:
    folder, before = tmp_path / "run", contents(half, ".")
    shutil.copytree(half, folder, copy_function=os.link)
    assert (half / "metrics.jsonl").stat().st_nlink > 1
    driver.train(experiment.resolve_config(CONFIG), folder)
    assert contents(half, ".") == before
    assert_one_state(alone[0], folder)


@pytest.mark.parametrize("what", ["a state", pytest.param("maps", marks=pytest.mark.slow)])
def test_what_is_not_finite_ends_in_one_line_that_leads_past_it(
    half: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(half, folder)
    if what == "maps":
        make = run_setup.compile_run_probe

        def spoilt_probe(*given: Any) -> Any:
            plan, probe = make(*given)

            def spoilt(state: TrainState) -> Any:
                maps = probe(state)
                site, kept = next(iter(maps.items()))
                levels = {name: each._replace(scale=each.scale * np.nan) for name, each in kept.levels.items()}
                return {**maps, site: kept._replace(levels=levels)}

            return Probe(plan, spoilt)

        monkeypatch.setattr(driver, "compile_run_probe", spoilt_probe)
    else:
        monkeypatch.setattr(checkpoint_saver.CheckpointSaver, "first_not_finite", lambda self, state: "optimizers/x")
    with pytest.raises(RunFailed, match=rf"at step \d.*--rollback_to_step={SAVED} --skip_batches=\d$"):
        driver.train(experiment.resolve_config(CONFIG), folder)


def test_a_lost_config_is_read_from_the_checkpoint(half: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(half, folder)
    content = (folder / "config.json").read_bytes()
    (folder / "config.json").unlink()
    assert RunDirectory.open(folder).config() == json.loads(content)
    with pytest.raises(UserError, match=r"config\.seed=3, not 4"):
        driver.train(experiment.resolve_config(config(seed=4)), folder)
    claim = RunDirectory.claim(folder, experiment.resolve_config(CONFIG).to_config())
    with claim as directory:
        assert not directory.is_new
    assert (folder / "config.json").read_bytes() == content
    (folder / "config.json").unlink()
    manifest = folder / "checkpoints" / str(SAVED) / "manifest" / "metadata"
    manifest.write_bytes(manifest.read_bytes().replace(b'"seed": 3', b'"seed": 4'))
    with pytest.raises(UserError, match=r"it has no config\.json"):
        RunDirectory.open(folder)


@pytest.mark.slow
def test_a_run_that_forgets_which_batches_it_left_out_is_refused(half: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(half, folder)
    driver.train(experiment.resolve_config(CONFIG), folder, rewind=RollbackRequest(SAVED, 1))
    driver.train(experiment.resolve_config(CONFIG), folder)
    (folder / "rollback.json").unlink()
    with pytest.raises(UserError, match=rf"no longer has all batches that the run up to .* step {STEPS} has left out"):
        driver.train(experiment.resolve_config(CONFIG), folder)


def test_neither_tensorflow_nor_torch_is_imported_by_a_run(alone: tuple[Path, str]) -> None:
    assert alone[1].splitlines()[-1] == "imported: []"


def test_a_finished_run_trains_nothing(stopped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = ("tokenizer.json", "tokenizer_roles.json", "samples.jsonl")
    lasting = ("metrics.jsonl", "maps", "checkpoints", "tensorboard", "config.json", *text)
    before = contents(stopped, *lasting)
    assert len(before) > 10
    driver.train(experiment.resolve_config(CONFIG), stopped)
    assert contents(stopped, *lasting) == before
    assert f"complete at step {STEPS}: nothing to train" in capsys.readouterr().out


@pytest.mark.slow
def test_another_seed_is_another_run(stopped: Path, workdirs: Path) -> None:
    # Short, without evaluations: the first records must differ already.
    changes = {"seed": 4, "steps": 2, "log_every": 2, "checkpoint_every": 0, "maps_every": 0}
    resolved = experiment.resolve_config(config(**changes))
    folder = workdirs / "seed"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "compile_evaluations", lambda *arguments: [])
        driver.train(resolved, folder)
    (mine,) = without_clock(folder, "train")
    theirs = without_clock(stopped)[0]
    assert mine["step"] == theirs["step"] == 2
    assert mine["loss"] != theirs["loss"]
    assert mine["learning_rate"] == theirs["learning_rate"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"seed": 4}, r"config\.seed=3, not 4"),
        ({"model": {**CONFIG["model"], "heads": 4}}, r"config\.model\.heads=2, not 4"),
        (
            {"optimizer": {**CONFIG["optimizer"], "learning_rate": 0.02}},
            r"config\.optimizer\.learning_rate=0\.01, not 0\.02",
        ),
    ],
)
def test_a_changed_config_is_refused_and_loses_nothing(half: Path, changes: Any, says: str) -> None:
    before = contents(half, ".")
    with pytest.raises(UserError, match=says):
        driver.train(experiment.resolve_config(config(**changes)), half)
    assert contents(half, ".") == before


def test_fewer_steps_than_are_done_are_refused(half: Path, workdirs: Path) -> None:
    folder = workdirs / "fewer"
    shutil.copytree(half, folder)
    fewer = experiment.resolve_config(config(steps=2, log_every=2, checkpoint_every=2))
    before = contents(folder, "metrics.jsonl", "config.json")
    with pytest.raises(UserError, match=rf"config\.steps=2 is less than the step of the latest checkpoint, {SAVED}"):
        driver.train(fewer, folder)
    assert contents(folder, "metrics.jsonl", "config.json") == before


def test_a_checkpoint_of_another_model_is_refused_by_its_first_leaf(half: Path, workdirs: Path) -> None:
    folder = workdirs / "other"
    shutil.copytree(half, folder)
    other = experiment.resolve_config(config(model={**CONFIG["model"], "feed_forward": 64}))
    # A directory that says it is the other model's, with this one's checkpoints in it.
    (folder / "config.json").write_text(json.dumps(other.to_config()))
    kept = contents(folder, "checkpoints", "metrics.jsonl", "maps", "samples.jsonl")
    says = (
        r"checkpoint 4 in .* is of another model or version: leaf "
        r"'variables/params/layers/feed_forward/contract/kernel' is "
        r"shape \(1, 32, 16\) of float32 in the checkpoint and shape \(1, 64, 16\) of float32 in this run"
    )
    with pytest.raises(UserError, match=says):
        driver.train(other, folder)
    assert contents(folder, "checkpoints", "metrics.jsonl", "maps", "samples.jsonl") == kept


def test_how_often_is_looked_may_change_on_resuming(half: Path, workdirs: Path) -> None:
    allowed = experiment.changeable_keys(experiment.resolve_config(CONFIG))
    looking = {
        "log_every",
        "eval_every",
        "maps_every",
        "checkpoint_every",
        "keep_checkpoints",
        "permanent_checkpoint_every",
    }
    data = {"task.data_dir", "task.shards_dir", "task.num_tokenizing_processes"}
    data |= {"task.dataset", "task.validation_files", "task.test_files"}  # their contents are compared
    others = {"sharding", "topology", "xla_flags", "libtpu_init_args", "update_guard.max_consecutive_skips", "steps"}
    assert looking | data | others == set(allowed)
    ending = experiment.resolve_config(config(optimizer={"schedule": "linear"}))
    assert "steps" not in experiment.changeable_keys(ending)  # the schedule's end moves with it


@pytest.mark.parametrize(
    ("shared", "own", "free"),
    [
        ("constant", {"language_modeling": {"schedule": "cosine"}}, False),
        ("constant", {"language_modeling": {"schedule": "inverse_square_root"}}, True),
        ("cosine", {"language_modeling": {"schedule": "constant"}}, True),  # no objective has the shared one
        ("cosine", {"language_modeling": {"learning_rate": 0.1}}, False),  # the rest is that of the shared one
        ("cosine", {}, False),
    ],
)
def test_every_objective_s_own_schedule_says_whether_a_run_can_be_longer(
    shared: str, own: dict[str, Any], free: bool
) -> None:
    changed = config(optimizer={"schedule": shared}, optimizers=own)
    assert ("steps" in experiment.changeable_keys(experiment.resolve_config(changed))) is free


def test_a_longer_run_is_refused_if_an_objective_s_own_schedule_ends(half: Path, workdirs: Path) -> None:
    folder = workdirs / "ending"
    shutil.copytree(half, folder)
    ending = {"language_modeling": {"schedule": "cosine"}}
    recorded = experiment.resolve_config(config(optimizers=ending)).to_config()
    (folder / "config.json").write_text(json.dumps(recorded))
    before = contents(folder, ".")
    with pytest.raises(UserError, match=rf"config\.steps={STEPS}, not {STEPS + 4}"):
        driver.train(experiment.resolve_config(config(optimizers=ending, steps=STEPS + 4)), folder)
    assert contents(folder, ".") == before


def test_a_run_goes_on_keeping_what_it_kept_of_its_maps(
    half: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another cadence would have chosen otherwise; the store holds one choice."""
    folder = tmp_path / "run"
    shutil.copytree(half, folder)
    file = folder / "maps" / "zarr.json"
    group = json.loads(file.read_text())
    group["attributes"] = add_checksum(
        {name: value for name, value in group["attributes"].items() if name != "sha256"}
        | {"resolutions": {"level_sizes": [64], "num_rows": 3, "top_k": 0}}
    )
    file.write_text(json.dumps(group))

    def stopped_at_once(*arguments: Any, **more: Any) -> None:
        raise Killed

    monkeypatch.setattr(driver, "train_loop", stopped_at_once)
    with pytest.raises(Killed):
        driver.train(experiment.resolve_config(config(maps_every=1)), folder)
    store = MapStore.open_existing(folder / "maps")
    assert (store.resolutions.num_rows, store.resolutions.top_k, store.steps) == (3, 0, (0, 2, 4))


def test_what_stopped_a_run_is_told_and_not_what_of_its_maps_was_lost(
    half: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(half, folder)

    def diverged(*arguments: Any, reporter: Any, **more: Any) -> None:
        reporter.writer.write(ProbeMaps(6, {}))  # which no store takes
        raise FloatingPointError("loss is nan at step 7")

    monkeypatch.setattr(driver, "train_loop", diverged)
    with pytest.raises(FloatingPointError, match="loss is nan"):
        driver.train(experiment.resolve_config(CONFIG), folder)


def finished(alone: tuple[Path, str], folder: Path) -> Path:
    shutil.copytree(alone[0], folder)
    assert Checkpoints.open_read_only(folder / "checkpoints").steps() == [SAVED, STEPS]
    return folder


def test_a_damaged_checkpoint_is_set_aside_and_the_run_goes_on_from_the_one_before(
    alone: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = finished(alone, tmp_path / "run")
    (file,) = (folder / "checkpoints" / str(STEPS) / "state" / "d").iterdir()
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)
    driver.train(experiment.resolve_config(CONFIG), folder)
    said = capsys.readouterr()
    assert f"resuming from step {SAVED}" in said.out
    (line,) = [line for line in said.err.splitlines() if "is damaged" in line]
    assert f"it is kept as damaged-{STEPS}; step {SAVED} is used instead" in line
    assert (folder / "checkpoints" / f"damaged-{STEPS}" / "state" / "d" / file.name).read_bytes() == content
    one, other = leaf_bytes(final_state(alone[0])), leaf_bytes(final_state(folder))
    assert [path for path in one if one[path] != other[path]] == []
    assert without_clock(alone[0]) == without_clock(folder)
    assert (alone[0] / "samples.jsonl").read_bytes() == (folder / "samples.jsonl").read_bytes()
    assert MapStore.open_existing(folder / "maps").steps == (0, 2, 4, 6, 8)


def test_where_all_checkpoints_are_damaged_one_line_says_so_and_nothing_changes(
    alone: tuple[Path, str], tmp_path: Path
) -> None:
    folder = finished(alone, tmp_path / "run")
    for step in (SAVED, STEPS):
        (folder / "checkpoints" / str(step) / "manifest" / "metadata").write_text("{}")
    before = contents(folder, "checkpoints", "metrics.jsonl", "maps")
    with pytest.raises(UserError, match=r"8 is damaged: .*; those of steps 4 are as well: put back a copy"):
        driver.train(experiment.resolve_config(CONFIG), folder)
    assert contents(folder, "checkpoints", "metrics.jsonl", "maps") == before


@pytest.mark.parametrize(
    "left",
    [
        "no folder",
        pytest.param("an empty folder", marks=pytest.mark.slow),
        pytest.param("no folder and no note", marks=pytest.mark.slow),
    ],
)
def test_a_run_that_lost_its_checkpoints_is_refused(alone: tuple[Path, str], tmp_path: Path, left: str) -> None:
    folder = finished(alone, tmp_path / "run")
    shutil.rmtree(folder / "checkpoints")
    if left == "an empty folder":
        (folder / "checkpoints").mkdir()
    if left == "no folder and no note":
        (folder / "checkpoints.json").unlink()
    before = contents(folder, "metrics.jsonl", "heads.jsonl", "samples.jsonl", "maps")
    for _ in range(2):
        with pytest.raises(UserError, match=r"has lost its checkpoints: .* step 8.*restore them, or choose another"):
            driver.train(experiment.resolve_config(CONFIG), folder)
    assert contents(folder, "metrics.jsonl", "heads.jsonl", "samples.jsonl", "maps") == before


@pytest.mark.parametrize(
    ("note", "says"),
    [
        ('{"newest": 4}', None),
        ('{"newest": 8}', "checkpoints: the checkpoint of step 8 is missing; step 4 is used instead"),
        (
            '{"newest"',
            "checkpoints.json is damaged, which says what step was saved last, and its metrics reach step 7; step 4 is "
            "used, the last one there is",
        ),
    ],
)
def test_a_lost_checkpoint_is_told_also_where_the_note_of_the_last_one_is_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], note: str, says: str | None
) -> None:
    (tmp_path / "checkpoints.json").write_text(note)
    (tmp_path / "metrics.jsonl").write_text('{"step": 7, "split": "train", "loss": 1.0}\n')
    restore._announce_missing_checkpoint(RunDirectory(tmp_path), RestoredCheckpoint(4, None, {}))
    said = capsys.readouterr()
    assert (said.out + said.err).count("\n") == (0 if says is None else 1)
    assert says is None or says in said.out + said.err


def test_a_value_changed_in_config_json_alone_is_refused(alone: tuple[Path, str], tmp_path: Path) -> None:
    folder = finished(alone, tmp_path / "run")
    changed = json.loads((folder / "config.json").read_text())
    changed["optimizer"]["learning_rate"] = 0.02
    (folder / "config.json").write_text(json.dumps(changed))
    says = (
        r"config\.json says config\.optimizer\.learning_rate=0\.02, but the checkpoint of step 8 was trained with "
        r"config\.optimizer\.learning_rate=0\.01"
    )
    with pytest.raises(UserError, match=says):
        driver.train(experiment.resolve_config(changed), folder)
    with pytest.raises(UserError, match=says):
        run_loading.load_run(folder)


def test_other_data_another_tokenizer_and_another_order_are_named(alone: tuple[Path, str], tmp_path: Path) -> None:
    folder = finished(alone, tmp_path / "run")
    metadata = Checkpoints.open_read_only(folder / "checkpoints").read(STEPS).metadata
    assert set(metadata["data"]) == {"train", "validation", "test"}
    assert set(metadata["records"]) == {"metrics.jsonl", "heads.jsonl", "samples.jsonl"}
    assert checkpoint_metadata.describe_data_change(metadata, metadata, STEPS) is None
    assert checkpoint_metadata.describe_tokenizer_change(metadata, folder, STEPS) is None
    other = {**metadata, "data": {**metadata["data"], "validation": "0"}}
    assert "the validation split of config.task.dataset has changed" in str(
        checkpoint_metadata.describe_data_change(metadata, other, STEPS)
    )
    moved = {**metadata, "config": {**metadata["config"], "task": {**metadata["config"]["task"], "dataset": "b.txt"}}}
    assert checkpoint_metadata.describe_data_change(metadata, moved, STEPS) is None
    assert checkpoint_metadata.describe_config_change(metadata, moved["config"], STEPS) is None
    # A task without fingerprints of its data cannot tell that it is the same set at another path.
    unknown = {**metadata, "data": {}}
    assert "config.task.dataset has changed since the checkpoint of step 8, which has config.task.dataset=" in str(
        checkpoint_metadata.describe_data_change(unknown, {**moved, "data": {}}, STEPS)
    )
    other = {**metadata, "batches": {**metadata["batches"], "content": "0"}}
    assert "batches 1 to 3 are not those" in str(checkpoint_metadata.describe_data_change(metadata, other, STEPS))
    (folder / "tokenizer.json").write_text("{}")
    assert checkpoint_metadata.describe_tokenizer_change(metadata, folder, STEPS) == (
        "tokenizer.json has changed since the checkpoint of step 8"
    )


def test_a_state_that_is_not_finite_is_not_saved(half: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    shutil.copytree(half, folder)

    def spoilt(state: TrainState, *arguments: Any, save: Any, reporter: Any, **more: Any) -> None:
        leaves, structure = jax.tree.flatten(state.variables)
        leaves[0] = leaves[0].at[(0,) * leaves[0].ndim].set(np.nan)
        reporter.writer.flush()
        save(state._replace(step=state.step + 1, variables=jax.tree.unflatten(structure, leaves)), {})

    monkeypatch.setattr(driver, "train_loop", spoilt)
    with pytest.raises(FloatingPointError, match=r"variables/params/.* is not finite at step 5: this state is not"):
        driver.train(experiment.resolve_config(CONFIG), folder)
    assert Checkpoints.open_read_only(folder / "checkpoints").steps() == [SAVED]
