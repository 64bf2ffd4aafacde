"""What reads a file of ours takes no wrong value of any field of it, and says so in one line.

In this process, over files that nothing was trained for; `python -m tests.faults.hostile` gives some to the commands.
"""

import ast
import dataclasses
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.faults.hostile_files import KINDS, Kind, completed
from tests.faults.originals import TRANSLATION
from tests.faults.wrong_values import VALUES, some, wrong
from tests.maps.test_store import LABELS, open_store, some_maps
from tests.studies import tiny
from transformer.config import RunConfig, UserError, from_config
from transformer.maps.report.head_history import read_head_statistics
from transformer.maps.report.run_data import read_samples
from transformer.maps.store import MapStore
from transformer.runs.checkpoint import Checkpoints, last_saved_step
from transformer.runs.metric_curves import read_curves
from transformer.runs.run_directory import RunDirectory, write_json
from transformer.studies.ablations.calibration import (
    calibrate,
    describe_calibration,
    read_calibration,
    write_calibration,
)
from transformer.studies.ablations.registration import (
    check_registration,
    describe_registration,
    hash_registration,
)
from transformer.studies.ablations.study_metadata import StudyMetadata, read_metadata, write_metadata
from transformer.studies.sweeps.trial_store import TrialOutcome, TrialState, TrialStore
from transformer.studies.sweeps.trials import check_recorded_trial, make_trial
from transformer.training.checkpoint_metadata import check_metadata
from transformer.training.init_from import _open_checkpoints
from transformer.training.rollback import read_rollback_record

