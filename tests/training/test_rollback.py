"""The advice of a run that bad batches stop: whoever follows it as printed gets past them."""

import contextlib
import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from transformer.config import UserError
from transformer.models.task_interface import InputSpec, TaskInterface
from transformer.runs.exceptions import NonFiniteError, RunFailed
from transformer.runs.run_directory import RunDirectory
from transformer.storage.json_checksum import add_checksum
from transformer.training import rollback, vmapped
from transformer.training.checked_batches import InvalidBatch
from transformer.training.rollback import (
    RollbackRequest,
    describe_no_longer_skipped,
    explain_divergence,
    explain_invalid_batch,
    explain_non_finite,
    roll_back,
    training_batches,
)
from transformer.training.update_guard import TrainingDiverged

WORD = 10  # no token of a vocabulary of so many


class Saved:
    """The checkpoints of these steps."""

    def __init__(self, *steps: int):
        self._steps = list(steps)

    def steps(self) -> list[int]:
        return self._steps

    def delete_after(self, step: int) -> None:
        self._steps = [each for each in self._steps if each <= step]


class Tokens:
    """Batch n holds its number, and a token of no vocabulary where it is one of the bad ones."""

    def __init__(self, bad: Collection[int]):
        self._bad = bad

    def __getitem__(self, number: int) -> Mapping[str, np.ndarray]:
        return {"number": np.array(number), "tokens": np.array([[WORD if number in self._bad else 0]])}


class Trial:
    """A run with checkpoints of these steps, in which some batches, by number, are bad."""

    def __init__(self, folder: Path, *saved: int, bad: Collection[int] = ()):
        experiment = SimpleNamespace(run=SimpleNamespace(seed=3), to_config=dict)
        self.run: Any = SimpleNamespace(
            directory=RunDirectory(folder), checkpoints=Saved(*saved), experiment=experiment
        )
        interface = TaskInterface({"tokens": InputSpec((1, 1))}, {"tokens": WORD})
        self.components: Any = SimpleNamespace(
            task=SimpleNamespace(training_batches=lambda seed: Tokens(bad), interface=interface)
        )

    @property
    def batches(self) -> Any:
        return training_batches(self.run, self.components)

    def numbers(self, first: int, last: int) -> list[int]:
        """The numbers of the batches of some steps."""
        return [int(self.batches[step - 1]["number"]) for step in range(first, last + 1)]

    def diverge(self, first: int, last: int) -> str:
        """What a run says that makes no update at these steps."""
        return str(explain_divergence(TrainingDiverged(first, last, "loss is nan"), self.run, self.batches))

    def follow(self, said: str) -> RollbackRequest:
        """Do what it says, as printed."""
        found = re.search(r"--rollback_to_step=(\d+) --skip_batches=(\d+)", said)
        assert found is not None, said
        advice = RollbackRequest(int(found[1]), int(found[2]))
        roll_back(self.run, advice)
        return advice


def test_the_advice_goes_past_bad_batches_also_where_others_come_at_the_same_steps(tmp_path: Path) -> None:
    trial = Trial(tmp_path, 400, 500)
    assert trial.follow(trial.diverge(501, 510)) == RollbackRequest(500, 10)
    assert trial.numbers(501, 502) == [510, 511]
    for bad in (510, 521, 531):
        assert trial.numbers(501, 501) == [bad]
        trial.follow(trial.diverge(501, 510))
        assert trial.numbers(501, 501)[0] > bad + 9


def test_a_request_that_repeats_the_last_says_that_it_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trial = Trial(tmp_path, 500)
    roll_back(trial.run, RollbackRequest(500, 10))
    assert capsys.readouterr().out == "rolling back to step 500 and skipping 10 batches from batch 500\n"
    roll_back(trial.run, RollbackRequest(500, 10))
    assert capsys.readouterr().out == (
        "--rollback_to_step=500 --skip_batches=10 was done before and changes nothing: to skip more, pass another "
        "--skip_batches\n"
    )
    assert trial.numbers(501, 501) == [510]


def test_the_batches_of_a_skip_are_those_that_would_have_come_next(tmp_path: Path) -> None:
    trial = Trial(tmp_path, 500, 1000)
    roll_back(trial.run, RollbackRequest(1000, 10))
    roll_back(trial.run, RollbackRequest(500, 3))
    # Of steps 501 to 1000 the batches of the first request are left out already.
    assert trial.numbers(997, 999) == [999, 1010, 1011]
    trial.follow(trial.diverge(989, 998))
    assert trial.numbers(501, 501) == [1011]


def test_the_advice_for_a_token_of_no_vocabulary_goes_past_its_batch(tmp_path: Path) -> None:
    trial = Trial(tmp_path, 500, bad={729, 735})
    for step, advice, following in ((730, RollbackRequest(500, 230), 730), (506, RollbackRequest(500, 6), 736)):
        with pytest.raises(InvalidBatch, match=r"has tokens\[0, 0\] = 10, no token of a vocabulary of 10") as bad:
            trial.batches[step - 1]
        assert trial.follow(str(explain_invalid_batch(bad.value, trial.run))) == advice
        assert trial.numbers(501, 501) == [following]


