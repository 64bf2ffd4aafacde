"""Means of the metrics of training steps, and their speed."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from transformer.tasks.contract import Batch
from transformer.training.step import Metrics


class Diverged(FloatingPointError):
    """A loss that is not finite, read from step `step`."""

    def __init__(self, name: str, value: float, step: int):
        super().__init__(
            f"{name} is {value} at step {step}; lower config.optimizer.learning_rate, lengthen "
            "config.optimizer.warmup or set config.optimizer.clip_norm"
        )
        self.step = step


def refuse_divergence(step: int, losses: Mapping[str, np.ndarray]) -> None:
    """Errors: Diverged for the first of the losses that is not finite."""
    for name, value in losses.items():
        if not np.isfinite(value):
            raise Diverged(name, float(value), step)


class Meter:
    """Means of the training metrics since the last report, and the speed of the steps.

    `flops` counts a step's floating-point operations by formula and `peak_flops` is the devices' peak rate a
    second: their ratio over time is reported as utilisation. `check` is called with the losses of every step. Metrics
    may have a leading axis, of several runs, and then so have their means.
    """

    def __init__(
        self,
        check: Callable[[int, Mapping[str, np.ndarray]], None] = refuse_divergence,
        flops: Callable[[Batch], float] | None = None,
        peak_flops: float = math.inf,
    ):
        self._check, self._flops_of, self._peak = check, flops, peak_flops
        self._since: float | None = None
        self._clear()

    def start_clock(self) -> None:
        """Start timing, at the first step: the time before is set-up."""
        self._since = time.perf_counter() if self._since is None else self._since

    def feed(self, batch: Batch) -> None:
        """Count a batch that was handed to the step."""
        self._flops += self._flops_of(batch) if self._flops_of is not None else 0

    def read(self, metrics: Metrics, step: int) -> None:
        """Add the metrics of a step, waiting until the device has them."""
        totals, values = jax.device_get((metrics.totals, metrics.values))
        self._check(step, {name: value for name, value in values.items() if name.endswith("loss")})
        for numbers, sums in ((values, self._sums), (totals, self._totals)):
            for name, value in numbers.items():
                sums[name] = sums.get(name, 0.0) + np.asarray(value, np.float64)
        self._steps += 1

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the time inside the context out of the steps' time."""
        began = time.perf_counter()
        yield
        if self._since is not None:
            self._since += time.perf_counter() - began

    def report(self) -> dict[str, Any]:
        """The means since the last report, with the rate of every total, and start again."""
        assert self._since is not None
        seconds = time.perf_counter() - self._since
        means = {name: value / self._steps for name, value in self._sums.items()}
        means |= {f"{name}_per_second": value / seconds for name, value in self._totals.items()}
        means["steps_per_second"] = self._steps / seconds
        if self._flops:
            means["flops_per_step"] = self._flops / self._steps
            means["utilisation"] = self._flops / seconds / self._peak
        self._since = time.perf_counter()
        self._clear()
        return means

    def _clear(self) -> None:
        self._sums: dict[str, Any] = {}
        self._totals: dict[str, Any] = {}
        self._steps = 0
        self._flops = 0.0
