"""The manifest of a checkpoint: the shape, type and digest of every leaf, what was said beside, and the SHA-256 of all.

Orbax restores flipped bits and casts types without a word; what it restores is therefore compared with this.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any

import jax
import numpy as np

from transformer.config import Matching, Range, UserError
from transformer.json_files import checked, parse
from transformer.runs.digest import Digest, digests

PyTree = Any

SCALARS = {bool: "python bool", int: "python int", float: "python float"}


Dimension = Annotated[int, Range(0, 2**48)]
"""The length of an axis of a stored array."""


@dataclasses.dataclass(frozen=True)
class LeafEntry:
    """A leaf in a manifest; `implementation` is that of keys."""

    shape: tuple[Dimension, ...]
    dtype: str
    digest: Digest
    implementation: Annotated[str, Matching("threefry2x32|rbg|unsafe_rbg", "an implementation of keys in jax")] = ""

    def __post_init__(self) -> None:
        if self.dtype.startswith("key<") != bool(self.implementation):
            raise ValueError(f"implementation={self.implementation!r} does not belong to a leaf of {self.dtype}")


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What the file of a manifest holds; `metadata` is what was said beside the leaves."""

    leaves: Mapping[str, LeafEntry]
    metadata: Mapping[str, Any]
    sha256: str


@dataclasses.dataclass(frozen=True)
class StoredLeaf:
    """A leaf as the manifest describes it, without its digest."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"shape {self.shape} of {self.dtype}"


def described(entries: Mapping[str, Mapping[str, Any]]) -> dict[str, StoredLeaf]:
    """The leaves of a manifest by path."""
    return {name: StoredLeaf(tuple(entry["shape"]), entry["dtype"]) for name, entry in entries.items()}


def is_key(leaf: Any) -> bool:
    """Whether a leaf is an array of typed PRNG keys."""
    return hasattr(leaf, "dtype") and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def describe(leaf: Any) -> StoredLeaf:
    """The shape and type of a leaf.

    Errors: TypeError for what cannot be one.
    """
    if type(leaf) in SCALARS:
        return StoredLeaf((), SCALARS[type(leaf)])
    if not hasattr(leaf, "dtype"):
        raise TypeError(f"a {type(leaf).__name__} cannot be a leaf of a checkpoint; it must be an array or a number")
    return StoredLeaf(tuple(leaf.shape), str(leaf.dtype))


def named_leaves(tree: PyTree, prefix: tuple[str, ...] = ()) -> dict[str, Any]:
    """The leaves by their path, such as `variables/params/encoder/query/kernel`.

    Errors: ValueError for two of one path.
    """
    named: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = "/".join([*prefix, *(jax.tree_util.keystr((entry,), simple=True) for entry in path)])
        if name in named:
            raise ValueError(f"two leaves of the state are both called {name!r}: rename one of them")
        named[name] = leaf
    return named


def storable(name: str, leaf: Any) -> Any:
    """The array that orbax is given for a leaf: the bits of a key, the zero-dimensional array of a number."""
    if is_key(leaf):
        if not leaf.size:
            raise ValueError(f"leaf {name!r} is an empty array of keys: leave it out of the state")
        return jax.random.key_data(leaf)
    return leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)


def make_manifest(state: Mapping[str, Any], stored: Mapping[str, Any], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest of leaves by path, `stored` as the arrays that orbax is given; all processes make it together."""
    sums = digests(stored)
    leaves: dict[str, Any] = {}
    for name, leaf in state.items():
        leaves[name] = {**dataclasses.asdict(describe(leaf)), "digest": sums[name]}
        if is_key(leaf):
            leaves[name]["implementation"] = str(jax.random.key_impl(leaf))
    # As JSON returns it: a tuple or an integer key must not change the digest.
    plain = json.loads(json.dumps({"leaves": leaves, "metadata": dict(metadata)}))
    return {**plain, "sha256": _sha256(plain["leaves"], plain["metadata"])}


def read_manifest(text: str | bytes) -> dict[str, Any]:
    """The manifest that a file holds.

    Errors: ValueError saying that it cannot be read, or is not what was saved.
    """
    try:
        manifest = parse(text, "it")
        sound = manifest["sha256"] == _sha256(manifest["leaves"], manifest["metadata"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError("cannot be read") from error
    if not sound:
        raise ValueError("is not what was saved")
    try:
        checked(Manifest, manifest, "it")
    except UserError as error:
        raise ValueError(f"is not what a run saves: {error}") from error
    return manifest


def as_expected(stored: Any, expected: Any, entry: Mapping[str, Any]) -> Any:
    """The leaf in the caller's form, from the stored array and the leaf's entry in the manifest.

    Errors: ValueError where the stored bits are not keys of the expected kind and shape.
    """
    if is_key(expected):
        key = jax.random.wrap_key_data(stored, impl=entry["implementation"])
        if (key.dtype, key.shape) != (expected.dtype, expected.shape):
            raise ValueError(f"keys of {key.dtype} and shape {key.shape} are not those of {expected.dtype}")
        return key if expected.sharding is None else jax.device_put(key, expected.sharding)
    if type(expected) in SCALARS:
        return stored.item()
    return stored[()] if isinstance(expected, np.generic) else stored


def _sha256(leaves: Any, metadata: Any) -> str:
    return hashlib.sha256(json.dumps([leaves, metadata], sort_keys=True).encode()).hexdigest()
