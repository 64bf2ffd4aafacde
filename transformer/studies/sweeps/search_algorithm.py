"""Grid and random search: proposers of a sweep's next trials; Optuna's samplers are in `optuna_proposer`."""

import itertools
import random
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from transformer.config import UserError
from transformer.studies.sweeps.search_space import Overrides, RandomSampler, SearchSpace, random_permutation
from transformer.studies.sweeps.trial_store import TrialStore
from transformer.studies.sweeps.trials import Trial, make_trial

SEARCH_ALGORITHMS = ("grid", "random", "tpe", "gp", "hyperband")
PLANNED_AHEAD = ("grid", "random")  # whose trials are known before the first begins
_DRAWS = 30
_DOUBLES = 1000  # draws in a row that were made before, after which an endless space counts as exhausted


class SearchAlgorithm(Protocol):
    """Proposes trials one at a time, from how the earlier ones ended."""

    def propose(self, ledger: TrialStore) -> Trial | None:
        """The next trial; None where there is none. Called by one process at a time.

        Raises:
            UserError: For an invalid config.
        """

    def prune(self, trial: Trial, step: int, value: float) -> bool:
        """Whether a trial that has reached a value at a step is not worth going on with."""


def choose_algorithm(name: str | None, space: SearchSpace) -> str:
    """The engine: the one named, else grid where the space is finite and random elsewhere.

    Raises:
        UserError: For an unknown one, and for a grid over a space without end.
    """
    if name is None:
        return "grid" if space.size is not None else "random"
    if name not in SEARCH_ALGORITHMS:
        raise UserError(f"--search_algorithm={name} is unknown; there are {', '.join(SEARCH_ALGORITHMS)}")
    if name == "grid" and space.size is None:
        raise UserError(
            "--search_algorithm=grid needs a finite space, which this is not: pass --search_algorithm=random "
            "--num_trials=T"
        )
    return name


def check_num_trials(total: int | None, space: SearchSpace) -> int:
    """How many trials a sweep has: those asked for, by default every point of a finite space.

    Raises:
        UserError: For fewer than one, and for none said of a space without end.
    """
    if total is None:
        if space.size is None:
            raise UserError("this space has no end: say how many trials there are to be, as --num_trials=20")
        return space.size
    if total < 1:
        raise UserError(f"--num_trials={total} must be at least 1")
    return total


def plan_trials(engine: str, base: Mapping[str, Any], space: SearchSpace, total: int, seed: int) -> list[Trial]:
    """The first `total` trials of a grid or of random search, or all of a smaller space; no two are the same.

    A larger `total` begins with the same trials.

    Raises:
        UserError: For an invalid config.
    """
    points = _grid(space) if engine == "grid" else sample_points(space, seed)
    trials: dict[str, Trial] = {}
    doubles = 0
    for overrides in points:
        trial = make_trial(base, overrides)
        doubles = doubles + 1 if trial.name in trials else 0
        trials.setdefault(trial.name, trial)
        if len(trials) == total or (space.size is None and doubles == _DOUBLES):
            break
    return list(trials.values())


def sample_valid_trial(base: Mapping[str, Any], space: SearchSpace, seed: int) -> Trial:
    """The first random trial whose config is valid.

    Raises:
        UserError: If none of `_DRAWS` draws is.
    """
    mistakes = []
    for overrides in itertools.islice(sample_points(space, seed), _DRAWS):
        try:
            return make_trial(base, overrides)
        except UserError as error:
            mistakes.append(error)
    raise mistakes[0]


def sample_points(space: SearchSpace, seed: int) -> Iterator[Overrides]:
    """Random points: of a finite space each once, of any other without end."""
    if space.size is not None:
        return (space.point(number) for number in random_permutation(space.size, seed))
    chance = RandomSampler(random.Random(seed))
    return (space.draw(chance) for _ in itertools.count())


def _grid(space: SearchSpace) -> Iterator[Overrides]:
    assert space.size is not None
    return (space.point(number) for number in range(space.size))
