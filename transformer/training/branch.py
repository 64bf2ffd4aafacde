"""Branch a run off another one: continue from a step of it with other config values, or without some of its batches."""

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from transformer.config import UserError
from transformer.data.tokenizers.load import copy_tokenizer
from transformer.runs.checkpoint import Checkpoints
from transformer.runs.checkpoint_files import leaf_shape, named_leaves
from transformer.runs.run_directory import RunDirectory, current_commit
from transformer.storage.paths import storage_of
from transformer.training.build import TrainingComponents, build_components, hyperparameters_by_objective
from transformer.training.checked_batches import BatchRange, batch_number, merge_ranges
from transformer.training.checkpoint_metadata import collect_metadata
from transformer.training.config import ExperimentConfig, changeable_keys
from transformer.training.replay import Replay
from transformer.training.rollback import record_skipped_batches, skipped_batches
from transformer.training.state import TrainState


@dataclasses.dataclass(frozen=True)
class BranchRequest:
    """What a branch does otherwise than its run.

    Attributes:
        step: The step of the run from which it continues.
        experiment: Its checked config.
        overrides: The config keys that differ from those of the run, with their values.
        without: The batches that it leaves out as (first, count), numbered from 0 in the order of the data; None leaves
            none out.
    """

    step: int
    experiment: ExperimentConfig
    overrides: Mapping[str, Any]
    without: BatchRange | None = None


def parse_batch_range(text: str) -> BatchRange:
    """Parse FROM:TO, the batches FROM to TO - 1.

    Raises:
        UserError: If the text has another form, or the range is empty.
    """
    first, colon, end = text.partition(":")
    if not colon or not all(word.isascii() and word.isdecimal() and len(word) < 16 for word in (first, end)):
        raise UserError(f"--without={text} must be FROM:TO, for the batches FROM to TO - 1, counted from 0, as 300:350")
    if int(first) >= int(end):
        raise UserError(f"--without={text} leaves no batch out: FROM must be less than TO")
    return BatchRange(int(first), int(end) - int(first))


def step_before_batch(number: int, skipped_ranges: Iterable[Sequence[int]]) -> int:
    """Return the step after which a run trains on a batch, counted from 0.

    Args:
        number: The number of the batch.
        skipped_ranges: The ranges (first, count) of the batches that the run skips.
    """
    return number - sum(min(count, max(0, number - first)) for first, count in merge_ranges(skipped_ranges))


def check_branch(replay: Replay, request: BranchRequest, workdir: Path) -> TrainingComponents:
    """Refuse a branch that cannot continue the run, before anything is trained or written.

    Returns:
        The components of the branch.

    Raises:
        UserError: If the run has not made the step, the directory is not empty, the branch has fewer steps, leaves out
            a batch that the run had trained on before the step, or its config changes a shape of the training state.
    """
    replay.check_step(request.step)
    _refuse_used_directory(workdir)
    if request.experiment.run.steps < request.step:
        raise UserError(
            f"--config.steps={request.experiment.run.steps} is less than --step={request.step}, from which the branch "
            "continues"
        )
    skipped_ranges = skipped_batches(replay.directory)
    trained = batch_number(request.step, skipped_ranges)
    if request.without is not None and request.without.first < trained:
        raise UserError(
            f"--without={request.without.first}:{sum(request.without)}: the run had trained on batch "
            f"{request.without.first} before step {request.step}, whose next batch is {trained}: branch off at "
            f"--step={step_before_batch(request.without.first, skipped_ranges)} or before"
        )
    components = build_components(request.experiment, replay.directory.path)
    _refuse_other_shapes(replay.components.abstract_state, components.abstract_state, request.overrides)
    return components


def _refuse_used_directory(workdir: Path) -> None:
    if RunDirectory(workdir).is_run():
        raise UserError(
            f"--branch={workdir} holds a run already: name a new directory, or resume that run with train --workdir"
        )
    if workdir.exists() and (not workdir.is_dir() or any(workdir.iterdir())):
        raise UserError(f"--branch={workdir} exists and is not an empty folder: name a new directory")


def _refuse_other_shapes(parent: TrainState, branch: TrainState, overrides: Mapping[str, Any]) -> None:
    before, after = (
        {name: leaf_shape(leaf) for name, leaf in named_leaves(state._replace(hyperparameters={})).items()}
        for state in (parent, branch)
    )
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            keys = " ".join(f"--config.{key}={value}" for key, value in overrides.items())
            raise UserError(
                f"{keys} changes the training state: {name} is {after.get(name, 'absent')} and not "
                f"{before.get(name, 'absent')} as in the run; a branch continues the same arrays, so train such a run "
                "from its start"
            )


def start_branch(
    replay: Replay, request: BranchRequest, components: TrainingComponents, state: TrainState, workdir: Path
) -> None:
    """Write the run directory of a branch, whose first checkpoint is a state of the run that it is branched off.

    The branch leaves its batches out as a run does that skips batches after a rollback: the next one takes the place of
    one that is left out, so that order and content of all others stay, and step n trains on a later batch.

    Args:
        replay: The run that it is branched off.
        request: What differs.
        components: The components of the branch, of `check_branch`.
        state: The state of the run at the step.
        workdir: The directory of the branch, empty or new.
    """
    experiment, parent = request.experiment, replay.directory
    state = state._replace(
        hyperparameters=_placed_like(hyperparameters_by_objective(experiment, components.task), state.hyperparameters)
    )
    if experiment.run.seed != replay.experiment.run.seed:
        state = state._replace(key=jax.device_put(jax.random.key(experiment.run.seed), state.key.sharding))
    ranges = [*skipped_batches(parent), *([] if request.without is None else [request.without])]
    directory = RunDirectory(workdir)
    existed = workdir.exists()
    try:
        with RunDirectory.lock(workdir) as locked:
            workdir.mkdir(parents=True, exist_ok=True)
            copy_tokenizer(parent.path, workdir)
            if ranges:
                record_skipped_batches(directory, [BatchRange(*one) for one in merge_ranges(ranges)])
            metadata = collect_metadata(experiment, components, directory) | {
                "commit": current_commit(),
                "skipped_batches": skipped_batches(directory),
                "records": {},
                "progress": {},
            }
            # The checkpoint first: a directory that has a config and no checkpoint would be trained from step 0.
            with Checkpoints(directory.checkpoints_dir, experiment.run.keep_checkpoints) as checkpoints:
                checkpoints.save(request.step, state, metadata)
            with RunDirectory.claim(locked, experiment.to_config(), may_change=changeable_keys(experiment)) as claimed:
                claimed.write_config(experiment.to_config())
                claimed.record(branched_from=_origin(replay, request))
    except BaseException:
        with contextlib.suppress(OSError):
            if not existed:
                storage_of(workdir).remove_tree(workdir)
        raise


def _origin(replay: Replay, request: BranchRequest) -> dict[str, Any]:
    """Return what environment.json records of a branch, a `BranchOrigin`."""
    without = [] if request.without is None else [request.without.first, sum(request.without)]
    return {
        "run": str(replay.directory.path.resolve()),
        "step": request.step,
        "overrides": dict(request.overrides),
        "left_out_batches": without,
    }


def _placed_like(numbers: Any, arrays: Any) -> Any:
    """Return numbers as arrays of the type and placement of others."""
    return jax.tree.map(
        lambda number, array: jax.device_put(np.asarray(number, array.dtype), array.sharding), numbers, arrays
    )
