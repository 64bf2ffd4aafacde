"""The files of a checkpoint: its manifest of shapes, types and digests, and its arrays."""

import contextlib
import dataclasses
import gc
import hashlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import tensorstore
from etils.epath import gpath

from transformer.config import MatchesPattern, Range, UserError, shorten_value
from transformer.runs.array_digests import Digest, compute_digests, compute_local_digests
from transformer.storage.json_reading import MAX_BYTES, parse_dataclass, parse_json, read_json_object
from transformer.storage.paths import storage_of

PyTree = Any
SCALAR_TYPES = {bool: "python bool", int: "python int", float: "python float"}
_NUMPY_LEAF = np.zeros(())  # stands for a NumPy array
_ELEMENTS_AT_ONCE = 1 << 24  # elements
_MOST_KEY_WORDS = 16  # 32-bit words of a PRNG key
Dimension = Annotated[int, Range(0, 2**48)]
"""The length of an axis of a stored array."""


class UnreadableArray(Exception):
    """An array cannot be read."""


@dataclasses.dataclass(frozen=True)
class LeafShape:
    """The shape and type of a stored leaf."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"shape {self.shape} of {self.dtype}"


@dataclasses.dataclass(frozen=True)
class LeafEntry:
    """A leaf in a manifest.

    Attributes:
        shape: Its shape.
        dtype: Its type.
        digest: The digest of its content.
        implementation: The PRNG implementation of keys; "" for other leaves.
    """

    shape: tuple[Dimension, ...]
    dtype: str
    digest: Digest
    implementation: Annotated[
        str, MatchesPattern("threefry2x32|rbg|unsafe_rbg", "an implementation of keys in jax")
    ] = ""

    def __post_init__(self) -> None:
        if self.dtype.startswith("key<") != bool(self.implementation):
            raise ValueError(
                f"implementation={self.implementation!r} does not belong to a leaf of {shorten_value(self.dtype)}"
            )

    @property
    def leaf_shape(self) -> LeafShape:
        """Its shape and type."""
        return LeafShape(self.shape, self.dtype)


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The content of a manifest file.

    Attributes:
        leaves: The leaves by path.
        metadata: The metadata of the checkpoint.
        sha256: The SHA-256 of both.
    """

    leaves: Mapping[str, LeafEntry]
    metadata: Mapping[str, Any]
    sha256: str


