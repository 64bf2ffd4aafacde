"""The noise of a study, drawn from its runs or synthetic, and simulated studies that have it.

A simulated study has the arms, seeds, tasks and tuned values of the real one, and goes through the functions that give
its verdicts.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from transformer.studies.ablations.ablation import Ablation
from transformer.studies.ablations.arm_comparisons import Comparison, compare_arms
from transformer.studies.ablations.statistics import Interval, clip_to_metric_range, estimate_discrete_step
from transformer.studies.ablations.study_results import DONE, StudyResults, judge_states

SEED_CORRELATION = 0.5  # of the runs of two arms with the same seed, where noise is synthetic
METRIC_CORRELATION = 0.96  # of both metrics of a run, where noise is synthetic
SPREAD = 4.0  # of an unstable arm, in standard deviations of the other arms' noise
BAD_RUN = 14.0  # by how much a bad run is worse than others, in standard deviations of the difference of two arms
_PENALTY = 10.0  # of all tuned values but the best, in the same unit
_STUCK, _THRESHOLD = 100.0, 50.0  # of a run that is stuck: its metrics, and beyond what it counts as such
_QUANTILES = 1_024


class Pool(NamedTuple):
    """Vectors to draw from with replacement, each with normal noise added (the smoothed bootstrap, Efron 1979).

    Attributes:
        vectors_RxD: The vectors.
        kernel_DxN: A matrix whose product with its transpose is the covariance of the noise.
    """

    vectors_RxD: np.ndarray
    kernel_DxN: np.ndarray

    def draw(self, random: np.random.Generator, count: int) -> np.ndarray:
        """Draw some vectors with noise."""
        vectors_KxD = self.vectors_RxD[random.integers(len(self.vectors_RxD), size=count)]
        return vectors_KxD + random.normal(size=(count, self.kernel_DxN.shape[1])) @ self.kernel_DxN.T


class Setting(NamedTuple):
    """The runs that an arm of a simulated study draws from, on one task with one combination of tuned values.

    Attributes:
        mean_2: The means of the selection and the reported metric of runs that learned.
        distances: The distances from these means, without what runs with one seed share.
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
        words: What it is.
        settings: The runs by task, combination of tuned values and arm, in the order of the ablation.
        seeds: What all runs with one seed share: both metrics of every task and combination, one after the other.
        grids: Of both metrics of every task the step, 0 if it is continuous, and one value.
        limits_2x2: The least and the greatest value of both metrics.
        learned_threshold: The value of the selection metric beyond which a run is stuck; None for none.
        num_runs: The number of runs that noise is drawn from; 0 if it is synthetic.
    """

    words: str
    settings: Sequence[Sequence[Sequence[Setting]]]
    seeds: Pool
    grids_Tx2x2: np.ndarray
    limits_2x2: np.ndarray
    learned_threshold: float | None
    num_runs: int = 0


def synthetic_noise(spec: Ablation) -> list[NoiseModel]:
    """Return kinds of noise of deviation 1 in which the means of all arms are equal.

    The runs of two arms with the same seed are correlated by `SEED_CORRELATION`, and both metrics of a run by
    `METRIC_CORRELATION`. Of several tuned values one is clearly the best, and so is selected by every arm, but in a
    kind in which all are equally good, and what differs is the luck of their runs.
    """
    bad = spec.direction.sign
    normal = Pool(np.zeros((1, 2)), _covariance_root(1 - SEED_CORRELATION))
    # The waiting time is skewed: most runs are a little better than the mean, and a few much worse.
    waiting_Q = -np.log1p(-(np.arange(_QUANTILES) + 0.5) / _QUANTILES)
    skewed_Q = bad * (waiting_Q - waiting_Q.mean()) / waiting_Q.std()
    own = 1 - SEED_CORRELATION
    skewed = Pool(
        np.sqrt(own * METRIC_CORRELATION) * np.stack([skewed_Q] * 2, axis=1),
        np.sqrt(own * (1 - METRIC_CORRELATION)) * np.eye(2),
    )
    unstable = Pool(SPREAD * skewed.vectors_RxD, SPREAD * skewed.kernel_DxN)
    one_in_ten_R = bad * BAD_RUN * (np.arange(10) == 0)
    with_bad_runs = normal._replace(vectors_RxD=np.stack([one_in_ten_R - one_in_ten_R.mean()] * 2, axis=1))
    tuned = len(list(spec.combinations())) > 1
    best = ", one clearly best tuned value" if tuned else ""
    stuck_Ux2 = np.full((2, 2), bad * _STUCK)
    return [
        _synthetic_model(
            spec, f"normal noise, correlated by {SEED_CORRELATION:g} between arms with the same seed{best}", normal
        ),
        *(
            [_synthetic_model(spec, "normal noise, all tuned values equally good", normal, penalty=0.0)]
            if tuned
            else ()
        ),
        _synthetic_model(spec, f"skewed noise, in one arm with {SPREAD:g} times the spread", skewed, unstable),
        _synthetic_model(spec, "one arm in which a run of ten is bad", normal, with_bad_runs),
        _synthetic_model(spec, "two runs of five stuck in every arm", normal, unlearned_Ux2=stuck_Ux2),
    ]


def _covariance_root(variance: float) -> np.ndarray:
    """Return a root of the covariance of both metrics, each with this variance."""
    return np.linalg.cholesky(variance * np.array([[1.0, METRIC_CORRELATION], [METRIC_CORRELATION, 1.0]]))


def _synthetic_model(
    spec: Ablation,
    words: str,
    noise: Pool,
    noise_of_one_arm: Pool | None = None,
    penalty: float = _PENALTY,
    unlearned_Ux2: np.ndarray | None = None,
) -> NoiseModel:
    """Return a model in which one arm, not the reference, may have noise of its own.

    Args:
        spec: The ablation.
        words: What the noise is.
        noise: The noise of all arms.
        noise_of_one_arm: That of the first arm besides the reference; None for that of the others.
        penalty: By how much all combinations of tuned values but the first are worse.
        unlearned_Ux2: The metrics of as many runs as are stuck of every five; None for none.
    """
    bad = spec.direction.sign
    first_arm = next(arm for arm in spec.arms if arm != spec.reference)
    distances = [noise_of_one_arm if noise_of_one_arm is not None and arm == first_arm else noise for arm in spec.arms]
    unlearned_Ux2 = np.zeros((0, 2)) if unlearned_Ux2 is None else unlearned_Ux2
    settings = [
        [
            Setting(np.full(2, bad * penalty * (number > 0)), arm_distances, unlearned_Ux2, 5 - len(unlearned_Ux2))
            for arm_distances in distances
        ]
        for number, _ in enumerate(spec.combinations())
    ]
    tasks = len(spec.tasks)
    shared = np.tile(_covariance_root(SEED_CORRELATION), (len(settings), 1))  # by all combinations alike
    return NoiseModel(
        words,
        [settings] * tasks,
        Pool(np.zeros((1, 2 * len(settings) * tasks)), np.kron(np.eye(tasks), shared)),
        np.zeros((tasks, 2, 2)),
        np.array([[-math.inf, math.inf]] * 2),
        # The study's own threshold has the metric's units, which this noise has not.
        bad * _THRESHOLD if len(unlearned_Ux2) and spec.learned_threshold is not None else None,
    )


def noise_from_runs(study: StudyResults) -> NoiseModel | None:
    """Estimate the noise of a study from its runs.

    On each task, the metrics of a run that learned are the mean of its arm and combination, what the runs of all arms
    with its seed and combination share, and a rest. An arm keeps its own means but for a shift, after which all arms
    are as good at their selected values as the best. It draws from its own rests of all combinations, in the size of
    those of the combination, so that an arm that is unstable or skewed stays so. It diverges and is stuck as often as
    its own runs, and at its selected values as often as those of all arms at theirs.

    Args:
        study: The results of the study.

    Returns:
        The noise; None if the runs do not show it: a task has a combination without any run, or fewer than two arms or
        combinations with two runs that learned.
    """
    spec = study.spec
    noises = [_task_noise(study, task) for task in study.task_numbers(None)]
    tasks = [task for task in noises if task is not None]
    if len(tasks) < len(noises):
        return None
    shared_SxD = np.concatenate([task.shared_SxCx2.reshape(len(spec.seeds), -1) for task in tasks], axis=1)
    shared_SxD = shared_SxD[~np.isnan(shared_SxD).any(axis=1)]
    if not len(shared_SxD):
        return None
    metrics_Rx2 = _run_metrics(study)[study.learned_AxTxCxS]
    limits = [
        clip_to_metric_range(metric, Interval(-math.inf, math.inf), metrics_Rx2[:, column].tolist())
        for column, metric in enumerate((spec.selection_metric, spec.reported_metric))
    ]
    num_runs = int(study.ended_AxTxCxS.sum())
    return NoiseModel(
        f"noise drawn from {num_runs} of its runs, each arm's from its own",
        [task.settings for task in tasks],
        Pool(shared_SxD, np.zeros((shared_SxD.shape[1], 0))),
        np.array([task.grids_2x2 for task in tasks]),
        np.array(limits),
        spec.learned_threshold,
        num_runs,
    )


class _TaskNoise(NamedTuple):
    """The noise of one task.

    Attributes:
        settings: The runs by combination of tuned values and arm.
        shared_SxCx2: What the runs with one seed share; NaN for a seed without it.
        grids_2x2: Of both metrics the step and one value.
    """

    settings: list[list[Setting]]
    shared_SxCx2: np.ndarray
    grids_2x2: np.ndarray


class _TaskRuns(NamedTuple):
    """The runs of a task.

    Attributes:
        metrics_CxAxSx2: The selection and the reported metric; NaN of a run that did not complete.
        learned_CxAxS: Whether the run learned.
        unlearned_CxAxS: Whether it diverged or is stuck.
        num_learned_CxA: The number of runs that learned.
        means_CxAx2: The means of their metrics; 0 without any.
    """

    metrics_CxAxSx2: np.ndarray
    learned_CxAxS: np.ndarray
    unlearned_CxAxS: np.ndarray
    num_learned_CxA: np.ndarray
    means_CxAx2: np.ndarray


def _task_noise(study: StudyResults, task: int) -> _TaskNoise | None:
    """Return the noise of a task; None if its runs do not show it."""
    runs = _task_runs(study, task)
    usable_CxA = runs.num_learned_CxA > 1
    has_noise_S = (runs.learned_CxAxS & usable_CxA[..., None]).any(axis=(0, 1))
    if (
        not (runs.learned_CxAxS | runs.unlearned_CxAxS).any(axis=(1, 2)).all()
        or not usable_CxA.any()
        or (runs.num_learned_CxA[usable_CxA] - 1).sum() < has_noise_S.sum()
    ):
        return None
    shared_SxCx2, rests_CxAxSx2 = _separate_residuals(runs, usable_CxA, has_noise_S)
    selected_A = study.selected_LxAxT[0, :, task]
    at_selected = selected_A, np.arange(len(selected_A))
    means_Nx2 = runs.means_CxAx2[at_selected][runs.num_learned_CxA[at_selected] > 0]
    best_2 = np.array([study.spec.direction.best(means_N) for means_N in means_Nx2.T.tolist()])
    settings = [
        [_make_setting(runs, rests_CxAxSx2, combination, arm, selected_A, best_2) for arm in range(len(selected_A))]
        for combination in range(len(usable_CxA))
    ]
    learned_Rx2 = runs.metrics_CxAxSx2[runs.learned_CxAxS]
    steps = [estimate_discrete_step(learned_R.tolist()) for learned_R in learned_Rx2.T]
    return _TaskNoise(settings, shared_SxCx2, np.stack([steps, learned_Rx2[0]], axis=1))


def _task_runs(study: StudyResults, task: int) -> _TaskRuns:
    metrics_CxAxSx2, learned_CxAxS, ended_CxAxS = (
        array_AxTxCxS[:, task].swapaxes(0, 1)
        for array_AxTxCxS in (_run_metrics(study), study.learned_AxTxCxS, study.ended_AxTxCxS)
    )
    num_learned_CxA = learned_CxAxS.sum(axis=2)
    sums_CxAx2 = np.where(learned_CxAxS[..., None], metrics_CxAxSx2, 0.0).sum(axis=2)
    means_CxAx2 = sums_CxAx2 / np.maximum(num_learned_CxA, 1)[..., None]
    return _TaskRuns(metrics_CxAxSx2, learned_CxAxS, ended_CxAxS & ~learned_CxAxS, num_learned_CxA, means_CxAx2)


def _make_setting(
    runs: _TaskRuns, rests_CxAxSx2: np.ndarray, combination: int, arm: int, selected_A: np.ndarray, best_2: np.ndarray
) -> Setting:
    """Return what an arm draws from with one combination, moved so that it is as good as the best at its selected one.

    Args:
        runs: The runs.
        rests_CxAxSx2: The rests of runs by combination, arm and seed.
        combination: The combination.
        arm: The arm.
        selected_A: The selected combination of each arm.
        best_2: The means of the best arm at its selected combination.
    """
    distances = _smoothed_pool(_arm_residuals(rests_CxAxSx2, combination, arm))
    own, at_selected, all_arms_A = (combination, arm), (selected_A[arm], arm), np.arange(len(selected_A))
    drawn_from, mean_2 = (np.array([combination]), np.array([arm])), np.zeros(2)
    if combination == selected_A[arm]:
        drawn_from, mean_2 = (selected_A, all_arms_A), best_2
    elif not (runs.learned_CxAxS | runs.unlearned_CxAxS)[own].any():
        # Without a run of its own it has those of all arms.
        drawn_from = np.full_like(selected_A, combination), all_arms_A
        learned_A = runs.num_learned_CxA[combination] > 0
        if learned_A.any():
            mean_2 = runs.means_CxAx2[combination, learned_A].mean(axis=0)
    elif runs.num_learned_CxA[own]:
        shift_2 = best_2 - runs.means_CxAx2[at_selected] if runs.num_learned_CxA[at_selected] else np.zeros(2)
        mean_2 = runs.means_CxAx2[own] + shift_2
    unlearned_Ux2 = runs.metrics_CxAxSx2[drawn_from][runs.unlearned_CxAxS[drawn_from]]
    return Setting(mean_2, distances, unlearned_Ux2, int(runs.num_learned_CxA[drawn_from].sum()))


def _separate_residuals(
    runs: _TaskRuns, usable_CxA: np.ndarray, has_noise_S: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Separate the distances of runs that learned from the means of their arm and combination.

    Args:
        runs: The runs.
        usable_CxA: Whether there are two runs or more that learned.
        has_noise_S: With which seeds such arms have a run that learned.

    Returns:
        What runs share by seed and combination, 0 where no arm is usable, and the rests by combination, arm and seed;
        NaN without.
    """
    distances_CxAxSx2 = runs.metrics_CxAxSx2 - runs.means_CxAx2[:, :, None]
    distances_CxAxSx2[~runs.learned_CxAxS] = np.nan
    shared_SxCx2 = np.where(has_noise_S[:, None, None], np.zeros((len(usable_CxA), 2)), np.nan)
    rests_CxAxSx2 = np.full_like(distances_CxAxSx2, np.nan)
    for combination, column in itertools.product(np.flatnonzero(usable_CxA.any(axis=1)), range(2)):
        usable_AxS = np.ix_(usable_CxA[combination], has_noise_S)
        # The sums of a matrix product are rounded by its layout: one layout, one result.
        distances_AxS = np.ascontiguousarray(distances_CxAxSx2[combination, ..., column][usable_AxS])
        shared_S, rests_AxS = _separate_seed_effects(distances_AxS)
        shared_SxCx2[has_noise_S, combination, column] = shared_S
        rests_CxAxSx2[combination, ..., column][usable_AxS] = rests_AxS
    return shared_SxCx2, rests_CxAxSx2


