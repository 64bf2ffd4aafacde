"""Checkpoints of a whole training state: written by orbax, verified leaf by leaf when restored.

Orbax restores flipped bits and casts types without a word, so every checkpoint has a manifest beside
its arrays: the shape, type and digest of every leaf (transformer.runs.digest), and the SHA-256 of the manifest
itself. Of several processes each writes, reads and verifies what it holds; a checkpoint can be restored on any number
of processes and devices, in any sharding.
"""

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from transformer.config import UserError
from transformer.storage import locate
from transformer.runs.digest import differing, digests
from transformer.runs.processes import decided

PyTree = Any

_SCALARS = {bool: "python bool", int: "python int", float: "python float"}


class DamagedCheckpoint(RuntimeError):
    """A checkpoint whose bytes are not those that were saved: a failure of storage, not of the user."""


@dataclasses.dataclass(frozen=True)
class StoredLeaf:
    """A leaf as the manifest describes it, without its digest."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"shape {self.shape} of {self.dtype}"


def _described(entries: Mapping[str, Mapping[str, Any]]) -> dict[str, StoredLeaf]:
    """The leaves of a manifest by path."""
    return {name: StoredLeaf(tuple(entry["shape"]), entry["dtype"]) for name, entry in entries.items()}


def _on_device(leaf: Any) -> bool:
    return isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct))


def _is_key(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _describe(leaf: Any) -> StoredLeaf:
    if type(leaf) in _SCALARS:
        return StoredLeaf((), _SCALARS[type(leaf)])
    if not hasattr(leaf, "dtype"):
        raise TypeError(f"a {type(leaf).__name__} cannot be a leaf of a checkpoint; it must be an array or a number")
    return StoredLeaf(tuple(leaf.shape), str(leaf.dtype))


def _named_leaves(tree: PyTree, prefix: tuple[str, ...] = ()) -> dict[str, Any]:
    """The leaves by their path, such as `variables/params/encoder/query/kernel`."""
    named: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = "/".join([*prefix, *(jax.tree_util.keystr((entry,), simple=True) for entry in path)])
        if name in named:
            raise ValueError(f"two leaves of the state are both called {name!r}: rename one of them")
        named[name] = leaf
    return named


def _storable(name: str, leaf: Any) -> Any:
    """The array that orbax is given for a leaf: the bits of a key, the zero-dimensional array of a number."""
    if _is_key(leaf):
        if not leaf.size:
            raise ValueError(f"leaf {name!r} is an empty array of keys: leave it out of the state")
        return jax.random.key_data(leaf)
    return leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)


def _sha256(leaves: Any, metadata: Any) -> str:
    return hashlib.sha256(json.dumps([leaves, metadata], sort_keys=True).encode()).hexdigest()


def _manifest(state: Mapping[str, Any], stored: Mapping[str, Any], metadata: Mapping[str, Any]) -> dict[str, Any]:
    sums = digests(stored)
    leaves: dict[str, Any] = {}
    for name, leaf in state.items():
        leaves[name] = {**dataclasses.asdict(_describe(leaf)), "digest": sums[name]}
        if _is_key(leaf):
            leaves[name]["implementation"] = str(jax.random.key_impl(leaf))
    # As JSON returns it: a tuple or an integer key must not change the digest.
    plain = json.loads(json.dumps({"leaves": leaves, "metadata": dict(metadata)}))
    return {**plain, "sha256": _sha256(plain["leaves"], plain["metadata"])}


def _restore_arguments(leaf: Any) -> ocp.RestoreArgs:
    if not _on_device(leaf):
        return ocp.RestoreArgs(restore_type=np.ndarray)
    sharding = _sharding(leaf)
    if _is_key(leaf):
        # The bits of keys have one more axis than the keys, which their sharding does not mention.
        return ocp.ArrayRestoreArgs(sharding=sharding)
    # The shapes were compared before; strict makes orbax refuse others instead of padding.
    return ocp.ArrayRestoreArgs(sharding=sharding, global_shape=tuple(leaf.shape), dtype=leaf.dtype, strict=True)


def _sharding(leaf: Any) -> jax.sharding.Sharding:
    return leaf.sharding or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])


def _as_expected(stored: Any, expected: Any, entry: Mapping[str, Any]) -> Any:
    """The leaf in the caller's form, from the stored array."""
    if _is_key(expected):
        key = jax.random.wrap_key_data(stored, impl=entry["implementation"])
        return key if expected.sharding is None else jax.device_put(key, expected.sharding)
    if type(expected) in _SCALARS:
        return stored.item()
    return stored[()] if isinstance(expected, np.generic) else stored


