"""Console output: a progress bar on a terminal, aligned lines elsewhere; the same lines go to log.txt."""

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

import rich.console
import rich.progress

from transformer.system.terminal import escape_control_characters, is_watched, raw_terminal_stream
from transformer.training.writers.writer import Metrics, ProbeMaps, Progress, Report, Sample, Samples, Scalar, Writer

# Shorter names for the metrics that every line has.
_LABELS = {
    "learning_rate": "lr",
    "gradient_norm": "grad",
    "update_norm": "update",
    "flops_per_step": "flops",
    "exact_match": "exact",
}

_TRAINING = ("loss", "accuracy", "learning_rate", "gradient_norm", "tokens_per_second", "mfu")
_SAMPLES = 3
_logger = logging.getLogger(__name__)


def format_metrics(step: int, total: int, split: str, values: Mapping[str, Scalar]) -> str:
    """Format metrics as one aligned line, such as `step  400/3000  train       loss 2.134   lr 3.1e-04`.

    Args:
        step: The number of the step.
        total: The number of all steps.
        split: The split.
        values: The metrics by name.
    """
    head = f"step {step:>{len(str(total))}}/{total}  {split:<10}"
    # Columns are as wide as their label and nine figures, so that lines of one split stay aligned.
    labels = [_label(name) for name in values]
    fields = [text.ljust(len(label) + 10) for label, text in zip(labels, _fields(values), strict=True)]
    return "  ".join([head, *fields]).rstrip()


def format_sample(sample: Sample) -> str:
    """Format a sample as one line: the source, the output and, if it is wrong, the reference.

    A sample with other fields shows all of them, as in `prompt: one  rule: upper`.
    """
    if not {"source", "output", "target"} <= set(sample):
        return "  ".join(f"{name}: {text}" for name, text in sample.items())
    wrong = f"   (reference: {sample['target']})" if sample["output"] != sample["target"] else ""
    return f"{sample['source']}  ->  {sample['output']}{wrong}"


class ConsoleWriter(Writer):
    """A writer that prints metrics and samples to the console.

    On a terminal it shows a progress bar with step, loss, learning rate, tokens per second and remaining time, and
    above it a line for every other split; elsewhere a plain line for each report. It prints the first few samples of a
    split; samples.jsonl has all.

    Args:
        total_steps: The number of steps of the run.
        stream: The stream to print to.
    """

    def __init__(self, total_steps: int, stream: TextIO):
        self._total = total_steps
        self._console = rich.console.Console(file=raw_terminal_stream(stream))
        self._bar: rich.progress.Progress | None = None
        self._task: rich.progress.TaskID | None = None
        self._latest = ""
        if is_watched(stream):
            self._bar = rich.progress.Progress(
                rich.progress.TextColumn("step {task.completed:.0f}/{task.total:.0f}", markup=False),
                rich.progress.BarColumn(bar_width=24),
                rich.progress.TextColumn("{task.description}", markup=False),
                rich.progress.TimeRemainingColumn(),
                console=self._console,
            )

    def write(self, report: Report) -> None:
        match report:
            case Metrics(step, split, values):
                self._write_metrics(step, split, values)
            case Samples(samples=samples):
                for sample in samples[:_SAMPLES]:
                    self._print(f"  {format_sample(sample)}")
            case Progress(step, total):
                self._move_bar(step, total)

    def close(self) -> None:
        """Stop drawing the bar and restore the terminal."""
        if self._bar is not None:
            self._bar.stop()

    def _write_metrics(self, step: int, split: str, values: Mapping[str, Scalar]) -> None:
        """Show the metrics: on a terminal those of the training split in the progress bar, else as a line."""
        if self._bar is None or split != "train":
            self._print(format_metrics(step, self._total, split, _main(values)))
            return
        bar_metrics = ("loss", "learning_rate", "tokens_per_second")
        self._latest = "  ".join(_fields({name: values[name] for name in bar_metrics if name in values}))
        if self._task is not None:
            self._bar.update(self._task, description=self._latest)

    def _move_bar(self, step: int, total: int) -> None:
        """Move the bar; the first call starts it, so that earlier steps of a resumed run do not count for its speed."""
        self._total = total
        if self._bar is None:
            return
        if self._task is None:
            self._task = self._bar.add_task(self._latest, total=total, completed=step)
            self._bar.start()
        self._bar.update(self._task, completed=step, total=total)

    def _print(self, text: str) -> None:
        if self._bar is not None:
            # Through the bar's console, which redraws the bar below.
            self._console.print(escape_control_characters(text, "\n\t"), markup=False, highlight=False, soft_wrap=True)
        else:
            self._console.file.write(text + "\n")
            self._console.file.flush()


class LogWriter(Writer):
    """A writer that logs metrics and samples at level INFO; `RunDirectory.log_to_file` chooses the file.

    Args:
        total_steps: The number of steps of the run.
        run: The directory of the run, if several runs share the process.
    """

    def __init__(self, total_steps: int, run: Path | None = None):
        self._total, self._run = total_steps, {} if run is None else {"run": run}

    def write(self, report: Report) -> None:
        match report:
            case Metrics(step, split, values):
                _logger.info("%s", format_metrics(step, self._total, split, values), extra=self._run)
            case Samples(step, split, samples):
                for sample in samples:
                    _logger.info("step %d  %s  %s", step, split, format_sample(sample), extra=self._run)
            case ProbeMaps(step, maps):
                _logger.info("step %d  maps  %s", step, ", ".join(maps), extra=self._run)
            case Progress(total=total):  # a line for each step would be too much
                self._total = total


def _label(name: str) -> str:
    return _LABELS.get(name, name.replace("_per_second", "/s"))


def _thousands(value: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.1f}{unit}"
    return f"{value:.3g}"


def _number(name: str, value: float) -> str:
    if not math.isfinite(value):
        return str(value)
    if name == "learning_rate":
        return f"{value:.1e}"
    if name.endswith("_per_second"):
        return _thousands(value)
    if name == "mfu":
        return f"{value:.0%}"
    return f"{value:.4g}"


def _fields(values: Mapping[str, Scalar]) -> list[str]:
    return [f"{_label(name)} {_number(name, float(value))}" for name, value in values.items()]


def _main(values: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return the metrics to show: for a training step the usual ones, else all but details.

    A detail has more slashes in its name than the others: importance_cv/encoder/3 next to loss. If all have equally
    many, as accuracy/greedy/10 has, none is a detail.
    """
    if "learning_rate" in values:
        return {name: values[name] for name in _TRAINING if name in values}
    depth = max(1, min((name.count("/") for name in values), default=0))
    return {name: value for name, value in values.items() if name.count("/") <= depth}