def _separate_seed_effects(distances_AxS: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Separate the distances of some arms' runs from their means into what seeds share and the arms' own noise.

    Runs of two arms with the same seed covary by what they share, so the variance of an arm's own noise is that of its
    distances less this covariance. What runs share is the mean of the arms, weighted by the inverse of these variances;
    the rests are widened to have them.

    Args:
        distances_AxS: The distances by arm and seed; NaN without.

    Returns:
        What is shared by seed, and the rests by arm and seed.
    """
    known_AxS = ~np.isnan(distances_AxS)
    values_AxS = np.where(known_AxS, distances_AxS, 0.0)
    covariance_AxA = values_AxS @ values_AxS.T / np.maximum(known_AxS.astype(float) @ known_AxS.T - 1, 1)
    variance_A, arms = covariance_AxA.diagonal(), len(covariance_AxA)
    covariance = (covariance_AxA.sum() - variance_A.sum()) / max(arms * (arms - 1), 1)
    own_A = np.maximum(variance_A - covariance, 0.0)
    if own_A.any():  # where an arm's was below 0, the sum of all is kept
        own_A *= max(variance_A.sum() - arms * covariance, 0.0) / own_A.sum()
    weights_AxS = known_AxS / np.maximum(own_A, max(1e-6 * own_A.max(), 1e-300))[:, None]
    shared_S = np.zeros(distances_AxS.shape[1])
    if arms > 1:
        shared_S = (weights_AxS * values_AxS).sum(axis=0) / np.maximum(weights_AxS.sum(axis=0), 1e-300)
    rests_AxS = np.where(known_AxS, values_AxS - shared_S, 0.0)
    mean_A = (rests_AxS**2).sum(axis=1) / known_AxS.sum(axis=1)
    factors_A = np.sqrt(own_A / np.where(mean_A > 0, mean_A, 1.0))
    return shared_S, np.where(known_AxS, factors_A[:, None] * rests_AxS, np.nan)


def _arm_residuals(rests_CxAxSx2: np.ndarray, combination: int, arm: int) -> np.ndarray:
    """Return the rests of an arm with all combinations, each in the size of those with one.

    An arm without rests has those of all arms. Without rests with the combination it has the size of the others' with
    it or, without any, with all.
    """
    is_known_CxAxS = ~np.isnan(rests_CxAxSx2[..., 0])
    has_rests_CxA = is_known_CxAxS.any(axis=2)
    sums_CxAx2 = np.where(is_known_CxAxS[..., None], rests_CxAxSx2**2, 0.0).sum(axis=2)
    sizes_CxAx2 = np.sqrt(sums_CxAx2 / np.maximum(is_known_CxAxS.sum(axis=2), 1)[..., None])
    with_combination_CxA = has_rests_CxA & (np.arange(len(has_rests_CxA)) == combination)[:, None]
    of_arm_CxA = has_rests_CxA & (np.arange(has_rests_CxA.shape[1]) == arm)
    own_CxA = of_arm_CxA if of_arm_CxA.any() else has_rests_CxA
    alike_CxA = next(
        mask for mask in (with_combination_CxA & of_arm_CxA, with_combination_CxA, has_rests_CxA) if mask.any()
    )
    size_2 = np.sqrt(np.mean(sizes_CxAx2[alike_CxA] ** 2, axis=0))
    own_sizes_Ox1x2 = np.where(sizes_CxAx2 > 0, sizes_CxAx2, 1.0)[own_CxA][:, None]
    return (size_2 * rests_CxAxSx2[own_CxA] / own_sizes_Ox1x2)[is_known_CxAxS[own_CxA]]


def _run_metrics(study: StudyResults) -> np.ndarray:
    """Return both metrics of each run; of a completed run without the first it is the second, of others NaN."""
    reported_AxTxCxS = np.where(study.completed_AxTxCxS, study.reported_AxTxCxS, np.nan)
    selection_AxTxCxS = np.where(np.isnan(study.selection_AxTxCxS), reported_AxTxCxS, study.selection_AxTxCxS)
    both_AxTxCxSx2 = np.stack([selection_AxTxCxS, reported_AxTxCxS], axis=-1)
    both_AxTxCxSx2[np.isnan(reported_AxTxCxS)] = np.nan
    return both_AxTxCxSx2


def _smoothed_pool(vectors_Rx2: np.ndarray) -> Pool:
    """Return a pool that has the covariance of its vectors, and whose noise has half the bandwidth of Scott (1992).

    His bandwidth, that of normal vectors, would make skewed ones normal.
    """
    width = len(vectors_Rx2) ** (-1 / 6) / 2
    covariance_2x2 = vectors_Rx2.T @ vectors_Rx2 / len(vectors_Rx2)
    values_2, axes_2x2 = np.linalg.eigh(covariance_2x2)  # of a singular one too
    root_2x2 = axes_2x2 * np.sqrt(np.maximum(values_2, 0))
    shrunk = math.sqrt(1 + width**2)  # what is added would make the vectors larger
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
    spec = dataclasses.replace(spec, learned_threshold=model.learned_threshold)
    arms, tasks, combinations, seeds = shape = (
        len(spec.arms),
        len(spec.tasks),
        len(model.settings[0]),
        len(spec.seeds),
    )
    shared_SxTxCx2 = model.seeds.draw(random, seeds).reshape(seeds, tasks, combinations, 2)
    values_AxTxCxSx2 = np.empty((*shape, 2))
    for task, combination, arm in itertools.product(range(tasks), range(combinations), range(arms)):
        setting, shared_Sx2 = model.settings[task][combination][arm], shared_SxTxCx2[:, task, combination]
        values_AxTxCxSx2[arm, task, combination] = _draw_runs(setting, random, shared_Sx2)
    better = next(number for number, arm in enumerate(spec.arms) if arm != spec.reference)
    values_AxTxCxSx2[better, ..., 1] -= spec.direction.sign * difference
    for task in range(tasks):
        values_AxTxCxSx2[:, task] = _round_to_grid(values_AxTxCxSx2[:, task], model.grids_Tx2x2[task], model.limits_2x2)
    # A run without a finite value diverged.
    states_AxTxCxS = np.full(shape, DONE, dtype=object)
    return compare_arms(judge_states(spec, states_AxTxCxS, values_AxTxCxSx2[..., 0], values_AxTxCxSx2[..., 1]))


def _draw_runs(setting: Setting, random: np.random.Generator, shared_Sx2: np.ndarray) -> np.ndarray:
    """Draw the metrics of an arm's runs by seed; NaN of those that diverge."""
    learned_Sx2 = setting.mean_2 + shared_Sx2 + setting.distances.draw(random, len(shared_Sx2))
    unlearned = len(setting.unlearned_Ux2)
    if not unlearned:
        return learned_Sx2
    rows_S = random.integers(setting.num_learned + unlearned, size=len(shared_Sx2))
    others_Sx2 = setting.unlearned_Ux2[np.maximum(rows_S - setting.num_learned, 0)]
    return np.where((rows_S < setting.num_learned)[:, None], learned_Sx2, others_Sx2)


def _round_to_grid(values_AxCxSx2: np.ndarray, grids_2x2: np.ndarray, limits_2x2: np.ndarray) -> np.ndarray:
    """Round the values of discrete metrics to those that they can have."""
    steps_2, origins_2 = grids_2x2.T
    discrete_2 = steps_2 > 0
    if not discrete_2.any():
        return values_AxCxSx2
    safe_2 = np.where(discrete_2, steps_2, 1.0)
    rounded_AxCxSx2 = origins_2 + np.round((values_AxCxSx2 - origins_2) / safe_2) * safe_2
    return np.where(discrete_2, np.clip(rounded_AxCxSx2, *limits_2x2.T), values_AxCxSx2)
