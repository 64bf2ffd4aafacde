"""Checkpoints of a whole training state: written by orbax, verified leaf by leaf when written and when restored.

Every checkpoint has a manifest next to its arrays (transformer.runs.checkpoint_files). Once it is committed it is read
back; only then is an older one removed. A checkpoint whose bytes changed is never restored and never removed: it is set
aside under another name, and an older one is used. With several processes, each writes, reads and verifies its own
part; a checkpoint can be restored on any number of processes and devices, in any sharding.
"""

import contextlib
import dataclasses
import functools
import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import jax
import numpy as np
import orbax.checkpoint as ocp

from transformer.config import UserError
from transformer.runs.array_digests import find_mismatched_arrays
from transformer.runs.checkpoint_files import (
    LeafShape,
    UnreadableArray,
    describe_damaged_array,
    digest_mismatch_message,
    from_stored_array,
    is_jax_array,
    leaf_shape,
    leaf_sharding,
    make_manifest,
    manifest_leaf_shapes,
    named_leaves,
    parse_manifest,
    read_arrays,
    to_orbax_path,
    to_stored_array,
)
from transformer.runs.distributed import first_message_across_processes, is_primary, print_and_log, run_on_primary
from transformer.runs.exceptions import RunFailed
from transformer.runs.jsonl_reading import StepNumber
from transformer.runs.preemption import mark_save_end, mark_save_start, wait_for_save
from transformer.storage.disk import REMOVED_SUFFIX
from transformer.storage.json_reading import read_dataclass, read_regular_file
from transformer.storage.paths import parse_path, storage_of

PyTree = Any
DAMAGED_PREFIX = "damaged-"  # begins the name of a checkpoint that was set aside
UNKNOWN_STEP = -1  # the step that was saved last, if its record is unreadable
_MOST_VANISHED = 100  # checkpoints that a running run may remove under a reader before it gives up
_CHUNK_BYTES, _FILE_BYTES = 1 << 20, 1 << 24  # of an array that is compressed at once, and of a file that is written
_logger = logging.getLogger(__name__)


class DamagedCheckpoint(UserError):
    """The bytes of a checkpoint are not those that were saved: the storage failed."""


class MissingStep(UserError):
    """There is no checkpoint of the step."""


class RestoredCheckpoint[T](NamedTuple):
    """The newest valid checkpoint.

    Attributes:
        step: Its step.
        value: What was restored of it.
        damaged: The errors of newer, damaged checkpoints, by step.
    """

    step: int
    value: T
    damaged: Mapping[int, DamagedCheckpoint]


@dataclasses.dataclass(frozen=True)
class LastSavedStep:
    """The content of checkpoints.json: the step that was saved last."""

    newest: StepNumber


