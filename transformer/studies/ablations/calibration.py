"""How often a study's design gives a verdict: simulated studies, with and without a difference, judged as the real one.

Every simulated study has the arms, seeds, tasks, tuned values and thresholds of the real one, and goes through the
functions that give its verdicts. In a study without differences all arms draw from the same runs. A study with one
shifts the reported values of one arm.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np

from transformer.config import MatchesPattern, NonNegativeInt, PositiveFloat, PositiveInt, Range, UserError, hash_config
from transformer.json_reading import read_dataclass
from transformer.runs.run_directory import write_json
from transformer.studies.ablations.ablation import Ablation, Direction
from transformer.studies.ablations.arm_comparisons import MIN_SEEDS_FOR_VERDICT, Comparison, compare_arms
from transformer.studies.ablations.hyperparameter_selection import (
    DIVERGED,
    DONE,
    StudyResults,
    has_completed_or_diverged,
    has_learned,
    select_hyperparameters,
)
from transformer.studies.ablations.registration import registered_study
from transformer.studies.ablations.run_result import RunResult
from transformer.studies.ablations.statistics import (
    Interval,
    clip_to_metric_range,
    estimate_discrete_step,
    wilson_interval,
)

FILE = "calibration.json"
NUM_STUDIES = 2_000
SEED_CORRELATION = 0.5  # of the runs of two arms with the same seed, where noise is normal
METRIC_CORRELATION = 0.96  # of both metrics of a run, where noise is normal
_NOT_OF_THE_DESIGN = ("question", "base", "rule")

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
class Calibration:
    """The contents of calibration.json.

    Attributes:
        design: The hash of the arms, seeds, tasks, tuned values, metrics and thresholds.
        num_runs: The number of runs that noise is drawn from; 0 for normal noise.
        false_positives: The studies without differences in which an arm got the verdict better or worse over all tasks.
        false_positives_on_tasks: Those in which an arm got it on a single task; None for one task.
        deviation: The standard deviation of the paired differences between two arms, in units of the reported metric
            or, of normal noise, of a run's standard deviation.
        effect: The true difference of the other studies, in `deviation`; None if none was named.
        power: The studies with that difference in which the arm that has it got the verdict better; None without one.
    """

    design: Annotated[str, MatchesPattern("[0-9a-f]{64}", "64 hexadecimal digits")]
    num_runs: NonNegativeInt
    false_positives: Rate
    false_positives_on_tasks: Rate | None
    deviation: Annotated[float, Range(0.0, 1e300)]
    effect: PositiveFloat | None = None
    power: Rate | None = None


class Pool(NamedTuple):
    """Vectors to draw from with replacement, each with normal noise added (the smoothed bootstrap, Efron 1979).

    Attributes:
        vectors_RxD: The vectors.
        kernel_DxD: A matrix whose product with its transpose is the covariance of the noise.
    """

    vectors_RxD: np.ndarray
    kernel_DxD: np.ndarray

    def draw(self, random: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw some vectors.

        Returns:
            The rows that were drawn, and the vectors with noise.
        """
        rows_N = random.integers(len(self.vectors_RxD), size=count)
        noise_NxD = random.normal(size=(count, len(self.kernel_DxD))) @ self.kernel_DxD.T
        return rows_N, self.vectors_RxD[rows_N] + noise_NxD


class Setting(NamedTuple):
    """The runs that all arms of a simulated study draw from, on one task with one combination of tuned values.

    Attributes:
        mean_2: The means of the selection and the reported metric.
        distances: The distances of runs that learned from these means, without what all runs with their seed share.
        unlearned_Ux2: The metrics of the runs that were stuck; NaN for those that diverged.
        num_learned: The number of runs that learned.
    """

    mean_2: np.ndarray
    distances: Pool
    unlearned_Ux2: np.ndarray
    num_learned: int


class NoiseModel(NamedTuple):
    """The noise of a study.

    Attributes:
        settings: The runs by task and combination of tuned values, in the order of the ablation.
        seeds: What all runs with one seed share: both metrics of every task.
        grids: Of both metrics of every task the step, 0 if it is continuous, and one value.
        limits_2x2: The least and the greatest value of both metrics.
        num_runs: The number of runs that noise is drawn from; 0 for normal noise.
    """

    settings: Sequence[Sequence[Setting]]
    seeds: Pool
    grids_Tx2x2: np.ndarray
    limits_2x2: np.ndarray
    num_runs: int


