"""Compare a run that was trained again with its record: equal, within the spread of the record's seeds, or neither.

A run is compared with the record of its own seed. It is *equal* if every number that both have of the same split, step
and metric is equal, at the precision of the record. Every metric of the record must have been compared at its last
step, and both must end at the same step. Times, rates and FLOPs are not compared.

Other processors round otherwise, and training enlarges what they round. A run that is not equal is *within the spread*
if it

- begins as its record: at the first step of the record, every metric is within 1% of it;
- is nearer to its record than to any other run of the record, of another arm or another seed: at the first step where
  the figures of the two recorded runs differ, by the largest relative difference of any metric;
- ends near its record: the last value of every metric differs from it by no more than the values of the record's runs
  that differ in nothing but the seed, at least three, differ among themselves.

The beginning tells arms apart, which the last values of three seeds cannot. A record without earlier numbers than the
last ones has no such spread. Last values are of the splits besides training, if the record has such.

Of a study, each arm must be nearer to its own record than to that of any other arm, by the root mean square over
tasks, tuned values and seeds, and the mean of each arm on each task must be in the 95% prediction interval of the
record's n runs for n' further ones, with m such means (Bonferroni):

    mean +- t(n - 1, 1 - 0.025 / m) s sqrt(1 / n + 1 / n')
"""

import decimal
import enum
import itertools
import json
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from scipy import special

from transformer.studies.ablations.formatting import format_first
from transformer.studies.ablations.run_result import parse_run_filter
from transformer.studies.ablations.statistics import CONFIDENCE, Interval

MIN_RUNS_FOR_SPREAD = 3
BEGINNING_TOLERANCE = 0.01  # the largest relative difference of the first numbers of a run from those of its record
_COSTS = re.compile(r"\w+_per_second|flops_per_step|batch_wait|mfu|utili[sz]ation|max_memory\w*")
_MIN_VALUES_FOR_PRECISION = 10  # different ones: of fewer, all may end with a zero by chance
_SHOWN = 3  # differences

Curve = Mapping[tuple[str, int], Mapping[str, float | None]]
"""The metrics of a run by split and step; None for a number that was not finite."""


class Verdict(enum.Enum):
    """Whether a run gives the numbers of its record."""

    EQUAL = "equal"
    WITHIN_SPREAD = "within its spread"
    NO_SPREAD = "not equal, and the record has no spread to judge by"
    NOT_COMPARED = "not reproduced, as numbers of the record were not compared"
    NOT_REPRODUCED = "not reproduced"


class Finding(NamedTuple):
    """The result of a comparison.

    Attributes:
        verdict: The verdict.
        reasons: What it rests on, one line each.
    """

    verdict: Verdict
    reasons: tuple[str, ...]


class Setting(NamedTuple):
    """What a value of a study is of.

    Attributes:
        arm: The arm.
        task: The task.
        seed: The seed.
        hyperparameters: The tuned values as "key=JSON", in order.
        metric: The metric, as "split/name".
    """

    arm: str
    task: str
    seed: int
    hyperparameters: tuple[str, ...]
    metric: str


def read_curve(lines: Iterable[Mapping[str, Any]]) -> dict[tuple[str, int], dict[str, float | None]]:
    """Merge the lines of a metrics.jsonl by split and step, without times, texts and lists."""
    curve: dict[tuple[str, int], dict[str, float | None]] = {}
    for line in lines:
        for key, value in line.items():
            plain = value is None or (isinstance(value, int | float) and not isinstance(value, bool))
            if not plain or key in ("step", "split", "seed") or _COSTS.fullmatch(key):
                continue
            metrics = curve.setdefault((str(line["split"]), int(line["step"])), {})
            metrics[key] = None if value is None else float(value)
    return curve


