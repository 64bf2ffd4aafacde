"""Each arm against the reference: paired differences, their intervals, and what may be said of them."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from transformer.studies.choice import Study, beats
from transformer.studies.statistics import (
    SIGNIFICANCE,
    MeanTest,
    detectable_effect,
    holm,
    pairs_needed,
    t_test,
)

LEAST_FOR_A_VERDICT = 3  # paired seeds


class Power(NamedTuple):
    """What the study could have seen, from the deviation of its paired differences.

    `level` is the two-sided significance at which it is counted, and `seeds_for` how many seeds see a difference.
    """

    deviation: float
    level: float
    detectable: float | None
    seeds_for: tuple[tuple[float, int], ...]


class Comparison(NamedTuple):
    """An arm less the reference, on one task or on the mean of all (None), in the units of what is reported.

    `test` is of the paired differences and None where fewer than two seeds have both; `p_holm` and `power` are None
    where no verdict may be given. `family` is how many comparisons Holm's correction was made over.
    """

    arm: str
    task: str | None
    differences: dict[int, float]
    test: MeanTest | None
    p_holm: float | None
    family: int
    verdict: str
    power: Power | None

    @property
    def n(self) -> int:
        """Seeds that both arms finished."""
        return len(self.differences)

    @property
    def difference(self) -> float | None:
        """The mean difference."""
        return math.fsum(self.differences.values()) / self.n if self.n else None


def comparisons(study: Study) -> list[Comparison]:
    """Every arm against the reference over all tasks, then, where there are several, on each of them.

    The comparisons over all tasks are one family for Holm's correction, and those on single tasks, of all arms and
    tasks together, another: the first is the study's question, and the second shows where its answer comes from.
    Comparisons of fewer than three paired seeds get no verdict and belong to neither.
    """
    arms = [arm for arm in study.spec.arms if arm != study.spec.reference]
    tasks = study.spec.tasks if len(study.spec.tasks) > 1 else ()
    overall = [_pair(study, arm, None) for arm in arms]
    single = [_pair(study, arm, task) for task in tasks for arm in arms]
    return [*_judge(study, overall), *_judge(study, single)]


def _pair(study: Study, arm: str, task: str | None) -> Comparison:
    values, reference = study.by_seed(arm, task), study.by_seed(study.spec.reference, task)
    differences = {seed: value - reference[seed] for seed, value in values.items() if seed in reference}
    test = t_test(list(differences.values())) if len(differences) >= 2 else None
    return Comparison(arm, task, differences, test, None, 0, "not said", None)


def _judge(study: Study, family: Sequence[Comparison]) -> Iterator[Comparison]:
    able = [pair.test.p for pair in family if pair.test is not None and pair.n >= LEAST_FOR_A_VERDICT]
    corrected = iter(holm(able))
    for pair in family:
        if pair.test is None or pair.n < LEAST_FOR_A_VERDICT:
            yield pair
            continue
        p = next(corrected)
        verdict = "no difference seen"
        if p < SIGNIFICANCE:
            verdict = "better" if beats(study.spec, pair.test.mean, 0.0) else "worse"
        power = _power(pair.test, SIGNIFICANCE / len(able), study.spec.notable)
        yield pair._replace(p_holm=p, family=len(able), verdict=verdict, power=power)


def _power(test: MeanTest, level: float, notable: float | None) -> Power:
    """The power at Holm's strictest step, 5 % over the family: it holds whatever the other comparisons give."""
    if test.deviation == 0:
        return Power(0.0, level, None, ())
    detectable = test.deviation * detectable_effect(test.n, level)
    wanted = {*round_numbers_below(detectable), *(() if notable is None else (notable,))}
    needed = tuple(
        (difference, max(LEAST_FOR_A_VERDICT, pairs_needed(difference / test.deviation, level)))
        for difference in sorted(wanted, reverse=True)
    )
    return Power(test.deviation, level, detectable, needed)


def round_numbers_below(limit: float, count: int = 3) -> list[float]:
    """The largest numbers of 1, 2 and 5 times a power of ten that are not above a positive limit."""
    exponent = math.floor(math.log10(limit))
    steps = [float(f"{digit}e{power}") for power in (exponent, exponent - 1, exponent - 2) for digit in (5, 2, 1)]
    return [step for step in steps if step <= limit][:count]