def calibrate(
    spec: Ablation,
    base: Mapping[str, Any],
    cells: Sequence[RunResult] = (),
    effect: float | None = None,
    num_studies: int | None = None,
) -> Calibration:
    """Measure how often a design gives a verdict where no arm differs, and where one does.

    Args:
        spec: The ablation.
        base: The base config.
        cells: The results of its runs. Noise is drawn from them if they show the noise of every task, else it is
            normal.
        effect: The difference of the studies that measure power, in standard deviations of the paired differences;
            None for `smallest_effect_of_interest`, if noise is drawn from runs and it is set, else for no power.
        num_studies: The number of studies without a difference, and of those with one; by default `NUM_STUDIES`.

    Returns:
        The calibration; the same for the same arguments.

    Raises:
        UserError: If the design has too few seeds for a verdict.
    """
    check_seeds(spec)
    num_studies = num_studies or NUM_STUDIES
    design, model = hash_design(spec, base), noise_from_runs(select_hyperparameters(spec, cells))
    if model is None:
        # The threshold has the metric's units, which normal noise has not.
        spec, model = dataclasses.replace(spec, learned_threshold=None), normal_noise(spec)
    random = np.random.default_rng(int(design[:16], 16))
    false, on_tasks, variances = 0, 0, []
    for _ in range(num_studies):
        pairs = simulate(spec, model, random)
        false += _claims_any(pair for pair in pairs if pair.task_name is None)
        on_tasks += _claims_any(pair for pair in pairs if pair.task_name is not None)
        variances += [
            pair.test.standard_deviation**2
            for pair in pairs
            if pair.task_name is None and pair.test is not None and not pair.diverged_seeds
        ]
    deviation = math.sqrt(math.fsum(variances) / len(variances)) if variances else 0.0
    if effect is None and model.num_runs and spec.smallest_effect_of_interest is not None and deviation:
        effect = spec.smallest_effect_of_interest / deviation
    calibration = Calibration(
        design=design,
        num_runs=model.num_runs,
        false_positives=_rate(false, num_studies),
        false_positives_on_tasks=_rate(on_tasks, num_studies) if len(spec.tasks) > 1 else None,
        deviation=deviation,
    )
    if effect is None:
        return calibration
    seen = 0
    for _ in range(num_studies):
        arm, *_ = simulate(spec, model, random, effect * deviation)
        seen += arm.verdict == "better"
    return dataclasses.replace(calibration, effect=effect, power=_rate(seen, num_studies))


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


def hash_design(spec: Ablation, base: Mapping[str, Any]) -> str:
    """Return the hash of what a calibration depends on."""
    study = registered_study(spec, base)
    return hash_config({name: value for name, value in study.items() if name not in _NOT_OF_THE_DESIGN})


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
    """Say what a calibration found, one sentence each: false positives, then power."""
    false, on_tasks = calibration.false_positives, calibration.false_positives_on_tasks
    noise = (
        f"noise drawn from {calibration.num_runs} of its runs"
        if calibration.num_runs
        else f"normal noise, correlated by {SEED_CORRELATION:g} between arms with the same seed"
    )
    single = f", and {_describe_rate(on_tasks)} claimed one on a single task" if on_tasks else ""
    sentences = [
        f"In {false.num_studies:,} simulated studies without differences, {_describe_rate(false)} claimed one{single} "
        f"({noise})."
    ]
    power, effect = calibration.power, calibration.effect
    if power is not None and effect is not None:
        unit = f" ({effect * calibration.deviation:.3g} in {spec.reported_metric})" if calibration.num_runs else ""
        sentences.append(
            f"In {power.num_studies:,} in which one arm is better by {effect:.3g} standard deviations of the paired "
            f"differences{unit}, {_describe_rate(power)} saw it."
        )
    return sentences


# --- The noise


def normal_noise(spec: Ablation) -> NoiseModel:
    """Return normal noise of deviation 1, in which tuned values make no difference.

    The runs of two arms with the same seed are correlated by `SEED_CORRELATION`, and both metrics of a run by
    `METRIC_CORRELATION`.
    """
    covariance_2x2 = np.array([[1.0, METRIC_CORRELATION], [METRIC_CORRELATION, 1.0]])
    shared_2x2, own_2x2 = (
        np.linalg.cholesky(share * covariance_2x2) for share in (SEED_CORRELATION, 1 - SEED_CORRELATION)
    )
    setting = Setting(np.zeros(2), Pool(np.zeros((1, 2)), own_2x2), np.zeros((0, 2)), 1)
    tasks = len(spec.tasks)
    return NoiseModel(
        [[setting] * len(list(spec.combinations()))] * tasks,
        Pool(np.zeros((1, 2 * tasks)), np.kron(np.eye(tasks), shared_2x2)),
        np.zeros((tasks, 2, 2)),
        np.array([[-math.inf, math.inf]] * 2),
        0,
    )


