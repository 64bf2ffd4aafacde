"""Arrays and groups of zarr v3 on disk: arrays through tensorstore, and the group files that it does not write."""

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import tensorstore

from transformer.attention.sites import Site
from transformer.config import MatchesPattern, Range, UserError, shorten_value
from transformer.maps.capture_plan import ResolutionLevel
from transformer.storage.json_reading import parse_dataclass, read_json
from transformer.storage.paths import storage_of
from transformer.tasks.axis_labels import AxisLabels

# An index into an array, and the values to write at it.
Piece = tuple[tuple[slice, ...], np.ndarray]


_FILE = "zarr.json"
_LARGEST_FILE = 1 << 20  # bytes of an array's metadata
_LARGEST_ARRAY = 1 << 34  # bytes of an array's values at one step

Size = Annotated[int, Range(0, 2**31 - 1)]
"""The length of an axis of an array."""


@dataclasses.dataclass(frozen=True)
class NamedConfiguration:
    """A part of an array's zarr v3 metadata that consists of a name and a configuration."""

    name: str
    configuration: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class RegularChunkGrid:
    """The configuration of a regular chunk grid."""

    chunk_shape: tuple[Size, ...]


@dataclasses.dataclass(frozen=True)
class ArrayMetadata:
    """The contents of an array's zarr.json, as tensorstore writes `array_metadata`."""

    zarr_format: Annotated[int, Range(3, 3)]
    node_type: Annotated[str, MatchesPattern("array", "'array'")]
    shape: tuple[Size, ...]
    data_type: Annotated[str, MatchesPattern("uint8|int32|float32", "uint8, int32 or float32")]
    fill_value: Annotated[float, Range(0, 0)]
    dimension_names: tuple[str, ...]
    chunk_grid: NamedConfiguration
    codecs: tuple[NamedConfiguration, ...]
    chunk_key_encoding: NamedConfiguration = NamedConfiguration("default")
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def read_array_metadata(path: Path) -> ArrayMetadata:
    """Read the metadata of the array at `path`.

    Raises:
        UserError: If the file is not metadata that `array_metadata` makes, or a shape is invalid.
    """
    file, value = path / _FILE, read_json(path / _FILE, _LARGEST_FILE)
    stored = parse_dataclass(ArrayMetadata, value, str(file))
    grid = parse_dataclass(RegularChunkGrid, stored.chunk_grid.configuration, f"{file}: chunk_grid.configuration")
    if len({len(stored.shape), len(stored.dimension_names), len(grid.chunk_shape)}) != 1:
        raise UserError(f"{file} is not usable: shape, dimension_names and chunk_shape differ in their number of axes")
    if stored.chunk_grid.name != "regular" or stored.chunk_key_encoding.name != "default" or stored.attributes:
        raise UserError(f"{file} is not usable: its chunk_grid, chunk_key_encoding or attributes are not a map store's")
    inner = _inner_chunk(stored.codecs, str(file))
    expected = array_metadata(stored.shape, grid.chunk_shape, inner, stored.dimension_names, stored.data_type)
    if _normalize_codecs(stored.codecs) != _normalize_codecs(
        tuple(NamedConfiguration(**codec) for codec in expected["codecs"])
    ):
        raise UserError(f"{file} is not usable: its codecs are not a map store's")
    if not all(grid.chunk_shape) or not all(inner) or len(inner) != len(stored.shape):
        raise UserError(f"{file} is not usable: a chunk of {grid.chunk_shape} in chunks of {inner} is none")
    return stored


def check_array_metadata(path: Path, expected: Mapping[str, Any]) -> None:
    """Check that the array at `path` has the metadata that `array_metadata` planned; its number of steps may differ.

    Every array is checked before tensorstore opens it, because tensorstore ends the process over metadata that it
    cannot hold. The number of examples a shard may differ, since the number of writing processes may change between
    starts.

    Args:
        path: The directory of the array.
        expected: The planned metadata.

    Raises:
        UserError: If a field differs, or the values of one step take too much memory.
    """
    stored = read_array_metadata(path)
    for field in ("data_type", "dimension_names"):
        actual, planned = getattr(stored, field), expected[field]
        if actual != (tuple(planned) if isinstance(planned, list) else planned):
            raise UserError(f"{path / _FILE} is not usable: {field}={shorten_value(actual)} must be {planned!r}")
    if stored.shape[1:] != tuple(expected["shape"][1:]):
        raise UserError(
            f"{path / _FILE} is not usable: the shape {stored.shape} must be "
            f"(steps, {str(tuple(expected['shape']))[4:]}"
        )
    chunk = tuple(stored.chunk_grid.configuration["chunk_shape"])
    planned = tuple(expected["chunk_grid"]["configuration"]["chunk_shape"])
    if chunk[:1] + chunk[2:] != planned[:1] + planned[2:] or not 1 <= chunk[1] <= max(stored.shape[1], 1):
        raise UserError(f"{path / _FILE} is not usable: the chunk_shape {chunk} must be {planned}")
    inner = _inner_chunk(stored.codecs, str(path / _FILE))
    if inner != _inner_chunk(tuple(NamedConfiguration(**codec) for codec in expected["codecs"]), "it"):
        raise UserError(f"{path / _FILE} is not usable: its inner chunks are {inner}")
    check_fits_memory(path, stored.shape[1:], stored.data_type)


