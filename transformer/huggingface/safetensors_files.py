"""Reading and writing safetensors files.

The format: 8 bytes, the length N of the header, little-endian; N bytes of JSON with the type, shape and
byte range of each tensor; then the bytes, without gaps (safetensors' specification).
"""

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors

from transformer.config import UserError, convert_value
from transformer.storage.json_reading import RepeatedKeyError, open_regular_file, read_json_object, refuse_repeated_keys

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
_LENGTH, _LONGEST_HEADER = 8, 100_000_000  # bytes; the library refuses longer headers
FLOAT_TYPES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}
_TYPE_NAMES = {name: short for short, name in FLOAT_TYPES.items()}
_NUM_BYTES = {"F16": 2, "BF16": 2, "F32": 4, "F64": 8}
MAX_SHARD_BYTES = 5 * 10**9
"""The largest size of the tensors of a file that is written, as in Hugging Face's library."""
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
# A zip of pickles, or a bare pickle, which begins with its protocol.
_PICKLED = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
_ADVICE = "holds a pickle, which can run code; convert it to safetensors"


@dataclasses.dataclass(frozen=True)
class TensorHeader:
    """What a file's header says of a tensor.

    Attributes:
        file: The file.
        dtype: The type, such as "F32".
        shape: The shape.
    """

    file: Path
    dtype: str
    shape: tuple[int, ...]


class TensorSpec(NamedTuple):
    """The type, such as "F32", and the shape of a tensor to write."""

    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, array: np.ndarray) -> "TensorSpec":
        """Return the specification of an array."""
        return cls.from_type(array.dtype, array.shape)

    @classmethod
    def from_type(cls, dtype: np.dtype, shape: Sequence[int]) -> "TensorSpec":
        """Return the specification of a tensor of this type and shape."""
        return cls(_TYPE_NAMES[str(dtype)], tuple(shape))

    @property
    def num_bytes(self) -> int:
        """The size in bytes."""
        return math.prod(self.shape) * _NUM_BYTES[self.dtype]


def read_folder_headers(folder: Path) -> dict[str, TensorHeader]:
    """Read the headers of the tensors of a Hugging Face folder, by name, from model.safetensors or its shards.

    Raises:
        UserError: If the folder has no weights, if they are a pickle, or if a header or the index is damaged.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder: name one that holds config.json and {WEIGHTS}")
    if (folder / WEIGHTS).is_file():
        return read_header(folder / WEIGHTS)
    if (folder / INDEX).is_file():
        return _read_shard_headers(folder)
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in _PICKLES)
    if pickles:
        raise UserError(f"{folder / pickles[0]} {_ADVICE}")
    raise UserError(f"{folder} holds no {WEIGHTS}")


def read_tensors(
    headers: Mapping[str, TensorHeader], names: Sequence[str], dtype: np.dtype | None = None
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield name and value of tensors, one at a time, file by file.

    Args:
        headers: The headers of all tensors, by name.
        names: The tensors to read.
        dtype: The type to which they are cast; None for their own.

    Yields:
        The name and value of each.

    Raises:
        UserError: If a file cannot be read, or a value is not finite in this type; gives the file.
    """
    for name in sorted(names, key=lambda name: headers[name].file):
        file = headers[name].file
        try:
            # Opened anew for each: what was read of an open file stays in the memory of the process.
            with safetensors.safe_open(file, "np") as opened:
                tensor = opened.get_tensor(name)
        except (safetensors.SafetensorError, OSError) as error:
            raise UserError(f"{file} cannot be read: {' '.join(str(error).split())[:200]}") from error
        if dtype is not None:
            tensor = tensor.astype(dtype, copy=False)
        if count := tensor.size - np.count_nonzero(np.isfinite(tensor)):
            raise UserError(
                f"{file}: tensor {name!r} has {count} of {tensor.size} values that are not finite in {tensor.dtype}: "
                "the model's training diverged, or the file is damaged"
            )
        yield name, tensor


