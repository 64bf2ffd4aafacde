"""How often ablations get a verdict where arms are equal, and where one is worse: simulated studies in many settings.

    python -m tests.studies.null_studies
    python -m tests.studies.null_studies unequal     # the arms whose noise is unequal alone

`tests/records/verdicts.md` has its tables and how long it took, `docs/guides/verdicts.md` the highest rates, and
`test_simulation.py` runs a tenth.
"""

import itertools
import sys
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from transformer.studies.ablations.ablation import Ablation
from transformer.studies.ablations.arm_comparisons import Comparison, compare_arms, second_opinion
from transformer.studies.ablations.run_result import RunResult
from transformer.studies.ablations.sentences import noise_caveats
from transformer.studies.ablations.study_results import StudyResults, arrange_results

SEEDS, ARMS = (3, 5, 8), (2, 3, 4, 5, 6)
EFFECT = 2.0  # of the studies that measure power, in standard deviations of the paired differences
NUM_POWER_STUDIES = 500
METRICS = {
    "a loss with normal noise": "loss",
    "a loss, and a validation loss with noise of its own": "independent",
    "an accuracy near 1, of 1,000 examples": "saturated",
    "an accuracy of 0.8, of 200 examples": "accuracy",
    "two runs of five are stuck": "stuck",
    "a run of five diverges": "diverged 0.2",
    "two runs of five diverge": "diverged 0.4",
    "one arm diverges where it is worst, a run of five": "lost 0.2",
    "one arm diverges where it is worst, two runs of five": "lost 0.4",
    "a run of 30 fails": "failed",
    "skewed noise": "skewed",
    "skewed noise, in one arm with four times the spread": "unstable",
    "one arm in which a run of ten is bad": "bad",
}
UNEQUAL = ("skewed noise, in one arm with four times the spread", "one arm in which a run of ten is bad")
"""What the t test does not hold its level in: equal means of noise that is neither normal nor equal."""
_RATE = "optimizer.learning_rate"
_PENALTIES = (1.0, 0.0, 1.0)  # of each learning rate, in standard deviations of the noise
_STUCK = 100.0
_SPREAD = 4.0  # of the unstable arm's noise
_BAD_RUN = 20.0  # by how much a bad run is worse, in standard deviations of the noise


class Setting(NamedTuple):
    """The studies of one cell of the table.

    Attributes:
        metric: A key of `METRICS`.
        tuned: Whether each arm tries three learning rates.
        seeds: The number of seeds.
        arms: The number of arms.
    """

    metric: str
    tuned: bool
    seeds: int
    arms: int


class Rate(NamedTuple):
    """How many of some studies gave a verdict, with Wilson's 95% interval."""

    count: int
    of: int
    low: float
    high: float


def settings() -> Iterator[Setting]:
    """Return every setting of the table."""
    for metric, tuned, seeds, arms in itertools.product(METRICS, (False, True), SEEDS, ARMS):
        yield Setting(metric, tuned, seeds, arms)


def num_studies(setting: Setting) -> int:
    """Return the number of studies of a setting: more where the rate is about 5%, to tell chance from fault."""
    kind = METRICS[setting.metric].partition(" ")[0]
    if kind in ("loss", "independent") and not setting.tuned:
        return 20_000 if setting.arms == 2 else 5_000
    if kind in ("skewed", "unstable", "bad"):
        return 2_000
    return 5_000 if kind == "accuracy" or setting.seeds == max(SEEDS) else 2_000


def measure(setting: Setting, studies: int) -> Rate:
    """Return the rate of false verdicts of a setting."""
    random = np.random.default_rng([list(settings()).index(setting), 2026])
    return _rate(sum(_is_false(setting, compare_arms(_study(setting, random))) for _ in range(studies)), studies)


def measure_with_second_opinion(setting: Setting, studies: int) -> tuple[Rate, Rate]:
    """Return the rate of false verdicts, and that of those against which the second opinion has nothing to say."""
    random = np.random.default_rng([list(settings()).index(setting), 2026])
    false, unopposed = 0, 0
    for _ in range(studies):
        study = _study(setting, random)
        pairs = [pair for pair in compare_arms(study) if pair.verdict in ("better", "worse")]
        false += bool(pairs)
        unopposed += any(not noise_caveats(pair, second_opinion(study, pair)) for pair in pairs)
    return _rate(false, studies), _rate(unopposed, studies)


def has_power(setting: Setting) -> bool:
    """Return whether one arm can be worse by `EFFECT`: not where it differs already."""
    return not METRICS[setting.metric].startswith("lost") and setting.metric not in UNEQUAL


def measure_power(setting: Setting, studies: int) -> Rate:
    """Return how often the arm that is worse by `EFFECT` is called worse."""
    random = np.random.default_rng([list(settings()).index(setting), 2027])
    seen = sum(compare_arms(_study(setting, random, EFFECT))[0].verdict == "worse" for _ in range(studies))
    return _rate(seen, studies)


def _rate(count: int, studies: int) -> Rate:
    interval = stats.binomtest(count, studies).proportion_ci(0.95, method="wilson")
    return Rate(count, studies, float(interval.low), float(interval.high))


