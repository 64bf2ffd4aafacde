"""The log: every number and every sample as a line of log.txt, through Python's own logging."""

import logging
from collections.abc import Mapping, Sequence

from transformer.maps.tiers import Kept
from transformer.training.sinks.console import format_line, format_sample
from transformer.training.sinks.contract import NullSink, Number, Sample

_logger = logging.getLogger(__name__)


class Log(NullSink):
    """The sink that logs numbers and samples at level INFO; `RunDirectory.log_to_file` says to which file."""

    def __init__(self, total_steps: int):
        self._total = total_steps

    def scalars(self, step: int, split: str, values: Mapping[str, Number]) -> None:
        """Log one line."""
        _logger.info("%s", format_line(step, self._total, split, values))

    def samples(self, step: int, split: str, samples: Sequence[Sample]) -> None:
        """Log one line a sample."""
        for sample in samples:
            _logger.info("step %d  %s  %s", step, split, format_sample(sample))

    def maps(self, step: int, maps: Mapping[str, Kept]) -> None:
        """Log which maps were taken."""
        _logger.info("step %d  maps  %s", step, ", ".join(maps))

    def progress(self, step: int, total: int) -> None:
        """Take the total over; every step would be too many lines."""
        self._total = total
