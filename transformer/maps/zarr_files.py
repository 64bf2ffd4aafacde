"""Groups and arrays of zarr v3: arrays through tensorstore, and group files, which describe what lies below them."""

import concurrent.futures
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tensorstore

from transformer.attention.sites import Site
from transformer.config import UserError
from transformer.maps.capture_plan import ResolutionLevel
from transformer.storage.json_reading import parse_json, read_regular_file
from transformer.storage.paths import storage_of
from transformer.tasks.axis_labels import AxisLabels

# An index into an array, and the values to write at it.
Piece = tuple[tuple[slice, ...], np.ndarray]
# The contents of a zarr.json, of an array or a group.
Metadata = dict[str, Any]

_FILE = "zarr.json"
_EXCESS = 1 << 20  # bytes at most by which a group file is longer than expected
_LARGEST_ARRAY = 1 << 34  # bytes of an array's values
_READS = 32  # group files that are read at once: a bucket takes its time for each


def array_metadata(
    shape: tuple[int, ...], shard: tuple[int, ...], chunk: tuple[int, ...], names: tuple[str, ...], kind: str
) -> Metadata:
    """Return the metadata of an array in compressed chunks, each with its CRC-32C; one shard of chunks is a file.

    Args:
        shape: The shape of the array.
        shard: The shape of a shard.
        chunk: The shape of a chunk within a shard.
        names: The names of the axes.
        kind: The data type: "uint8", "int32" or "float32".

    Returns:
        The metadata as JSON values.
    """
    in_order = {"name": "bytes", "configuration": {"endian": "little"}}
    checksum = {"name": "crc32c"}
    sharding = {
        "chunk_shape": list(chunk),
        "codecs": [in_order, {"name": "gzip", "configuration": {"level": 6}}, checksum],
        "index_codecs": [in_order, checksum],
        "index_location": "end",
    }
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": kind,
        "fill_value": 0,
        "dimension_names": list(names),
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(shard)}},
        # Without a folder for each axis.
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
        "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
        "attributes": {},
    }


def single_chunk_metadata(shape: tuple[int, ...], data_type: str) -> Metadata:
    """Return the metadata of an array of a fixed size in one chunk."""
    return array_metadata(shape, shape, shape, tuple(f"axis_{axis}" for axis in range(len(shape))), data_type)


def group_metadata(attributes: Mapping[str, Any], nodes: Mapping[str, Metadata] | None = None) -> Metadata:
    """Return the metadata of a group.

    Args:
        attributes: Its attributes, as JSON values.
        nodes: The metadata of all groups and arrays below it by their paths, which then have no files of their own
            (zarr's consolidated metadata). Groups that lie between are added.

    Returns:
        The metadata as JSON values.
    """
    group = {"zarr_format": 3, "node_type": "group", "attributes": dict(attributes)}
    if nodes is None:
        return group
    between = {parent for name in nodes for parent in _parents(name)} - set(nodes)
    below = {**{name: group_metadata({}) for name in between}, **nodes}
    consolidated = {"kind": "inline", "must_understand": False, "metadata": dict(sorted(below.items()))}
    return {**group, "consolidated_metadata": consolidated}


def _parents(name: str) -> list[str]:
    parts = name.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts))]


def check_fits_memory(what: str, metadata: Metadata) -> None:
    """Check that an array's values fit the memory limit; tensorstore ends the process over what it cannot hold.

    Raises:
        UserError: If they take more than 16 GiB.
    """
    size = math.prod(metadata["shape"]) * np.dtype(metadata["data_type"]).itemsize
    if size > _LARGEST_ARRAY:
        raise UserError(f"{what} is not usable: values of shape {metadata['shape']} take {size:.3g} bytes")


