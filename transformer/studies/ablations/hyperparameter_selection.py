"""Arrange the results of an ablation, and select the tuned values at which each arm is compared."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from transformer.studies.ablations.ablation import Ablation, Direction
from transformer.studies.ablations.run_result import RunResult

DONE, STUCK, DIVERGED, FAILED = "done", "stuck", "diverged", "failed"

_CombinationRuns = tuple[Mapping[str, Any], Sequence[RunResult]]  # a combination of tuned values, and its runs


class MissingRun(NamedTuple):
    """A planned run of an arm that has no result.

    Attributes:
        task_name: The task.
        seed: The seed.
        hyperparameters: The tuned values.
        failed: Whether it failed; else it has not ended.
    """

    task_name: str
    seed: int
    hyperparameters: Mapping[str, Any]
    failed: bool


class StudyResults(NamedTuple):
    """The results of a study by arm, task and combination of tuned values, in the order of its seeds.

    A run that has not ended may be missing.

    Attributes:
        spec: The ablation.
        runs_by_setting: The results by arm, task and tuned values (as JSON text).
        selected_hyperparameters: The selected tuned values of each arm and task that has results.
        selected_without_seed: What would be selected without one of the seeds, by arm, task and this seed.
    """

    spec: Ablation
    runs_by_setting: Mapping[tuple[str, str, str], tuple[RunResult, ...]]
    selected_hyperparameters: Mapping[tuple[str, str], Mapping[str, Any]]
    selected_without_seed: Mapping[tuple[str, str, int], Mapping[str, Any]]

    def runs_of_combination(self, arm: str, task: str, hyperparameters: Mapping[str, Any]) -> tuple[RunResult, ...]:
        """Return the runs of one combination of tuned values.

        Args:
            arm: The arm.
            task: The task.
            hyperparameters: The tuned values by key.

        Returns:
            The runs, one for each seed; empty if there are none.
        """
        return self.runs_by_setting.get((arm, task, _hyperparameters_as_json(hyperparameters)), ())

    def selected_runs(self, arm: str, task: str, without_seed: int | None = None) -> tuple[RunResult, ...]:
        """Return the runs of an arm at its selected tuned values; empty if it has no results on the task.

        Args:
            arm: The arm.
            task: The task.
            without_seed: A seed that the selection leaves out; None for the study's own selection.

        Returns:
            The runs, one for each seed.
        """
        selected = (
            self.selected_hyperparameters.get((arm, task))
            if without_seed is None
            else self.selected_without_seed.get((arm, task, without_seed))
        )
        return () if selected is None else self.runs_of_combination(arm, task, selected)

    def runs_of_arm(self, arm: str) -> list[RunResult]:
        """Return all runs of an arm."""
        return [cell for (name, _, _), cells in self.runs_by_setting.items() if name == arm for cell in cells]

    def values_by_seed(self, arm: str, task: str | None) -> dict[int, float]:
        """Return the reported metric at the chosen values by seed, of the runs that finished, including stuck ones.

        Args:
            arm: The arm.
            task: The task; None for the mean over all tasks, of the seeds that have every task.

        Returns:
            The values by seed.
        """
        return self.average_over_tasks(
            lambda name: self.selected_runs(arm, name),
            lambda cell: cell.reported_value if has_completed(cell) else None,
            task,
        )

    def compared_values_by_seed(self, arm: str, task: str | None, without_seed: int | None = None) -> dict[int, float]:
        """Return the values by which an arm is compared: those of `values_by_seed`, and one of every diverged run.

        A diverged run counts as worse than every run at chosen values that finished, of all arms: than the worst by as
        much as the worst and the best of them differ. Only the order of such values means something.

        Args:
            arm: The arm.
            task: The task; None for the mean over all tasks, of the seeds that have every task.
            without_seed: A seed that the selection of tuned values leaves out.

        Returns:
            The values by seed.
        """
        return self.average_over_tasks(
            lambda name: self.selected_runs(arm, name, without_seed),
            lambda cell: self._diverged_value(cell.task_name) if cell.state == DIVERGED else cell.reported_value,
            task,
        )

    def seeds_in_state(self, arm: str, task: str | None, state: str) -> list[int]:
        """Return the seeds of which a run at the chosen values is in a state such as "diverged".

        Args:
            arm: The arm.
            task: The task; None for any of all tasks.
            state: The state.

        Returns:
            The seeds.
        """
        tasks = self.spec.tasks if task is None else (task,)
        seeds = {cell.seed for name in tasks for cell in self.selected_runs(arm, name) if cell.state == state}
        return [seed for seed in self.spec.seeds if seed in seeds]

    def average_over_tasks(
        self,
        runs: Callable[[str], Iterable[RunResult]],
        value: Callable[[RunResult], float | None],
        task: str | None = None,
    ) -> dict[int, float]:
        """Return a value of runs that completed or diverged by seed.

        Args:
            runs: Returns the runs of a task.
            value: Returns the value of a run, None without one.
            task: The task; None for the mean over all tasks, of the seeds that have every task.

        Returns:
            The values by seed.
        """
        tasks = [
            {
                cell.seed: number
                for cell in runs(name)
                if has_completed_or_diverged(cell) and (number := value(cell)) is not None
            }
            for name in (self.spec.tasks if task is None else (task,))
        ]
        return {
            seed: math.fsum(values[seed] for values in tasks) / len(tasks)
            for seed in self.spec.seeds
            if all(seed in values for values in tasks)
        }

    def _diverged_value(self, task: str) -> float | None:
        """Return the value that counts for a diverged run of a task; None if no arm's run finished."""
        values = [
            cell.reported_value
            for arm in self.spec.arms
            for cell in self.selected_runs(arm, task)
            if has_completed(cell) and cell.reported_value is not None
        ]
        return 2 * worst_value(self.spec, values) - best_value(self.spec, values) if values else None