def _is_false(setting: Setting, pairs: Sequence[Comparison]) -> bool:
    """Return whether any verdict is false: any at all, but that an arm is worse which loses its own worst runs."""
    allowed = {"no difference seen", "not judged"}
    lost = METRICS[setting.metric].startswith("lost")
    return any(
        pair.verdict not in allowed | ({"worse"} if lost and pair.arm_name == "arm1" else set()) for pair in pairs
    )


def _study(setting: Setting, random: np.random.Generator, effect: float = 0.0) -> StudyResults:
    """Simulate a study whose second arm is worse by `effect` standard deviations of the paired differences.

    Seeds move all of their runs, and learning rates those of all arms alike.
    """
    kind, _, share = METRICS[setting.metric].partition(" ")
    penalties = np.array(_PENALTIES if setting.tuned else (0.0,))
    shape = (setting.arms, len(penalties), setting.seeds)
    noise, worse = random.normal(size=shape), np.zeros((setting.arms, 1, 1))
    worse[1] = effect * np.sqrt(2)
    moved = noise + 5 * random.normal(size=setting.seeds) + penalties[:, None] + worse
    reported, selection = moved, moved + 0.3 * random.normal(size=shape)
    states = np.full(shape, "done", dtype=object)
    if kind in ("saturated", "accuracy"):
        examples, error = {"saturated": (1000, 0.001), "accuracy": (200, 0.2)}[kind]
        deviation = np.sqrt(error * (1 - error) / examples)
        errors = np.broadcast_to(error * (1 + 0.5 * penalties[:, None]) + worse * deviation, shape)
        reported, selection = (random.binomial(examples, errors) / examples for _ in range(2))
    elif kind == "independent":
        selection = moved - noise + random.normal(size=shape)
    elif kind in ("skewed", "unstable", "bad"):
        own = random.exponential(size=shape) - 1 if kind != "bad" else noise.copy()
        if kind == "unstable":
            own[1] *= _SPREAD
        elif kind == "bad":
            own[1] += _BAD_RUN * ((random.random(shape[1:]) < 0.1) - 0.1)
        reported, selection = moved - noise + own, selection - noise + own
    elif kind == "stuck":
        stuck = 2 * _STUCK * (random.random(shape) < 0.4)
        reported, selection = reported + stuck, selection + stuck
    elif kind == "diverged":
        states[random.random(shape) < float(share)] = "diverged"
    elif kind == "lost":
        states[1][noise[1] > stats.norm.ppf(1 - float(share))] = "diverged"
    elif kind == "failed":
        states[random.random(shape) < 1 / 30] = "failed"
    return _results(setting, reported, selection, states)


def _results(setting: Setting, reported: np.ndarray, selection: np.ndarray, states: np.ndarray) -> StudyResults:
    rates = tuple(range(reported.shape[1]))
    names = [f"arm{number}" for number in range(setting.arms)]
    spec = Ablation(
        "Equal?",
        {name: {} for name in names},
        names[0],
        {_RATE: rates} if setting.tuned else {},
        seeds=tuple(range(setting.seeds)),
        learned_threshold=_STUCK,
    )
    runs = []
    for (arm, rate, seed), value in np.ndenumerate(reported):
        hyperparameters = {_RATE: rate} if setting.tuned else {}
        state, chosen_by = states[arm, rate, seed], float(selection[arm, rate, seed])
        known = None if state in ("diverged", "failed") else float(value)
        runs.append(RunResult(names[arm], "", seed, hyperparameters, state, chosen_by, known, {}, None, {}, 1, "", ""))
    return arrange_results(spec, runs)


def main() -> None:
    """Print a table of false verdicts and one of power: a row a metric and number of arms, a column a seed count."""
    began = time.monotonic()
    unequal = sys.argv[1:] == ["unequal"]
    false, power, unopposed = {}, {}, {}
    for setting in settings():
        if unequal and METRICS[setting.metric] not in ("skewed", "unstable", "bad"):
            continue
        if setting.metric in UNEQUAL:
            false[setting], unopposed[setting] = measure_with_second_opinion(setting, num_studies(setting))
        else:
            false[setting] = measure(setting, num_studies(setting))
        if has_power(setting):
            power[setting] = measure_power(setting, NUM_POWER_STUDIES)
        told = (
            *setting,
            *false[setting],
            *power.get(setting, ()),
            *unopposed.get(setting, ()),
            f"{time.monotonic() - began:.0f} s",
        )
        print(*told, sep="\t", file=sys.stderr, flush=True)
    for rates in (false, power, unopposed):
        print("| studies | arms | 3 seeds | 5 seeds | 8 seeds |\n| --- | --- | --- | --- | --- |")
        for metric, tuned, arms in itertools.product(METRICS, (False, True), ARMS):
            of_seeds = [rates.get(Setting(metric, tuned, seeds, arms)) for seeds in SEEDS]
            cells = " | ".join(f"{100 * rate.count / rate.of:.1f}%" for rate in of_seeds if rate)
            if cells:
                print(f"| {metric}{', tuned' if tuned else ''} | {arms} | {cells} |")
        print()
    equal = [rate for setting, rate in false.items() if setting.metric not in UNEQUAL]
    highest = max(equal, key=lambda rate: rate.high)
    of = f"{highest.count} in {highest.of:,}"
    print(f"Of arms with equal noise the highest upper end of an interval is {100 * highest.high:.1f}%, of {of}.")


if __name__ == "__main__":
    main()
