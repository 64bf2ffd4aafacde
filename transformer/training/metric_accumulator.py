"""Average the metrics of training steps between two logs, and measure steps per second and MFU."""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from transformer.tasks.task import Batch
from transformer.training.step import StepMetrics

Numbers = Mapping[str, np.ndarray]
_SPEEDS = re.compile(r".+_per_second|flops_per_step|batch_wait|mfu")


def depends_on_speed(name: str) -> bool:
    """Return whether a training metric depends on how fast the steps were, and so differs each time."""
    return _SPEEDS.fullmatch(name) is not None


class MetricAccumulator:
    """Accumulates the training metrics since the last log, and times the steps.

    `batch_wait` is the share of the time in which the loop waits for the next batch: 0 if batches are made faster than
    steps.

    Means are over the steps that made an update; `skipped_updates` counts the others. Metrics may have a leading axis
    of several runs, which their means keep.

    Args:
        check: A function that is called with the number, the totals and the values of every step.
        flops: A function that counts the floating-point operations of a step over a batch; None if unknown.
        peak_flops: The published peak FLOPs per second of the devices. The model FLOPs utilization `mfu` is FLOPs /
            seconds / peak; None for devices without one, such as CPUs: there is none.
    """

    def __init__(
        self,
        check: Callable[[int, Numbers, Numbers], None] = lambda *_: None,
        flops: Callable[[Batch], float | None] = lambda batch: None,
        peak_flops: float | None = None,
    ):
        self._check, self._count_flops, self._peak = check, flops, peak_flops
        self._since: float | None = None
        self._clear()

    def start_clock(self) -> None:
        """Start timing at the first step; the time before is setup."""
        self._since = time.perf_counter() if self._since is None else self._since

    @contextmanager
    def waiting_for_batch(self) -> Iterator[None]:
        """Count the time inside the context, in which no batch is ready, if the clock runs."""
        start = time.perf_counter()
        yield
        if self._since is not None:
            self._waited += time.perf_counter() - start

    def count_batch(self, batch: Batch) -> None:
        """Count the FLOPs of a batch."""
        self._flops += self._count_flops(batch) or 0.0

    def add_step(self, metrics: StepMetrics, step: int) -> None:
        """Add the metrics of a step, waiting until the device has them; raises the errors of `check`.

        Args:
            metrics: The metrics.
            step: The number of the step.
        """
        denominators, values = jax.device_get((metrics.denominators, metrics.values))
        self._check(step, denominators, values)
        skipped = np.asarray(values.get("skipped_updates", 0.0), np.float64)
        for name, value in values.items():
            # The metrics of a skipped update may not be finite.
            number = np.asarray(value, np.float64)
            self._sums[name] = self._sums.get(name, 0.0) + (
                number if name == "skipped_updates" else np.where(skipped, 0, number)
            )
        for name, value in denominators.items():
            self._totals[name] = self._totals.get(name, 0.0) + np.asarray(value, np.float64)
        self._steps += 1
        self._timed += 1

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude the time inside the context from the timing."""
        start = time.perf_counter()
        yield
        if self._since is not None:
            self._since += time.perf_counter() - start

    def compute_and_reset(self) -> dict[str, Any]:
        """Return the means and rates since the last log, and reset."""
        assert self._since is not None
        seconds = time.perf_counter() - self._since
        num_updates: Any = self._steps - np.asarray(self._sums.get("skipped_updates", 0.0))
        with np.errstate(invalid="ignore"):
            means: dict[str, Any] = {
                name: value / num_updates for name, value in self._sums.items() if name != "skipped_updates"
            }
        means |= {name: value for name, value in self._sums.items() if name == "skipped_updates"}
        means |= {f"{name}_per_second": value / seconds for name, value in self._totals.items()}
        means["steps_per_second"] = self._timed / seconds
        means["batch_wait"] = self._waited / seconds
        if self._flops:
            means["flops_per_step"] = self._flops / self._timed
            if self._peak is not None:
                means["mfu"] = self._flops / seconds / self._peak
        self._since = time.perf_counter()
        self._clear()
        return means

    def window(self) -> dict[str, Any]:
        """Return the sums since the last log as plain values, for `restore_window`."""
        return {"steps": self._steps, "sums": {name: float(value) for name, value in self._sums.items()}}

    def restore_window(self, steps: int, sums: Mapping[str, float]) -> None:
        """Restore the sums of `window` in a resumed process; the time before does not count.

        Args:
            steps: The number of steps since the last log.
            sums: The sums by name.
        """
        self._steps = steps
        self._sums.update(sums)

    def _clear(self) -> None:
        self._sums: dict[str, Any] = {}
        self._totals: dict[str, Any] = {}
        self._steps = self._timed = 0
        self._flops = self._waited = 0.0