def has_completed(cell: RunResult) -> bool:
    """Return whether a run completed without diverging, whether it learned or not."""
    return cell.state in (DONE, STUCK)


def has_learned(cell: RunResult) -> bool:
    """Return whether a run completed and is not stuck."""
    return cell.state == DONE


def has_completed_or_diverged(cell: RunResult) -> bool:
    """Return whether a run completed or diverged; one that failed says nothing about its arm."""
    return has_completed(cell) or cell.state == DIVERGED


def is_better(spec: Ablation, value: float, reference: float) -> bool:
    """Return whether a value of the study's metrics is better than another."""
    return value < reference if spec.direction is Direction.MINIMIZE else value > reference


def best_value(spec: Ablation, values: Iterable[float]) -> float:
    """Return the best of some values of the study's metrics."""
    return min(values) if spec.direction is Direction.MINIMIZE else max(values)


def worst_value(spec: Ablation, values: Iterable[float]) -> float:
    """Return the worst of some values of the study's metrics."""
    return max(values) if spec.direction is Direction.MINIMIZE else min(values)


def rank_best_first(spec: Ablation, values: Mapping[str, float]) -> list[str]:
    """Return the names of some values of the study's metrics, the best first."""
    return sorted(values, key=lambda name: values[name], reverse=spec.direction is Direction.MAXIMIZE)


def select_hyperparameters(spec: Ablation, cells: Sequence[RunResult]) -> StudyResults:
    """Select the tuned values of each arm and task from the results of a study's runs.

    A completed run whose `selection_metric` is worse than `learned_threshold` becomes stuck, and one whose
    `reported_metric` is not finite diverged.

    Args:
        spec: The ablation.
        cells: The results of its runs.

    Returns:
        The results by arm, task and tuned values, with those selected.

    Raises:
        ValueError: If a run does not belong to the study, or two runs have the same arm, task, seed and tuned values.
    """
    combinations = {_hyperparameters_as_json(hyperparameters) for hyperparameters in spec.combinations()}
    places: dict[tuple[str, str, str], dict[int, RunResult]] = {}
    for cell in cells:
        words = _hyperparameters_as_json(cell.hyperparameters)
        if not (
            cell.arm_name in spec.arms
            and cell.task_name in spec.tasks
            and cell.seed in spec.seeds
            and words in combinations
        ):
            raise ValueError(f"{_describe_run(cell)} is of no arm, task, tuned value or seed of this study")
        by_seed = places.setdefault((cell.arm_name, cell.task_name, words), {})
        if cell.seed in by_seed:
            raise ValueError(f"{_describe_run(cell)} has two runs: {by_seed[cell.seed].directory} and {cell.directory}")
        by_seed[cell.seed] = _classify_state(spec, cell)
    ordered = {
        (arm, task, words): tuple(place[seed] for seed in spec.seeds if seed in place)
        for arm in spec.arms
        for task in spec.tasks
        for words in map(_hyperparameters_as_json, spec.combinations())
        if (place := places.get((arm, task, words)))
    }
    study = StudyResults(spec, ordered, {}, {})
    tuned = [
        (arm, task, combination_runs, tuning_seeds(study, arm, task))
        for arm in spec.arms
        for task in spec.tasks
        if (combination_runs := _combinations_with_runs(study, arm, task))
    ]
    return study._replace(
        selected_hyperparameters={
            (arm, task): _best_combination(spec, combination_runs, seeds)
            for arm, task, combination_runs, seeds in tuned
        },
        selected_without_seed={
            (arm, task, seed): _best_combination(spec, combination_runs, seeds - {seed})
            for arm, task, combination_runs, seeds in tuned
            for seed in spec.seeds
        },
    )


def _classify_state(spec: Ablation, cell: RunResult) -> RunResult:
    selection_value, reported_value = _finite_or_none(cell.selection_value), _finite_or_none(cell.reported_value)
    if selection_value is not cell.selection_value or reported_value is not cell.reported_value:
        cell = cell._replace(selection_value=selection_value, reported_value=reported_value)
    if has_completed(cell) and cell.reported_value is None:
        return cell._replace(state=DIVERGED)
    limit, value = spec.learned_threshold, cell.selection_value
    beyond = limit is not None and value is not None and is_better(spec, limit, value)
    return cell._replace(state=STUCK) if has_completed(cell) and beyond else cell


