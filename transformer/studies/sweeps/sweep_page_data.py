"""The data of a sweep's page: its progress, its trials with their curves, and the importance of each parameter."""

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from transformer.runs.jsonl_reading import MetricName, read_records
from transformer.runs.trust import trust_flags
from transformer.studies.ablations.collect_results import metric_curve
from transformer.studies.ablations.run_plan import equal_as_json
from transformer.studies.sweeps.sweep_progress import TrialStatus, best_finished, count_states, sort_best_first
from transformer.studies.sweeps.trial_store import TrialState, TrialStore
from transformer.studies.sweeps.trials import Trial, overridden_keys
from transformer.system.command_invocation import shell_command

_POINTS = 200  # of one curve
_GROUPS = 4  # of equally many trials, where a key has as many values as trials
_MANY = 6  # different numbers of a key, beyond which they are grouped


class SweepInfo(NamedTuple):
    """A description of a sweep for its page.

    Attributes:
        name: Its name.
        metric: The metric.
        maximize: Whether the metric is maximized.
        num_trials: The number of trials.
        command: The command that continues it.
    """

    name: str
    metric: MetricName
    maximize: bool
    num_trials: int
    command: str


class TrialCurves:
    """The curves of trials over training; those of trials that have ended are read once."""

    def __init__(self, trial_store: TrialStore, metric: MetricName):
        self._trial_store, self._metric = trial_store, metric
        self._ended: dict[str, list[tuple[int, float]]] = {}

    def read_curve(self, row: TrialStatus) -> list[tuple[int, float]]:
        """Return the metric over steps, at most 200 points, the last among them."""
        name = row.trial.name
        if name in self._ended:
            return self._ended[name]
        points = metric_curve(read_records(self._trial_store.run_directory(row.trial).metrics_file), str(self._metric))
        every = max(1, math.ceil(len(points) / _POINTS))
        thinned = [*reversed(points[::-1][::every])]
        if row.state not in (TrialState.RUNNING, TrialState.PENDING):
            self._ended[name] = thinned
        return thinned


def sweep_page_data(
    about: SweepInfo,
    trial_store: TrialStore,
    rows: Sequence[TrialStatus],
    curves: TrialCurves,
    retrain_commands: Mapping[str, str],
    *,
    over: bool,
) -> dict[str, Any]:
    """Return the data of a sweep's page as JSON values.

    Args:
        about: The sweep.
        trial_store: Its trials.
        rows: The current status of the trials.
        curves: Their curves.
        retrain_commands: Commands that train a trial again, by its name.
        over: Whether the sweep's command has ended: the state is then "done", or "stopped" if trials are left; else
            "running".

    Returns:
        The data.
    """
    num_remaining = about.num_trials - sum(row.state not in (TrialState.RUNNING, TrialState.PENDING) for row in rows)
    order = sort_best_first(rows, about.maximize)
    best = best_finished(rows, about.maximize)
    keys = varied_keys([row.trial for row in rows])
    return {
        "name": about.name,
        "metric": str(about.metric),
        "direction": "maximize" if about.maximize else "minimize",
        "state": "running" if not over else "stopped" if num_remaining else "done",
        "counts": count_states(rows, about.num_trials),
        "seconds_left": None if over else seconds_left(trial_store, rows, about.num_trials),
        "command": about.command,
        "maps_command": shlex.join(shell_command("maps")),
        "hyperparameter_values": {key: _distinct_values(row.trial.overrides.get(key) for row in rows) for key in keys},
        "importance": {key: parameter_importance(rows, key) for key in keys},
        "best": best and best.trial.name,
        "trials": [
            {
                "name": row.trial.name,
                "state": row.state.value,
                "step": row.step,
                "steps": row.trial.config["steps"],
                "value": row.value,
                "message": row.message,
                "overrides": {key: row.trial.overrides.get(key) for key in keys},
                "curve": curves.read_curve(row),
                "directory": str(trial_store.directory(row.trial)),
                "command": retrain_commands.get(row.trial.name, ""),
                "trust": shlex.join(trust_flags(row.trial.config)),
            }
            for row in order
        ],
    }


def varied_keys(trials: Sequence[Trial]) -> list[str]:
    """Return the keys that trials set to different values, in order of first appearance."""
    return [
        key
        for key in overridden_keys(trials)
        if len(_distinct_values(trial.overrides.get(key) for trial in trials)) > 1
    ]


def seconds_left(trial_store: TrialStore, rows: Sequence[TrialStatus], total: int) -> float | None:
    """Estimate the remaining time of a sweep.

    left = mean seconds of a trial * (pending + sum over running of (1 - step / steps)) / running

    Args:
        trial_store: The trials of the sweep.
        rows: Their current status.
        total: The number of trials.

    Returns:
        The seconds; None if no trial is done or none is running.
    """
    times = [
        times
        for row in rows
        if row.state == TrialState.DONE and (times := trial_store.start_and_end_times(row.trial)) is not None
    ]
    running = [row for row in rows if row.state == TrialState.RUNNING]
    if not times or not running:
        return None
    ended = sum(row.state not in (TrialState.RUNNING, TrialState.PENDING) for row in rows)
    pending = total - ended - len(running)
    unfinished_share = sum(1 - min(1.0, row.step / row.trial.config["steps"]) for row in running)
    mean = math.fsum(end - begin for begin, end in times) / len(times)
    return mean * (pending + unfinished_share) / len(running)


def parameter_importance(rows: Sequence[TrialStatus], key: str) -> float | None:
    """Estimate the fraction of the variation between trials that one parameter explains by itself, from 0 to 1.

        1 - (SS_within / (n - k)) / (SS_total / (n - 1))

    of the ranks of the metric, so that a single outlier does not decide, over the k groups of trials with one
    value of the key: one-way analysis of variance, adjusted for chance (Wherry 1931). A key with more than six
    different numbers is split into four groups of equally many trials. Interactions between keys are not attributed to
    any of them.

    Args:
        rows: The status of the trials.
        key: The config key.

    Returns:
        The importance; None if fewer than four trials are done, or no more than there are groups.
    """
    finished = [row for row in rows if row.state == TrialState.DONE and row.value is not None]
    values = [row.trial.overrides.get(key) for row in finished]
    groups = _group_values(values)
    n, k = len(finished), len(set(groups))
    if n < 4 or n <= k or k < 2:
        return None
    ranks = stats.rankdata([row.value for row in finished])
    total = float(np.sum((ranks - ranks.mean()) ** 2))
    if total == 0:
        return 0.0
    within_group = 0.0
    for group in set(groups):
        group_ranks = ranks[[index for index, number in enumerate(groups) if number == group]]
        within_group += float(np.sum((group_ranks - group_ranks.mean()) ** 2))
    return max(0.0, 1 - (within_group / (n - k)) / (total / (n - 1)))


def _group_values(values: Sequence[Any]) -> list[int]:
    different = _distinct_values(values)
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    if numbers and len(different) > _MANY:
        ranks = stats.rankdata(values, method="ordinal")
        return [int((rank - 1) * _GROUPS // len(values)) for rank in ranks]
    return [
        next(number for number, distinct in enumerate(different) if equal_as_json(value, distinct)) for value in values
    ]


def _distinct_values(values: Any) -> list[Any]:
    """Return the different values, sorted if they can be, else in order of appearance."""
    distinct: list[Any] = []
    for value in values:
        if not any(equal_as_json(value, existing) for existing in distinct):
            distinct.append(value)
    try:
        return sorted(distinct)
    except TypeError:
        return distinct
