"""How often a study's design gives a verdict: simulated studies, with and without a difference, judged as the real one.

Every simulated study has the arms, seeds, tasks, tuned values and thresholds of the real one, and goes through the
functions that give its verdicts. In a study without differences the reported means of all arms are equal. A study with
one shifts the reported values of one arm. How often arms whose means are equal get a verdict depends on their noise, so
studies are simulated with several kinds.
"""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np

from transformer.config import (
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Range,
    Sha256,
    TupleLimits,
    UserError,
    hash_config,
)
from transformer.runs.run_directory import write_json
from transformer.storage.json_reading import read_dataclass
from transformer.studies.ablations.ablation import Ablation
from transformer.studies.ablations.arm_comparisons import MIN_SEEDS_FOR_VERDICT, Verdict
from transformer.studies.ablations.noise_models import NoiseModel, noise_from_runs, simulate, synthetic_noise
from transformer.studies.ablations.run_result import RunResult
from transformer.studies.ablations.statistics import wilson_interval
from transformer.studies.ablations.study_results import arrange_results
from transformer.studies.sweeps.trials import to_json_values

FILE = "calibration.json"
NUM_STUDIES = 2_000
_DESIGN = (
    "arms",
    "reference",
    "tuning_grid",
    "tasks",
    "selection_metric",
    "reported_metric",
    "learned_threshold",
    "smallest_effect_of_interest",
)

Probability = Annotated[float, Range(0.0, 1.0)]


@dataclasses.dataclass(frozen=True)
class Rate:
    """How many simulated studies gave a verdict.

    Attributes:
        count: Their number.
        num_studies: The number of studies.
        rate: The share.
        low: The lower end of Wilson's 95% interval of the share.
        high: The upper end.
    """

    count: NonNegativeInt
    num_studies: PositiveInt
    rate: Probability
    low: Probability
    high: Probability


@dataclasses.dataclass(frozen=True)
class Rates:
    """How often studies with one kind of noise give a verdict.

    Attributes:
        noise: The noise in words.
        false_positives: The studies without differences in which an arm got the verdict better or worse over all tasks.
        false_positives_on_tasks: Those in which an arm got it on a single task; None for one task.
        deviation: The standard deviation of the paired differences between two arms, in units of the reported metric
            or, of synthetic noise, of the difference of two arms with normal noise.
        power: The studies with a difference in which the arm that has it got the verdict better; None without one.
    """

    noise: str
    false_positives: Rate
    false_positives_on_tasks: Rate | None
    deviation: Annotated[float, Range(0.0, 1e300)]
    power: Rate | None = None


@dataclasses.dataclass(frozen=True)
class Calibration:
    """The contents of calibration.json.

    Attributes:
        design: The hash of the arms, seeds, tasks, tuned values, metrics and thresholds.
        num_runs: The number of runs that the first noise is drawn from; 0 if it is synthetic.
        rates: The rates by noise: first that of the runs or, without, normal noise with one clearly best tuned value.
        effect: The true difference of the studies that measure power, in `deviation` of the first noise; None if none
            was named.
    """

    design: Sha256
    num_runs: NonNegativeInt
    rates: Annotated[tuple[Rates, ...], TupleLimits(min_length=1)]
    effect: PositiveFloat | None = None


def calibrate(
    spec: Ablation,
    cells: Sequence[RunResult] = (),
    effect: float | None = None,
    num_studies: int | None = None,
) -> Calibration:
    """Measure how often a design gives a verdict where the means of all arms are equal, and where one is better.

    Args:
        spec: The ablation.
        cells: The results of its runs. The first noise is drawn from them if they show the noise of every task.
        effect: The difference of the studies that measure power, in standard deviations of the paired differences;
            None for `smallest_effect_of_interest`, if noise is drawn from runs and it is set, else for no power.
        num_studies: The number of studies without a difference with each noise, and of those with one; by default
            `NUM_STUDIES`.

    Returns:
        The calibration; the same for the same arguments.

    Raises:
        UserError: If the design has too few seeds for a verdict.
    """
    check_seeds(spec)
    num_studies = num_studies or NUM_STUDIES
    design, model_from_runs = hash_design(spec), noise_from_runs(arrange_results(spec, cells))
    models = [*([model_from_runs] if model_from_runs else ()), *synthetic_noise(spec)]
    rates = []
    for number, model in enumerate(models):
        random = np.random.default_rng([int(design[:16], 16), number])
        rates.append(_false_positives(spec, model, random, num_studies))
        if number:
            continue
        deviation = rates[0].deviation
        if effect is None and model_from_runs and spec.smallest_effect_of_interest is not None and deviation:
            effect = spec.smallest_effect_of_interest / deviation
        if effect is not None:
            detections = sum(
                simulate(spec, model, random, effect * deviation)[0].verdict is Verdict.BETTER
                for _ in range(num_studies)
            )
            rates[0] = dataclasses.replace(rates[0], power=_make_rate(detections, num_studies))
    return Calibration(design, models[0].num_runs, tuple(rates), effect)


