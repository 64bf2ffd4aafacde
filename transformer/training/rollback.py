"""Roll a run back to a checkpoint and skip batches; this is recorded, so that later starts do the same."""

import dataclasses
import io
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from transformer.config import NonNegativeInt, UserError, to_config
from transformer.data.batches import BatchSource
from transformer.models.model import leaves_by_path
from transformer.runs.checkpoint_files import manifest_file
from transformer.runs.distributed import is_primary, run_on_primary
from transformer.runs.exceptions import NonFiniteError, RunFailed
from transformer.runs.jsonl_reading import StepNumber
from transformer.runs.run_directory import RunDirectory, write_json
from transformer.runs.trust import trust_flags
from transformer.storage.json_checksum import add_checksum, has_valid_checksum, strip_checksum
from transformer.storage.json_reading import parse_dataclass, read_json_object
from transformer.storage.paths import storage_of
from transformer.system.command_invocation import shell_command
from transformer.training.build import TrainingComponents
from transformer.training.checked_batches import BatchRange, CheckedBatches, InvalidBatch, batch_number, merge_ranges
from transformer.training.finite_checks import find_non_finite
from transformer.training.run_setup import TrainingRun
from transformer.training.state import TrainState
from transformer.training.update_guard import TrainingDiverged

_KEPT_BATCH = re.compile(r"batch-of-step-(\d+)\.npz")


class RollbackRequest(NamedTuple):
    """A request to go back to a checkpoint and to skip the batches after it.

    Attributes:
        step: The step of the checkpoint. None is the latest.
        num_batches_to_skip: The number of batches to skip.
    """

    step: int | None
    num_batches_to_skip: int

    def __str__(self) -> str:
        """Return the command-line flags of the request."""
        return (
            f"--skip_batches={self.num_batches_to_skip}"
            if self.step is None
            else f"--rollback_to_step={self.step} --skip_batches={self.num_batches_to_skip}"
        )


@dataclasses.dataclass(frozen=True)
class RollbackRecord:
    """The content of rollback.json.

    Attributes:
        step: The step of the last request.
        skip: The number of batches that the last request skips.
        skipped_batches: All batches that the run has skipped since it began.
        going_back_to: The step of a rollback that is not finished: a process that is killed on the way is followed by
            one that finishes it. None if there is none.
    """

    step: StepNumber | None
    skip: NonNegativeInt
    skipped_batches: tuple[BatchRange, ...]
    going_back_to: StepNumber | None

    def repeats(self, request: RollbackRequest) -> bool:
        """Whether the request is the recorded one."""
        return request == (self.step, self.skip)


def read_rollback_record(directory: RunDirectory) -> RollbackRecord | None:
    """Read the recorded rollback of a run; None if there is none.

    Raises:
        UserError: If the file was changed: it decides which batches the run trains on.
    """
    path = directory.rollback_file
    if not path.exists():
        return None
    record = read_json_object(path)
    if not has_valid_checksum(record):
        raise UserError(
            f"{path} is not what was written, and which batches the run trains on depends on it: put it back as it "
            "was, or choose another --workdir"
        )
    return parse_dataclass(RollbackRecord, strip_checksum(record), str(path))


def skipped_batches(directory: RunDirectory) -> list[list[int]]:
    """Return the batches that a run skips as ranges (first, count). All processes call it together.

    Raises:
        UserError: If the record of rollbacks was changed.
    """
    return run_on_primary(lambda: _ranges(read_rollback_record(directory)))


def _ranges(recorded: RollbackRecord | None) -> list[list[int]]:
    return [] if recorded is None else [list(skipped_range) for skipped_range in recorded.skipped_batches]


def describe_no_longer_skipped(saved: Mapping[str, Any], skipped_ranges: list[list[int]], step: int) -> str | None:
    """Describe that batches which a checkpoint was trained without are no longer skipped; None if all still are.

    Args:
        saved: The metadata of the checkpoint.
        skipped_ranges: The ranges of batches that are skipped now.
        step: The step of the checkpoint.
    """
    if merge_ranges([*skipped_ranges, *saved.get("skipped_batches", ())]) == merge_ranges(skipped_ranges):
        return None
    return f"rollback.json no longer has all batches that the run up to the checkpoint of step {step} has left out"