class Precision(NamedTuple):
    """How exactly numbers are recorded: rounded to significant digits or to decimals, whichever is coarser.

    Attributes:
        digits: The most significant digits of any number.
        decimals: The most digits after the decimal point of any number.
    """

    digits: int
    decimals: int

    def holds_equal(self, recorded: float | None, reproduced: float | None) -> bool:
        """Return whether a number, rounded as a record, is the recorded one; None is a number that is not finite."""
        if recorded is None or reproduced is None:
            return recorded is reproduced
        return abs(reproduced - recorded) <= self.rounding(max(abs(recorded), abs(reproduced)))

    def rounding(self, value: float) -> float:
        """Return by how much a positive number may differ from the one that is recorded: half of the last digit."""
        if not value:
            return 0.0
        last_digit = math.floor(math.log10(value)) - self.digits + 1
        return 0.5001 * 10.0 ** max(last_digit, -self.decimals)


def recorded_precision(values: Iterable[float | None]) -> Precision:
    """Return how exactly some numbers are recorded, by those that have the most digits."""
    exact = [decimal.Decimal(repr(value)).normalize().as_tuple() for value in values if value]
    digits = max((len(value.digits) for value in exact), default=17)
    return Precision(digits, max((-int(value.exponent) for value in exact), default=17))


def compare_curves(
    recorded: Curve,
    reproduced: Curve,
    seed_curves: Sequence[Curve] = (),
    other_curves: Mapping[str, Curve] | None = None,
) -> Finding:
    """Compare a run with its record.

    Args:
        recorded: The curve of the record.
        reproduced: The curve of the run.
        seed_curves: The curves of the record's runs that differ only by seed, with this one.
        other_curves: The curves of all other runs of the record, by name.

    Returns:
        The finding.
    """
    shared = [
        (f"{split}/{name}", step, value, reproduced[split, step][name])
        for (split, step), metrics in sorted(recorded.items(), key=lambda entry: entry[0][1])
        for name, value in metrics.items()
        if name in reproduced.get((split, step), {})
    ]
    end, ours = (max((step for _, step in curve), default=0) for curve in (recorded, reproduced))
    if ours != end:
        return Finding(Verdict.NOT_REPRODUCED, (f"the record ends at step {end}, and the run at step {ours}",))
    precisions = _metric_precisions(recorded)
    differing = [row for row in shared if not precisions[row[0]].holds_equal(*row[2:])]
    steps = len({step for _, step, _, _ in shared})
    summary = f"{len(shared) - len(differing)} of {len(shared)} numbers of {steps} steps are those of the record"
    compared = {(name, step) for name, step, _, _ in shared}
    if left_out := [name for name, step in _last_steps(recorded).items() if (name, step) not in compared]:
        missing = format_first(sorted(left_out), _SHOWN, ", ")
        why = f"{len(left_out)} metrics of the record have no counterpart in the run: {missing}"
        return Finding(Verdict.NOT_COMPARED, (summary, why))
    if not differing:
        return Finding(Verdict.EQUAL, (summary,))
    name, step, value, actual = differing[0]
    values = f"{_format_number(value)} in the record, {_format_number(actual)} here"
    first = f"the first that differs is {name} at step {step}: {values}"
    finals = last_values(recorded)
    ours_at_end = {name: value for name, value in last_values(reproduced).items() if name in finals}
    begin = min(step for _, step, _, _ in shared)
    if len(seed_curves) < MIN_RUNS_FOR_SPREAD or begin == end:
        names = sorted(
            finals, key=lambda metric: _relative_difference(finals[metric], ours_at_end[metric]), reverse=True
        )
        differences = format_first(
            [f"{name} {_format_number(finals[name])}, here {_format_number(ours_at_end[name])}" for name in names],
            _SHOWN,
        )
        plural = "s" if len(seed_curves) > 1 else ""
        lacks = "no numbers before the last ones" if begin == end else f"{max(1, len(seed_curves))} seed{plural}"
        return Finding(
            Verdict.NO_SPREAD,
            (summary, first, f"the record has {lacks}; the last values that differ most: {differences}"),
        )
    for name, step, value, actual in differing:
        if step == begin and _relative_difference(value, actual) > BEGINNING_TOLERANCE:
            values = f"{_format_number(value)} in the record, {_format_number(actual)} here"
            why = f"it begins otherwise: {name} at step {step} is {values}"
            return Finding(Verdict.NOT_REPRODUCED, (summary, why))
    for label, curve in (other_curves or {}).items():
        if (nearer := _describe_nearer_record(recorded, reproduced, curve, precisions)) is not None:
            return Finding(Verdict.NOT_REPRODUCED, (summary, f"{nearer} the record's {label} than to its own record"))
    seeds = [last_values(curve) for curve in seed_curves]
    return _judge_end(finals, ours_at_end, seeds, precisions, (summary, first))


