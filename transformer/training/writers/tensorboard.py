"""Write TensorBoard events without TensorFlow or PyTorch."""

import contextlib
import importlib
import socket
import struct
import sys
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool

from transformer.data.png import encode_png
from transformer.maps.capture_plan import StoredMaps
from transformer.maps.head_grid_image import render_head_grid
from transformer.maps.quantize import Quantized
from transformer.storage.paths import parse_path, storage_of
from transformer.training.writers.writer import Metrics, ProbeMaps, Report, Samples, Writer

_EXAMPLES = 2


def _import_tensorboardx(module: str) -> ModuleType:
    """Import a module of tensorboardX, without the PyTorch that it would import if it is installed."""
    if "torch" in sys.modules:
        return importlib.import_module(f"tensorboardX.{module}")
    sys.modules["torch"] = None  # type: ignore[assignment]  # makes its optional import fail
    try:
        return importlib.import_module(f"tensorboardX.{module}")
    finally:
        del sys.modules["torch"]


def _local_part(array: Any) -> tuple[np.ndarray, Bool[np.ndarray, " B"]]:
    """Return this process's part of an array, zero elsewhere, and which examples it holds completely."""
    if not isinstance(array, jax.Array) or array.is_fully_addressable or array.is_fully_replicated:
        return np.asarray(array), np.ones(len(array), bool)
    values, is_local = np.zeros(array.shape, array.dtype), np.zeros(array.shape, bool)
    for shard in array.addressable_shards:
        values[shard.index], is_local[shard.index] = np.asarray(shard.data), True
    return values, is_local.reshape(len(is_local), -1).all(axis=1)


class TensorBoardWriter(Writer):
    """A writer of TensorBoard events: scalars, samples, and maps as a grid of layers x heads for the first examples.

    Args:
        directory: The folder of the events.
        resumed_step: The restored step of a resumed run; TensorBoard hides earlier events beyond it.
    """

    def __init__(self, directory: str | Path, resumed_step: int | None = None):
        directory = parse_path(directory)
        self._stack = contextlib.ExitStack()
        folder = self._stack.enter_context(storage_of(directory).stage(directory))
        folder.mkdir(parents=True, exist_ok=True)
        self._file = storage_of(folder).append_to(
            folder / f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}"
        )
        # tensorboardX's writer has a thread that ends at the first failed write; its queue then blocks the run.
        self._event, self._summary = _import_tensorboardx("proto.event_pb2"), _import_tensorboardx("summary")
        self._checksum = _import_tensorboardx("record_writer").masked_crc32c
        self._write_event(file_version="brain.Event:2")
        if resumed_step is not None:
            start = self._event.SessionLog(status=self._event.SessionLog.START)
            self._write_event(step=resumed_step + 1, session_log=start)

    def write(self, report: Report) -> None:
        match report:
            case Metrics(step, split, values):  # a curve for each, under its split
                for name, value in values.items():
                    self._write_event(step=step, summary=self._summary.scalar(f"{split}/{name}", float(value)))
            case Samples(step, split, samples):  # as one text, indented so that Markdown leaves them unchanged
                lines = [f"    {name}: {text}" for sample in samples for name, text in sample.items()]
                self._write_event(step=step, summary=self._summary.text(f"{split}/samples", "\n".join(lines)))
            case ProbeMaps(step, maps):
                self._write_maps(step, maps)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        with self._stack:
            self._file.close()

    def _write_maps(self, step: int, maps: Mapping[str, StoredMaps]) -> None:
        """Write an image for each site and each of the first examples, and a curve for each statistic of each head.

        Only the first process has this writer; examples that lie partly on other processes are left out.
        """
        for site, stored in maps.items():
            for name, values_BxLxH in stored.statistics.items():
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", RuntimeWarning)  # an empty mean is NaN, and left out
                    mean_LxH = np.nanmean(np.asarray(values_BxLxH), axis=0)
                for (layer, head), value in np.ndenumerate(mean_LxH):
                    if np.isfinite(value):
                        curve = self._summary.scalar(f"heads/{site}/{name}/{layer}.{head}", float(value))
                        self._write_event(step=step, summary=curve)
            coarsest, is_local = zip(*map(_local_part, next(iter(stored.levels.values()))), strict=True)
            weights = Quantized(*coarsest).weights()
            for example in np.flatnonzero(np.all(is_local, axis=0)[:_EXAMPLES]):
                image = render_head_grid(np.asarray(weights[example]))
                # Not by tensorboardX's function for images, which needs Pillow; the image is a PNG file already.
                image = self._summary.Summary.Image(
                    height=image.shape[0],
                    width=image.shape[1],
                    colorspace=1,
                    encoded_image_string=encode_png(image),
                )
                value = self._summary.Summary.Value(tag=f"maps/{site}/{example}", image=image)
                self._write_event(step=step, summary=self._summary.Summary(value=[value]))

    def _write_event(self, step: int = 0, **what: Any) -> None:
        """Append one event as a TensorFlow record: its length and its bytes, each with a checksum."""
        event = self._event.Event(wall_time=time.time(), step=int(step), **what).SerializeToString()
        length = struct.pack("<Q", len(event))
        checksums = (struct.pack("<I", self._checksum(content)) for content in (length, event))
        self._file.append(b"".join((length, next(checksums), event, next(checksums))))
