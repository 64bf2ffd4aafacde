"""The results of an ablation as arrays [arm, task, combination of tuned values, seed]."""

import dataclasses
import functools
import json
import math
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from transformer.studies.ablations.ablation import Ablation
from transformer.studies.ablations.hyperparameter_selection import select_combinations, tuning_seeds
from transformer.studies.ablations.run_result import Hyperparameters, RunResult, describe_run

DONE, STUCK, DIVERGED, FAILED = "done", "stuck", "diverged", "failed"
NO_RUN = ""

Place = tuple[int, int, int, int]  # of a run: the numbers of its arm, task, combination and seed


@dataclasses.dataclass(frozen=True, eq=False)
class StudyResults:
    """The results of a study, in the order of its arms, tasks, combinations of tuned values and seeds.

    Attributes:
        spec: The ablation.
        states_AxTxCxS: The state of each run: `DONE`, `STUCK`, `DIVERGED`, `FAILED`, another word if it has not ended,
            `NO_RUN` without a run.
        selection_AxTxCxS: The selection metric; NaN without a finite value.
        reported_AxTxCxS: The reported metric; NaN without a finite value.
        run_results: What else is known of a run, by its place; empty of a simulated study.
    """

    spec: Ablation
    states_AxTxCxS: Shaped[np.ndarray, "A T C S"]
    selection_AxTxCxS: Float[np.ndarray, "A T C S"]
    reported_AxTxCxS: Float[np.ndarray, "A T C S"]
    run_results: Mapping[Place, RunResult] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def combinations(self) -> list[Hyperparameters]:
        """The combinations of tuned values."""
        return list(self.spec.combinations())

    @functools.cached_property
    def combination_grid(self) -> Int[np.ndarray, "*values"]:
        """The number of each combination, on a grid that has an axis for every tuned key."""
        return np.arange(len(self.combinations)).reshape([len(values) for values in self.spec.tuning_grid.values()])

    @functools.cached_property
    def learned_AxTxCxS(self) -> Bool[np.ndarray, "A T C S"]:
        """Whether a run completed and is not stuck."""
        return self.states_AxTxCxS == DONE

    @functools.cached_property
    def diverged_AxTxCxS(self) -> Bool[np.ndarray, "A T C S"]:
        """Whether a run diverged."""
        return self.states_AxTxCxS == DIVERGED

    @functools.cached_property
    def completed_AxTxCxS(self) -> Bool[np.ndarray, "A T C S"]:
        """Whether a run completed without diverging, whether it learned or not."""
        return self.learned_AxTxCxS | (self.states_AxTxCxS == STUCK)

    @functools.cached_property
    def ended_AxTxCxS(self) -> Bool[np.ndarray, "A T C S"]:
        """Whether a run completed or diverged; one that failed says nothing about its arm."""
        return self.completed_AxTxCxS | self.diverged_AxTxCxS

    @functools.cached_property
    def planned_AxTxCxS(self) -> Bool[np.ndarray, "A T C S"]:
        """Whether there is a run, in any state."""
        return self.states_AxTxCxS != NO_RUN

    @functools.cached_property
    def tuning_seeds_AxTxS(self) -> Bool[np.ndarray, "A T S"]:
        """With which seeds an arm's combinations are compared."""
        return tuning_seeds(self.ended_AxTxCxS)

    @functools.cached_property
    def selected_LxAxT(self) -> Int[np.ndarray, "L A T"]:
        """The selected combinations: first with all seeds, then without each of them; 0 without a run."""
        return select_combinations(
            np.where(self.completed_AxTxCxS, self.spec.direction.sign * self.selection_AxTxCxS, np.nan),
            self.planned_AxTxCxS,
            self.ended_AxTxCxS,
            self.learned_AxTxCxS,
        )

    def at_selected(self, array_AxTxCxS: Shaped[np.ndarray, "A T C S"]) -> Shaped[np.ndarray, "A T S"]:
        """Return an array at the selected combinations."""
        return self._at_combinations(array_AxTxCxS, self.selected_LxAxT[0])

    def _at_combinations(
        self, array_AxTxCxS: Shaped[np.ndarray, "A T C S"], numbers: Int[np.ndarray, "*more A T"]
    ) -> Shaped[np.ndarray, "*more A T S"]:
        """Return an array at one combination of each arm and task."""
        arms, tasks = numbers.shape[-2:]
        return array_AxTxCxS[np.arange(arms)[:, None], np.arange(tasks), numbers]

    @functools.cached_property
    def selected_states_AxTxS(self) -> Shaped[np.ndarray, "A T S"]:
        """The states of the runs at the selected values."""
        return self.at_selected(self.states_AxTxCxS)

    @functools.cached_property
    def values_AxTxS(self) -> Float[np.ndarray, "A T S"]:
        """The reported metric at the selected values of the runs that completed, including stuck ones; else NaN."""
        return self.at_selected(np.where(self.completed_AxTxCxS, self.reported_AxTxCxS, np.nan))

    @functools.cached_property
    def compared_LxAxTxS(self) -> Float[np.ndarray, "L A T S"]:
        """The values by which arms are compared, with the selections of `selected_LxAxT`; NaN without a value.

        They are the reported metric of completed runs, and one value for every diverged run, which counts as worse than
        every completed run at selected values, of all arms: than the worst by as much as the worst and the best of them
        differ. Only the order of such values means something.
        """
        sign = self.spec.direction.sign
        costs_AxTxS = sign * self.values_AxTxS
        worst_T, best_T = np.fmax.reduce(costs_AxTxS, axis=(0, 2)), np.fmin.reduce(costs_AxTxS, axis=(0, 2))
        diverged_values_Tx1x1 = (sign * (2 * worst_T - best_T))[:, None, None]
        completed_AxTxCxS = np.where(self.completed_AxTxCxS, self.reported_AxTxCxS, np.nan)
        compared_AxTxCxS = np.where(self.diverged_AxTxCxS, diverged_values_Tx1x1, completed_AxTxCxS)
        return self._at_combinations(compared_AxTxCxS, self.selected_LxAxT)

    @functools.cached_property
    def _arm_numbers(self) -> dict[str, int]:
        return {arm: number for number, arm in enumerate(self.spec.arms)}

    def arm_number(self, arm: str) -> int:
        """Return the place of an arm in the arrays."""
        return self._arm_numbers[arm]

    def task_numbers(self, task: str | None) -> list[int]:
        """Return the place of a task in the arrays; of all tasks for None."""
        tasks = list(self.spec.tasks)
        return list(range(len(tasks))) if task is None else [tasks.index(task)]

    def values(self, arm: str, task: str | None) -> Float[np.ndarray, " S"]:
        """Return the reported metric at the selected values by seed.

        Args:
            arm: The arm.
            task: The task; None for the mean over all tasks.

        Returns:
            The values of the runs that completed, including stuck ones; NaN for a seed that lacks a task.
        """
        return mean_over_tasks(self.values_AxTxS[self.arm_number(arm), self.task_numbers(task)])

    def compared_values(self, arm: str, task: str | None, without_seed: int | None = None) -> Float[np.ndarray, " S"]:
        """Return the values by which an arm is compared by seed: those of `values`, and one of every diverged run.

        Args:
            arm: The arm.
            task: The task; None for the mean over all tasks.
            without_seed: A seed that the selection of tuned values leaves out.
        """
        left_out = 0 if without_seed is None else 1 + self.spec.seeds.index(without_seed)
        return mean_over_tasks(self.compared_LxAxTxS[left_out, self.arm_number(arm), self.task_numbers(task)])

    def seeds_in_state(self, arm: str, task: str | None, state: str) -> list[int]:
        """Return the seeds of which a run at the selected values is in a state, on a task or, for None, on any."""
        is_in_state_TxS = self.selected_states_AxTxS[self.arm_number(arm), self.task_numbers(task)] == state
        return [self.spec.seeds[number] for number in np.flatnonzero(is_in_state_TxS.any(axis=0))]

    def count_learned(self, arm: str, task: str | None) -> tuple[int, int]:
        """Count the runs at the selected values that learned, and those that completed or diverged."""
        arm_and_tasks = self.arm_number(arm), self.task_numbers(task)
        learned, ended = (
            self.at_selected(mask_AxTxCxS)[arm_and_tasks].sum()
            for mask_AxTxCxS in (self.learned_AxTxCxS, self.ended_AxTxCxS)
        )
        return int(learned), int(ended)

    def selected_hyperparameters(self, arm: str) -> dict[str, Hyperparameters]:
        """Return the selected tuned values of an arm by task, of the tasks with runs."""
        number = self.arm_number(arm)
        return {
            name: self.combinations[self.selected_LxAxT[0, number, task]]
            for task, name in enumerate(self.spec.tasks)
            if self.planned_AxTxCxS[number, task].any()
        }

    def selected_places(self, arm: str) -> list[Place]:
        """Return the places of an arm's runs at the selected values, task by task."""
        number = self.arm_number(arm)
        return [
            (number, task, combination, seed)
            for task, combination in enumerate(self.selected_LxAxT[0, number].tolist())
            for seed in np.flatnonzero(self.planned_AxTxCxS[number, task, combination]).tolist()
        ]

    def describe_run(self, place: Place) -> str:
        """Describe a run, for messages: "arm 'pre', seed 3, optimizer.learning_rate=0.001"."""
        arm, task, combination, seed = place
        return describe_run(
            list(self.spec.arms)[arm],
            list(self.spec.tasks)[task],
            self.spec.seeds[seed],
            self.combinations[combination],
        )