def compare_studies(recorded: Mapping[str, Any], reproduced: Mapping[str, Any], only: str | None = None) -> Finding:
    """Compare a study with its record, both as ablation.json has them.

    Args:
        recorded: The record.
        reproduced: The study that was trained again.
        only: The runs that are compared, as the flag --only names them; None for all. The spread is always that of all
            seeds of the record.

    Returns:
        The finding.
    """
    recorded_values, after = study_values(recorded), study_values(reproduced)
    selected = None if only is None else select_study_runs(recorded, only)
    before = {
        setting: value for setting, value in recorded_values.items() if selected is None or setting[:4] in selected
    }
    metrics = [sorted({setting.metric for setting in values}) for values in (before, after)]
    if left_out := [metric for metric in metrics[0] if metric not in metrics[1]]:
        why = f"the record has the metric {', '.join(left_out)}; here are {', '.join(metrics[1]) or 'none'}"
        return Finding(Verdict.NOT_COMPARED, (why,))
    missing = [setting for setting in before if setting not in after]
    if missing:
        arms = [", ".join(sorted({setting.arm for setting in values})) for values in (before, after)]
        why = (
            f"{len(missing)} of {len(before)} values of the record have no counterpart with their arm, task, seed and "
            f"tuned values; its arms are {arms[0]}, here they are {arms[1]}"
        )
        return Finding(Verdict.NOT_COMPARED, (why,))
    precision = recorded_precision(recorded_values.values())
    differing = [setting for setting in before if not precision.holds_equal(before[setting], after[setting])]
    summary = f"{len(before) - len(differing)} of {len(before)} values of runs are those of the record"
    if not differing:
        return Finding(Verdict.EQUAL, (summary,))
    first = differing[0]
    values = f"{_format_number(before[first])} in the record, {_format_number(after[first])} here"
    first_difference = f"arm {first.arm!r}, seed {first.seed}: {values}"
    if (nearer := _describe_nearer_arm(before, after)) is not None:
        return Finding(Verdict.NOT_REPRODUCED, (summary, first_difference, nearer))
    cells: dict[str, tuple[list[float | None], list[float | None]]] = {}
    for setting in before:
        cells.setdefault(_cell_name(setting), ([], []))[1].append(after[setting])
    for setting in recorded_values:
        if _cell_name(setting) in cells:
            cells[_cell_name(setting)][0].append(recorded_values[setting])
    fewest = min(len(values) for values, _ in cells.values())
    if fewest < MIN_RUNS_FOR_SPREAD:
        return Finding(Verdict.NO_SPREAD, (summary, first_difference, f"the record has {fewest} seeds"))
    return _judge_spread(cells, dict.fromkeys(cells, precision), (summary, first_difference))


def select_study_runs(study: Mapping[str, Any], only: str) -> list[tuple[Any, ...]]:
    """Return arm, task, seed and tuned values, as in `Setting`, of the runs of a study that the flag --only names.

    Args:
        study: The study, as ablation.json has it.
        only: The flag, such as "arm=pre; seed=1; optimizer.learning_rate=0.01".

    Raises:
        UserError: If it names none.
    """
    return parse_run_filter(only).select(
        (
            tuple(_make_setting(run, ""))[:4],
            {"arm": run["arm"], "task": run["task"], "seed": run["seed"], **run["hyperparameters"]},
        )
        for run in study.get("runs", ())
    )


