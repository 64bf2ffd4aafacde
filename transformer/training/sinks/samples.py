"""samples.jsonl: the model's sample outputs, one JSON object a line, append-only."""

from collections.abc import Sequence

from transformer.training.sinks.contract import NullSink, Sample
from transformer.training.sinks.jsonl import JsonLines


class SamplesFile(JsonLines, NullSink):
    """The sink that appends {"step", "split", ...texts} to a file, a line a sample."""

    def samples(self, step: int, split: str, samples: Sequence[Sample]) -> None:
        for sample in samples:
            self.append({"step": int(step), "split": split, **sample})
