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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import jax
import numpy as np
import orbax.checkpoint as ocp

from transformer.config import UserError
from transformer.runs.array_digests import find_mismatched_arrays
from transformer.runs.checkpoint_files import (
    LeafShape,
    Manifest,
    UnreadableArray,
    describe_damaged_array,
    digest_mismatch_message,
    from_stored_array,
    is_jax_array,
    leaf_shape,
    leaf_sharding,
    make_manifest,
    manifest_file,
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
from transformer.storage.json_reading import parse_dataclass, read_dataclass, read_regular_file
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


class StoredCheckpoint:
    """A complete checkpoint whose manifest is valid; its arrays are read, and compared with their digests, on demand.

    All processes of a run call the methods together.

    Args:
        path: Its directory.
        manifest: Its manifest.
    """

    def __init__(self, path: Path, manifest: Manifest):
        self._path, self._entries = path, manifest.leaves
        self.step = int(path.name)
        self.metadata = manifest.metadata

    @property
    def leaves(self) -> dict[str, LeafShape]:
        """The shape and type of every leaf of the state, by path."""
        return {name: entry.leaf_shape for name, entry in self._entries.items()}

    @property
    def digests(self) -> dict[str, str]:
        """The digest of every stored leaf (`transformer.runs.array_digests`), by path."""
        return {name: entry.digest for name, entry in self._entries.items()}

    def restore(self, abstract: PyTree, prefix: tuple[str, ...] = ()) -> PyTree:
        """Restore the state or a whole part of it, bit for bit, without reading the rest.

        Args:
            abstract: The structure of the part; its leaves are `jax.ShapeDtypeStruct` (without a sharding they are
                placed on the first device), arrays, keys or numbers.
            prefix: The path of the part, such as ("variables", "params").

        Raises:
            UserError: If a leaf of the part differs in name, shape or type; raised before anything is read.
            DamagedCheckpoint: If bytes changed; the message names the leaf.
        """
        expected = named_leaves(abstract, prefix)
        inside = "".join(f"{name}/" for name in prefix)
        absent = [name for name in self._entries if f"{name}/".startswith(inside) and name not in expected]
        restored = self.restore_leaves(expected, absent)
        return jax.tree.unflatten(jax.tree.structure(abstract), list(restored.values()))

    def restore_leaves(self, expected: Mapping[str, Any], absent: Sequence[str] = ()) -> dict[str, Any]:
        """Restore some leaves, bit for bit, without reading the rest.

        Args:
            expected: The leaves by path, as in `restore`.
            absent: The paths of leaves that this run does not have, which is an error if there are any.

        Raises:
            UserError: If a leaf differs in shape or type, is missing, or is one of `absent`.
            DamagedCheckpoint: If bytes changed; the message names the leaf.
        """
        expected_shapes = {name: leaf_shape(leaf) for name, leaf in expected.items()}
        saved_shapes = self.leaves
        for name in (*expected_shapes, *absent):
            if saved_shapes.get(name) != expected_shapes.get(name):
                raise UserError(
                    f"checkpoint {self.step} in {self._path.parent} is of another model or version: leaf {name!r} is "
                    f"{saved_shapes.get(name, 'absent')} in the checkpoint and "
                    f"{expected_shapes.get(name, 'absent')} in this run; give the config and the version that it was "
                    "trained with, or another --workdir"
                )
        entries = {name: self._entries[name] for name in expected}
        empty = {
            name: np.zeros(entry.shape, expected[name].dtype) for name, entry in entries.items() if 0 in entry.shape
        }
        stored = self._read_unverified({name: leaf for name, leaf in expected.items() if name not in empty})
        for name in find_mismatched_arrays(stored, {name: entries[name].digest for name in stored}):
            raise self._damage_error(digest_mismatch_message(self._path / "state", name))
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
                raise self._damage_error(f"leaf {name!r} is not as its manifest says") from error
        return restored

    def _read_unverified(self, leaves: Mapping[str, Any]) -> dict[str, Any]:
        """Return the stored arrays by name, unverified; if one process cannot read its part, all raise."""
        arrays: dict[str, Any] = {}
        problem: str | None = None
        try:
            arrays = read_arrays(self._path / "state", leaves)
        except UnreadableArray as error:
            problem = str(error)
        problem = first_message_across_processes(problem)
        if problem is not None:
            raise self._damage_error(problem)
        return arrays

    def _damage_error(self, what: str) -> DamagedCheckpoint:
        return DamagedCheckpoint(f"{self._path} is damaged: {what}")


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
        permanent_steps: Steps whose checkpoints are kept for good as well.

    Raises:
        UserError: If `max_to_keep` is less than 1.
        DamagedCheckpoint: If the checkpoints cannot be listed.
    """

    def __init__(
        self,
        directory: str | Path,
        max_to_keep: int,
        permanent_checkpoint_every: int = 0,
        permanent_steps: Collection[int] = (),
    ):
        if max_to_keep < 1:
            raise UserError(f"max_to_keep={max_to_keep} checkpoints is too few: it must be at least 1")
        self._max_to_keep, self._milestone_every = max_to_keep, permanent_checkpoint_every
        self._permanent_steps = frozenset(permanent_steps)
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
        reader._permanent_steps = frozenset()
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

    def read(self, step: int) -> StoredCheckpoint:
        """Read the manifest of a checkpoint, by which its arrays are then restored.

        Raises:
            MissingStep: If there is no checkpoint of the step.
            DamagedCheckpoint: If its manifest is damaged.
        """
        steps = self.steps()
        if step not in steps:
            raise MissingStep(f"no checkpoint of step {step} in {self._directory}, which has {steps or 'none'}")
        path = self._directory / str(step)
        try:
            # One process reads it, and each parses it.
            return StoredCheckpoint(path, parse_manifest(run_on_primary(lambda: _read_text(manifest_file(path)))))
        except ValueError as error:
            raise DamagedCheckpoint(f"{path} is damaged: manifest/metadata {error}") from error

    def restore_newest_valid[T](self, read: Callable[[StoredCheckpoint], T]) -> RestoredCheckpoint[T] | None:
        """Restore the newest checkpoint that is valid.

        A checkpoint that the run removes while it is read does not count as damaged: the list is read again.

        Args:
            read: A function from a checkpoint to what is restored of it.

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
                return RestoredCheckpoint(candidates[-1], read(self.read(candidates[-1])), damaged)
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
        set_aside_name = run_on_primary(lambda: self._set_aside(verifier.step))
        remaining = run_on_primary(self._list_steps_on_disk)
        remaining_note = f"the last good one is that of step {remaining[-1]}" if remaining else "there is no other"
        self._unverified = (
            f"{verifier.path} was not written as it was saved: {problem}; it is kept as {set_aside_name}, and "
            f"{remaining_note}"
        )

    def _report_unverified(self, what_follows: str = "") -> None:
        if self._unverified is not None and is_primary():
            print_and_log(f"{self._unverified}{what_follows}")
        self._unverified = None

    def _prune(self, newest: int) -> None:
        steps = self._list_steps_on_disk()
        milestones = {
            step
            for step in steps
            if step in self._permanent_steps or (self._milestone_every and step % self._milestone_every == 0)
        }
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


class CheckpointVerifier:
    """A thread that reads a checkpoint back once it is committed; with several processes each reads its share.

    Args:
        manager: The orbax manager.
        path: The path of the checkpoint.
        step: Its step.
        manifest: Its manifest, ready for JSON.
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
            read = parse_manifest(manifest_file(self.path).read_bytes())
            # The metadata are those of the first process, which alone writes records.
            if read.leaves != parse_dataclass(Manifest, self._manifest, "it").leaves:
                self._problem = "manifest/metadata is not what was saved"
                return
            mine = list(read.leaves.items())[jax.process_index() :: jax.process_count()]
            self._problem = describe_damaged_array(self.path / "state", dict(mine))
        except Exception as error:
            self._problem = " ".join(str(error).split())[:300]


def _read_text(file: Path) -> str:
    """Return the text of a file; none if it cannot be read."""
    try:
        return read_regular_file(file).decode()
    except (OSError, UnicodeDecodeError):
        return ""


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
