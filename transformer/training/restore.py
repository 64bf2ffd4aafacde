"""Resume a run from its newest valid checkpoint, after checks that config and data are unchanged."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from transformer.config import UserError
from transformer.maps.store import CorruptMapsError, MapStore
from transformer.runs.checkpoint import (
    DAMAGED_PREFIX,
    UNKNOWN_STEP,
    DamagedCheckpoint,
    RestoredCheckpoint,
    StoredCheckpoint,
    last_saved_step,
    last_saved_step_file,
)
from transformer.runs.distributed import first_message_across_processes, is_primary, print_and_log, run_on_primary
from transformer.runs.jsonl_reading import FileExtent, describe_change, last_step, read_records
from transformer.runs.run_directory import RunDirectory
from transformer.storage.paths import storage_of
from transformer.training.build import TrainingComponents
from transformer.training.checkpoint_metadata import (
    check_metadata,
    describe_config_change,
    describe_config_changes,
    describe_data_change,
    describe_tokenizer_change,
    refuse_change,
)
from transformer.training.rollback import describe_no_longer_skipped, skipped_batches
from transformer.training.run_setup import TrainingRun
from transformer.training.state import HYPERPARAMETERS, TrainState

# A fact in environment.json. A run that is told to stop saves a step before it has reported it; the process that later
# reports it records the step and the extents of the records here. Resuming from another step deletes the fact.
_REPORTED = "reported"


class ResumePoint(NamedTuple):
    """The point to resume from.

    Attributes:
        step: The number of steps made.
        state: The training state.
        records: The extent of each record file at that step.
        progress: What the process that saved the state had pending (transformer.training.loop.train_loop).
        reported: Whether the metrics due at the step are in the records. They are, unless the run was told to stop
            before.
    """

    step: int
    state: TrainState
    records: Mapping[str, FileExtent]
    progress: Mapping[str, Any]
    reported: bool = True


def resume_run(run: TrainingRun, components: TrainingComponents) -> ResumePoint | None:
    """Restore the run's newest valid checkpoint; None if there is none. All processes call it together.

    Newer checkpoints that are damaged are announced and set aside.

    Args:
        run: The run.
        components: Its components.

    Raises:
        UserError: If all checkpoints are damaged, they are of another model, or the config, data, tokenizer or batches
            differ from those of the checkpoint; nothing is changed then.
    """
    checkpoints = run.checkpoints
    sound = checkpoints.restore_newest_valid(lambda checkpoint: restore_state(checkpoint, components))
    if sound is None:
        run_on_primary(lambda: _reported_extents(run.directory, 0))
        return None
    state, metadata = sound.value
    _check_unchanged(run, metadata, sound.step)
    _announce_missing_checkpoint(run.directory, sound)
    checkpoints.announce_damage(sound, set_aside=True)
    run_on_primary(lambda: _set_aside_damaged_maps(run.directory))
    return _resume_point(run, sound.step, state, metadata)


def restore_state(checkpoint: StoredCheckpoint, components: TrainingComponents) -> tuple[TrainState, Mapping[str, Any]]:
    """Restore the state of a checkpoint, and its metadata. All processes call it together.

    A converted run begins with the parameters alone: its optimizers are made here, when it is to be trained.

    Raises:
        UserError: If it is of another model.
        DamagedCheckpoint: If its bytes changed.
    """
    abstract = components.abstract_state
    if any(name.startswith(HYPERPARAMETERS) for name in checkpoint.leaves):
        return checkpoint.restore(abstract), checkpoint.metadata
    start = checkpoint.restore(abstract.without_optimizers())
    state = components.init_state(start.key, start.variables)
    fields = {name: getattr(start, name) for name in ("step", "key", "averages", "task_state")}
    return state._replace(**fields), checkpoint.metadata


def resume_runs_together(runs: Sequence[TrainingRun], components: TrainingComponents) -> list[ResumePoint]:
    """Restore the newest step of which all runs have a valid checkpoint.

    Later checkpoints are deleted, as they will be saved again. Damaged ones are set aside.

    Args:
        runs: The runs.
        components: Their components.

    Returns:
        The point of each run, all of one step; none if all start anew.

    Raises:
        UserError: If a run cannot be resumed (`resume_run`), or runs have checkpoints, but none of the same step.
    """
    steps = [run.checkpoints.steps() for run in runs]
    damaged: list[dict[int, DamagedCheckpoint]] = [{} for _ in runs]
    for step in sorted(set.intersection(*map(set, steps)), reverse=True):
        restored = []
        for run, wrong in zip(runs, damaged, strict=True):
            try:
                restored.append(restore_state(run.checkpoints.read(step), components))
            except DamagedCheckpoint as error:
                wrong[step] = error
        if len(restored) == len(runs):
            break
    else:
        _refuse_no_common(runs, steps, damaged)
        for run in runs:
            run.checkpoints.delete_after(0)
        return []
    for run, (_, metadata) in zip(runs, restored, strict=True):
        _check_unchanged(run, metadata, step)
    for run, wrong in zip(runs, damaged, strict=True):
        run.checkpoints.announce_damage(RestoredCheckpoint(step, None, wrong), set_aside=True)
        run.checkpoints.delete_after(step)
        _set_aside_damaged_maps(run.directory)
    pairs = zip(runs, restored, strict=True)
    return [_resume_point(run, step, state, metadata) for run, (state, metadata) in pairs]


def record_reported_checkpoint(directory: RunDirectory, step: int, records: Mapping[str, FileExtent]) -> None:
    """Record that the metrics due at the checkpoint of `step` are logged.

    All processes call it together, once their own part is on the disk.

    Args:
        directory: The run directory.
        step: The step.
        records: The extent of each record file after these metrics.
    """
    first_message_across_processes(None)  # a barrier
    if is_primary():
        directory.record(**{_REPORTED: {"step": step, "records": records}})


def _refuse_no_common(
    runs: Sequence[TrainingRun], steps: Sequence[Sequence[int]], damaged: Sequence[Mapping[int, DamagedCheckpoint]]
) -> None:
    for wrong in damaged:
        if wrong:
            raise DamagedCheckpoint(f"{wrong[max(wrong)]}; no older step is sound in all runs: put back a copy of it")
    # If the process was killed during the first save, only some runs have it.
    if len(set().union(*steps)) > 1:
        steps_by_run = "; ".join(
            f"{run.directory.path} has {own or 'none'}" for run, own in zip(runs, steps, strict=True)
        )
        raise UserError(
            f"these runs have no checkpoint of one step: {steps_by_run}; put back what is missing, or train them alone"
        )


def _check_unchanged(run: TrainingRun, metadata: Mapping[str, Any], step: int) -> None:
    path, now = run.directory.path, run.checkpoint_metadata
    check_metadata(metadata, path, step)
    skipped_ranges = skipped_batches(run.directory)
    what = (
        describe_config_change(metadata, run.experiment.to_config(), step)
        or describe_tokenizer_change(metadata, path, step)
        or describe_data_change(metadata, now, step)
        or describe_no_longer_skipped(metadata, skipped_ranges, step)
    )
    refuse_change(path, first_message_across_processes(what))
    for change in describe_config_changes(metadata, run.experiment.to_config()) if is_primary() else ():
        print_and_log(f"{path}: {change}")
    before = metadata.get("commit")
    if is_primary() and before is not None and before != now["commit"]:
        print_and_log(f"{path}: was trained with commit {before} up to step {step} and resumes with {now['commit']}")


def _announce_missing_checkpoint(directory: RunDirectory, sound: RestoredCheckpoint[Any]) -> None:
    last = run_on_primary(lambda: last_saved_step(directory.checkpoints_dir))
    if is_primary() and last == UNKNOWN_STEP:
        reached = last_step(read_records(directory.metrics_file)) if directory.metrics_file.is_file() else None
        ends = "" if reached is None else f", and its metrics reach step {reached}"
        print_and_log(
            f"{last_saved_step_file(directory.checkpoints_dir)} is damaged, which says what step was saved last{ends}; "
            f"step {sound.step} is used, the last one there is"
        )
    elif is_primary() and last is not None and last > max([sound.step, *sound.damaged]):
        print_and_log(
            f"{directory.checkpoints_dir}: the checkpoint of step {last} is missing; step {sound.step} is used instead"
        )


def _set_aside_damaged_maps(directory: RunDirectory) -> None:
    """Rename a map store that cannot be continued; the run starts a new one."""
    path = directory.maps_dir
    if not path.exists():
        return
    try:
        MapStore.check(path)
        what = None
    except CorruptMapsError as error:
        what = str(error)
    if what is not None:
        name = next(name for name in _damaged_names() if not path.with_name(name).exists())
        storage_of(path).move_tree(path, path.with_name(name))
        print_and_log(f"{path}: {what}; it is kept as {name}, and a new map store is started")


def _damaged_names() -> Iterator[str]:
    yield f"{DAMAGED_PREFIX}maps"
    yield from (f"{DAMAGED_PREFIX}maps-{number}" for number in itertools.count(2))


def _resume_point(run: TrainingRun, step: int, state: TrainState, metadata: Mapping[str, Any]) -> ResumePoint:
    directory, progress = run.directory, metadata.get("progress", {})
    later_extents = run_on_primary(lambda: _reported_extents(directory, step))
    reported = progress.get("reports_done", True)
    extents = metadata.get("records", {}) if reported or later_extents is None else later_extents
    records = {name: FileExtent(*extent) for name, extent in extents.items()}
    if is_primary() and step == run.experiment.run.steps:  # otherwise announced where they are truncated
        for name, extent in records.items():
            what = describe_change(directory.path / name, extent)
            if what is not None:
                print_and_log(f"{directory.path / name} is not as step {step} left it: {what}")
    return ResumePoint(step, state, records, progress, reported or later_extents is not None)


def _reported_extents(directory: RunDirectory, step: int) -> Mapping[str, Sequence[Any]] | None:
    """Return the extents recorded for the checkpoint of `step`, or None; those of another step are deleted."""
    noted = directory.facts().get(_REPORTED)
    if noted is not None and noted["step"] != step:
        directory.record(**{_REPORTED: None})
        noted = None
    return None if noted is None else noted["records"]