def arrange_results(spec: Ablation, cells: Sequence[RunResult]) -> StudyResults:
    """Arrange the results of a study's runs.

    Raises:
        ValueError: If a run does not belong to the study, or two runs have the same arm, task, seed and tuned values.
    """
    combinations = {
        _hyperparameters_as_json(hyperparameters): n for n, hyperparameters in enumerate(spec.combinations())
    }
    numbers = [
        {name: number for number, name in enumerate(names)}
        for names in (spec.arms, spec.tasks, combinations, spec.seeds)
    ]
    run_results: dict[Place, RunResult] = {}
    for cell in cells:
        names = (cell.arm_name, cell.task_name, _hyperparameters_as_json(cell.hyperparameters), cell.seed)
        if not all(name in numbers_by_name for name, numbers_by_name in zip(names, numbers, strict=True)):
            raise ValueError(f"{_name_run(cell)} is of no arm, task, tuned value or seed of this study")
        arm, task, combination, seed = (
            numbers_by_name[name] for name, numbers_by_name in zip(names, numbers, strict=True)
        )
        place = arm, task, combination, seed
        if place in run_results:
            raise ValueError(f"{_name_run(cell)} has two runs: {run_results[place].directory} and {cell.directory}")
        run_results[place] = cell
    shape = tuple(map(len, numbers))
    states_AxTxCxS = np.full(shape, NO_RUN, dtype=object)
    selection_AxTxCxS, reported_AxTxCxS = np.full((2, *shape), np.nan)
    for place, cell in run_results.items():
        states_AxTxCxS[place] = cell.state
        selection_AxTxCxS[place] = math.nan if cell.selection_value is None else cell.selection_value
        reported_AxTxCxS[place] = math.nan if cell.reported_value is None else cell.reported_value
    return judge_states(spec, states_AxTxCxS, selection_AxTxCxS, reported_AxTxCxS, dict(sorted(run_results.items())))