def missing_runs(study: StudyResults, arm: str, tasks: Iterable[str]) -> list[MissingRun]:
    """Return the planned runs of an arm that failed or have not ended.

    Without them its values were not all tried with the same seeds, and what it loses to another arm may be its tuning.

    Args:
        study: The results of the study.
        arm: The arm.
        tasks: The tasks.

    Returns:
        The runs, seed by seed.
    """
    spec, tasks = study.spec, list(tasks)
    combinations = [_hyperparameters_as_json(hyperparameters) for hyperparameters in spec.combinations()]
    ended = sum(
        has_completed_or_diverged(cell)
        for task in tasks
        for words in combinations
        for cell in study.runs_by_setting.get((arm, task, words), ())
    )
    if ended == len(tasks) * len(combinations) * len(spec.seeds):
        return []
    states = {
        (task, words): {cell.seed: cell for cell in study.runs_by_setting.get((arm, task, words), ())}
        for task in tasks
        for words in combinations
    }
    return [
        MissingRun(task, seed, hyperparameters, cell is not None and cell.state == FAILED)
        for seed in spec.seeds
        for task in tasks
        for hyperparameters in spec.combinations()
        for cell in (states[task, _hyperparameters_as_json(hyperparameters)].get(seed),)
        if cell is None or not has_completed_or_diverged(cell)
    ]


def tuning_seeds(study: StudyResults, arm: str, task: str) -> set[int]:
    """Return the seeds with which an arm's combinations are compared: those that have an ended run of each.

    A run that failed says nothing about its values, and neither it nor its seed may decide which are selected.
    Combinations without any run are ignored.

    Args:
        study: The results of the study.
        arm: The arm.
        task: The task.

    Returns:
        The seeds.
    """
    seeds_by_combination = [
        seeds
        for _, runs in _combinations_with_runs(study, arm, task)
        if (seeds := {cell.seed for cell in runs if has_completed_or_diverged(cell)})
    ]
    return set.intersection(*seeds_by_combination) if seeds_by_combination else set()


def _combinations_with_runs(study: StudyResults, arm: str, task: str) -> list[_CombinationRuns]:
    """Return the combinations of which an arm has runs on a task."""
    return [
        (hyperparameters, runs)
        for hyperparameters in study.spec.combinations()
        if (runs := study.runs_of_combination(arm, task, hyperparameters))
    ]


def _best_combination(spec: Ablation, combinations: Sequence[_CombinationRuns], seeds: set[int]) -> Mapping[str, Any]:
    """Select the combination with the best mean of `selection_metric` over some seeds.

    A run that did not learn counts with the worst of the arm's runs with its seed that did. So all means are of the
    same seeds, and a run more that diverged by chance decides little. Combinations with which fewer than half of the
    seeds learned are selected only if there are no others, those with which most learned first. Ties go to the first.
    """
    if len(combinations) == 1:
        return combinations[0][0]
    sign = 1 if spec.direction is Direction.MINIMIZE else -1
    entries = [
        (
            hyperparameters,
            runs,
            {
                cell.seed: sign * cell.selection_value
                for cell in runs
                if cell.seed in seeds and has_learned(cell) and cell.selection_value is not None
            },
        )
        for hyperparameters, runs in combinations
    ]
    worst: dict[int, float] = {}
    for _, _, learned in entries:
        for seed, value in learned.items():
            worst[seed] = max(value, worst.get(seed, value))

    def rank(entry: tuple[Mapping[str, Any], Sequence[RunResult], Mapping[int, float]]) -> tuple[int, float, int]:
        _, runs, own = entry
        if 2 * len(own) >= len(seeds) and own:
            mean = math.fsum(own.get(seed, value) for seed, value in worst.items()) / len(worst)
            return 0, mean, -len(own)
        finished = [cell.selection_value for cell in runs if cell.seed in seeds and has_completed(cell)]
        counted_values = list(own.values()) or [sign * value for value in finished if value is not None]
        return len(seeds) - len(own), math.fsum(counted_values) / len(counted_values) if counted_values else math.inf, 0

    return min(entries, key=rank)[0]


def _hyperparameters_as_json(hyperparameters: Mapping[str, Any]) -> str:
    """Return tuned values as JSON text, in which 1 is not True and a tuple is a list."""
    representation = repr(hyperparameters)
    words = _WORDS.get(representation)
    if words is None:
        words = _WORDS[representation] = json.dumps(dict(hyperparameters), sort_keys=True, default=str)
    return words


_WORDS: dict[str, str] = {}  # by their repr: a study asks thousands of times for a few combinations


def _finite_or_none(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _describe_run(cell: RunResult) -> str:
    return f"the cell arm={cell.arm_name!r} task={cell.task_name!r} seed={cell.seed} {dict(cell.hyperparameters)}"
