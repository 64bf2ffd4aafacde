"""Branches: the batches that are left out, and directories and steps that are refused before anything is built."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from transformer.config import UserError
from transformer.runs.run_directory import RunDirectory
from transformer.training.branch import BranchRequest, check_branch, parse_batch_range, step_before_batch
from transformer.training.checked_batches import BatchRange, batch_number
from transformer.training.rollback import record_skipped_batches, skipped_batches


def test_ranges_of_batches_are_parsed() -> None:
    assert parse_batch_range("300:350") == BatchRange(300, 50)
    for text in ("", ":", "3:", ":3", "-1:3", "3:2", "a:b", "1:2:3", "٣:٤"):
        with pytest.raises(UserError, match="--without="):
            parse_batch_range(text)


def test_the_step_before_a_batch_counts_what_is_skipped() -> None:
    skipped = [[10, 5], [30, 1]]
    for step in range(40):
        assert step_before_batch(batch_number(step, skipped), skipped) == step


class Recorded:
    """A run that has made steps 0 to 100, and left out the batches 10 to 14."""

    def __init__(self, folder: Path):
        self.directory = RunDirectory(folder)
        record_skipped_batches(self.directory, [BatchRange(10, 5)])
        assert skipped_batches(self.directory) == [[10, 5]]

    def check_step(self, step: int) -> None:
        if step > 100:
            raise UserError("beyond the run")


@pytest.mark.parametrize(
    ("step", "first", "says"),
    [
        (20, 24, "the run had trained on batch 24 before step 20, whose next batch is 25: branch off at --step=19"),
        (9, 8, "the run had trained on batch 8 before step 9, whose next batch is 9"),
        (101, 200, "beyond the run"),
        (20, 25, "built"),
        (9, 9, "built"),
    ],
)
def test_batches_that_were_trained_on_cannot_be_left_out(
    step: int, first: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(*arguments: Any) -> None:
        raise UserError("built")  # what comes next

    monkeypatch.setattr("transformer.training.branch.build_components", build)
    experiment: Any = SimpleNamespace(run=SimpleNamespace(steps=100))
    request = BranchRequest(step, experiment, {}, BatchRange(first, 2))
    with pytest.raises(UserError, match=says):
        check_branch(Recorded(tmp_path), request, tmp_path / "new")  # type: ignore[arg-type]


def test_fewer_steps_and_used_directories_are_refused(tmp_path: Path) -> None:
    experiment: Any = SimpleNamespace(run=SimpleNamespace(steps=30))
    recorded: Any = Recorded(tmp_path)
    with pytest.raises(UserError, match=r"--config\.steps=30 is less than --step=31"):
        check_branch(recorded, BranchRequest(31, experiment, {}), tmp_path / "new")
    (tmp_path / "file").write_text("mine")
    for used in (tmp_path, tmp_path / "file"):
        with pytest.raises(UserError, match="exists and is not an empty folder"):
            check_branch(recorded, BranchRequest(3, experiment, {}), used)