def is_key(leaf: Any) -> bool:
    """Whether a leaf is an array of typed PRNG keys."""
    return hasattr(leaf, "dtype") and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def named_leaves(tree: PyTree, prefix: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the leaves of a tree by path, such as `variables/params/encoder/query/kernel`.

    Args:
        tree: The tree.
        prefix: The path of the tree itself.

    Raises:
        ValueError: If two leaves have the same path.
    """
    leaves: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = "/".join([*prefix, *(jax.tree_util.keystr((entry,), simple=True) for entry in path)])
        if name in leaves:
            raise ValueError(f"two leaves of the state are both called {name!r}: rename one of them")
        leaves[name] = leaf
    return leaves


def leaf_shape(leaf: Any) -> LeafShape:
    """Return the shape and type of a leaf.

    Raises:
        TypeError: If it is neither an array nor a number.
    """
    if type(leaf) in SCALAR_TYPES:
        return LeafShape((), SCALAR_TYPES[type(leaf)])
    if not hasattr(leaf, "dtype"):
        raise TypeError(f"a {type(leaf).__name__} cannot be a leaf of a checkpoint; it must be an array or a number")
    return LeafShape(tuple(leaf.shape), str(leaf.dtype))


def to_stored_array(name: str, leaf: Any) -> Any:
    """Return the array that orbax stores for a leaf: the bits of a key, the zero-dimensional array of a number.

    Raises:
        ValueError: If the leaf is an empty array of keys.
    """
    if is_key(leaf):
        if not leaf.size:
            raise ValueError(f"leaf {name!r} is an empty array of keys: leave it out of the state")
        return jax.random.key_data(leaf)
    return leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)


def make_manifest(state: Mapping[str, Any], stored: Mapping[str, Any], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Make the manifest of a state. All processes call it together.

    Args:
        state: The leaves by path.
        stored: Their arrays as stored.
        metadata: The metadata of the checkpoint.
    """
    sums = compute_digests(stored)
    leaves: dict[str, Any] = {}
    for name, leaf in state.items():
        leaves[name] = {**dataclasses.asdict(leaf_shape(leaf)), "digest": sums[name]}
        if is_key(leaf):
            leaves[name]["implementation"] = str(jax.random.key_impl(leaf))
    # As JSON returns it: a tuple or an integer key must not change the digest.
    plain = json.loads(json.dumps({"leaves": leaves, "metadata": dict(metadata)}))
    return {**plain, "sha256": _hash_manifest(plain["leaves"], plain["metadata"])}


def manifest_file(checkpoint: Path) -> Path:
    """Return the file of a checkpoint's manifest."""
    return checkpoint / "manifest" / "metadata"


def parse_manifest(text: str | bytes) -> Manifest:
    """Parse a manifest.

    Raises:
        ValueError: If it cannot be read, or is not what was saved.
    """
    try:
        manifest = parse_json(text, "it")
        sound = manifest["sha256"] == _hash_manifest(manifest["leaves"], manifest["metadata"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError("cannot be read") from error
    if not sound:
        raise ValueError("is not what was saved")
    try:
        return parse_dataclass(Manifest, manifest, "it")
    except UserError as error:
        raise ValueError(f"is not what a run saves: {error}") from error


def from_stored_array(stored: Any, expected: Any, entry: LeafEntry) -> Any:
    """Convert a stored array back to a leaf.

    Args:
        stored: The array.
        expected: The leaf as the caller expects it.
        entry: The leaf's entry in the manifest.

    Raises:
        ValueError: If the stored bits are not keys of the expected kind and shape.
    """
    if is_key(expected):
        key = jax.random.wrap_key_data(stored, impl=entry.implementation)
        if (key.dtype, key.shape) != (expected.dtype, expected.shape):
            raise ValueError(f"keys of {key.dtype} and shape {key.shape} are not those of {expected.dtype}")
        return key if expected.sharding is None else jax.device_put(key, expected.sharding)
    if type(expected) in SCALAR_TYPES:
        return stored.item()
    return stored[()] if isinstance(expected, np.generic) else stored


def _hash_manifest(leaves: Any, metadata: Any) -> str:
    return hashlib.sha256(json.dumps([leaves, metadata], sort_keys=True).encode()).hexdigest()


@dataclasses.dataclass(frozen=True)
class ZarrMetadata:
    """The metadata of a stored array in zarr v2, as orbax writes it."""

    zarr_format: Annotated[int, Range(2, 2)]
    shape: tuple[Dimension, ...]
    chunks: tuple[Dimension, ...]
    dtype: str
    compressor: Any
    order: Annotated[str, MatchesPattern("[CF]", "'C' or 'F'")]
    fill_value: Any = None
    filters: None = None
    dimension_separator: str = "."

    def __post_init__(self) -> None:
        if len(self.chunks) != len(self.shape):
            raise ValueError(f"chunks={self.chunks} must have as many axes as shape={self.shape}")
        if not all(1 <= chunk <= max(size, 1) for chunk, size in zip(self.chunks, self.shape, strict=True)):
            raise ValueError(f"chunks={self.chunks} must lie within shape={self.shape}")


class LiteralGlobPath(gpath.PosixGPath):
    """A path on a disk for orbax, whose `glob` does not interpret characters of the path itself.

    That of etils takes `[`, `*` and `?` in the path as a pattern, and finds nothing, or files elsewhere.
    """

    def glob(self, pattern: str) -> Iterator["LiteralGlobPath"]:
        """Yield what matches the pattern under this path."""
        return (LiteralGlobPath(match) for match in Path(os.fspath(self)).glob(pattern))


def to_orbax_path(path: Path) -> Any:
    """Return a path in the class that orbax needs; a path in a bucket has it already."""
    return LiteralGlobPath(path) if isinstance(path, Path) else path


def is_jax_array(leaf: Any) -> bool:
    """Whether a leaf is a jax array or stands for one."""
    return isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct))


def leaf_sharding(leaf: Any) -> jax.sharding.Sharding:
    """Return the sharding that a leaf is read with: its own, or the first device's."""
    return leaf.sharding or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])


