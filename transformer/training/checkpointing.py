"""Saving a run's state with all that it presupposes, and going on from its newest sound checkpoint."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from transformer.axes import Placement
from transformer.config import UserError
from transformer.maps.checksums import DamagedMaps
from transformer.maps.store import MapStore
from transformer.runs.checkpoint import DAMAGED_PREFIX, DamagedCheckpoint, SoundCheckpoint, saved_last
from transformer.runs.checkpoint_files import named_leaves
from transformer.runs.directory import RunDirectory
from transformer.runs.distributed import announce, first_message, primary, run_on_primary
from transformer.runs.exit_codes import NotFinite
from transformer.runs.records import Extent, departs
from transformer.storage.locate import storage_of
from transformer.training.build import Assembly
from transformer.training.provenance import (
    allowed_changes,
    check_metadata,
    differing_config,
    differing_data,
    differing_tokenizer,
    refuse_difference,
)
from transformer.training.rollback import forgotten_batches, passed_batches
from transformer.training.run_setup import OpenRun
from transformer.training.state import TrainState
from transformer.training.writers.contract import NullSink
from transformer.training.writers.open_writers import RunSinks

# A fact in environment.json: the step of a checkpoint that a run which was told to stop saved before it reported that
# step, and how long the records were once a later process had done so. Going on from elsewhere forgets it.
_REPORTED = "reported"


class ResumePoint(NamedTuple):
    """The state that a run goes on from, how long its records were at that step, and what was under way then.

    `reported`: whether what was due at the step is in these records, as it is unless the run was told to stop before.
    """

    step: int
    state: TrainState
    records: Mapping[str, Extent]
    progress: Mapping[str, Any]
    reported: bool = True


class Saver:
    """Saves states of one run: its parameters, optimisers and averages are finite, or they are not saved."""

    def __init__(self, run: OpenRun, placement: Placement, sinks: RunSinks):
        self._run, self._sinks = run, sinks
        self._passed = passed_batches(run.directory)
        whole = NamedSharding(placement.mesh, PartitionSpec())
        self._finite = jax.jit(_are_finite, out_shardings=whole)

    def __call__(self, state: TrainState, progress: Mapping[str, Any]) -> None:
        """Save the state of its step, with the extents of the records, which must be flushed, and what is under way.

        Errors: NotFinite, naming the first leaf; as `Checkpoints.save`.
        """
        step = int(state.step)
        leaf = self.first_not_finite(state)
        if leaf is not None:
            raise NotFinite(
                step,
                f"{leaf} is not finite at step {step}: this state is not saved, and the checkpoints before stay; lower "
                "config.optimizer.learning_rate, lengthen config.optimizer.warmup or set config.optimizer.clip_norm",
            )
        metadata = {
            **self._run.provenance,
            "passed_batches": self._passed,
            "records": self._sinks.extents(),
            "progress": dict(progress),
        }
        self._run.checkpoints.save(step, state, metadata)

    def wait(self) -> None:
        """Wait for the save before. Errors: whatever it failed with."""
        self._run.checkpoints.latest()

    def first_not_finite(self, state: TrainState) -> str | None:
        """The path of the first leaf that holds NaN or infinity; None where all are finite."""
        checked = {"variables": state.variables, "optimisers": state.optimisers, "averages": state.averages}
        leaves = {name: leaf for name, leaf in named_leaves(checked).items() if _is_inexact(leaf)}
        sound = np.asarray(self._finite(leaves))
        return next((name for name, fine in zip(sorted(leaves), sound, strict=True) if not fine), None)


class WaitForSave(NullSink):
    """The sink that waits for a save before the last step that precedes the next one, N steps later.

    A kill at any moment then costs at most 2 N - 1 steps.
    """

    def __init__(self, saver: Saver, every: int):
        self._saver, self._every = saver, every

    def progress(self, step: int, total: int) -> None:
        """Wait, once in so many steps. Errors: whatever the save failed with."""
        if self._every and (step + 1) % self._every == 0:
            self._saver.wait()


def resume(run: OpenRun, assembly: Assembly) -> ResumePoint | None:
    """The run's newest sound checkpoint; None for a run that has saved none. All processes call it together.

    What is newer and damaged is told, and set aside.

    Errors: UserError where all are damaged, for a checkpoint of another model, and where the config, the data, the
    tokenizer or the batches are not those of the checkpoint; nothing is changed then.
    """
    checkpoints = run.checkpoints
    sound = checkpoints.newest_sound(lambda step: checkpoints.restore(step, assembly.abstract))
    if sound is None:
        run_on_primary(lambda: _reported_extents(run.directory, 0))
        return None
    state, metadata = sound.value
    _check_unchanged(run, metadata, sound.step)
    _announce_missing_checkpoint(run.directory, sound)
    checkpoints.announce_damage(sound, set_aside=True)
    run_on_primary(lambda: _set_aside_damaged_maps(run.directory))
    return _resume_point(run, sound.step, state, metadata)


def resume_together(runs: Sequence[OpenRun], assembly: Assembly) -> tuple[int, list[ResumePoint]]:
    """The newest step of which all runs have a sound checkpoint, and their states; 0 where all begin.

    Later checkpoints are deleted: they are saved again. Damaged ones are set aside.

    Errors: as `resume`; UserError where some have checkpoints, but none of one step.
    """
    steps = [each.checkpoints.steps() for each in runs]
    damaged: list[dict[int, DamagedCheckpoint]] = [{} for _ in runs]
    for step in sorted(set.intersection(*map(set, steps)), reverse=True):
        restored = []
        for each, wrong in zip(runs, damaged, strict=True):
            try:
                restored.append(each.checkpoints.restore(step, assembly.abstract))
            except DamagedCheckpoint as error:
                wrong[step] = error
        if len(restored) == len(runs):
            break
    else:
        _refuse_no_common(runs, steps, damaged)
        for each in runs:
            each.checkpoints.drop_after(0)
        return 0, []
    for each, (_, metadata) in zip(runs, restored, strict=True):
        _check_unchanged(each, metadata, step)
    for each, wrong in zip(runs, damaged, strict=True):
        each.checkpoints.announce_damage(SoundCheckpoint(step, None, wrong), set_aside=True)
        each.checkpoints.drop_after(step)
        _set_aside_damaged_maps(each.directory)
    pairs = zip(runs, restored, strict=True)
    return step, [_resume_point(each, step, state, metadata) for each, (state, metadata) in pairs]


def note_reported(directory: RunDirectory, step: int, records: Mapping[str, Extent]) -> None:
    """Note that what was due at the checkpoint of `step` is in the records, which are so long by now.

    All processes call it together, each once its own part is on the disk.
    """
    first_message(None)  # waits until all have come here
    if primary():
        directory.record(**{_REPORTED: {"step": step, "records": records}})


def _are_finite(leaves: dict[str, Any]) -> jax.Array:
    """Whether each leaf is finite, in the order of their names."""
    return jnp.stack([jnp.all(jnp.isfinite(leaves[name])) for name in sorted(leaves)])


def _is_inexact(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.inexact)


def _refuse_no_common(
    runs: Sequence[OpenRun], steps: Sequence[Sequence[int]], damaged: Sequence[Mapping[int, DamagedCheckpoint]]
) -> None:
    for wrong in damaged:
        if wrong:
            raise DamagedCheckpoint(f"{wrong[max(wrong)]}; no older step is sound in all runs: put back a copy of it")
    # Killed in the midst of the first save, some have it.
    if len(set().union(*steps)) > 1:
        told = "; ".join(f"{each.directory.path} has {own or 'none'}" for each, own in zip(runs, steps, strict=True))
        raise UserError(
            f"these runs have no checkpoint of one step: {told}; put back what is missing, or train them alone"
        )


def _check_unchanged(run: OpenRun, metadata: Mapping[str, Any], step: int) -> None:
    path, now = run.directory.path, run.provenance
    check_metadata(metadata, path, step)
    passed = passed_batches(run.directory)
    what = (
        differing_config(metadata, run.experiment.to_config(), step)
        or differing_tokenizer(metadata, path, step)
        or differing_data(metadata, now, step)
        or forgotten_batches(metadata, passed, step)
    )
    refuse_difference(path, first_message(what))
    for change in allowed_changes(metadata, run.experiment.to_config()) if primary() else ():
        announce(f"{path}: {change}")
    before = metadata.get("commit")
    if primary() and before is not None and before != now["commit"]:
        announce(f"{path}: trained by commit {before} up to step {step}, and goes on with {now['commit']}")


def _announce_missing_checkpoint(directory: RunDirectory, sound: SoundCheckpoint[Any]) -> None:
    last = run_on_primary(lambda: saved_last(directory.checkpoints))
    if primary() and last is not None and last > max([sound.step, *sound.damaged]):
        announce(f"{directory.checkpoints}: the checkpoint of step {last} is gone; step {sound.step} is used instead")


def _set_aside_damaged_maps(directory: RunDirectory) -> None:
    """Rename a store of maps that cannot be continued: the run goes on with a new one."""
    path = directory.maps
    if not path.exists():
        return
    try:
        MapStore.check(path)
        what = None
    except DamagedMaps as error:
        what = str(error)
    if what is not None:
        name = next(name for name in _damaged_names() if not path.with_name(name).exists())
        storage_of(path).move_tree(path, path.with_name(name))
        announce(f"{path}: {what}; it is kept as {name}, and maps are stored anew from here on")


def _damaged_names() -> Iterator[str]:
    yield f"{DAMAGED_PREFIX}maps"
    yield from (f"{DAMAGED_PREFIX}maps-{number}" for number in itertools.count(2))


def _resume_point(run: OpenRun, step: int, state: TrainState, metadata: Mapping[str, Any]) -> ResumePoint:
    directory, progress = run.directory, metadata.get("progress", {})
    later_extents = run_on_primary(lambda: _reported_extents(directory, step))
    reported = progress.get("looked", True)
    extents = metadata.get("records", {}) if reported or later_extents is None else later_extents
    records = {name: Extent(*extent) for name, extent in extents.items()}
    if primary() and step == run.experiment.run.steps:  # else told where they are cut
        for name, extent in records.items():
            what = departs(directory.path / name, extent)
            if what is not None:
                announce(f"{directory.path / name} is not as step {step} left it: {what}")
    return ResumePoint(step, state, records, progress, reported or later_extents is not None)


def _reported_extents(directory: RunDirectory, step: int) -> Mapping[str, Sequence[Any]] | None:
    """The extents noted of the checkpoint of `step`, or None; what is noted of another one is forgotten."""
    noted = directory.facts().get(_REPORTED)
    if noted is not None and noted["step"] != step:
        directory.record(**{_REPORTED: None})
        noted = None
    return None if noted is None else noted["records"]
