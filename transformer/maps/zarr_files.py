"""Arrays and groups of zarr v3 on disk: arrays by tensorstore, and the group files that it does not write."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tensorstore

from transformer.storage import storage_of

# An index into an array, and the values to write at it.
Piece = tuple[tuple[slice, ...], np.ndarray]


def array_metadata(
    shape: tuple[int, ...], shard: tuple[int, ...], chunk: tuple[int, ...], names: tuple[str, ...], kind: str
) -> dict[str, Any]:
    """The metadata of an array in gzipped chunks, stored a shard a file."""
    endian = {} if kind == "uint8" else {"endian": "little"}
    codecs = [{"name": "bytes", "configuration": endian}, {"name": "gzip", "configuration": {"level": 6}}]
    return {
        "shape": list(shape),
        "data_type": kind,
        "fill_value": 0,
        "dimension_names": list(names),
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(shard)}},
        "codecs": [{"name": "sharding_indexed", "configuration": {"chunk_shape": list(chunk), "codecs": codecs}}],
    }


def open_array(path: Path, metadata: Mapping[str, Any] | None = None) -> Any:
    """The array at `path`; created if it is missing and its metadata is given."""
    spec: dict[str, Any] = {"driver": "zarr3", "kvstore": storage_of(path).key_value_store(path)}
    if metadata is not None and not (path / "zarr.json").exists():
        spec |= {"open": True, "create": True, "metadata": dict(metadata)}
    return tensorstore.open(spec).result()


def write_whole(path: Path, values: np.ndarray) -> None:
    """Write an array of a fixed size, and the groups that contain it."""
    names = tuple(f"axis_{axis}" for axis in range(values.ndim))
    for parent in (path.parent.parent, path.parent):
        write_group(parent, {})
    array = open_array(path, array_metadata(values.shape, values.shape, values.shape, names, str(values.dtype)))
    array.write(values).result()


def own_pieces(array: Any) -> Iterator[Piece]:
    """The parts of an array that this process writes: of a sharded one its own shards, one of each copy."""
    if not isinstance(array, jax.Array):
        yield (slice(None),) * array.ndim, np.asarray(array)
        return
    for shard in array.addressable_shards:
        if shard.replica_id == 0:
            yield shard.index, np.asarray(shard.data)


def write_group(path: Path, attributes: Mapping[str, Any]) -> None:
    """Create the group at `path`, or replace its metadata."""
    replace_file(
        path / "zarr.json", json.dumps({"zarr_format": 3, "node_type": "group", "attributes": attributes}, indent=1)
    )


def replace_file(path: Path, text: str) -> None:
    """Replace a file at once: a reader sees the old one or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    storage_of(path).replace(path, text.encode())