def roll_back(run: TrainingRun, request: RollbackRequest | None) -> None:
    """Roll a run back; a request that equals the last one is not repeated. All processes call it together.

    Args:
        run: The run.
        request: The request; None only finishes a rollback that was interrupted.

    Raises:
        UserError: If there is no checkpoint of the step, or the record of rollbacks was changed.
    """
    steps = run.checkpoints.steps()
    target = run_on_primary(lambda: _rollback_target(run, request, steps))
    if target is not None:
        run.checkpoints.delete_after(target)
        recorded = read_rollback_record(run.directory) if is_primary() else None
        if recorded is not None:
            _record_rewind(run.directory, dataclasses.replace(recorded, going_back_to=None))


def _rollback_target(run: TrainingRun, request: RollbackRequest | None, steps: list[int]) -> int | None:
    recorded = read_rollback_record(run.directory)
    under_way = None if recorded is None else recorded.going_back_to
    if request is None:
        return under_way
    if recorded is not None and recorded.repeats(request):
        if under_way is None:
            print(
                f"{request} was done before and changes nothing: to skip more, pass another --skip_batches", flush=True
            )
        return under_way
    step = max(steps, default=0) if request.step is None else request.step
    if step not in (0, *steps):
        existing = f"of steps {', '.join(map(str, steps))}" if steps else "none"
        raise UserError(f"--rollback_to_step={step}: the run has checkpoints {existing}, and 0 is its start")
    if not 0 <= request.num_batches_to_skip < 2**31:
        raise UserError(f"--skip_batches={request.num_batches_to_skip} must be a number of batches, 0 or more")
    skipped_ranges = _ranges(recorded)
    first = batch_number(step, skipped_ranges)
    if request.num_batches_to_skip:
        last = batch_number(step + request.num_batches_to_skip - 1, skipped_ranges)
        skipped_ranges = [
            list(skipped_range) for skipped_range in merge_ranges([*skipped_ranges, [first, last - first + 1]])
        ]
    ranges = tuple(BatchRange(*skipped_range) for skipped_range in skipped_ranges)
    _record_rewind(run.directory, RollbackRecord(request.step, request.num_batches_to_skip, ranges, step))
    print(
        f"rolling back to step {step} and skipping {request.num_batches_to_skip} batches from batch {first}", flush=True
    )
    return step


def _record_rewind(directory: RunDirectory, rewind: RollbackRecord) -> None:
    write_json(directory.rollback_file, add_checksum(to_config(rewind)))


def record_skipped_batches(directory: RunDirectory, ranges: Sequence[BatchRange]) -> None:
    """Record the batches that a new run leaves out from its start, without a rollback.

    Args:
        directory: The run directory.
        ranges: The ranges of batches, merged.
    """
    _record_rewind(directory, RollbackRecord(step=None, skip=0, skipped_batches=tuple(ranges), going_back_to=None))


def training_batches(run: TrainingRun, components: TrainingComponents) -> CheckedBatches:
    """Return the validated batches of a run without those that it skips."""
    source = components.task.training_batches(run.experiment.run.seed)
    return CheckedBatches(source, components.task.interface, skipped_batches(run.directory))


def explain_divergence(diverged: TrainingDiverged, run: TrainingRun, batches: BatchSource) -> TrainingDiverged:
    """Add the command that skips the diverging batches to an error, and save these batches in the run directory.

    Args:
        diverged: The error.
        run: The run.
        batches: Its training batches.
    """
    steps = range(diverged.first, diverged.step + 1)
    names = [_save_batch(run, step, batches[step - 1]) for step in steps if is_primary()]
    way = _way_past(run, diverged.step)
    trust = trust_flags(run.experiment.to_config())
    words = [*shell_command("replay"), f"--workdir={run.directory.path}", f"--step={diverged.first}", *trust]
    replay = shlex.join(words)
    return TrainingDiverged(
        diverged.first,
        diverged.step,
        f"{diverged.reason}. Their batches are kept in {run.directory.path}: {', '.join(names)}. The run, of seed "
        f"{run.experiment.run.seed}, resumes from step {way.step} and trains on them again: to skip them, "
        f"{_rewind_command(run, way)}; a higher config.update_guard.max_consecutive_skips tolerates more of them. The "
        f"array that is not finite first, if one is, is named by: {replay}",
    )


