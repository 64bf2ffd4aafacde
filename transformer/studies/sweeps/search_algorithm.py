"""Search algorithms of a sweep: grid and random search; those of Optuna are in `optuna_search`."""

import itertools
import random
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from transformer.config import UserError
from transformer.studies.sweeps.search_space import Overrides, SearchSpace, random_permutation
from transformer.studies.sweeps.trials import Trial, make_trial

SEARCH_ALGORITHMS = ("grid", "random", "tpe", "gp", "hyperband")
PLANNED_AHEAD = ("grid", "random")  # whose trials are known before the first begins
_DRAWS = 30
_DOUBLES = 1000  # draws in a row that were made before, after which an endless space counts as exhausted


class SearchAlgorithm(Protocol):
    """Proposes the trials of a store one at a time, given how the earlier ones ended."""

    def suggest(self) -> Trial | None:
        """Return the next trial; None if there is none. Called by one process at a time.

        Raises:
            UserError: If the config is invalid.
        """

    def should_prune(self, trial: Trial, step: int, value: float) -> bool:
        """Return whether to stop a running trial.

        Args:
            trial: The trial.
            step: The step that it has reached.
            value: The value of the sweep's metric at that step.

        Returns:
            Whether to stop it.
        """


def choose_algorithm(name: str | None, space: SearchSpace) -> str:
    """Return the name of the search algorithm, with the default that suits the space.

    Args:
        name: "grid", "random" or the name of another algorithm; None for grid if the space is finite, else random.
        space: The search space.

    Returns:
        The name.

    Raises:
        UserError: If the name is unknown, or it is "grid" and the space is infinite.
    """
    if name is None:
        return "grid" if space.num_points is not None else "random"
    if name not in SEARCH_ALGORITHMS:
        raise UserError(f"--search_algorithm={name} is unknown; there are {', '.join(SEARCH_ALGORITHMS)}")
    if name == "grid" and space.num_points is None:
        raise UserError(
            "--search_algorithm=grid needs a finite space, which this is not: pass --search_algorithm=random "
            "--num_trials=T"
        )
    return name


def resolve_num_trials(total: int | None, space: SearchSpace) -> int:
    """Return the number of trials of a sweep.

    Args:
        total: The number that the user gave; None for every point of a finite space.
        space: The search space.

    Returns:
        The number.

    Raises:
        UserError: If `total` is below 1, or is None and the space is infinite.
    """
    if total is None:
        if space.num_points is None:
            raise UserError("this space has no end: say how many trials there are to be, as --num_trials=20")
        return space.num_points
    if total < 1:
        raise UserError(f"--num_trials={total} must be at least 1")
    return total


def plan_trials(engine: str, base: Mapping[str, Any], space: SearchSpace, total: int, seed: int) -> list[Trial]:
    """Plan the trials of grid or random search, without duplicates; a larger `total` starts with the same trials.

    Args:
        engine: "grid" or "random".
        base: The base config.
        space: The search space.
        total: The number of trials; fewer if the space is smaller.
        seed: The seed of random search.

    Returns:
        The trials.

    Raises:
        UserError: If a config is invalid.
    """
    points = _grid(space) if engine == "grid" else sample_points(space, seed)
    trials: dict[str, Trial] = {}
    doubles = 0
    for overrides in points:
        trial = make_trial(base, overrides)
        doubles = doubles + 1 if trial.name in trials else 0
        trials.setdefault(trial.name, trial)
        if len(trials) == total or (space.num_points is None and doubles == _DOUBLES):
            break
    return list(trials.values())


def sample_valid_trials(base: Mapping[str, Any], space: SearchSpace, most: int, seed: int) -> list[Trial]:
    """Return different random trials with a valid config: all of a finite space up to a number, one of an infinite one.

    Several points of a finite space may have the same config, such as those that two members of a chain share, and the
    config of a point may be invalid.

    Raises:
        UserError: If none of the first 30 draws, or of fewer points, is valid; it describes the first.
    """
    points, most = sample_points(space, seed), 1 if space.num_points is None else most
    trials: dict[str, Trial] = {}
    mistakes = []
    for overrides in points:
        try:
            trial = make_trial(base, overrides)
        except UserError as error:
            mistakes.append(error)
            if not trials and len(mistakes) == _DRAWS:
                break
            continue
        trials.setdefault(trial.name, trial)
        if len(trials) == most:
            break
    if not trials:
        raise mistakes[0]
    return list(trials.values())


def sample_points(space: SearchSpace, seed: int) -> Iterator[Overrides]:
    """Yield random points of a search space, as overrides.

    Args:
        space: The search space.
        seed: The seed of the draws.

    Returns:
        The points: of a finite space each one once, of an infinite one without end.
    """
    if space.num_points is not None:
        return (space.get_point(number) for number in random_permutation(space.num_points, seed))
    generator = random.Random(seed)
    return (space.sample(generator) for _ in itertools.count())


def _grid(space: SearchSpace) -> Iterator[Overrides]:
    assert space.num_points is not None
    return (space.get_point(number) for number in range(space.num_points))
