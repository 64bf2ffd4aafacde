"""The progress of a sweep: a live table on a terminal, lines elsewhere, a CSV file and a summary."""

import csv
import io
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TextIO

import rich.console
import rich.live
import rich.table
import rich.text

from transformer.overrides import describe_overrides
from transformer.runs.jsonl_reading import MetricName, last_metric, last_step, read_last_records
from transformer.storage.paths import storage_of
from transformer.studies.sweeps.trial_store import TrialState, TrialStore
from transformer.studies.sweeps.trials import Trial, overridden_keys
from transformer.system.terminal import escape_control_characters, is_watched, raw_terminal_stream

_RANK = {state: rank for rank, state in enumerate(("done", "running", "pruned", "diverged", "failed", "pending"))}
_STYLES = {"done": "green", "running": "cyan", "pruned": "dim", "diverged": "yellow", "failed": "red", "pending": "dim"}
_ABOVE = 6  # lines of a terminal that are not rows


class TrialStatus(NamedTuple):
    """The current status of one trial.

    Attributes:
        trial: The trial.
        state: Its state.
        step: The last reported step.
        value: The last value of the sweep's metric.
        message: Why it failed or diverged, if it did.
    """

    trial: Trial
    state: TrialState
    step: int
    value: float | None
    message: str


def read_trial_statuses(trial_store: TrialStore, trials: Sequence[Trial], metric: MetricName) -> list[TrialStatus]:
    """Read the current status of trials, with the metric that those in training have reached.

    Args:
        trial_store: The trials of the sweep.
        trials: The trials to read.
        metric: The sweep's metric.

    Returns:
        The status of each trial.
    """
    rows = []
    for trial in trials:
        # In this order: what ends in between has its outcome, not the lease that it had.
        state, outcome = trial_store.state(trial), trial_store.outcome(trial)
        if outcome is not None:
            rows.append(TrialStatus(trial, outcome.state, outcome.step, outcome.value, outcome.message))
        elif state == TrialState.RUNNING:
            records = read_last_records(trial_store.run_directory(trial).metrics_file)
            last = last_metric(records, metric)
            rows.append(TrialStatus(trial, state, last_step(records), last.value if last else None, ""))
        else:
            rows.append(TrialStatus(trial, state, 0, None, ""))
    return rows


def sort_best_first(rows: Sequence[TrialStatus], maximize: bool) -> list[TrialStatus]:
    """Sort trials by state, finished ones first, then by value.

    Args:
        rows: The trials.
        maximize: Whether larger values are better.

    Returns:
        The sorted trials; in each state those without a value come last.
    """

    def key(row: TrialStatus) -> tuple[Any, ...]:
        value = (0.0 if row.value is None else -row.value if maximize else row.value,)
        return (_RANK[row.state.value], row.value is None, value)

    return sorted(rows, key=key)


def best_finished(rows: Sequence[TrialStatus], maximize: bool) -> TrialStatus | None:
    """Return the best trial that is done.

    Args:
        rows: The trials.
        maximize: Whether larger values are better.

    Returns:
        The trial; None if none that is done has a value.
    """
    return next(
        (row for row in sort_best_first(rows, maximize) if row.state == TrialState.DONE and row.value is not None), None
    )


def count_states(rows: Sequence[TrialStatus], total: int) -> str:
    """Count trials by state: "3 of 12 finished: 2 done, 1 diverged; 4 running, 5 pending".

    Args:
        rows: The trials proposed so far.
        total: The number of trials of the sweep; those not yet proposed count as pending.

    Returns:
        The counts in words.
    """
    by_state = Counter(row.state for row in rows)
    by_state[TrialState.PENDING] += total - len(rows)  # those that are not proposed yet
    open_states = (TrialState.RUNNING, TrialState.PENDING)
    ended = ", ".join(
        f"{by_state[state]} {state.value}" for state in TrialState if state not in open_states and by_state[state]
    )
    still = ", ".join(f"{by_state[state]} {state.value}" for state in open_states if by_state[state])
    finished = total - sum(by_state[state] for state in open_states)
    return f"{finished} of {total} finished" + (f": {ended}" if ended else "") + (f"; {still}" if still else "")


class ProgressDisplay(Protocol):
    """Displays the progress of a sweep."""

    def show(self, rows: Sequence[TrialStatus], total: int) -> None:
        """Display the current status of the trials.

        Args:
            rows: The trials proposed so far.
            total: The number of trials of the sweep.
        """

    def close(self) -> None:
        """End the display, leaving what it showed."""


def open_progress_display(metric: MetricName, maximize: bool, stream: TextIO) -> ProgressDisplay:
    """Open a live table on a terminal, lines elsewhere.

    Args:
        metric: The sweep's metric.
        maximize: Whether it is maximized.
        stream: The stream to print to.

    Returns:
        The display.
    """
    return _TableDisplay(metric, maximize, stream) if is_watched(stream) else _LineDisplay(metric, stream)


