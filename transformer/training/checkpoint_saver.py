"""Save training states with their metadata; a state that is not finite is never saved."""

from collections.abc import Mapping
from typing import Any

from transformer.runs.checkpoint_files import named_leaves
from transformer.runs.exceptions import NonFiniteError
from transformer.training.finite_checks import find_non_finite
from transformer.training.rollback import skipped_batches
from transformer.training.run_setup import TrainingRun
from transformer.training.state import TrainState
from transformer.training.writers.open_writers import RunWriters
from transformer.training.writers.writer import Progress, Report, Writer


class CheckpointSaver:
    """Saves the training states of a run, after checking that parameters, optimizers and averages are finite."""

    def __init__(self, run: TrainingRun, writers: RunWriters):
        self._run, self._writers = run, writers
        self._skipped_batches = skipped_batches(run.directory)

    def __call__(self, state: TrainState, progress: Mapping[str, Any]) -> None:
        """Save the state of its step.

        Args:
            state: The training state.
            progress: What a resumed run needs to continue (transformer.training.loop.train_loop).

        Raises:
            NonFiniteError: If a leaf is not finite; the message names the first.
            DirectoryLost: If another process may have taken the run directory.
        """
        step = int(state.step)
        leaf = self.first_not_finite(state)
        if leaf is not None:
            raise NonFiniteError(
                step,
                f"{leaf} is not finite at step {step}: this state is not saved, and the checkpoints before stay; lower "
                "config.optimizer.learning_rate, lengthen config.optimizer.warmup_steps or set "
                "config.optimizer.clip_norm",
            )
        metadata = {
            **self._run.checkpoint_metadata,
            "skipped_batches": self._skipped_batches,
            "records": self._writers.extents(),
            "progress": dict(progress),
        }
        self._run.checkpoints.save(step, state, metadata)

    def wait(self) -> None:
        """Wait for the previous save; raises the error with which it failed."""
        self._run.checkpoints.latest()

    def first_not_finite(self, state: TrainState) -> str | None:
        """Return the path of the first leaf that holds NaN or infinity; None if all are finite."""
        checked = {"variables": state.variables, "optimizers": state.optimizers, "averages": state.averages}
        return find_non_finite(named_leaves(checked))


class SaveWaitingWriter(Writer):
    """A writer that waits for a pending save one step before the next save is due, N steps later.

    A kill at any moment then costs at most 2 N - 1 steps.
    """

    def __init__(self, saver: CheckpointSaver, every: int):
        self._saver, self._every = saver, every

    def write(self, report: Report) -> None:
        """Wait for the pending save before the next one is due; raises the error with which it failed."""
        if isinstance(report, Progress) and self._every and (report.step + 1) % self._every == 0:
            self._saver.wait()
