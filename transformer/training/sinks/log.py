"""The log: every number and every sample as a line of log.txt, through Python's own logging."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from transformer.maps.tiers import StoredMaps
from transformer.training.sinks.console import format_line, format_sample
from transformer.training.sinks.contract import NullSink, Number, Sample

_logger = logging.getLogger(__name__)


class Log(NullSink):
    """The sink that logs numbers and samples at level INFO; `RunDirectory.log_to_file` chooses the file.

    With several runs in one process, `run` is the directory of this sink's run.
    """

    def __init__(self, total_steps: int, run: Path | None = None):
        self._total, self._run = total_steps, {} if run is None else {"run": run}

    def scalars(self, step: int, split: str, values: Mapping[str, Number]) -> None:
        _logger.info("%s", format_line(step, self._total, split, values), extra=self._run)

    def samples(self, step: int, split: str, samples: Sequence[Sample]) -> None:
        for sample in samples:
            _logger.info("step %d  %s  %s", step, split, format_sample(sample), extra=self._run)

    def maps(self, step: int, maps: Mapping[str, StoredMaps]) -> None:
        _logger.info("step %d  maps  %s", step, ", ".join(maps), extra=self._run)

    def progress(self, step: int, total: int) -> None:
        """Only keep the total: a line a step would be too many."""
        self._total = total