class Checkpoints:
    """The checkpoints of one run: `<directory>/<step>/`, the newest `keep` of them.

    A save returns once the state is safe to donate and goes on in the background; the next save, any
    query of the steps, and `close` wait for it and raise its error. Several processes call all methods together, and
    the first one's list of steps counts.
    """

    def __init__(self, directory: str | Path, keep: int):
        if keep < 1:
            raise UserError(f"keep={keep} checkpoints is too few: it must be at least 1")
        self._open(directory, ocp.CheckpointManagerOptions(max_to_keep=keep, cleanup_tmp_directories=True))

    @classmethod
    def reading(cls, directory: str | Path) -> "Checkpoints":
        """The checkpoints of a run that may still be training: changes nothing, not even unfinished saves.

        Errors: UserError when the directory is absent.
        """
        if not locate(directory).is_dir():
            raise UserError(f"{directory} is missing: this run has saved no checkpoint yet")
        reader = cls.__new__(cls)
        reader._open(directory, ocp.CheckpointManagerOptions(read_only=True, create=False))
        return reader

    def _open(self, directory: str | Path, options: ocp.CheckpointManagerOptions) -> None:
        self._directory = locate(directory)
        handlers = {"state": ocp.PyTreeCheckpointHandler(), "manifest": ocp.JsonCheckpointHandler()}
        # Orbax refuses relative paths.
        self._manager = ocp.CheckpointManager(self._directory.resolve(), options=options, item_handlers=handlers)

    def save(self, step: int, state: PyTree, metadata: Mapping[str, Any]) -> None:
        """Save the whole state and a JSON-able mapping beside it as the checkpoint of `step`.

        Leaves are arrays of jax or NumPy, typed PRNG keys, and Python numbers.

        Errors: ValueError when `step` is not after the latest one; whatever the previous save failed with.
        """
        latest = self.latest()
        if latest is not None and step <= latest:
            raise ValueError(f"step={step} is not after the latest checkpoint, {latest}: steps only grow")
        leaves = _named_leaves(state)
        stored = {name: _storable(name, leaf) for name, leaf in leaves.items()}
        manifest = _manifest(leaves, stored, metadata)
        filled = {name: array for name, array in stored.items() if array.size}  # orbax refuses empty arrays
        self._manager.save(
            step,
            args=ocp.args.Composite(state=ocp.args.PyTreeSave(filled), manifest=ocp.args.JsonSave(manifest)),
            force=True,
        )

    def steps(self) -> list[int]:
        """The steps whose checkpoints are complete, ascending."""
        try:
            self._manager.wait_until_finished()
        finally:
            # The manager's own list keeps a save that failed and misses those of another process.
            self._manager.reload()
        return decided(self._listed)

    def latest(self) -> int | None:
        """The newest complete step, or None."""
        return max(self.steps(), default=None)

    def drop_after(self, step: int) -> None:
        """Delete the checkpoints beyond `step`: a run resumed at `step` saves them again."""
        for later in self.steps():
            if later > step:
                self._manager.delete(later)

    def restore(self, step: int, abstract: PyTree) -> tuple[PyTree, dict]:
        """The state of `step` and its metadata, bit for bit, placed as `abstract` says.

        `abstract` has the structure of the state; its leaves are `jax.ShapeDtypeStruct` (with a sharding, or
        the first device's is taken), arrays, keys or numbers.

        Errors: UserError naming the first leaf that differs in name, shape or type, before anything is read,
        or for a step without a checkpoint; DamagedCheckpoint naming the leaf whose bytes changed.
        """
        manifest = self._load_manifest(step)
        return self._restore(step, manifest, abstract, ()), manifest["metadata"]

    def restore_part(self, step: int, abstract_part: PyTree, prefix: tuple[str, ...]) -> PyTree:
        """The part of the state of `step` under `prefix`, such as ("variables", "params"); no other is read.

        Errors: as `restore`, over the leaves under the prefix.
        """
        return self._restore(step, self._load_manifest(step), abstract_part, tuple(prefix))

    def leaves(self, step: int) -> dict[str, StoredLeaf]:
        """The shape and type of every leaf of the state of `step`, by its path; no array is read.

        Errors: as `restore`, for the step and its manifest.
        """
        return _described(self._load_manifest(step)["leaves"])

    def restore_leaves(self, step: int, abstract: Mapping[str, Any]) -> dict[str, Any]:
        """The leaves of `step` with these paths, placed as each says; no other is read.

        Errors: as `restore`, over these leaves.
        """
        manifest = self._load_manifest(step)
        saved = _described(manifest["leaves"])
        self._compare(step, {name: saved[name] for name in abstract if name in saved}, abstract)
        return self._verified(step, manifest, abstract)

    def close(self) -> None:
        """Wait for a save under way and end the threads; raises the error of the save."""
        try:
            self._manager.wait_until_finished()
        finally:
            self._manager.close()

    def _listed(self) -> list[int]:
        return sorted(self._manager.all_steps())

    def _damaged(self, step: int, what: str) -> DamagedCheckpoint:
        # No advice to delete it: the other checkpoints may be damaged as well.
        others = [other for other in self._listed() if other != step]
        back = f"step {others[-1]}" if others else "the start"
        advice = f"move it away to go back to {back}"
        return DamagedCheckpoint(f"{self._directory / str(step)} is damaged: {what}; {advice}")

    def _load_manifest(self, step: int) -> dict[str, Any]:
        steps = self.steps()
        if step not in steps:
            raise UserError(f"no checkpoint of step {step} in {self._directory}, which has {steps or 'none'}")
        try:
            manifest = self._manager.restore(step, args=ocp.args.Composite(manifest=ocp.args.JsonRestore())).manifest
            sound = manifest["sha256"] == _sha256(manifest["leaves"], manifest["metadata"])
        except Exception as error:  # a flipped byte can surface as any error of any parser
            raise self._damaged(step, "manifest/metadata cannot be read") from error
        if not sound:
            raise self._damaged(step, "manifest/metadata is not what was saved")
        return manifest

    def _restore(self, step: int, manifest: dict[str, Any], abstract: PyTree, prefix: tuple[str, ...]) -> PyTree:
        expected = _named_leaves(abstract, prefix)
        inside = "".join(f"{name}/" for name in prefix)
        saved = _described(manifest["leaves"])
        self._compare(step, {name: leaf for name, leaf in saved.items() if f"{name}/".startswith(inside)}, expected)
        restored = self._verified(step, manifest, expected)
        return jax.tree.unflatten(jax.tree.structure(abstract), list(restored.values()))

    def _verified(self, step: int, manifest: dict[str, Any], expected: Mapping[str, Any]) -> dict[str, Any]:
        """The leaves of these paths, their digests compared with those that were saved."""
        entries = {name: manifest["leaves"][name] for name in expected}
        empty = {name: np.zeros(e["shape"], expected[name].dtype) for name, e in entries.items() if 0 in e["shape"]}
        filled = {name: leaf for name, leaf in expected.items() if name not in empty}
        stored = self._read(step, filled)
        for name in differing(stored, {name: entries[name]["digest"] for name in stored}):
            raise self._damaged(step, f"leaf {name!r} in state/ is not what was saved (its digest differs)")
        for name, array in empty.items():
            stored[name] = array
            if _on_device(expected[name]):
                stored[name] = jax.make_array_from_callback(array.shape, _sharding(expected[name]), array.__getitem__)
        return {name: _as_expected(stored[name], leaf, entries[name]) for name, leaf in expected.items()}

    def _compare(self, step: int, saved: Mapping[str, StoredLeaf], expected: Mapping[str, Any]) -> None:
        wanted = {name: _describe(leaf) for name, leaf in expected.items()}
        for name in wanted | dict(saved):
            if saved.get(name) != wanted.get(name):
                raise UserError(
                    f"checkpoint {step} in {self._directory} is of another model or version: leaf {name!r} is "
                    f"{saved.get(name, 'absent')} in the checkpoint and {wanted.get(name, 'absent')} in this run; "
                    "give the config and the version that it was trained with, or another --workdir"
                )

    def _read(self, step: int, leaves: Mapping[str, Any]) -> dict[str, Any]:
        """The stored arrays by name, unverified; of an unreadable file, the error names the leaf."""
        try:
            return self._read_together(step, leaves)
        except Exception as error:
            if jax.process_count() > 1:  # a second read needs all processes
                raise self._damaged(step, f"process {jax.process_index()} cannot read state/") from error
            for name, leaf in leaves.items():
                try:
                    self._read_together(step, {name: leaf})
                except Exception as cause:
                    # TensorStore names the file that it gave up on, but only in its message.
                    files = re.findall(r'local file "([^"]+)"', str(cause)) or ["state/"]
                    raise self._damaged(step, f"leaf {name!r} cannot be read from {files[-1]}") from cause
            raise

    def _read_together(self, step: int, leaves: Mapping[str, Any]) -> dict[str, Any]:
        if not leaves:
            return {}
        arguments = ocp.args.PyTreeRestore(
            item={name: 0 for name in leaves},
            restore_args={name: _restore_arguments(leaf) for name, leaf in leaves.items()},
            partial_restore=True,
        )
        return dict(self._manager.restore(step, args=ocp.args.Composite(state=arguments)).state)
