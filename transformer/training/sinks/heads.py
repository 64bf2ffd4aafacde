"""heads.jsonl: statistics of every head over training, one JSON object a line, append-only."""

from collections.abc import Mapping

import numpy as np

from transformer.training.sinks.contract import NullSink
from transformer.training.sinks.jsonl import JsonLines


class HeadsFile(JsonLines, NullSink):
    """The sink that appends {"step", "site", "statistic": [[head, ...] of each layer], ...}, a line a site.

    A number that is not finite, such as the largest logit where no row counted, is null.
    """

    def heads(self, step: int, heads: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        for site, statistics in heads.items():
            self.append({"step": int(step), "site": site, **{name: _rows(of) for name, of in statistics.items()}})


def _rows(values_LxH: np.ndarray) -> list[list[float | None]]:
    # float32 has seven significant figures.
    return [[float(f"{x:.7g}") if np.isfinite(x) else None for x in row] for row in values_LxH.tolist()]
