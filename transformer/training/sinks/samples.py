"""samples.jsonl: what the model said, one JSON object a line, append-only."""

from collections.abc import Mapping, Sequence

import numpy as np

from transformer.training.sinks.contract import Number, Sample
from transformer.training.sinks.jsonl import JsonLines


class SamplesFile(JsonLines):
    """The sink that appends {"step", "split", ...texts} to a file, a line a sample."""

    def scalars(self, step: int, split: str, values: Mapping[str, Number]) -> None:
        """Nothing: numbers have a file of their own."""

    def samples(self, step: int, split: str, samples: Sequence[Sample]) -> None:
        """Append one line a sample."""
        for sample in samples:
            self.append({"step": int(step), "split": split, **sample})

    def maps(self, step: int, maps: Mapping[str, np.ndarray]) -> None:
        """Nothing: the file holds texts."""

    def heads(self, step: int, heads: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        """Nothing: the file holds texts."""

    def progress(self, step: int, total: int) -> None:
        """Nothing: a step without samples is no record."""