DESIGN = tiny.ablation(seeds=(1, 2, 3))
# How many of them are refused at least, where some of it may be anything or a wrong line is told and left out. The
# config in a manifest is a copy: the run's config.json is what is read.
LEAST = {
    "registration.json": 1,  # whose study may hold anything that has its hash
    "checkpoints.json": 0,
    "checkpoints/*/manifest/metadata": 5,
    "samples.jsonl": 1,
    "sweep.json": 0,
    "trials/*/attempts.jsonl": 0,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """A run, a sweep and an ablation that nothing was trained in, by name."""
    root = tmp_path_factory.mktemp("sound")
    run, sweep, ablation = root / "translation", root / "sweep", root / "ablation"
    config = make_trial(TRANSLATION, {}).config
    with RunDirectory.claim(run, config) as directory:
        directory.record(reported={"step": 1, "records": {}}, parameters=8)
        _records(directory)
        _checkpoint(directory, config)
        _maps(directory)
    trial = make_trial(TRANSLATION, {"seed": 1})
    trial_store = TrialStore.open(sweep, {"metric": "validation/loss"})
    trial_store.append_trials([trial, make_trial(TRANSLATION, {"seed": 2})])
    with trial_store.hold_trial(trial) as lease:
        lease.record_start(0)
        lease.record_outcome(TrialOutcome(TrialState.DONE, 0.5, 2, ""))
    ablation.mkdir()
    write_metadata(ablation, from_config(StudyMetadata, ABOUT, "about"))
    registration = {"registered": "2026-01-01T00:00:00+00:00", "commit": None, "study": STUDY}
    write_json(ablation / "registration.json", {**registration, "sha256": hash_registration(registration)})
    write_calibration(ablation, calibrate(DESIGN, effect=1.0, num_studies=2))
    return {folder.name: folder for folder in (run, sweep, ablation)}


def _records(directory: RunDirectory) -> None:
    directory.metrics_file.write_text('{"step": 1, "split": "train", "loss": 0.5, "lost": null}\n')
    directory.samples_file.write_text('{"step": 1, "split": "test", "source": "a", "output": "b"}\n')
    directory.heads_file.write_text('{"step": 1, "site": "encoder/self", "entropy": [[0.5, null]]}\n')


def _checkpoint(directory: RunDirectory, config: Mapping[str, Any]) -> None:
    saved = {
        "config": config,
        "data": {"train": "0" * 64},
        "tokenizer": {"tokenizer.json": "0" * 64},
        "batches": {"parts": 1, "content": "0" * 64},
        "commit": None,
        "records": {"metrics.jsonl": [0, "0" * 64]},
        "progress": {"window": {"steps": 1, "sums": {"loss": 0.5}}, "reports_done": False},
    }
    checkpoints = Checkpoints(directory.checkpoints_dir, 1)
    checkpoints.save(1, {"kernel": jnp.ones((2, 3)), "key": jax.random.key(0)}, saved)
    checkpoints.close()


def _maps(directory: RunDirectory) -> None:
    labels = dataclasses.replace(LABELS, images={"source": np.zeros((2, 4, 4, 3), np.uint8)})
    store = open_store(directory.maps_dir, labels=labels)
    store.write(1, some_maps(1, store))
    completed(directory.path)


STUDY = {"arms": {"pre": {}, "post": {"model.norm_placement": "post"}}, "seeds": [1, 2], "target": None}
ABOUT = {
    "base": {"name": "x"},
    "arms": {
        "post": {
            "differences": [{"key": "model.norm_placement", "reference": "pre", "arm": "post"}],
            "parameters": 8,
            "shared": {"num_equal_arrays": 1, "num_arrays": 2, "differing_paths": ["a"], "unmatched_paths": []},
        }
    },
    "initial_gradients": {
        "stacks": [
            {
                "name": "decoder",
                "depths": [2],
                "arms": [{"arm": "post", "depth": 2, "layers": [0.5, None], "low": [0.5], "high": [0.5]}],
                "ratio": [{"arm": "post", "depth": 2, "last_over_first": 1.0}],
                "exponent": [{"arm": "post", "value": None}],
            }
        ],
        "how": "measured",
    },
    "stacks": {},
}


def _read_maps(folder: Path) -> None:
    for open_maps in (MapStore.open_existing, MapStore.resolutions_at, MapStore.check):
        open_maps(folder / "maps")
    store = MapStore.open_existing(folder / "maps")
    for site in store.sites:
        store.statistics(site.name)
        for step in store.steps:
            store.read(site.name, step)


def _read_checkpoint(folder: Path) -> None:
    run = RunDirectory(folder)
    checkpoints = Checkpoints.open_read_only(run.checkpoints_dir)
    stored = checkpoints.read(1)
    check_metadata(stored.metadata, folder, 1)
    stored.restore({"kernel": jnp.ones((2, 3)), "key": jax.random.key(0)})


def _read_sweep(folder: Path) -> None:
    trial_store = TrialStore.open_existing(folder)
    trial_store.facts()
    for trial in trial_store.trials():
        check_recorded_trial(trial, ())
        trial_store.outcome(trial)
        trial_store.start_and_end_times(trial)
        with trial_store.hold_trial(trial) as lease:
            lease.attempts()


def _read_run(folder: Path) -> None:
    run = RunDirectory.open(folder)
    run.starts()
    run.facts()
    from_config(RunConfig, run.config())


def _read_registration(folder: Path) -> None:
    checked = check_registration(folder, None, STUDY, [], lambda sha256, since: None)
    assert checked is not None
    describe_registration(checked)


def _read_calibration(folder: Path) -> None:
    calibration = read_calibration(folder)
    assert calibration is not None
    describe_calibration(DESIGN, calibration)


READERS: Mapping[str, Callable[[Path], object]] = {
    "maps": _read_maps,
    "checkpoints": _read_checkpoint,
    "checkpoints.json": lambda folder: last_saved_step(folder / "checkpoints"),
    "config.json": _read_run,
    "environment.json": _read_run,
    "rollback.json": lambda folder: read_rollback_record(RunDirectory(folder)),
    "metrics.jsonl": lambda folder: read_curves(RunDirectory(folder)),
    "samples.jsonl": lambda folder: read_samples(RunDirectory(folder)),
    "heads.jsonl": lambda folder: read_head_statistics(folder / "heads.jsonl"),
    "sweep.json": _read_sweep,
    "trials.jsonl": _read_sweep,
    "trials": _read_sweep,
    "about.json": read_metadata,
    "registration.json": _read_registration,
    "calibration.json": _read_calibration,
}
OURS = [kind for kind in KINDS if kind.pattern.partition("/")[0] in READERS and "state/" not in kind.pattern]
# Orbax's own file, whose every field but a few it reads itself.
OURS = [kind for kind in OURS if not kind.pattern.endswith("_CHECKPOINT_METADATA") and kind.original != "published"]


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: f"{kind.pattern} {'.'.join(map(str, kind.within))}".strip())
@pytest.mark.parametrize("count", [24, pytest.param(600, marks=pytest.mark.slow)])
def test_no_wrong_value_crashes_a_reader(folders: Mapping[str, Path], kind: Kind, count: int, tmp_path: Path) -> None:
    sound, read = folders[kind.original], READERS[kind.pattern.partition("/")[0]]
    read(shutil.copytree(sound, tmp_path / "sound"))
    file = kind.file(sound).relative_to(sound)
    cases = list(wrong(kind.document(sound), kind.schema, kind.within))
    run = Path(shutil.copytree(sound, tmp_path / "run"))
    content = (run / file).read_bytes()
    said = []
    for case in some(cases, count, 0):
        kind.spoil(run, case)
        try:
            read(run)
        except UserError as error:
            said.append(str(error))
        except Exception as error:
            pytest.fail(f"{file} with {case.name}: {type(error).__name__}: {error}")
        (run / file).write_bytes(content)
    assert len(said) >= LEAST.get(kind.pattern, min(count, len(cases)) // 3)
    assert [line[:300] for line in said if "\n" in line or len(line) >= 2000] == []


def test_a_pipe_in_a_run_or_a_sweep_is_never_read(folders: Mapping[str, Path], tmp_path: Path) -> None:
    run = Path(shutil.copytree(folders["translation"], tmp_path / "run"))
    sweep = Path(shutil.copytree(folders["sweep"], tmp_path / "sweep"))
    os.mkfifo(run / "checkpoints" / "1" / "state" / "pipe")
    os.mkfifo(sweep / "trials" / "pipe")

    def begin_from(folder: Path) -> None:
        with _open_checkpoints(folder, str(folder)):
            pass

    for read, folder in ((RunDirectory.open, run), (begin_from, run), (TrialStore.open_existing, sweep)):
        with pytest.raises(UserError, match="pipe is no regular file"):
            read(folder)


def test_each_schema_that_is_read_is_attacked(root: Path) -> None:
    # Of an array's metadata, which its own kinds attack; of a bucket, whose tests have a server; and of the ablation of
    # heads and of a chat template, of which their own tests have a wrong one.
    inside = {
        "NamedConfiguration",
        "RegularChunkGrid",
        "ZarrMetadata",
        "LeaseFile",
        "HeadAblationRecord",
        "ChatTemplate",
    }
    attacked = {kind.schema.__name__ for kind in KINDS if kind.schema is not None} | inside
    for file in (root / "transformer").rglob("*.py"):
        text = file.read_text()
        for node in ast.walk(ast.parse(text)) if "parse_dataclass(" in text or "read_dataclass(" in text else ():
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("parse_dataclass", "read_dataclass"):
                first = node.args[0]
                assert not isinstance(first, ast.Name) or first.id in attacked | {"schema"}, f"{file}: {first.id}"


def test_the_wrong_values_of_a_new_field_come_by_themselves() -> None:
    @dataclasses.dataclass(frozen=True)
    class Inner:
        new: int = 0

    @dataclasses.dataclass(frozen=True)
    class Outer:
        held: tuple[Inner, ...]
        other: str = ""

    names = {case.name.partition(" ")[0] for case in wrong({"held": [{}]}, Outer)}
    assert {"held", "held.0", "held.0.new", "other"} <= names
    assert len(list(wrong({"a": 1}))) == len(VALUES) + 3
