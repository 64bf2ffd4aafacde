"""Scaling laws: how the loss falls with parameters, tokens and FLOPs, fitted to the runs of a study."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import optimize, stats

from transformer.config import UserError
from transformer.runs.jsonl_reading import MetricName, parse_metric_name, read_records
from transformer.runs.run_directory import RunDirectory

HUBER = 1e-3
"""Where the loss of a residual turns from its square to its size (Hoffmann et al. 2022, appendix D.2)."""
_APART = 1.01  # numbers within a hundredth of each other are one
_WITH_LIMIT = 4  # different numbers from which on a limit is fitted beside the power
_SEEDS = 2  # of every point, to know by how much a loss scatters
_RUNS = 6  # to know it by how far they lie from the fit
_LEVEL = (2.5, 97.5)
EXPONENTS = (1e-3, 10.0)
"""The least and the greatest exponent of a law with a limit that is searched."""
_LOG_LIMIT = 20.0  # the log of E is searched from minus this to it
Array = Float[np.ndarray, " R"]


class ScalingRun(NamedTuple):
    """A finished training run.

    Attributes:
        name: Its name.
        parameters: The number of parameters N.
        tokens: The number of training tokens D.
        flops: The training compute C in FLOPs.
        loss: The final loss.
    """

    name: str
    parameters: float
    tokens: float
    flops: float
    loss: float


class ScalingFit(NamedTuple):
    """A fitted scaling law.

    Attributes:
        form: The equation.
        values: The fitted values by name.
        intervals: Their 95% bootstrap intervals; empty if there are too few runs.
        undetermined: What is wrong with values that the runs do not determine, by name: those of a law with a limit
            that lie at an end of their search, or fit hardly better than there.
    """

    form: str
    values: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]
    undetermined: Mapping[str, str]


class RunSelection(NamedTuple):
    """Runs read for a fit.

    Attributes:
        runs: The finished runs.
        left_out: The path of every other run, and why it is left out.
    """

    runs: list[ScalingRun]
    left_out: list[str]


class PowerLawTerm(NamedTuple):
    """The power of one variable in a scaling law.

    Attributes:
        variable: The field of `ScalingRun`.
        letter: Its letter in the equation.
        coefficient: The name of the coefficient.
        exponent: The name of the exponent.
    """

    variable: str
    letter: str
    coefficient: str
    exponent: str


_N = PowerLawTerm("parameters", "N", "A", "alpha")
_D = PowerLawTerm("tokens", "D", "B", "beta")
_C = PowerLawTerm("flops", "C", "K", "gamma")
TERMS = (_N, _D, _C)


def fit_scaling_laws(runs: Sequence[ScalingRun], *, draws: int = 200, seed: int = 0) -> dict[str, ScalingFit]:
    """Fit every scaling law that the runs determine.

    If N or D alone varies, the law is L = E + A / N^alpha; with fewer than four different sizes, which do not determine
    the limit E, it is L = A / N^alpha by least squares in logarithms (Kaplan et al. 2020, equation 1.1). If both vary,
    it is L = E + A / N^alpha + B / D^beta (Hoffmann et al. 2022, section 3.3), for at least three values of each and
    six pairs. The law of compute is always L = K / C^gamma over all runs, not only over the best run at each cost.

    Intervals are percentiles of bootstrap samples of the losses. The noise of log-losses is that between the seeds of a
    point if every point has two seeds, else that of at least six runs around the fit; it is taken to be the same at
    every size.

    Args:
        runs: The runs to fit.
        draws: The number of bootstrap samples.
        seed: The seed of the bootstrap.

    Returns:
        The fits by the names of their variables: "parameters", "tokens" or "parameters and tokens", and "flops".

    Raises:
        UserError: If all runs have the same size and tokens, or a number is not positive and finite.
    """
    for run in runs:
        if not min(run[1:]) > 0 or not np.isfinite(run[1:]).all():
            raise UserError(f"{run.name}: a fit needs positive numbers, not {run[1:]}")
    different = {term: len(set(_number_groups(runs, (term,)))) for term in TERMS}
    varied = tuple(term for term in (_N, _D) if different[term] > 1)
    if not varied:
        raise UserError("all runs have as many parameters and tokens: nothing scales, give runs of different sizes")
    fits: dict[str, ScalingFit] = {}
    if len(varied) == 1:
        limit = different[varied[0]] >= _WITH_LIMIT
        fits[varied[0].variable] = _fit_with_intervals(runs, varied, limit, draws, seed)
    elif min(different[term] for term in varied) >= 3 and len(set(_number_groups(runs, varied))) >= 6:
        fits["parameters and tokens"] = _fit_with_intervals(runs, varied, True, draws, seed)
    if different[_C] > 1:
        fits[_C.variable] = _fit_with_intervals(runs, (_C,), False, draws, seed)
    return fits


def loss_falls_with_size(runs: Sequence[ScalingRun]) -> bool | None:
    """Return whether the mean loss falls with every increase in parameters, among runs with the same number of tokens.

    None if no two sizes were trained on the same number of tokens.
    """
    means: dict[int, dict[int, list[float]]] = {}
    for run, (size,), (text,) in zip(runs, _number_groups(runs, (_N,)), _number_groups(runs, (_D,)), strict=True):
        means.setdefault(text, {}).setdefault(size, []).append(run.loss)
    curves = [
        [float(np.mean(losses_by_size[size])) for size in sorted(losses_by_size)] for losses_by_size in means.values()
    ]
    steps = [greater < smaller for curve in curves for smaller, greater in itertools.pairwise(curve)]
    return all(steps) if steps else None


def compute_optimal_exponents(joint: ScalingFit) -> tuple[float, float]:
    """Compute the compute-optimal exponents a and b of N ~ C^a and D ~ C^b (Hoffmann et al. 2022, equation 4).

    a = beta / (alpha + beta) and b = alpha / (alpha + beta).

    Args:
        joint: The fit over parameters and tokens.

    Returns:
        The exponents (a, b).
    """
    alpha, beta = joint.values["alpha"], joint.values["beta"]
    return beta / (alpha + beta), alpha / (alpha + beta)


def fit_power_law(x: Array, loss: Array) -> tuple[float, float]:
    """Fit L = A / x^alpha by least squares in logarithms.

    Args:
        x: The variable of each run, such as its number of parameters; positive.
        loss: The loss of each run; positive.

    Returns:
        (A, alpha).
    """
    log_x, log_loss = np.log(x), np.log(loss)
    centered = log_x - log_x.mean()
    slope = centered @ log_loss / (centered @ centered)
    return float(np.exp(log_loss.mean() - slope * log_x.mean())), float(-slope)


def fit_saturating_power_law(x_KxR: Float[np.ndarray, "K R"], loss: Array, start: Array | None = None) -> Array:
    """Fit L = E + sum_k A_k / x_k^alpha_k.

    Minimizes the sum of Huber losses between log L and the log of the sum, by L-BFGS from a grid of initial values or
    from `start` alone (Hoffmann et al. 2022, appendix D.2). E, A and alpha are positive, alpha from 0.001 to 10.

    Args:
        x_KxR: The variables [K, runs].
        loss: The loss of each run.
        start: The only initial values, by default a grid.

    Returns:
        [E, A_1, alpha_1, ...].
    """
    return _fit_with_limit(x_KxR, loss, start, {})[0]


def _find_undetermined(
    x_KxR: Float[np.ndarray, "K R"], loss: Array, best: Array, names: Sequence[str]
) -> dict[str, str]:
    """Say which values of a fitted law with a limit the runs do not determine.

    An exponent is not determined if the end of its search is no worse than noise allows: of R runs the sum of losses is
    at most exp(chi^2(1) / R) times the least, by the likelihood ratio of normal noise (Wilks 1938).
    """
    problems = {}
    if np.log(best[0]) < 1e-3 - _LOG_LIMIT:
        problems[names[0]] = "at the lower end of its search: the runs show no limit"
    worst = _fit_with_limit(x_KxR, loss, best, {})[1] * np.exp(stats.chi2.ppf(0.95, 1) / len(loss)) + 1e-9
    for number, name in enumerate(names[2::2]):
        ends = [
            exponent for exponent in EXPONENTS if _fit_with_limit(x_KxR, loss, None, {number: exponent})[1] <= worst
        ]
        if ends:
            fits = "the end of its search, fits" if len(ends) == 1 else "the ends of its search, fit"
            problems[name] = f"not determined: {' and '.join(f'{end:g}' for end in ends)}, {fits} about as well"
    return problems


def _fit_with_limit(
    x_KxR: Float[np.ndarray, "K R"], loss: Array, start: Array | None, exponents: Mapping[int, float]
) -> tuple[Array, float]:
    """Fit a law with a limit, some of whose exponents may be known; return its values and the sum of Huber losses."""
    logs_KxR = np.log(x_KxR)
    middle_K = logs_KxR.mean(1)
    centered_KxR, target = logs_KxR - middle_K[:, None], np.log(loss)

    def inner(values: Array) -> Array:
        """Return values [E, A_1, alpha_1, ...] in the coordinates of the search."""
        a_K, alpha_K = values[1::2], values[2::2]
        return np.concatenate([[np.log(values[0])], np.log(a_K) - alpha_K * middle_K, np.log(alpha_K)])

    starts = [inner(start)] if start is not None else _starting_points(len(centered_KxR), loss)
    count = len(centered_KxR)
    # A power that matters at one end of its variable alone is tiny where it is centered: factors may not end first.
    reach_K = _LOG_LIMIT + EXPONENTS[1] * np.abs(centered_KxR).max(axis=1)
    bounds = [(-_LOG_LIMIT, _LOG_LIMIT), *((-reach, reach) for reach in reach_K)] + [
        (np.log(exponents[number]),) * 2 if number in exponents else tuple(np.log(EXPONENTS)) for number in range(count)
    ]
    starts = [np.clip(point, *np.transpose(bounds)) for point in starts]

    def descend(begin: Array, steps: int) -> optimize.OptimizeResult:
        options = {"maxiter": steps, "ftol": 1e-14, "gtol": 1e-9}
        return optimize.minimize(
            huber_loss_and_gradient,
            begin,
            (centered_KxR, target),
            jac=True,
            method="L-BFGS-B",
            bounds=bounds,
            options=options,
        )

    # All a little way, the best of them to its end.
    nearest = min((descend(point, 40) for point in starts), key=lambda end: end.fun)
    end = descend(nearest.x, 2000)
    best = end.x
    alpha_K = np.exp(best[1 + len(middle_K) :])
    a_K = np.exp(best[1 : 1 + len(middle_K)] + alpha_K * middle_K)
    return np.concatenate([[np.exp(best[0])], np.column_stack([a_K, alpha_K]).ravel()]), float(end.fun)


def huber_loss_and_gradient(
    values: Array, centered_KxR: Float[np.ndarray, "K R"], target: Array
) -> tuple[float, Array]:
    """Compute the sum of Huber losses, divided by their threshold, and its gradient.

    Args:
        values: log E, then for each power its log where its centered variable is 0, then the log of each exponent.
        centered_KxR: The logs of the variables, minus their means.
        target: The log of the losses.

    Returns:
        The loss and its gradient with respect to `values`.
    """
    count = len(centered_KxR)
    exponents_K = np.exp(values[1 + count :])
    falling_KxR = exponents_K[:, None] * centered_KxR
    parts = np.exp(np.vstack([np.full(target.shape, values[0]), values[1 : 1 + count, None] - falling_KxR]))
    total = parts.sum(0)
    residual, weights = np.log(total) - target, parts / total
    slope = np.clip(residual / HUBER, -1, 1)
    gradient = np.concatenate([weights @ slope, -(weights[1:] * falling_KxR) @ slope])
    size = np.abs(residual)
    return float(np.where(size <= HUBER, size**2 / 2 / HUBER, size - HUBER / 2).sum()), gradient


def _starting_points(count: int, loss: Array) -> list[Array]:
    """Return initial values: limits of 0.5 and 0.9 of the least loss, the rest shared out, exponents from 0.1 to 1."""
    starts = []
    for share, *exponents in itertools.product((0.5, 0.9), *[(0.1, 0.3, 1.0)] * count):
        limit = share * loss.min()
        term_share = (loss.mean() - limit) / count
        starts.append(np.log([limit, *[term_share] * count, *exponents]))
    return starts


def _fit_with_intervals(
    runs: Sequence[ScalingRun], terms: tuple[PowerLawTerm, ...], limit: bool, draws: int, seed: int
) -> ScalingFit:
    names = [name for term in terms for name in (term.coefficient, term.exponent)]
    powers = " + ".join(f"{term.coefficient} / {term.letter}^{term.exponent}" for term in terms)
    form = f"L = E + {powers}" if limit else f"L = {powers}"
    names = ["E", *names] if limit else names
    x_KxR = np.array([[getattr(run, term.variable) for run in runs] for term in terms])

    def values(loss: Array, start: Array | None = None) -> Array:
        return fit_saturating_power_law(x_KxR, loss, start) if limit else np.array(fit_power_law(x_KxR[0], loss))

    loss = np.array([run.loss for run in runs])
    best = values(loss)
    constant, factors_K, exponents_K = (best[0], best[1::2], best[2::2]) if limit else (0.0, best[::2], best[1::2])
    fitted = constant + (factors_K[:, None] * x_KxR ** -exponents_K[:, None]).sum(0)
    samples = _bootstrap_losses(loss, fitted, _number_groups(runs, terms), len(best), draws, seed)
    intervals = {}
    if samples:
        sample_values = [values(sample, best if limit else None) for sample in samples]
        low, high = np.percentile(np.array(sample_values), _LEVEL, axis=0)
        intervals = {name: (float(a), float(b)) for name, a, b in zip(names, low, high, strict=True)}
    undetermined = _find_undetermined(x_KxR, loss, best, names) if limit else {}
    return ScalingFit(form, dict(zip(names, map(float, best), strict=True)), intervals, undetermined)


def _bootstrap_losses(
    loss: Array, fitted: Array, points: Sequence[tuple[int, ...]], parameters: int, draws: int, seed: int
) -> list[Array]:
    """Draw bootstrap samples of the losses; none if there are too few runs to estimate their noise.

    Logs of losses are drawn around the mean of their point's seeds if every point has two, else around the fit, by
    resampling all residuals with replacement. Residuals are widened by sqrt(R / f) and t_f / z for their f degrees of
    freedom: without it, intervals from two seeds of three sizes would contain the exponent only two times in three.
    """
    point_index, runs_per_point = np.unique(np.array(points), axis=0, return_inverse=True, return_counts=True)[1:]
    logs = np.log(loss)
    if runs_per_point.min() >= _SEEDS:
        center, freedom = (
            (np.bincount(point_index, logs) / runs_per_point)[point_index],
            len(logs) - len(runs_per_point),
        )
    elif len(logs) >= _RUNS:
        center, freedom = np.log(fitted), len(logs) - parameters
    else:
        return []
    level = _LEVEL[1] / 100
    wider = np.sqrt(len(logs) / freedom) * stats.t.ppf(level, freedom) / stats.norm.ppf(level)
    random, residuals = np.random.default_rng(seed), wider * (logs - center)
    return [np.exp(center + random.choice(residuals, len(logs))) for _ in range(draws)]


def _number_groups(runs: Sequence[ScalingRun], terms: Sequence[PowerLawTerm]) -> list[tuple[int, ...]]:
    """Number each run's values in rising order; values within 1% of each other share a number."""
    columns = []
    for term in terms:
        numbers = np.array([getattr(run, term.variable) for run in runs])
        order = np.sort(numbers)
        new = np.concatenate([[0], np.cumsum(order[1:] > _APART * order[:-1])])
        columns.append(new[np.searchsorted(order, numbers)])
    return [tuple(map(int, row)) for row in zip(*columns, strict=True)]


