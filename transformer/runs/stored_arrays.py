"""Reading the arrays of a checkpoint from the files that orbax wrote, without waiting for other processes.

Orbax's own manager ends a restore with a barrier: where one process cannot read its part, the others would wait there.
"""

import contextlib
import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils.epath import gpath

from transformer.runs.digest import digests_here
from transformer.runs.manifest import is_key

_WHOLE = np.zeros(())  # stands for an array of NumPy
_AT_ONCE = 1 << 26  # elements


class Unreadable(Exception):
    """An array that cannot be read."""


class LiteralPath(gpath.PosixGPath):
    """A path on a disk as orbax is given it: a glob under it takes the characters of its own name as they are.

    That of etils takes `[`, `*` and `?` in it for a pattern, and finds nothing there, or what lies elsewhere.
    """

    def glob(self, pattern: str) -> Iterator["LiteralPath"]:
        """What matches the pattern under this path."""
        return (LiteralPath(found) for found in Path(os.fspath(self)).glob(pattern))


def for_orbax(path: Path) -> Any:
    """The path in the class that orbax is given; a path in a bucket has it."""
    return LiteralPath(path) if isinstance(path, Path) else path


def on_device(leaf: Any) -> bool:
    """Whether a leaf is, or stands for, an array of jax."""
    return isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct))


def sharding_of(leaf: Any) -> jax.sharding.Sharding:
    """The sharding that a leaf is read with: its own, or the first device's."""
    return leaf.sharding or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])


def read_arrays(folder: Path, leaves: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays in `folder` by name, unverified, each as its leaf says; each process reads its own part.

    Errors: Unreadable, naming the leaf and the file.
    """
    try:
        return _all_arrays(folder, _read(folder, leaves), leaves)
    except Exception as error:  # a flipped byte can surface as any error of any parser
        for name, leaf in leaves.items():
            try:
                _all_arrays(folder, _read(folder, {name: leaf}), {name: leaf})
            except Exception as cause:
                # TensorStore names the file that it gave up on, but only in its message.
                files = re.findall(r'local file "([^"]+)"', str(cause)) or [f"{folder.name}/"]
                raise Unreadable(f"leaf {name!r} cannot be read from {files[-1]}") from cause
        raise Unreadable(f"{folder.name}/ cannot be read") from error


def changed(folder: Path, entries: Mapping[str, Mapping[str, Any]]) -> str | None:
    """What is wrong with the arrays in `folder` that a manifest has these entries of; None where nothing is.

    They are read whole, some at a time, into the memory of this process.
    """
    for names in _some_at_a_time(entries):
        try:
            arrays = read_arrays(folder, dict.fromkeys(names, _WHOLE))
        except Unreadable as error:
            return str(error)
        for name, digest in digests_here(arrays).items():
            # The bits of keys have one more axis than the keys.
            shape = tuple(entries[name]["shape"])
            if digest != entries[name]["digest"] or arrays[name].shape[: len(shape)] != shape:
                return not_saved(folder, name)
    return None


def _all_arrays(folder: Path, read: dict[str, Any], leaves: Mapping[str, Any]) -> dict[str, Any]:
    """What was read, in the order of the leaves.

    Errors: Unreadable where orbax, by damaged metadata, returned none, something else, or another shape.
    """
    for name, leaf in leaves.items():
        array = read.get(name)
        if not isinstance(array, (jax.Array, np.ndarray)):
            raise Unreadable(f"leaf {name!r} is not in {folder.name}/")
        if leaf is not _WHOLE and not is_key(leaf) and array.shape != np.shape(leaf):
            raise Unreadable(f"leaf {name!r} in {folder.name}/ has another shape than was saved")
    return {name: read[name] for name in leaves}


def not_saved(folder: Path, name: str) -> str:
    """The words for an array whose digest is another."""
    return f"leaf {name!r} in {folder.name}/ is not what was saved (its digest differs)"


def _some_at_a_time(entries: Mapping[str, Mapping[str, Any]]) -> Iterator[list[str]]:
    """Names of arrays that are not empty, in groups of at most `_AT_ONCE` elements, or of one array."""
    group: list[str] = []
    held = 0
    for name, entry in entries.items():
        size = math.prod(entry["shape"])
        if group and held + size > _AT_ONCE:
            yield group
            group, held = [], 0
        if size:
            group.append(name)
            held += size
    if group:
        yield group


def _read(folder: Path, leaves: Mapping[str, Any]) -> dict[str, Any]:
    if not leaves:
        return {}
    arguments = ocp.args.PyTreeRestore(
        item={name: 0 for name in leaves},
        restore_args={name: _arguments(leaf) for name, leaf in leaves.items()},
        partial_restore=True,
    )
    with contextlib.closing(ocp.PyTreeCheckpointHandler()) as handler:
        return dict(handler.restore(for_orbax(folder), args=arguments))


def _arguments(leaf: Any) -> ocp.RestoreArgs:
    if not on_device(leaf):
        return ocp.RestoreArgs(restore_type=np.ndarray)
    sharding = sharding_of(leaf)
    if is_key(leaf):
        # The bits of keys have one more axis than the keys, which their sharding does not mention.
        return ocp.ArrayRestoreArgs(sharding=sharding)
    # The shapes were compared before; strict makes orbax refuse others instead of padding.
    return ocp.ArrayRestoreArgs(sharding=sharding, global_shape=tuple(leaf.shape), dtype=leaf.dtype, strict=True)