def test_a_changed_bit_of_what_was_passed_by_is_refused(tmp_path: Path) -> None:
    """Else the run would train on other batches."""
    trial = Trial(tmp_path, 500)
    roll_back(trial.run, RollbackRequest(500, 10))
    file = trial.run.directory.rollback_file
    content = file.read_bytes()
    assert trial.numbers(501, 501) == [510]
    for place in range(len(content)):
        for bit in range(8):
            file.write_bytes(content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :])
            with contextlib.suppress(UserError):
                assert trial.numbers(501, 501) == [510]  # of a blank that became another
            with contextlib.suppress(UserError):
                roll_back(trial.run, None)
    file.write_bytes(content.replace(b"10", b"11"))
    with pytest.raises(UserError, match=r"rollback\.json is not what was written"):
        training_batches(trial.run, trial.components)
    for value in ({"step": 500}, {"step": 500, "skip": 10, "skipped_batches": [7], "going_back_to": None}):
        file.write_text(json.dumps(add_checksum(value)))
        with pytest.raises(UserError, match=r"rollback\.json"):
            training_batches(trial.run, trial.components)


def test_a_checkpoint_knows_which_batches_it_was_trained_without() -> None:
    saved = {"skipped_batches": [[500, 10]]}
    assert describe_no_longer_skipped(saved, [[500, 10]], 600) is None
    assert describe_no_longer_skipped(saved, [[500, 30], [700, 1]], 600) is None
    assert describe_no_longer_skipped({}, [[500, 30]], 600) is None
    for skipped_ranges in ([], [[500, 9]], [[501, 10]], [[400, 50]]):
        assert "left out" in (describe_no_longer_skipped(saved, skipped_ranges, 600) or "")


def test_what_cannot_be_stored_is_one_line_with_the_way_past_it(tmp_path: Path) -> None:
    trial = Trial(tmp_path, 500)
    found = explain_non_finite(NonFiniteError(630, "maps['self'] at step 630 holds NaN"), trial.run)
    assert isinstance(found, RunFailed)  # which a command tells in one line, and ends with 1
    assert str(found).startswith("maps['self'] at step 630 holds NaN; the run resumes from step 500")
    assert trial.follow(str(found)) == RollbackRequest(500, 130)
    assert "python -m launch.train --workdir=" in str(found)
    begun = NonFiniteError(0, "maps['self'] at step 0 holds NaN")
    assert explain_non_finite(begun, Trial(tmp_path).run) is begun


def test_one_of_several_processes_says_the_way_past_without_asking_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = Trial(tmp_path)
    for name in (
        "300/manifest/metadata",
        "500/manifest/metadata",
        "700/manifest/metadata",
        "damaged-600/manifest/metadata",
    ):
        file = trial.run.directory.checkpoints_dir / name
        file.parent.mkdir(parents=True)
        file.touch()
    (trial.run.directory.checkpoints_dir / "610").mkdir()  # of a save under way
    monkeypatch.setattr(rollback.jax, "process_count", lambda: 2)
    trial.run.checkpoints = None  # which all processes ask together
    monkeypatch.setattr(rollback, "run_on_primary", None)
    found = explain_non_finite(NonFiniteError(630, "optimizers/x is not finite at step 630"), trial.run)
    assert str(found).endswith("start each of its 2 processes again with --rollback_to_step=500 --skip_batches=130")


@pytest.mark.parametrize(
    ("why", "way"),
    [
        (TrainingDiverged(506, 510, "loss is nan"), "--rollback_to_step=500 --skip_batches=10"),
        (NonFiniteError(508, "maps['self'] at step 508 holds NaN"), "--rollback_to_step=500 --skip_batches=8"),
    ],
)
def test_a_vmapped_run_that_ended_is_told_with_how_it_goes_on_by_itself(
    tmp_path: Path, why: TrainingDiverged | NonFiniteError, way: str, capsys: pytest.CaptureFixture[str]
) -> None:
    trial = Trial(tmp_path, 500)
    trial.run.directory.environment_file.write_text("[{}]")
    runs: Any = SimpleNamespace(runs=[trial.run], components=trial.components, diverged_at=[None])
    runs._writers = SimpleNamespace(stop=lambda number: None, active_runs=[1])
    vmapped.VmappedRuns._stop_diverged(runs, 0, why)
    said = capsys.readouterr().out
    assert said.count("\n") == 1
    assert said.startswith(f"{tmp_path}: ")
    assert f"python -m launch.train --workdir={tmp_path} {way}" in said
    assert trial.run.directory.facts()["diverged_at"] == why.step
