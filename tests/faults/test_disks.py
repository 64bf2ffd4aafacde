"""A few of the failing writes; `python -m tests.faults.disks` lets one of every kind fail."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.faults import disks
from tests.faults.failing_disk import NEVER, Commands, Ended, Fault, Operation, why_not
from tests.faults.groups import together
from tests.faults.subject import differences, result

pytestmark = [pytest.mark.slow, pytest.mark.skipif(why_not() is not None, reason=str(why_not()))]

STATE = "run/checkpoints/#.orbax-checkpoint-tmp/state.orbax-checkpoint-tmp"
# By TensorStore in C++; by Python; where a failure leaves threads of a save behind.
IN_A_SAVE = Fault(Operation("write", 2, f"{STATE}/d/@"), "ENOSPC", lasting=True)
FAULTS = (
    Fault(Operation("write", 2, "run/metrics.jsonl"), "ENOSPC", lasting=True),
    Fault(Operation("write", 2, f"{STATE}/d/@"), "EIO", lasting=False),
    Fault(Operation("mkdir", 1, f"{STATE}/ocdbt.process_#"), "ENOSPC", lasting=True),
    Fault(Operation("write", 3, "run/log.txt"), "EIO", lasting=False),
    Fault(Operation("write", 1, "run/config.json.#.new"), "ENOSPC", lasting=True),
    # Of a checkpoint that the next one replaces, and of the last one.
    Fault(Operation("sync", 1, "run/checkpoints/#/manifest/metadata"), "EIO", lasting=False),
    Fault(Operation("sync", 2, "run/checkpoints/#/manifest/metadata"), "EIO", lasting=False),
)


class Trained(NamedTuple):
    """What runs training commands, their words, the directory of the run, and what a run without a fault came to."""

    commands: Commands
    words: list[str]
    run: Path
    clean: Ended
    reference: dict[str, Any]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    folder = tmp_path_factory.mktemp("disks") / "files"
    run, words = folder / "run", [*disks.TRAIN, "--config.steps=10", f"--workdir={folder / 'run'}"]
    with Commands(folder, Path(os.environ["JAX_COMPILATION_CACHE_DIR"])) as commands:
        clean = commands("launch.train", words, NEVER)
        assert clean.code == 0, clean.errors
        yield Trained(commands, words, run, clean, result(run))


def faults_of(trained: Trained, fault: Fault) -> list[str]:
    """What is wrong with a run that meets a fault and is then gone on with."""
    ended, found = disks.outcome(trained.commands, trained.words, fault, trained.run, trained.reference)
    assert ended.failed
    return found


def test_a_disk_that_is_full_in_a_save_is_told_in_one_line_and_the_run_goes_on_bit_for_bit(trained: Trained) -> None:
    assert faults_of(trained, IN_A_SAVE) == []


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_write_that_fails_is_told_in_one_line_and_the_run_goes_on_bit_for_bit(trained: Trained, fault: Fault) -> None:
    assert faults_of(trained, fault) == []


def test_events_that_cannot_be_written_stop_no_run(trained: Trained) -> None:
    events = [each for each in trained.clean.operations if each.name == "write" and "tfevents" in each.file]
    assert faults_of(trained, Fault(events[2], "EIO", lasting=False)) == []


def test_a_full_disk_beside_the_standard_output_stops_no_run(trained: Trained) -> None:
    shutil.rmtree(trained.run)
    ended = trained.commands("launch.train", trained.words, output="/dev/full")
    said = "the standard output cannot be written: No space left on device; the run goes on\n"
    assert (ended.code, ended.errors) == (0, said)
    assert differences(trained.reference, result(trained.run)) == []


def test_a_save_that_can_start_no_threads_ends_the_run_at_once(tmp_path: Path) -> None:
    plan = {"process": 0, "unit": "the checkpoint of step 20", "act": "threads", "delay": 0.0}
    (ended,) = together(tmp_path / "run", 1, plan)
    assert ended.code == 1, ended.said
    assert "error: out of memory or of threads (can't start new thread)" in ended.said
    assert "Traceback" not in ended.said