def _cell_name(setting: Setting) -> str:
    """Return the name of all values that differ from one only by seed."""
    return " ".join(filter(None, (setting.arm, setting.task, *setting.hyperparameters, setting.metric)))


def _make_setting(run: Mapping[str, Any], metric: str) -> Setting:
    values = tuple(sorted(f"{key}={json.dumps(value)}" for key, value in run["hyperparameters"].items()))
    return Setting(run["arm"], run["task"], run["seed"], values, metric)


def study_values(study: Mapping[str, Any]) -> dict[Setting, float | None]:
    """Return the values of the runs of a study by which values are tuned and arms are compared."""
    values: dict[Setting, float | None] = {}
    for run in study.get("runs", ()):
        for kind in ("selection", "reported"):
            values[_make_setting(run, study[f"{kind}_metric"])] = run[f"{kind}_value"]
    return values


def last_values(curve: Curve) -> dict[str, float | None]:
    """Return the last value of each metric as "split/name", of the splits besides training if there are any."""
    evaluated = any(split != "train" for split, _ in curve)
    values: dict[str, float | None] = {}
    for (split, _), metrics in sorted(curve.items(), key=lambda entry: entry[0][1]):
        if split != "train" or not evaluated:
            values.update({f"{split}/{name}": value for name, value in metrics.items()})
    return values


def prediction_interval(values: Sequence[float], num_values: int = 1, num_intervals: int = 1) -> Interval:
    """Compute the 95% prediction interval of the mean of further normal values, by a sample.

    Args:
        values: The sample, of two or more.
        num_values: The number of further values.
        num_intervals: The number of intervals that are to hold together.
    """
    count = len(values)
    t = float(special.stdtrit(count - 1, 1 - (1 - CONFIDENCE) / 2 / num_intervals))
    half_width = t * statistics.stdev(values) * math.sqrt(1 / num_values + 1 / count)
    mean = statistics.fmean(values)
    return Interval(mean - half_width, mean + half_width)


def _last_steps(curve: Curve) -> dict[str, int]:
    """Return the last step of each metric as "split/name"."""
    ordered = sorted(curve.items(), key=lambda entry: entry[0][1])
    return {f"{split}/{name}": step for (split, step), metrics in ordered for name in metrics}


def _describe_nearer_record(
    recorded: Curve, reproduced: Curve, other_record: Curve, precisions: Mapping[str, Precision]
) -> str | None:
    """Say where a run is nearer to another recorded run than to its own record; None if it is not.

    The two are looked at where their own figures differ first. Runs that never do cannot be told apart.
    """
    for split, step in sorted(recorded, key=lambda place: place[1]):
        own_metrics, run_metrics, other_metrics = (
            curve.get((split, step), {}) for curve in (recorded, reproduced, other_record)
        )
        names = [name for name in own_metrics if name in run_metrics and name in other_metrics]
        if all(precisions[f"{split}/{name}"].holds_equal(own_metrics[name], other_metrics[name]) for name in names):
            continue
        to_own, to_other = (
            max(_relative_difference(run_metrics[name], curve[name]) for name in names)
            for curve in (own_metrics, other_metrics)
        )
        if to_other < to_own:
            return f"at step {step}, its {split} metrics are nearer to"
        return None
    return None