def judge_states(
    spec: Ablation,
    states_AxTxCxS: Shaped[np.ndarray, "A T C S"],
    selection_AxTxCxS: Float[np.ndarray, "A T C S"],
    reported_AxTxCxS: Float[np.ndarray, "A T C S"],
    run_results: Mapping[Place, RunResult] | None = None,
) -> StudyResults:
    """Return the results of a study by the states with which its runs ended.

    A run that is done diverged if its reported metric is not finite, and is stuck if its selection metric is worse than
    `learned_threshold`.
    """
    selection_AxTxCxS, reported_AxTxCxS = (
        np.where(np.isfinite(values), values, np.nan) for values in (selection_AxTxCxS, reported_AxTxCxS)
    )
    completed_AxTxCxS = (states_AxTxCxS == DONE) | (states_AxTxCxS == STUCK)
    states_AxTxCxS = np.where(completed_AxTxCxS & np.isnan(reported_AxTxCxS), DIVERGED, states_AxTxCxS)
    if spec.learned_threshold is not None:
        sign = spec.direction.sign
        is_beyond_AxTxCxS = sign * selection_AxTxCxS > sign * spec.learned_threshold
        states_AxTxCxS = np.where((states_AxTxCxS == DONE) & is_beyond_AxTxCxS, STUCK, states_AxTxCxS)
    return StudyResults(spec, states_AxTxCxS, selection_AxTxCxS, reported_AxTxCxS, run_results or {})


def mean_over_tasks(values_TxS: Float[np.ndarray, "T S"]) -> Float[np.ndarray, " S"]:
    """Return the mean over tasks of each seed, rounded once; NaN for a seed that lacks one."""
    return np.array([math.fsum(values_T) / len(values_T) for values_T in values_TxS.T.tolist()])


def known_values(values: Float[np.ndarray, "*shape"]) -> list[float]:
    """Return the values that are no NaN."""
    return values[~np.isnan(values)].tolist()


def _hyperparameters_as_json(hyperparameters: Hyperparameters) -> str:
    """Return tuned values as JSON text, in which 1 is not True and a tuple is a list."""
    return json.dumps(dict(hyperparameters), sort_keys=True, default=str)


def _name_run(cell: RunResult) -> str:
    return f"the cell arm={cell.arm_name!r} task={cell.task_name!r} seed={cell.seed} {dict(cell.hyperparameters)}"