def noise_from_runs(study: StudyResults) -> NoiseModel | None:
    """Estimate the noise of a study from its runs.

    On each task, the metrics of a run that learned are the mean of its arm and combination, what all runs with its seed
    share, and a rest. Arms and seeds take degrees of freedom from the rests, which are larger by that. Every arm draws
    from the rests of all arms with the same combination. A run that diverged or was stuck is drawn as such.

    Args:
        study: The results of the study.

    Returns:
        The noise; None if the runs do not show it: a task has a combination without any run, or fewer than two arms or
        combinations with two runs that learned.
    """
    spec = study.spec
    tasks = [_task_noise(study, task) for task in spec.tasks]
    known = [each for each in tasks if each is not None]
    if len(known) < len(tasks):
        return None
    shared = [shared_by_seed for _, shared_by_seed, _ in known]
    seeds = [seed for seed in spec.seeds if all(seed in of_task for of_task in shared)]
    if not seeds:
        return None
    ended = [cell for arm in spec.arms for cell in study.runs_of_arm(arm) if has_completed_or_diverged(cell)]
    metrics_Rx2 = np.array([_metrics(cell) for cell in ended if has_learned(cell)])
    limits = [
        clip_to_metric_range(metric, Interval(-math.inf, math.inf), metrics_Rx2[:, column].tolist())
        for column, metric in enumerate((spec.selection_metric, spec.reported_metric))
    ]
    seeds_SxD = np.array([np.concatenate([of_task[seed] for of_task in shared]) for seed in seeds])
    return NoiseModel(
        [settings for settings, _, _ in known],
        Pool(seeds_SxD, np.zeros((seeds_SxD.shape[1],) * 2)),
        np.array([grids_2x2 for _, _, grids_2x2 in known]),
        np.array(limits),
        len(ended),
    )


def _task_noise(study: StudyResults, task: str) -> tuple[list[Setting], dict[int, np.ndarray], np.ndarray] | None:
    """Return the settings of a task, what runs with a seed share, and the grids of both metrics."""
    spec = study.spec
    learned: list[list[dict[int, np.ndarray]]] = []  # by combination and arm: the metrics by seed
    unlearned: list[list[np.ndarray]] = []
    for hyperparameters in spec.combinations():
        arms = [study.runs_with(arm, task, hyperparameters) for arm in spec.arms]
        learned.append([{cell.seed: _metrics(cell) for cell in cells if has_learned(cell)} for cells in arms])
        ended = [cell for cells in arms for cell in cells if has_completed_or_diverged(cell)]
        unlearned.append([_metrics(cell) for cell in ended if not has_learned(cell)])
    if not all(any(of_arms) or failed for of_arms, failed in zip(learned, unlearned, strict=True)):
        return None
    usable = [runs for of_arms in learned for runs in of_arms if len(runs) > 1]
    distances = [{seed: value_2 - _mean(runs) for seed, value_2 in runs.items()} for runs in usable]
    count, seeds = sum(map(len, usable)), {seed for runs in usable for seed in runs}
    freedom = count - len(usable) - (len(seeds) - 1)
    if freedom < 1:
        return None
    shared = {seed: np.mean([each[seed] for each in distances if seed in each], axis=0) for seed in seeds}
    wider = math.sqrt(count / freedom)
    settings, every = [], []
    for of_arms, failed in zip(learned, unlearned, strict=True):
        rests = [
            wider * (value_2 - _mean(runs) - shared[seed])
            for runs in of_arms
            if len(runs) > 1
            for seed, value_2 in runs.items()
        ]
        every += rests
        means = [_mean(runs) for runs in of_arms if runs]
        unlearned_Ux2 = np.array(failed).reshape(-1, 2)
        settings.append(
            Setting(np.mean(means, axis=0), _smoothed(rests), unlearned_Ux2, sum(map(len, of_arms)))
            if means
            else Setting(np.zeros(2), _smoothed([]), unlearned_Ux2, 0)
        )
    # A combination with single runs only has the noise of the others.
    settings = [
        each._replace(distances=_smoothed(every)) if each.num_learned and not len(each.distances.vectors_RxD) else each
        for each in settings
    ]
    values_Rx2 = np.array([value_2 for of_arms in learned for runs in of_arms for value_2 in runs.values()])
    steps = [estimate_discrete_step(values_Rx2[:, column].tolist()) for column in range(2)]
    return settings, shared, np.stack([steps, values_Rx2[0]], axis=1)


def _metrics(cell: RunResult) -> np.ndarray:
    """Return the selection and the reported metric; of a run without the first it is the second, if it diverged NaN."""
    if cell.state == DIVERGED or cell.reported_value is None:
        return np.full(2, np.nan)
    chosen_by = cell.reported_value if cell.selection_value is None else cell.selection_value
    return np.array([chosen_by, cell.reported_value])


def _mean(runs: Mapping[int, np.ndarray]) -> np.ndarray:
    return np.mean(list(runs.values()), axis=0)


