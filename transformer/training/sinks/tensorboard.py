"""TensorBoard events without TensorFlow or PyTorch."""

import contextlib
import importlib
import struct
import sys
import warnings
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float, UInt8

from transformer.maps.quantise import Quantised
from transformer.maps.tiers import StoredMaps
from transformer.storage import locate, storage_of
from transformer.training.sinks.contract import NullSink, Number, Sample

_EXAMPLES = 2
_CELL = 48  # pixels that the longer side of a small map is scaled up to
_GAP = 2  # pixels between two heads
FLUSHED = 10  # seconds after which reported values are in the file


def _tensorboardx() -> ModuleType:
    """tensorboardX, without the PyTorch that it would import where installed."""
    if "torch" in sys.modules:
        return importlib.import_module("tensorboardX")
    sys.modules["torch"] = None  # type: ignore[assignment]  # makes its optional import fail
    try:
        return importlib.import_module("tensorboardX")
    finally:
        del sys.modules["torch"]


def wall(weights_LxHxQxK: Float[np.ndarray, "L H Q K"]) -> UInt8[np.ndarray, "height width"]:
    """A grey picture of every head: a row a layer, a column a head, white for 0 and black for 1."""
    layers, heads, queries, keys = weights_LxHxQxK.shape
    scale = max(1, _CELL // max(queries, keys))
    finite = np.nan_to_num(np.asarray(weights_LxHxQxK, np.float32), nan=0.0, posinf=1.0, neginf=0.0)
    grey = np.round(255 * (1 - np.clip(finite, 0, 1))).astype(np.uint8).repeat(scale, 2).repeat(scale, 3)
    padded = np.pad(grey, ((0, 0), (0, 0), (_GAP, 0), (_GAP, 0)), constant_values=128)
    height, width = padded.shape[2:]
    picture = padded.transpose(0, 2, 1, 3).reshape(layers * height, heads * width)
    return np.pad(picture, ((0, _GAP), (0, _GAP)), constant_values=128)


def png(picture: UInt8[np.ndarray, "height width"]) -> bytes:
    """The PNG file (ISO/IEC 15948) of a grey picture: 8 bits, filter 0."""
    height, width = picture.shape

    def chunk(kind: bytes, content: bytes) -> bytes:
        checked = kind + content
        return struct.pack(">I", len(content)) + checked + struct.pack(">I", zlib.crc32(checked))

    rows = np.pad(picture, ((0, 0), (1, 0))).tobytes()  # each row starts with the number of its filter
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def _held(array: Any) -> tuple[np.ndarray, Bool[np.ndarray, " B"]]:
    """This process's part of an array, zero elsewhere, and which examples it holds whole."""
    if not isinstance(array, jax.Array) or array.is_fully_addressable or array.is_fully_replicated:
        return np.asarray(array), np.ones(len(array), bool)
    values, held = np.zeros(array.shape, array.dtype), np.zeros(array.shape, bool)
    for shard in array.addressable_shards:
        values[shard.index], held[shard.index] = np.asarray(shard.data), True
    return values, held.reshape(len(held), -1).all(axis=1)


class TensorBoard(NullSink):
    """The sink that writes scalars, samples and maps (a layer x head wall of the first examples) as events.

    A resumed run passes its restored step: TensorBoard then hides events of an earlier start beyond it.
    """

    def __init__(self, directory: str | Path, resumed_step: int | None = None):
        tensorboardx = _tensorboardx()
        purge_step = None if resumed_step is None else resumed_step + 1
        directory = locate(directory)
        self._stack = contextlib.ExitStack()
        folder = self._stack.enter_context(storage_of(directory).stage(directory))
        self._writer = tensorboardx.SummaryWriter(str(folder), purge_step=purge_step, flush_secs=FLUSHED)
        self._summary = importlib.import_module("tensorboardX.proto.summary_pb2")

    def scalars(self, step: int, split: str, values: Mapping[str, Number]) -> None:
        """One curve for each name, under its split."""
        for name, value in values.items():
            self._writer.add_scalar(f"{split}/{name}", float(value), step)

    def samples(self, step: int, split: str, samples: Sequence[Sample]) -> None:
        """All samples as one text; indented, so that Markdown leaves them as they are."""
        lines = [f"    {name}: {text}" for sample in samples for name, text in sample.items()]
        self._writer.add_text(f"{split}/samples", "\n".join(lines), step)

    def maps(self, step: int, maps: Mapping[str, StoredMaps]) -> None:
        """A picture for each site and each of the first examples; a curve for each statistic of each head.

        Only the first process has this sink, which leaves out examples that lie partly on others.
        """
        for site, kept in maps.items():
            for name, values_BxLxH in kept.statistics.items():
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", RuntimeWarning)  # an empty mean is NaN, and left out
                    mean_LxH = np.nanmean(np.asarray(values_BxLxH), axis=0)
                for (layer, head), value in np.ndenumerate(mean_LxH):
                    if np.isfinite(value):
                        self._writer.add_scalar(f"heads/{site}/{name}/{layer}.{head}", float(value), step)
            coarsest, held = zip(*map(_held, next(iter(kept.levels.values()))), strict=True)
            weights = Quantised(*coarsest).weights()
            for example in np.flatnonzero(np.all(held, axis=0)[:_EXAMPLES]):
                picture = wall(np.asarray(weights[example]))
                # Not by add_image, which needs Pillow to encode the image, a PNG file already.
                image = self._summary.Summary.Image(
                    height=picture.shape[0],
                    width=picture.shape[1],
                    colorspace=1,
                    encoded_image_string=png(picture),
                )
                value = self._summary.Summary.Value(tag=f"maps/{site}/{example}", image=image)
                self._writer.file_writer.add_summary(self._summary.Summary(value=[value]), step)

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        with self._stack:
            self._writer.close()