def _false_positives(spec: Ablation, model: NoiseModel, random: np.random.Generator, num_studies: int) -> Rates:
    """Count the studies without a difference that claim one."""
    overall, on_tasks, variances = 0, 0, []
    for _ in range(num_studies):
        pairs = simulate(spec, model, random)
        overall += any(pair.verdict.is_difference for pair in pairs if pair.task_name is None)
        on_tasks += any(pair.verdict.is_difference for pair in pairs if pair.task_name is not None)
        variances += [
            pair.test.standard_deviation**2
            for pair in pairs
            if pair.task_name is None and pair.test is not None and not pair.diverged_seeds
        ]
    return Rates(
        model.words,
        _make_rate(overall, num_studies),
        _make_rate(on_tasks, num_studies) if len(spec.tasks) > 1 else None,
        math.sqrt(math.fsum(variances) / len(variances)) if variances else 0.0,
    )


def check_seeds(spec: Ablation) -> None:
    """Check that a study has enough seeds for a verdict.

    Raises:
        UserError: If it has not.
    """
    if len(spec.seeds) < MIN_SEEDS_FOR_VERDICT:
        raise UserError(
            f"--calibrate: a study with fewer than {MIN_SEEDS_FOR_VERDICT} seeds gives no verdict, and this has "
            f"{len(spec.seeds)}: give it more, as --seeds=1,2,3,4,5"
        )


def hash_design(spec: Ablation) -> str:
    """Return the hash of what a calibration depends on."""
    design = {name: getattr(spec, name) for name in _DESIGN}
    return hash_config(to_json_values({**design, "seeds": sorted(spec.seeds), "direction": spec.direction.value}))


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Write the calibration into the directory of a study."""
    write_json(path / FILE, dataclasses.asdict(calibration))


def read_calibration(path: Path) -> Calibration | None:
    """Read the calibration in the directory of a study; None if there is none.

    Raises:
        UserError: If the file is not valid.
    """
    file = path / FILE
    return read_dataclass(Calibration, file) if file.is_file() else None


def describe_calibration(spec: Ablation, calibration: Calibration) -> list[str]:
    """Say what a calibration found, one sentence each: false positives, power, false positives with other noise."""
    first, *other_rates = calibration.rates
    false, on_tasks = first.false_positives, first.false_positives_on_tasks
    single = f", and {_describe_rate(on_tasks)} claimed one on a single task" if on_tasks else ""
    sentences = [
        f"In {false.num_studies:,} simulated studies without differences, {_describe_rate(false)} claimed one{single} "
        f"({first.noise})."
    ]
    power, effect = first.power, calibration.effect
    if power is not None and effect is not None:
        unit = f" ({effect * first.deviation:.3g} in {spec.reported_metric})" if calibration.num_runs else ""
        sentences.append(
            f"In {power.num_studies:,} in which one arm is better by {effect:.3g} standard deviations of the paired "
            f"differences{unit}, {_describe_rate(power)} saw it."
        )
    if other_rates:
        shares = "; ".join(f"{rate.noise}: {_describe_shares(rate)}" for rate in other_rates)
        sentences.append(f"In {false.num_studies:,} studies each of equal means with other noise, claims of {shares}.")
    return sentences


def _describe_shares(rates: Rates) -> str:
    """Describe rates in short: "0.5% (95% interval 0.3 to 1.0%)", with that on single tasks if there are several."""
    on_tasks = rates.false_positives_on_tasks
    single = f", {_describe_share(on_tasks)} on a single task" if on_tasks else ""
    return f"{_describe_share(rates.false_positives)}{single}"


def _make_rate(count: int, of: int) -> Rate:
    low, high = wilson_interval(count, of)
    return Rate(count, of, count / of, low, high)


def _describe_rate(rate: Rate) -> str:
    """Describe a rate: "97 (4.9%, 95% interval 4.0 to 5.9%)"."""
    return f"{rate.count:,} ({_describe_percentage(rate)})"


def _describe_share(rate: Rate) -> str:
    """Describe a rate without its count: "4.9% (95% interval 4.0 to 5.9%)"."""
    share, interval = _describe_percentage(rate).split(", ")
    return f"{share} ({interval})"


def _describe_percentage(rate: Rate) -> str:
    return f"{100 * rate.rate:.1f}%, 95% interval {100 * rate.low:.1f} to {100 * rate.high:.1f}%"