class _LineDisplay:
    """Prints a line whenever a trial starts or ends."""

    def __init__(self, metric: MetricName, stream: TextIO):
        self._metric, self._stream = metric, stream
        self._last_states: dict[str, TrialState] = {}

    def show(self, rows: Sequence[TrialStatus], total: int) -> None:
        changed = [row for row in rows if self._last_states.get(row.trial.name, TrialState.PENDING) != row.state]
        for row in changed:
            value, description = _format_status(row)
            value = value and f"  {self._metric} {value}"
            print(f"{row.trial.name}  {row.state.value:<8}  step {row.step}{value}  {description}", file=self._stream)
        if changed:
            print(count_states(rows, total), file=self._stream, flush=True)
        self._last_states |= {row.trial.name: row.state for row in rows}

    def close(self) -> None:
        """Do nothing: all is printed."""


class _TableDisplay:
    """A table that is redrawn in place, with as many rows as the terminal has."""

    def __init__(self, metric: MetricName, maximize: bool, stream: TextIO):
        self._metric, self._maximize = metric, maximize
        self._console = rich.console.Console(file=raw_terminal_stream(stream))
        self._live = rich.live.Live(console=self._console, auto_refresh=False)
        self._live.start()

    def show(self, rows: Sequence[TrialStatus], total: int) -> None:
        self._live.update(
            progress_table(rows, total, self._metric, self._maximize, self._console.height - _ABOVE), refresh=True
        )

    def close(self) -> None:
        self._live.stop()


def progress_table(
    rows: Sequence[TrialStatus], total: int, metric: MetricName, maximize: bool, height: int
) -> rich.table.Table:
    """Build the table of a sweep's progress.

    Args:
        rows: The trials proposed so far.
        total: The number of trials of the sweep.
        metric: The sweep's metric.
        maximize: Whether larger values are better.
        height: The most trials to show, at least one.

    Returns:
        The table, best trials first.
    """
    table = rich.table.Table(title=count_states(rows, total), title_justify="left", expand=False)
    for heading, justify in (("trial", "left"), ("state", "left"), ("step", "right"), (str(metric), "right")):
        table.add_column(heading, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    table.add_column("overrides", overflow="fold")
    ordered = sort_best_first(rows, maximize)
    visible_rows = ordered[: max(1, height)]
    for row in visible_rows:
        value, description = _format_status(row)
        state = rich.text.Text(row.state.value, _STYLES[row.state.value])
        # Not read as rich's own marks: a message or a value may have brackets.
        last = rich.text.Text(escape_control_characters(description))
        table.add_row(row.trial.name, state, str(row.step or ""), value, last)
    if len(ordered) > len(visible_rows):
        table.caption = f"and {len(ordered) - len(visible_rows)} more"
    return table


def _format_status(row: TrialStatus) -> tuple[str, str]:
    """Return a trial's value for reading, and its overrides with what went wrong; trials.csv has them in full."""
    value = "" if row.value is None else f"{row.value:.4g}"
    return value, f"{describe_overrides(row.trial.overrides)}  {row.message}".rstrip()


def write_csv(trial_store: TrialStore, rows: Sequence[TrialStatus], metric: MetricName) -> Path:
    """Write all trials to WORKDIR/trials.csv, with a column for every key that any of them overrides.

    Args:
        trial_store: The trial store, whose directory is WORKDIR.
        rows: The trials.
        metric: The sweep's metric, which names the column of values.

    Returns:
        The path of the file.
    """
    keys = overridden_keys([row.trial for row in rows])
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["trial", "state", "step", str(metric), *keys, "message", "directory"])
    for row in rows:
        cells = [str(row.trial.overrides.get(key, "")) for key in keys]
        value = "" if row.value is None else repr(row.value)
        folder = f"trials/{row.trial.name}"
        writer.writerow([row.trial.name, row.state.value, row.step, value, *cells, row.message, folder])
    path = trial_store.path / "trials.csv"
    storage_of(path).replace(path, text.getvalue().encode())
    return path


def summarize_sweep(
    trial_store: TrialStore, rows: Sequence[TrialStatus], metric: MetricName, best: TrialStatus | None, command: str
) -> str:
    """Summarize a finished sweep in lines of text.

    Args:
        trial_store: The trials of the sweep.
        rows: Their status.
        metric: The metric.
        best: The best trial, if any is done.
        command: The command that trains the best trial again.

    Returns:
        The text: counts, the best trial with its directory and command, and what failed.
    """
    lines = [count_states(rows, len(rows))]
    if best is not None:
        lines += [
            f"best: {metric} {best.value:.6g}  {describe_overrides(best.trial.overrides)}",
            f"  run directory   {trial_store.directory(best.trial)}",
            f"  train it again  {command}",
        ]
    failed = [row for row in rows if row.state == TrialState.FAILED]
    if failed:
        lines.append(f"failed: {failed[0].message}")
        more_text = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
        lines.append(f"  {failed[0].trial.name}{more_text}; run the same command with --retry_failed to try again")
    return "\n".join(lines)