def check_fits_memory(path: Path, shape: tuple[int, ...], data_type: str) -> None:
    """Check that an array's values fit the memory limit.

    Args:
        path: The directory of the array, for the message.
        shape: The shape of the values.
        data_type: Their data type.

    Raises:
        UserError: If they take more than 16 GiB.
    """
    size = math.prod(shape) * np.dtype(data_type).itemsize
    if size > _LARGEST_ARRAY:
        raise UserError(f"{path / _FILE} is not usable: values of shape {shape} take {size:.3g} bytes at one step")


def _inner_chunk(codecs: tuple[NamedConfiguration, ...], file: str) -> tuple[int, ...]:
    if len(codecs) != 1 or codecs[0].name != "sharding_indexed":
        raise UserError(f"{file} is not usable: its codecs are not a map store's")
    shape = {"chunk_shape": codecs[0].configuration.get("chunk_shape")}
    return parse_dataclass(RegularChunkGrid, shape, f"{file}: the configuration of its codec").chunk_shape


def _normalize_codecs(codecs: tuple[NamedConfiguration, ...]) -> list[Any]:
    """Return codecs with tensorstore's defaults filled in and without the compression level, which no reader needs."""
    return [[codec.name, _normalize_configuration(codec)] for codec in codecs]


def _normalize_configuration(codec: NamedConfiguration) -> Any:
    configuration = dict(codec.configuration)
    match codec.name:
        case "bytes":
            return {"endian": "little"} | configuration
        case "gzip":
            configuration.pop("level", None)
            return configuration
        case "sharding_indexed":
            own = configuration | {"index_location": configuration.get("index_location", "end")}
            index = configuration.get("index_codecs", [{"name": "bytes"}, {"name": "crc32c"}])
            return own | {
                "codecs": _normalize_codec_list(configuration.get("codecs")),
                "index_codecs": _normalize_codec_list(index),
            }
    return configuration


def _normalize_codec_list(codecs: Any) -> Any:
    if not isinstance(codecs, list):
        return None
    return _normalize_codecs(tuple(parse_dataclass(NamedConfiguration, codec, "a codec") for codec in codecs))


def array_metadata(
    shape: tuple[int, ...], shard: tuple[int, ...], chunk: tuple[int, ...], names: tuple[str, ...], kind: str
) -> dict[str, Any]:
    """Return the metadata of an array in gzip-compressed chunks, one shard a file.

    Args:
        shape: The shape of the array.
        shard: The shape of a shard, the part that is one file.
        chunk: The shape of a chunk within a shard.
        names: The names of the axes.
        kind: The data type: "uint8", "int32" or "float32".

    Returns:
        The metadata as JSON values.
    """
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


def open_array(path: Path, metadata: Mapping[str, Any], *, create: bool = False) -> Any:
    """Open the array at `path` through tensorstore.

    Args:
        path: The directory of the array.
        metadata: The planned metadata.
        create: Whether to create the array if it is missing.

    Returns:
        The tensorstore array.

    Raises:
        UserError: If the array on disk has other metadata.
    """
    spec: dict[str, Any] = {"driver": "zarr3", "kvstore": storage_of(path).key_value_store(path)}
    if create and not (path / _FILE).exists():
        spec |= {"open": True, "create": True, "metadata": dict(metadata)}
    else:
        check_array_metadata(path, metadata)
    return tensorstore.open(spec).result()


def read_array(path: Path, axes: int, data_type: str) -> np.ndarray:
    """Read the values of an array that `write_array` wrote.

    Args:
        path: The directory of the array.
        axes: The number of axes; one more is accepted.
        data_type: The data type.

    Returns:
        The values.

    Raises:
        UserError: If the array is another one.
    """
    stored = read_array_metadata(path)
    check_fits_memory(path, stored.shape, stored.data_type)
    metadata = _single_chunk_metadata(stored.shape, stored.data_type)
    if stored.data_type != data_type or not axes <= len(stored.shape) <= axes + 1 or not all(stored.shape):
        raise UserError(
            f"{path / _FILE} is not usable: an array of {stored.data_type} and shape {stored.shape} must be of "
            f"{data_type} with {axes} axes"
        )
    return np.asarray(open_array(path, metadata).read().result())


def write_array(path: Path, values: np.ndarray) -> None:
    """Write an array of a fixed size, and the groups that contain it.

    Args:
        path: The directory of the array; its parent and the parent of that are created as groups.
        values: The array.
    """
    for parent in (path.parent.parent, path.parent):
        write_group(parent, {})
    array = open_array(path, _single_chunk_metadata(values.shape, str(values.dtype)), create=True)
    array.write(values).result()


def _single_chunk_metadata(shape: tuple[int, ...], data_type: str) -> dict[str, Any]:
    names = tuple(f"axis_{axis}" for axis in range(len(shape)))
    return array_metadata(shape, shape, shape, names, data_type)


def local_shards(array: Any) -> Iterator[Piece]:
    """Yield the parts of an array that this process writes, as index and values; one copy of a replicated shard."""
    if not isinstance(array, jax.Array):
        yield (slice(None),) * array.ndim, np.asarray(array)
        return
    for shard in array.addressable_shards:
        if shard.replica_id == 0:
            yield shard.index, np.asarray(shard.data)


def write_group(path: Path, attributes: Mapping[str, Any]) -> None:
    """Create a Zarr group, or replace its metadata.

    Args:
        path: The directory of the group.
        attributes: Its attributes, as JSON values.
    """
    replace_file(
        path / "zarr.json", json.dumps({"zarr_format": 3, "node_type": "group", "attributes": attributes}, indent=1)
    )


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