def write_tensors(
    folder: Path,
    specs: Mapping[str, TensorSpec],
    tensors: Iterable[tuple[str, np.ndarray]],
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Write tensors to model.safetensors; if they are more than `max_shard_bytes`, to shards with an index.

    The library writes a file from tensors that are all in memory, as it would their bytes. These are written one at a
    time, in the same format.

    Args:
        folder: The folder.
        specs: The type and shape of every tensor by name, in their order.
        tensors: The name and value of each, in the same order.
        max_shard_bytes: The largest size of a file's tensors; one tensor may be larger.

    Raises:
        OSError: If the disk is full or fails.
    """
    shards: list[dict[str, TensorSpec]] = [{}]
    filled = 0
    for name, spec in specs.items():
        if shards[-1] and filled + spec.num_bytes > max_shard_bytes:
            shards.append({})
            filled = 0
        shards[-1][name] = spec
        filled += spec.num_bytes
    count, values = len(shards), iter(tensors)
    names = [WEIGHTS] if count == 1 else [f"model-{n:05d}-of-{count:05d}.safetensors" for n in range(1, count + 1)]
    for file, shard in zip(names, shards, strict=True):
        with (folder / file).open("wb") as opened:
            opened.write(_encode_header(shard))
            for (name, spec), (tensor_name, value) in zip(shard.items(), values, strict=False):
                if tensor_name != name or TensorSpec.of(value) != spec:
                    raise ValueError(f"the tensor {tensor_name!r} of {value.shape} is not {name!r}, {spec}")
                opened.write(memoryview(np.ascontiguousarray(value).reshape(-1).view(np.uint8)))
    if count > 1:
        files = {name: file for file, shard in zip(names, shards, strict=True) for name in shard}
        total = sum(spec.num_bytes for spec in specs.values())
        index = json.dumps({"metadata": {"total_size": total}, "weight_map": files}, indent=2, sort_keys=True)
        (folder / INDEX).write_text(f"{index}\n")


def _encode_header(specs: Mapping[str, TensorSpec]) -> bytes:
    """Return the header of a file, with the metadata that Hugging Face expects."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, spec in specs.items():
        start, end = end, end + spec.num_bytes
        header[name] = {"dtype": spec.dtype, "shape": spec.shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH)
    return len(text).to_bytes(_LENGTH, "little") + text


def read_header(file: Path) -> dict[str, TensorHeader]:
    """Read the header of a file, which the library checks against the file.

    Returns:
        The header of each tensor, by name.

    Raises:
        UserError: If the file is a pickle or damaged; gives the file.
    """
    with open_regular_file(file) as opened:
        start = opened.read(_LENGTH)
        text = opened.read(min(int.from_bytes(start, "little"), _LONGEST_HEADER))
    # A safetensors file may begin with the same bytes; then a header of that length follows.
    if start.startswith(_PICKLED) and not text.startswith(b"{"):
        raise UserError(f"{file} {_ADVICE}")
    try:
        with safetensors.safe_open(file, "np"):
            pass
        # Of a tensor that stands twice the library keeps one without a word.
        header = json.loads(text, object_pairs_hook=refuse_repeated_keys)
    except RepeatedKeyError as error:
        raise UserError(f"{file} is damaged: its header names {error} twice") from None
    except safetensors.SafetensorError as error:
        raise UserError(f"{file} is damaged: {' '.join(str(error).split())[:200]}") from error
    header.pop("__metadata__", None)
    return {name: TensorHeader(file, claim["dtype"], tuple(claim["shape"])) for name, claim in header.items()}


def _read_shard_headers(folder: Path) -> dict[str, TensorHeader]:
    index = folder / INDEX
    try:
        file_by_tensor = convert_value(Mapping[str, str], read_json_object(index).get("weight_map"), "weight_map")
    except UserError as error:
        raise UserError(f"{index} is damaged: it has no weight_map of tensors and files ({error})") from error
    files = sorted(set(file_by_tensor.values()))
    tensors: dict[str, TensorHeader] = {}
    for name in files:
        if Path(name).name != name:
            raise UserError(f"{index} is damaged: it names the file {name!r}, which is not beside it")
        if not (folder / name).is_file():
            raise UserError(f"{folder} lacks {name}, which {INDEX} names")
        if name.endswith(_PICKLES):
            raise UserError(f"{folder / name} {_ADVICE}")
        for tensor, header in read_header(folder / name).items():
            if tensor in tensors:
                raise UserError(f"{folder} holds tensor {tensor!r} twice, in {tensors[tensor].file.name} and in {name}")
            tensors[tensor] = header
    for tensor, name in file_by_tensor.items():
        if tensor not in tensors or tensors[tensor].file.name != name:
            raise UserError(f"{index} is damaged: tensor {tensor!r} is not in {name}")
    return tensors