def explain_invalid_batch(bad: InvalidBatch, run: TrainingRun) -> InvalidBatch:
    """Add the command that skips the batch to an error."""
    way = _way_past(run, bad.step)
    return InvalidBatch(
        bad.step, f"{bad}; to skip all batches from step {way.step} up to it, {_rewind_command(run, way)}"
    )


def explain_non_finite(error: NonFiniteError, run: TrainingRun) -> NonFiniteError:
    """Add the command that skips the batches before a state that is not finite to its error."""
    # With several processes the others may be running, so no collective call is possible.
    way = _way_past(run, error.step, alone=jax.process_count() > 1)
    if not way.num_batches_to_skip:  # before any batch
        return error
    return NonFiniteError(
        error.step,
        f"{error}; the run resumes from step {way.step} and would fail again: to skip the batches since, "
        f"{_rewind_command(run, way)}",
    )


def _way_past(run: TrainingRun, step: int, *, alone: bool = False) -> RollbackRequest:
    """Return the request that skips the batches from the latest checkpoint up to that of `step`.

    All processes call it together, unless it is for this process alone.
    """
    directory = run.directory
    steps = (
        [saved for saved in directory.saved_steps() if manifest_file(directory.checkpoints_dir / str(saved)).is_file()]
        if alone
        else run.checkpoints.steps()
    )
    latest = max((saved for saved in steps if saved <= step), default=0)
    way = RollbackRequest(latest, step - latest)

    def is_recorded() -> bool:
        recorded = read_rollback_record(run.directory)
        return recorded is not None and recorded.repeats(way)

    # The same request would count as done already; skipping one more batch makes it a new one.
    return (
        way._replace(num_batches_to_skip=way.num_batches_to_skip + 1)
        if (is_recorded() if alone else run_on_primary(is_recorded))
        else way
    )


def _rewind_command(run: TrainingRun, way: RollbackRequest) -> str:
    if jax.process_count() > 1:
        return f"start each of its {jax.process_count()} processes again with {way}"
    trust = trust_flags(run.experiment.to_config())
    words = [*shell_command("train"), f"--workdir={run.directory.path}", *trust]
    return f"{shlex.join(words)} {way}"


def _save_batch(run: TrainingRun, step: int, batch: Any) -> str:
    """Write the batch of a step into the run directory; return the file's name."""
    content, path = io.BytesIO(), run.directory.path / f"batch-of-step-{step}.npz"
    arrays: dict[str, Any] = {name: np.asarray(array) for name, array in batch.items()}
    np.savez(content, **arrays)
    storage_of(path).replace(path, content.getvalue())
    return path.name


def kept_batch_steps(directory: RunDirectory) -> list[int]:
    """Return the steps whose batches a run kept because their updates were skipped, which it may not have logged."""
    names = [_KEPT_BATCH.fullmatch(path.name) for path in directory.path.iterdir()]
    return [int(name[1]) for name in names if name]


def check_parameters_finite(state: TrainState, run: TrainingRun, latest: int | None) -> None:
    """Check that the parameters from which training starts are finite.

    Args:
        state: The training state.
        run: The run.
        latest: The step of its checkpoint; None for a new run.

    Raises:
        RunFailed: If a parameter is not finite; the message names it.
    """
    name = find_non_finite(leaves_by_path(state.variables.params))
    if name is None:
        return
    if latest is None:
        where, advice = "at the start", "begin with others"
    else:
        earlier = max((step for step in run.checkpoints.steps() if step < latest), default=0)
        where, advice = f"in checkpoint {latest}", f"go back with --rollback_to_step={earlier}"
    raise RunFailed(f"the parameter {name} is not finite {where}, and no update can repair it: {advice}")