def read_runs(paths: Iterable[Path], metric: str) -> RunSelection:
    """Read the runs in directories: each directory is a run, or a sweep or ablation with runs in `trials/`.

    Training tokens are those that the training loss counted per step, times the steps. FLOPs are counted by the model
    family's formula, else 6 N D. A run that has not reached its last step, or does not report `metric` at the end, is
    left out.

    Args:
        paths: The directories.
        metric: The loss, as "split/name".

    Returns:
        The runs, and why the others are left out.

    Raises:
        UserError: If a directory is neither a run nor has trials.
    """
    metric_name, selection = parse_metric_name(metric), RunSelection([], [])
    for path in _run_directories(paths):
        try:
            loaded = _read_run(path, metric_name)
        except (KeyError, TypeError, ValueError) as error:
            loaded = f"its files cannot be read: {' '.join(str(error).split())[:200]}"
        if isinstance(loaded, ScalingRun):
            selection.runs.append(loaded)
        else:
            selection.left_out.append(f"{path}: {loaded}")
    return selection


def _run_directories(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if RunDirectory(path).is_run():
            yield path
            continue
        trials = sorted(trial for trial in (path / "trials").glob("*") if RunDirectory(trial).is_run())
        if not trials:
            raise UserError(f"{path} is no run directory, and holds no trials of a sweep or an ablation")
        yield from trials


def _read_run(path: Path, metric: MetricName) -> ScalingRun | str:
    """Return the run, or why it is left out."""
    run = RunDirectory(path)
    steps, records = run.config()["steps"], read_records(run.metrics_file)
    reports = [record for record in records if record["split"] == metric.split and metric.name in record]
    if not reports or reports[-1]["step"] < steps:
        return f"it reports no {metric} at its last step, {steps}"
    loss, parameters = reports[-1][metric.name], run.facts().get("parameters")
    if loss is None or parameters is None:
        return f"its {metric} is not finite" if loss is None else "it does not say how many parameters it has"
    training = [record for record in records if record["split"] == "train" and record.get("steps_per_second")]
    counted = [
        record["tokens_per_second"] / record["steps_per_second"] for record in training if "tokens_per_second" in record
    ]
    if not counted:
        return "its task counts no tokens"
    tokens = float(np.mean(counted)) * steps
    flops = [record["flops_per_step"] for record in training if record.get("flops_per_step")]
    total = float(np.mean(flops)) * steps if flops else 6.0 * parameters * tokens
    return ScalingRun(path.name, float(parameters), tokens, total, float(loss))