def _judge_end(
    recorded: Mapping[str, float | None],
    reproduced: Mapping[str, float | None],
    seed_values: Sequence[Mapping[str, float | None]],
    precisions: Mapping[str, Precision],
    reasons: tuple[str, ...],
) -> Finding:
    """Judge the last values of a run by what the values of the record's seeds differ by."""
    outside = []
    for name, value in recorded.items():
        actual, sample = reproduced[name], [values.get(name) for values in seed_values]
        finite = [seed_value for seed_value in sample if seed_value is not None]
        if value is None or actual is None or len(finite) < len(sample):
            if value is not actual:
                outside.append(f"{name} is not finite in every run")
            continue
        spread = max(finite) - min(finite) + precisions[name].rounding(max(map(abs, finite)))
        if abs(actual - value) > spread:
            outside.append(
                f"{name} is {_format_number(value)} in the record, {_format_number(actual)} here; "
                f"seeds differ by {_format_number(spread)}"
            )
    if outside:
        differences = format_first(outside, _SHOWN)
        why = f"{len(outside)} of {len(recorded)} differ by more than the record's seeds do: {differences}"
        return Finding(Verdict.NOT_REPRODUCED, (*reasons, why))
    why = f"it begins as its record, and {len(recorded)} of {len(recorded)} last values differ by less than seeds do"
    return Finding(Verdict.WITHIN_SPREAD, (*reasons, why))


def _describe_nearer_arm(before: Mapping[Setting, float | None], after: Mapping[Setting, float | None]) -> str | None:
    """Say which arm of a study is nearer to another arm of the record than to its own; None if none is."""

    def distance(arm: str, other_arm: str) -> float:
        shared_settings = [
            setting for setting in before if setting.arm == arm and setting._replace(arm=other_arm) in before
        ]
        squares = [
            _relative_difference(after[setting], before[setting._replace(arm=other_arm)]) ** 2
            for setting in shared_settings
        ]
        return math.sqrt(statistics.fmean(squares)) if squares else math.inf

    arms = list(dict.fromkeys(setting.arm for setting in before))
    for arm, other_arm in itertools.permutations(arms, 2):
        if distance(arm, other_arm) < distance(arm, arm):
            return f"the runs of arm {arm!r} are nearer to those of arm {other_arm!r} in the record than to its own"
    return None


def _judge_spread(
    cells: Mapping[str, tuple[Sequence[float | None], Sequence[float | None]]],
    precisions: Mapping[str, Precision],
    reasons: tuple[str, ...],
) -> Finding:
    """Judge each mean of some values by the spread of those of the record, which are rounded."""
    outside = []
    for name, (recorded, reproduced) in cells.items():
        before, after = ([value for value in values if value is not None] for values in (recorded, reproduced))
        if len(before) < len(recorded) or len(after) < len(reproduced):
            if before or after:
                outside.append(f"{name} is not finite in every run")
            continue
        interval, mean = prediction_interval(before, len(after), len(cells)), statistics.fmean(after)
        rounding = precisions[name].rounding(max(map(abs, before)))
        if not interval.low - rounding <= mean <= interval.high + rounding:
            outside.append(
                f"{name} is {_format_number(mean)}, outside of {_format_number(interval.low)} to "
                f"{_format_number(interval.high)}"
            )
    if outside:
        reason = f"{len(outside)} of {len(cells)} are outside of the spread: {format_first(outside, _SHOWN)}"
        return Finding(Verdict.NOT_REPRODUCED, (*reasons, reason))
    return Finding(
        Verdict.WITHIN_SPREAD,
        (*reasons, f"{len(cells)} of {len(cells)} are inside of the spread of the record's seeds"),
    )


def _relative_difference(first: float | None, second: float | None) -> float:
    """Return the distance of two numbers over the larger one; infinite if only one of them is finite."""
    if first is None or second is None:
        return 0.0 if first is second else math.inf
    return abs(first - second) / max(abs(first), abs(second)) if first != second else 0.0


def _metric_precisions(curve: Curve) -> dict[str, Precision]:
    """Return how exactly each metric is recorded: by its own values if they are many, else by those of all metrics."""
    values: dict[str, list[float | None]] = {}
    for (split, _), metrics in curve.items():
        for name, value in metrics.items():
            values.setdefault(f"{split}/{name}", []).append(value)
    overall = recorded_precision(value for own in values.values() for value in own)
    return {
        name: recorded_precision(own) if len(set(own)) >= _MIN_VALUES_FOR_PRECISION else overall
        for name, own in values.items()
    }


def _format_number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.7g}"