class Checkpoints:
    """The checkpoints of one run, in `<directory>/<step>/`.

    A save returns as soon as the state is safe to donate, and continues in the background; the next save, any query of
    the steps, and `close` wait for it and raise its error. Several processes call all methods together, and the first
    one's list of steps counts. Next to the directory, `<directory>.json` records the step that was saved last, so that
    a loss of checkpoints is noticed.

    A save that cannot be read back as it was saved is announced when the next one begins. As a context manager it is
    closed at the end, and raises RunFailed if that is so for the last save.

    Args:
        directory: The directory of the checkpoints.
        max_to_keep: The number of most recent checkpoints to keep.
        permanent_checkpoint_every: Keep a checkpoint for good every so many steps; 0 keeps only the most recent ones.

    Raises:
        UserError: If `max_to_keep` is less than 1.
        DamagedCheckpoint: If the checkpoints cannot be listed.
    """

    def __init__(self, directory: str | Path, max_to_keep: int, permanent_checkpoint_every: int = 0):
        if max_to_keep < 1:
            raise UserError(f"max_to_keep={max_to_keep} checkpoints is too few: it must be at least 1")
        self._max_to_keep, self._milestone_every = max_to_keep, permanent_checkpoint_every
        # Older ones are removed here, after the newest is verified; orbax would remove them when it is committed.
        options = ocp.CheckpointManagerOptions(
            max_to_keep=None, cleanup_tmp_directories=True, lightweight_initialize=True
        )
        self._open_manager(directory, options)
        run_on_primary(self._recover_from_kill)

    @classmethod
    def open_read_only(cls, directory: str | Path) -> "Checkpoints":
        """Open the checkpoints of a run that may still be training; nothing is changed, not even unfinished saves.

        Raises:
            UserError: If the directory does not exist.
            DamagedCheckpoint: If the checkpoints cannot be listed.
        """
        if not parse_path(directory).is_dir():
            raise UserError(f"{directory} is missing: this run has saved no checkpoint yet")
        reader = cls.__new__(cls)
        reader._max_to_keep = 0
        reader._open_manager(
            directory, ocp.CheckpointManagerOptions(read_only=True, create=False, lightweight_initialize=True)
        )
        return reader

    def _open_manager(self, directory: str | Path, options: ocp.CheckpointManagerOptions) -> None:
        self._directory = parse_path(directory).resolve()  # orbax refuses relative paths
        self._verifier: CheckpointVerifier | None = None
        self._unverified: str | None = None  # what is wrong with the last save, not announced yet
        handlers = {"state": ocp.PyTreeCheckpointHandler(), "manifest": ocp.JsonCheckpointHandler()}
        with self._translate_listing_errors():
            self._manager = ocp.CheckpointManager(
                to_orbax_path(self._directory), options=options, item_handlers=handlers
            )

    def save(self, step: int, state: PyTree, metadata: Mapping[str, Any]) -> None:
        """Save a state as the checkpoint of a step.

        The error of the previous save is raised here.

        Args:
            step: The step.
            state: The state. Its leaves are jax or NumPy arrays, typed PRNG keys, and Python numbers.
            metadata: What to save with it, ready for JSON.

        Raises:
            DirectoryLost: If another process may have taken the directory.
            ValueError: If `step` is not after the latest one.
        """
        storage_of(self._directory).check(self._directory)
        latest = self.latest()
        self._report_unverified("; training continues")
        if latest is not None and step <= latest:
            raise ValueError(f"step={step} is not after the latest checkpoint, {latest}: steps only grow")
        leaves = named_leaves(state)
        stored = {name: to_stored_array(name, leaf) for name, leaf in leaves.items()}
        manifest = make_manifest(leaves, stored, metadata)
        filled = {name: array for name, array in stored.items() if array.size}  # orbax refuses empty arrays
        mark_save_start()
        try:
            self._manager.save(
                step,
                args=ocp.args.Composite(
                    state=ocp.args.PyTreeSave(
                        filled,
                        # What is compressed, and not yet written, is in memory too.
                        save_args=dict.fromkeys(filled, ocp.SaveArgs(chunk_byte_size=_CHUNK_BYTES)),
                        ocdbt_target_data_file_size=_FILE_BYTES,
                    ),
                    manifest=ocp.args.JsonSave(manifest),
                ),
                force=True,
            )
        except BaseException:
            mark_save_end()
            raise
        self._verifier = CheckpointVerifier(self._manager, self._directory / str(step), step, manifest, mark_save_end)

    def steps(self) -> list[int]:
        """Return the steps whose checkpoints are complete, in ascending order."""
        try:
            with wait_for_save():
                self._manager.wait_until_finished()
                self._finish_save()
        finally:
            self._verifier = None
            # The manager's own list keeps a save that failed and misses those of another process.
            self._reload_manager()
        return run_on_primary(self._list_steps)

    def latest(self) -> int | None:
        """Return the newest complete step, or None."""
        return max(self.steps(), default=None)

    def delete_after(self, step: int) -> None:
        """Delete the checkpoints beyond `step`; a run resumed at `step` saves them again."""
        later = [saved_step for saved_step in self.steps() if saved_step > step]
        run_on_primary(lambda: self._remove(later, newest=step))
        self._reload_manager()

    def restore(self, step: int, abstract: PyTree) -> tuple[PyTree, dict]:
        """Restore a state bit for bit.

        Args:
            step: The step.
            abstract: The structure of the state; its leaves are `jax.ShapeDtypeStruct` (without a sharding they are
                placed on the first device), arrays, keys or numbers.

        Returns:
            The state, and its metadata.

        Raises:
            UserError: If there is no checkpoint of the step, or a leaf differs in name, shape or type; the latter is
                raised before anything is read.
            DamagedCheckpoint: If bytes changed; the message names the leaf.
        """
        manifest = self._load_manifest(step)
        return self._restore(step, manifest, abstract, ()), manifest["metadata"]

    def restore_part(self, step: int, abstract_part: PyTree, prefix: tuple[str, ...]) -> PyTree:
        """Restore a part of a state without reading the rest.

        Args:
            step: The step.
            abstract_part: The structure of the part, as in `restore`.
            prefix: The path of the part, such as ("variables", "params").

        Raises:
            UserError: If there is no checkpoint of the step, or a leaf of the part differs in name, shape or type.
            DamagedCheckpoint: If bytes changed.
        """
        return self._restore(step, self._load_manifest(step), abstract_part, tuple(prefix))

    def leaves(self, step: int) -> dict[str, LeafShape]:
        """Return the shape and type of every leaf of a state by path, without reading an array.

        Raises:
            UserError: If there is no checkpoint of the step.
            DamagedCheckpoint: If its manifest is damaged.
        """
        return manifest_leaf_shapes(self._load_manifest(step)["leaves"])

    def metadata(self, step: int) -> dict[str, Any]:
        """Return the metadata of a checkpoint.

        Raises:
            UserError: If there is no checkpoint of the step.
            DamagedCheckpoint: If its manifest is damaged.
        """
        return self._load_manifest(step)["metadata"]

    def restore_leaves(self, step: int, abstract: Mapping[str, Any]) -> dict[str, Any]:
        """Restore some leaves of a state without reading the rest.

        Args:
            step: The step.
            abstract: The leaves by path, as in `restore`.

        Raises:
            UserError: If there is no checkpoint of the step, or a leaf differs in shape or type or is missing.
            DamagedCheckpoint: If bytes changed.
        """
        manifest = self._load_manifest(step)
        saved = manifest_leaf_shapes(manifest["leaves"])
        self._check_leaf_shapes(step, {name: saved[name] for name in abstract if name in saved}, abstract)
        return self._read_verified(step, manifest, abstract)

    def restore_newest_valid[T](self, read: Callable[[int], T]) -> RestoredCheckpoint[T] | None:
        """Restore the newest checkpoint that is valid.

        A checkpoint that the run removes while it is read does not count as damaged: the list is read again.

        Args:
            read: A function from a step to what is restored.

        Returns:
            The checkpoint; None if there is none.

        Raises:
            DamagedCheckpoint: If all are damaged.
            UserError: If the directory changes faster than it can be read, or `read` raises another error.
        """
        damaged: dict[int, DamagedCheckpoint] = {}
        vanished = 0
        while candidates := [step for step in self.steps() if step not in damaged]:
            try:
                return RestoredCheckpoint(candidates[-1], read(candidates[-1]), damaged)
            except (DamagedCheckpoint, MissingStep) as error:
                if candidates[-1] not in self.steps():
                    vanished += 1
                    if vanished > _MOST_VANISHED:
                        raise UserError(f"{self._directory} changes faster than it can be read: name a step") from error
                elif isinstance(error, DamagedCheckpoint):
                    damaged[candidates[-1]] = error
        if not damaged:
            return None
        newest, older = damaged[max(damaged)], sorted(damaged)[:-1]
        older_note = f"those of steps {', '.join(map(str, older))} are as well" if older else "it is the only one"
        raise DamagedCheckpoint(
            f"{newest}; {older_note}: put back a copy of one, or choose another --workdir; nothing was changed"
        )

    def announce_damage(self, sound: RestoredCheckpoint[Any], *, set_aside: bool) -> None:
        """Announce, in a line each, what is wrong with checkpoints that are newer than the valid one.

        Args:
            sound: The valid checkpoint.
            set_aside: Whether to rename them to damaged-STEP, which nothing removes.
        """
        for step, error in sorted(sound.damaged.items(), reverse=True):
            rename_note = (
                f"; it is kept as {run_on_primary(functools.partial(self._set_aside, step))}" if set_aside else ""
            )
            if is_primary():
                print_and_log(f"{error}{rename_note}; step {sound.step} is used instead")
        if sound.damaged and set_aside:
            run_on_primary(lambda: self._record_last_saved(sound.step))
            self._reload_manager()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._close_manager()
        if kind is None and self._unverified is not None:
            _logger.info("%s", self._unverified)
            raise RunFailed(f"{self._unverified}; start the same command again to go on")
        self._report_unverified()

    def close(self) -> None:
        """Wait for a pending save and end the threads; raises the error of the save."""
        self._close_manager()
        self._report_unverified()

    def _close_manager(self) -> None:
        try:
            with wait_for_save():
                self._manager.wait_until_finished()
                self._finish_save()
        finally:
            self._verifier = None
            self._manager.close()

    def _finish_save(self) -> None:
        """After a save: agree on whether it can be read back, and if so remove older checkpoints."""
        verifier, self._verifier = self._verifier, None
        if verifier is None:
            return
        problem = first_message_across_processes(verifier.result())
        if problem is None:
            self._unverified = None
            run_on_primary(lambda: self._prune(verifier.step))
            return
        name = run_on_primary(lambda: self._set_aside(verifier.step))
        remaining = run_on_primary(self._list_steps_on_disk)
        remaining_note = f"the last good one is that of step {remaining[-1]}" if remaining else "there is no other"
        self._unverified = (
            f"{verifier.path} was not written as it was saved: {problem}; it is kept as {name}, and {remaining_note}"
        )

    def _report_unverified(self, what_follows: str = "") -> None:
        if self._unverified is not None and is_primary():
            print_and_log(f"{self._unverified}{what_follows}")
        self._unverified = None

    def _prune(self, newest: int) -> None:
        steps = self._list_steps_on_disk()
        milestones = {step for step in steps if self._milestone_every and step % self._milestone_every == 0}
        try:
            self._remove([step for step in steps if step not in {*milestones, *steps[-self._max_to_keep :]}], newest)
        except OSError as error:  # not a reason to end a run whose newest checkpoint is valid
            message = f"old checkpoints in {self._directory} could not be removed yet"
            print_and_log(f"{message}: {error}; training continues")

    def _remove(self, steps: list[int], newest: int) -> None:
        if newest in self._list_steps():
            self._record_last_saved(newest)
        else:  # no checkpoint is left, and none should be
            last_saved_step_file(self._directory).unlink(missing_ok=True)
        for step in steps:
            storage_of(self._directory).remove_tree(self._directory / str(step))

    def _record_last_saved(self, newest: int) -> None:
        path = last_saved_step_file(self._directory)
        storage_of(path).replace(path, f"{json.dumps(dataclasses.asdict(LastSavedStep(newest)))}\n".encode())

    def _set_aside(self, step: int) -> str:
        names = [f"{DAMAGED_PREFIX}{step}", *(f"{DAMAGED_PREFIX}{step}-{number}" for number in range(2, 1000))]
        name = next(name for name in names if not (self._directory / name).exists())
        storage_of(self._directory).move_tree(self._directory / str(step), self._directory / name)
        return name

    def _recover_from_kill(self) -> None:
        """Remove the remains of a removal that was killed, and record the last save if a kill came before that."""
        for entry in self._directory.iterdir() if self._directory.is_dir() else ():
            if entry.name.endswith(REMOVED_SUFFIX):
                storage_of(entry).remove_tree(entry)
        steps = self._list_steps_on_disk()
        if steps and not last_saved_step_file(self._directory).exists():
            self._record_last_saved(steps[-1])

    def _reload_manager(self) -> None:
        with self._translate_listing_errors():
            self._manager.reload()

    @contextlib.contextmanager
    def _translate_listing_errors(self) -> Iterator[None]:
        """Raise DamagedCheckpoint if orbax cannot list the steps."""
        try:
            yield
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
            raise DamagedCheckpoint(
                f"{self._directory} cannot be listed, since a step's _CHECKPOINT_METADATA is damaged: "
                f"{str(error)[:200]}; move that step away, or choose another --workdir"
            ) from error

    def _list_steps(self) -> list[int]:
        return sorted(self._manager.all_steps())

    def _list_steps_on_disk(self) -> list[int]:
        self._reload_manager()
        return self._list_steps()

    def _damage_error(self, step: int, what: str) -> DamagedCheckpoint:
        return DamagedCheckpoint(f"{self._directory / str(step)} is damaged: {what}")

    def _load_manifest(self, step: int) -> dict[str, Any]:
        steps = self.steps()
        if step not in steps:
            raise MissingStep(f"no checkpoint of step {step} in {self._directory}, which has {steps or 'none'}")

        def load() -> dict[str, Any]:
            try:
                return {
                    "manifest": parse_manifest(read_regular_file(self._directory / str(step) / "manifest" / "metadata"))
                }
            except ValueError as error:
                return {"wrong": str(error)}
            except OSError:
                return {"wrong": "cannot be read"}

        loaded = run_on_primary(load)
        if "wrong" in loaded:
            raise self._damage_error(step, f"manifest/metadata {loaded['wrong']}")
        return loaded["manifest"]

    def _restore(self, step: int, manifest: dict[str, Any], abstract: PyTree, prefix: tuple[str, ...]) -> PyTree:
        expected = named_leaves(abstract, prefix)
        inside = "".join(f"{name}/" for name in prefix)
        saved = manifest_leaf_shapes(manifest["leaves"])
        self._check_leaf_shapes(
            step, {name: leaf for name, leaf in saved.items() if f"{name}/".startswith(inside)}, expected
        )
        restored = self._read_verified(step, manifest, expected)
        return jax.tree.unflatten(jax.tree.structure(abstract), list(restored.values()))

    def _read_verified(self, step: int, manifest: dict[str, Any], expected: Mapping[str, Any]) -> dict[str, Any]:
        """Return the leaves of these paths after comparing their digests with those that were saved."""
        entries = {name: manifest["leaves"][name] for name in expected}
        empty = {
            name: np.zeros(entry["shape"], expected[name].dtype)
            for name, entry in entries.items()
            if 0 in entry["shape"]
        }
        filled = {name: leaf for name, leaf in expected.items() if name not in empty}
        stored = self._read_unverified(step, filled)
        for name in find_mismatched_arrays(stored, {name: entries[name]["digest"] for name in stored}):
            raise self._damage_error(step, digest_mismatch_message(self._directory / "state", name))
        for name, array in empty.items():
            stored[name] = array
            if is_jax_array(expected[name]):
                place = leaf_sharding(expected[name])
                stored[name] = jax.make_array_from_callback(array.shape, place, array.__getitem__)
        restored = {}
        for name, leaf in expected.items():
            try:
                restored[name] = from_stored_array(stored[name], leaf, entries[name])
            except (TypeError, ValueError) as error:
                raise self._damage_error(step, f"leaf {name!r} is not as its manifest says") from error
        return restored

    def _check_leaf_shapes(self, step: int, saved: Mapping[str, LeafShape], expected: Mapping[str, Any]) -> None:
        expected_shapes = {name: leaf_shape(leaf) for name, leaf in expected.items()}
        for name in expected_shapes | dict(saved):
            if saved.get(name) != expected_shapes.get(name):
                raise UserError(
                    f"checkpoint {step} in {self._directory} is of another model or version: leaf {name!r} is "
                    f"{saved.get(name, 'absent')} in the checkpoint and {expected_shapes.get(name, 'absent')} in this "
                    "run; give the config and the version that it was trained with, or another --workdir"
                )

    def _read_unverified(self, step: int, leaves: Mapping[str, Any]) -> dict[str, Any]:
        """Return the stored arrays by name, unverified; if one process cannot read its part, all raise."""
        arrays: dict[str, Any] = {}
        problem: str | None = None
        try:
            arrays = read_arrays(self._directory / str(step) / "state", leaves)
        except UnreadableArray as error:
            problem = str(error)
        problem = first_message_across_processes(problem)
        if problem is not None:
            raise self._damage_error(step, problem)
        return arrays