def open_array(path: Path, metadata: Metadata) -> Any:
    """Open the array at `path` through tensorstore, with metadata that is known: none is read from its storage.

    Every chunk is written, also one of zeros, so that a file that is missing is an error and not an array of zeros.
    """
    spec = {
        "driver": "zarr3",
        "kvstore": storage_of(path).key_value_store(path),
        "metadata": metadata,
        "open": True,
        "assume_metadata": True,
        "store_data_equal_to_fill_value": True,
        "fill_missing_data_reads": False,
    }
    return tensorstore.open(spec).result()


def local_shards(array: Any) -> Iterator[Piece]:
    """Yield the parts of an array that this process writes, as index and values; one copy of a replicated shard."""
    if not isinstance(array, jax.Array):
        yield (slice(None),) * array.ndim, np.asarray(array)
        return
    for shard in array.addressable_shards:
        if shard.replica_id == 0:
            yield shard.index, np.asarray(shard.data)


def write_group(path: Path, metadata: Metadata) -> None:
    """Create a group, or replace its metadata."""
    replace_file(path / _FILE, json.dumps(metadata))


def check_groups(paths: Sequence[Path], expected: Metadata) -> Iterator[UserError | None]:
    """Yield of each group what is wrong with its file, None if its metadata are the expected ones."""
    written = json.dumps(expected).encode()

    def check(path: Path) -> UserError | None:
        file = path / _FILE
        try:
            content = read_regular_file(file, len(written) + _EXCESS)
            # Of many steps all have the same: what is there byte for byte needs no parsing.
            if content == written or parse_json(content, str(file)) == expected:
                return None
        except UserError as error:
            return error
        except OSError as error:
            return UserError(f"{file} cannot be read: {error.strerror or error}")
        return UserError(f"{file} is not what was written")

    with concurrent.futures.ThreadPoolExecutor(_READS) as pool:
        yield from pool.map(check, paths)


def replace_file(path: Path, text: str) -> None:
    """Replace a file atomically: a reader sees the old one or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    storage_of(path).replace(path, text.encode())


def stack_statistics(
    statistics: Mapping[str, Any], names: Sequence[str], heads: tuple[int, int, int]
) -> Iterator[Piece]:
    """Stack the statistics [example, layer, head] along a last axis, NaN for one that is missing.

    They are stacked on the host, so that the devices, busy training, compute nothing for it.

    Args:
        statistics: The statistics by name.
        names: The order of the statistics along the last axis.
        heads: The numbers of examples, layers and heads.

    Yields:
        Parts of the stacked array, as index and values.
    """
    pieces = {name: list(local_shards(statistics[name])) for name in names if name in statistics}
    places = [where for where, _ in next(iter(pieces.values()))] if pieces else [(slice(None),) * len(heads)]
    for number, where in enumerate(places):
        nothing = np.full(heads, np.nan, np.float32)[where]
        values = [pieces[name][number][1] if name in pieces else nothing for name in names]
        yield where, np.stack(values, axis=-1).astype(np.float32)


def set_padding_to_zero(
    values: np.ndarray,
    where: tuple[slice, ...],
    name: str,
    labels: AxisLabels,
    site: Site,
    levels: Sequence[ResolutionLevel],
) -> np.ndarray:
    """Set values beyond each example's own tokens to zero.

    Args:
        values: A part of an array.
        where: Its index into the array.
        name: The name of the array in the module's group.
        labels: The labels, which give the examples' lengths.
        site: The attention module.
        levels: The stored levels.

    Returns:
        The values; unchanged unless the array belongs to a level.
    """
    sides = {level.name: (level.query_block, level.key_block) for level in levels}
    group, _, part = name.partition("/")
    if group not in sides:
        return values
    result = np.array(values)
    for index, example in enumerate(range(len(labels.titles))[where[0]]):
        queries, keys = (
            -(-len(labels.tokens[axis.name][example]) // block)
            for axis, block in zip((site.query, site.key), sides[group], strict=True)
        )
        first_query, first_key = (where[axis].start or 0 if len(where) > axis else 0 for axis in (3, 4))
        result[index, :, :, max(0, queries - first_query) :] = 0
        if part == "codes":
            result[index, ..., max(0, keys - first_key) :] = 0
    return result