def read_arrays(folder: Path, leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Read arrays, unverified; each process reads its own part.

    Args:
        folder: Their folder.
        leaves: The leaves by name, for their shapes and shardings.

    Raises:
        UnreadableArray: If an array cannot be read; the message names the leaf and the file.
    """
    try:
        return _check_arrays(folder, _restore_arrays(folder, leaves), leaves)
    except Exception as error:  # a flipped byte can surface as any error of any parser
        for name, leaf in leaves.items():
            try:
                _check_arrays(folder, _restore_arrays(folder, {name: leaf}), {name: leaf})
            except Exception as cause:
                # TensorStore names the file that it gave up on, but only in its message.
                files = re.findall(r'local file "([^"]+)"', str(cause)) or [f"{folder.name}/"]
                raise UnreadableArray(f"leaf {name!r} cannot be read from {files[-1]}") from cause
        raise UnreadableArray(f"{folder.name}/ cannot be read") from error


def describe_damaged_array(folder: Path, entries: Mapping[str, LeafEntry]) -> str | None:
    """Describe the first array that is not what a manifest says; None if there is none.

    Arrays are read whole, a few at a time, into the memory of this process.

    Args:
        folder: The folder of the arrays.
        entries: Their entries in the manifest.
    """
    is_large = sum(math.prod(entry.shape) for entry in entries.values()) > _ELEMENTS_AT_ONCE
    for names in _group_names(entries):
        if is_large:
            gc.collect()  # orbax leaves what it wrote and read in cycles
        try:
            arrays = read_arrays(folder, dict.fromkeys(names, _NUMPY_LEAF))
        except UnreadableArray as error:
            return str(error)
        for name, digest in compute_local_digests(arrays).items():
            # The bits of keys have one more axis than the keys.
            shape = entries[name].shape
            if digest != entries[name].digest or arrays[name].shape[: len(shape)] != shape:
                return digest_mismatch_message(folder, name)
    return None


def _check_arrays(folder: Path, read: dict[str, Any], leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was read in the order of the leaves.

    Raises:
        UnreadableArray: If orbax, because of damaged metadata, returned nothing, something else, or another shape.
    """
    for name, leaf in leaves.items():
        array = read.get(name)
        if not isinstance(array, (jax.Array, np.ndarray)):
            raise UnreadableArray(f"leaf {name!r} is not in {folder.name}/")
        if leaf is not _NUMPY_LEAF and not is_key(leaf) and array.shape != np.shape(leaf):
            raise UnreadableArray(f"leaf {name!r} in {folder.name}/ has another shape than was saved")
    return {name: read[name] for name in leaves}


def digest_mismatch_message(folder: Path, name: str) -> str:
    """Return the message about an array with another digest."""
    return f"leaf {name!r} in {folder.name}/ is not what was saved (its digest differs)"


def _group_names(entries: Mapping[str, LeafEntry]) -> Iterator[list[str]]:
    """Yield the names of non-empty arrays, in groups of at most `_ELEMENTS_AT_ONCE` elements, or of one array."""
    group: list[str] = []
    num_elements = 0
    for name, entry in entries.items():
        size = math.prod(entry.shape)
        if group and num_elements + size > _ELEMENTS_AT_ONCE:
            yield group
            group, num_elements = [], 0
        if size:
            group.append(name)
            num_elements += size
    if group:
        yield group


def _check_metadata(folder: Path, leaves: Mapping[str, Any]) -> None:
    """Compare the metadata of arrays with the leaves before tensorstore reads them.

    Tensorstore ends the process over metadata that it cannot handle.

    Raises:
        UnreadableArray: If they differ.
        UserError: If a metadata file is damaged.
    """
    tree = read_json_object(folder / "_METADATA")
    if tree.get("use_ocdbt") is not True or tree.get("use_zarr3", False) is not False:
        raise UnreadableArray(f"{folder.name}/_METADATA is not of arrays of zarr v2 in one OCDBT store")
    # If these are not JSON or nested deeply, orbax leaves an event loop behind that it cannot close.
    array_metadata_folder = folder / "array_metadatas"
    for file in (folder / "_sharding", *(array_metadata_folder.iterdir() if array_metadata_folder.is_dir() else ())):
        if file.exists():
            read_json_object(file)
    manifest = folder / "manifest.ocdbt"
    if isinstance(manifest, Path) and manifest.stat().st_size > MAX_BYTES:
        raise UnreadableArray(f"{folder.name}/{manifest.name} is larger than orbax writes it")
    base = storage_of(folder).key_value_store(folder)
    store = tensorstore.KvStore.open({"driver": "ocdbt", "base": base}).result()
    metadata_reads = {name: store.read(f"{name}/.zarray") for name in leaves}
    for name, leaf in leaves.items():
        what = f"{folder.name}/: {name}/.zarray"
        stored = parse_dataclass(ZarrMetadata, parse_json(metadata_reads[name].result().value, what), what)
        if leaf is _NUMPY_LEAF:
            continue  # of this process's own save; the shape is compared after reading
        shape = np.shape(leaf)
        leading_shape = stored.shape[: len(shape)] if is_key(leaf) else stored.shape
        if leading_shape != shape or math.prod(stored.shape[len(shape) :]) > _MOST_KEY_WORDS:
            raise UnreadableArray(f"leaf {name!r} in {folder.name}/ has another shape than was saved")


def _restore_arrays(folder: Path, leaves: Mapping[str, Any]) -> dict[str, Any]:
    if not leaves:
        return {}
    _check_metadata(folder, leaves)
    arguments = ocp.args.PyTreeRestore(
        item={name: 0 for name in leaves},
        restore_args={name: _restore_arguments(leaf) for name, leaf in leaves.items()},
        partial_restore=True,
    )
    with contextlib.closing(ocp.PyTreeCheckpointHandler()) as handler:
        return dict(handler.restore(to_orbax_path(folder), args=arguments))


def _restore_arguments(leaf: Any) -> ocp.RestoreArgs:
    if not is_jax_array(leaf):
        return ocp.RestoreArgs(restore_type=np.ndarray)
    sharding = leaf_sharding(leaf)
    if is_key(leaf):
        # The bits of keys have one more axis than the keys, which their sharding does not mention.
        return ocp.ArrayRestoreArgs(sharding=sharding)
    # The shapes were compared before; strict makes orbax refuse others instead of padding.
    return ocp.ArrayRestoreArgs(sharding=sharding, global_shape=tuple(leaf.shape), dtype=leaf.dtype, strict=True)