class CheckpointVerifier:
    """A thread that reads a checkpoint back once it is committed; with several processes each reads its share.

    Args:
        manager: The orbax manager.
        path: The path of the checkpoint.
        step: Its step.
        manifest: Its manifest.
        committed: A function that is called once nothing more is written, whether the save succeeded or not.
    """

    def __init__(
        self,
        manager: ocp.CheckpointManager,
        path: Path,
        step: int,
        manifest: Mapping[str, Any],
        committed: Callable[[], None] = lambda: None,
    ):
        self.path, self.step = path, step
        self._manager, self._manifest, self._committed = manager, manifest, committed
        self._problem: str | None = "it was not verified"
        self._thread = threading.Thread(target=self._verify, name=f"verification of step {step}", daemon=True)
        self._thread.start()

    def result(self) -> str | None:
        """Wait for the result: what is wrong with the checkpoint, or None."""
        self._thread.join()
        return self._problem

    def _verify(self) -> None:
        try:
            self._manager.wait_until_finished()
        except BaseException:  # raised where the saving thread is waited for
            return
        finally:
            self._committed()
        try:
            storage_of(self.path).sync_tree(self.path)
            read = parse_manifest((self.path / "manifest" / "metadata").read_bytes())
            if read["leaves"] != self._manifest["leaves"]:
                self._problem = "manifest/metadata is not what was saved"
                return
            mine = list(self._manifest["leaves"].items())[jax.process_index() :: jax.process_count()]
            self._problem = describe_damaged_array(self.path / "state", dict(mine))
        except Exception as error:
            self._problem = " ".join(str(error).split())[:300]


def last_saved_step_file(directory: Path) -> Path:
    """Return the file next to the checkpoints' directory that records which step was saved last."""
    return directory.with_name(f"{directory.name}.json")


def last_saved_step(directory: str | Path) -> int | None:
    """Return the step that was saved last, whether its checkpoint still exists or not.

    Returns:
        The step; None if none was saved, `UNKNOWN_STEP` if the record is unreadable.
    """
    path = last_saved_step_file(parse_path(directory))
    if not path.exists():
        return None
    try:
        return read_dataclass(LastSavedStep, path).newest
    except UserError:
        return UNKNOWN_STEP
