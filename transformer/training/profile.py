"""Profiling: a trace of a few training steps."""

from pathlib import Path

import jax

from transformer.tasks.contract import Batch
from transformer.training.state import TrainState
from transformer.training.step import Metrics, Step


class Profiled:
    """A step that traces its calls `first` to `first` + `count` - 1 into a directory for Perfetto or XProf.

    The first calls are left out: they compile.
    """

    def __init__(self, step: Step, directory: Path, *, first: int = 10, count: int = 5):
        self._step, self._directory = step, directory
        self._first, self._last = first, first + count
        self._calls = 0

    def __call__(self, state: TrainState, batch: Batch, observe: bool = False) -> tuple[TrainState, Metrics]:
        """The step, traced if it is one of the chosen calls."""
        self._calls += 1
        if self._calls == self._first:
            jax.profiler.start_trace(str(self._directory), create_perfetto_trace=True)
        state, metrics = self._step(state, batch, observe)
        if self._calls == self._last:
            jax.block_until_ready(metrics)
            jax.profiler.stop_trace()
        return state, metrics
