"""TensorBoard events without TensorFlow or PyTorch."""

import contextlib
import importlib
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool

from transformer.data.png import png
from transformer.maps.pictures import wall
from transformer.maps.quantise import Quantised
from transformer.maps.tiers import StoredMaps
from transformer.storage import locate, storage_of
from transformer.training.sinks.contract import NullSink, Number, Sample

_EXAMPLES = 2
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
        # Absolute, since tensorboardX takes what stands before a colon for the scheme of a bucket.
        self._writer = tensorboardx.SummaryWriter(str(folder.absolute()), purge_step=purge_step, flush_secs=FLUSHED)
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