def _smoothed(vectors: Sequence[np.ndarray]) -> Pool:
    """Return a pool whose noise has the bandwidth of Scott (1992), and which has the covariance of its vectors."""
    if not len(vectors):
        return Pool(np.zeros((0, 2)), np.zeros((2, 2)))
    vectors_Rx2 = np.array(vectors)
    width = len(vectors) ** (-1 / 6)
    covariance_2x2 = vectors_Rx2.T @ vectors_Rx2 / len(vectors)
    values_2, axes_2x2 = np.linalg.eigh(covariance_2x2)  # of a singular one too
    root_2x2 = axes_2x2 * np.sqrt(np.maximum(values_2, 0))
    shrunk = math.sqrt(1 + width**2)
    return Pool(vectors_Rx2 / shrunk, width * root_2x2 / shrunk)


# --- A simulated study


def simulate(
    spec: Ablation, model: NoiseModel, random: np.random.Generator, difference: float = 0.0
) -> list[Comparison]:
    """Simulate a study and judge it.

    Args:
        spec: The ablation.
        model: Its noise.
        random: The source of randomness.
        difference: By how much the first arm besides the reference is better than the others, in the reported metric.

    Returns:
        The comparisons, as `compare_arms` returns them: that of this arm first.
    """
    better = next(arm for arm in spec.arms if arm != spec.reference)
    gain = -difference if spec.direction is Direction.MINIMIZE else difference
    _, shared_SxD = model.seeds.draw(random, len(spec.seeds))
    cells = []
    for number, (task, settings) in enumerate(zip(spec.tasks, model.settings, strict=True)):
        shared_Sx2 = shared_SxD[:, 2 * number : 2 * number + 2]
        for hyperparameters, setting in zip(spec.combinations(), settings, strict=True):
            values_AxSx2 = _draw(setting, random, shared_Sx2, len(spec.arms))
            for arm, of_arm_Sx2 in zip(spec.arms, values_AxSx2, strict=True):
                gain_2 = np.array([0.0, gain if arm == better else 0.0])
                measured_Sx2 = _measured(of_arm_Sx2 + gain_2, model.grids_Tx2x2[number], model.limits_2x2)
                for seed, (chosen_by, reported) in zip(spec.seeds, measured_Sx2.tolist(), strict=True):
                    state = DIVERGED if math.isnan(reported) else DONE
                    cells.append(
                        RunResult(arm, task, seed, hyperparameters, state, chosen_by, reported, {}, None, {}, 1, "", "")
                    )
    return compare_arms(select_hyperparameters(spec, cells))


def _draw(setting: Setting, random: np.random.Generator, shared_Sx2: np.ndarray, arms: int) -> np.ndarray:
    """Draw the metrics of runs by arm and seed; NaN of those that diverge."""
    shape, unlearned = (arms, len(shared_Sx2)), len(setting.unlearned_Ux2)
    rows_AxS = random.integers(setting.num_learned + unlearned, size=shape)
    if setting.num_learned:
        _, distances_Nx2 = setting.distances.draw(random, rows_AxS.size)
        learned_AxSx2 = setting.mean_2 + shared_Sx2 + distances_Nx2.reshape(*shape, 2)
    else:
        learned_AxSx2 = np.zeros((*shape, 2))
    if not unlearned:
        return learned_AxSx2
    others_AxSx2 = setting.unlearned_Ux2[np.maximum(rows_AxS - setting.num_learned, 0)]
    return np.where((rows_AxS < setting.num_learned)[..., None], learned_AxSx2, others_AxSx2)


def _measured(values_Sx2: np.ndarray, grids_2x2: np.ndarray, limits_2x2: np.ndarray) -> np.ndarray:
    """Round the values of discrete metrics to those that they can have."""
    steps_2, origins_2 = grids_2x2.T
    discrete_2 = steps_2 > 0
    safe_2 = np.where(discrete_2, steps_2, 1.0)
    rounded_Sx2 = origins_2 + np.round((values_Sx2 - origins_2) / safe_2) * safe_2
    return np.where(discrete_2, np.clip(rounded_Sx2, *limits_2x2.T), values_Sx2)


def _claims_any(pairs: Iterable[Comparison]) -> bool:
    return any(pair.verdict in ("better", "worse") for pair in pairs)


def _rate(count: int, of: int) -> Rate:
    low, high = wilson_interval(count, of)
    return Rate(count, of, count / of, low, high)


def _describe_rate(rate: Rate) -> str:
    """Describe a rate: "97 (4.9%, 95% interval 4.0 to 5.9%)"."""
    return f"{rate.count:,} ({100 * rate.rate:.1f}%, 95% interval {100 * rate.low:.1f} to {100 * rate.high:.1f}%)"
