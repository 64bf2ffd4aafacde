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

from transformer.studies.ablations.formatting import format_some
from transformer.studies.ablations.run_result import parse_run_filter
from transformer.studies.ablations.statistics import CONFIDENCE, Interval

MIN_RUNS_FOR_SPREAD = 3
BEGINNING_TOLERANCE = 0.01  # the largest relative difference of the first numbers of a run from those of its record
_COSTS = re.compile(r"\w+_per_second|flops_per_step|batch_wait|mfu|utili[sz]ation|max_memory\w*")
_OF_SPLIT = re.compile(r"(validation|test)_(.+)")
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
        hyperparameters: The tuned values as JSON text, in order; without their keys, which were renamed since.
        metric: The metric, as "split/name".
    """

    arm: str
    task: str
    seed: int
    hyperparameters: tuple[str, ...]
    metric: str


def read_curve(lines: Iterable[Mapping[str, Any]]) -> dict[tuple[str, int], dict[str, float | None]]:
    """Merge the lines of a metrics.jsonl by split and step, without times, texts and lists.

    Args:
        lines: The lines. One without a split is of training, and names such as "validation_loss" in it of that split.
    """
    curve: dict[tuple[str, int], dict[str, float | None]] = {}
    for line in lines:
        for key, value in line.items():
            plain = value is None or (isinstance(value, int | float) and not isinstance(value, bool))
            if not plain or key in ("step", "split", "seed") or _COSTS.fullmatch(key):
                continue
            split, name = str(line.get("split", "train")), key
            if "split" not in line and (found := _OF_SPLIT.fullmatch(key)):
                split, name = found.groups()
            curve.setdefault((split, int(line["step"])), {})[name] = None if value is None else float(value)
    return curve


class Precision(NamedTuple):
    """How exactly numbers are recorded: rounded to significant digits or to decimals, whichever is coarser.

    Attributes:
        digits: The most significant digits of any number.
        decimals: The most digits after the decimal point of any number.
    """

    digits: int
    decimals: int

    def holds_equal(self, recorded: float | None, found: float | None) -> bool:
        """Return whether a number, rounded as a record, is the recorded one; None is a number that is not finite."""
        if recorded is None or found is None:
            return recorded is found
        return abs(found - recorded) <= self.rounding(max(abs(recorded), abs(found)))

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
    recorded: Curve, found: Curve, of_seeds: Sequence[Curve] = (), others: Mapping[str, Curve] | None = None
) -> Finding:
    """Compare a run with its record.

    Args:
        recorded: The curve of the record.
        found: The curve of the run.
        of_seeds: The curves of the record's runs that differ only by seed, with this one.
        others: The curves of all other runs of the record, by name.

    Returns:
        The finding.
    """
    shared = [
        (f"{split}/{name}", step, value, found[split, step][name])
        for (split, step), metrics in sorted(recorded.items(), key=lambda entry: entry[0][1])
        for name, value in metrics.items()
        if name in found.get((split, step), {})
    ]
    end, ours = (max((step for _, step in curve), default=0) for curve in (recorded, found))
    if ours != end:
        return Finding(Verdict.NOT_REPRODUCED, (f"the record ends at step {end}, and the run at step {ours}",))
    precisions = _precisions(recorded)
    apart = [each for each in shared if not precisions[each[0]].holds_equal(*each[2:])]
    steps = len({step for _, step, _, _ in shared})
    counted = f"{len(shared) - len(apart)} of {len(shared)} numbers of {steps} steps are those of the record"
    compared = {(name, step) for name, step, _, _ in shared}
    if left_out := [name for name, step in _last_steps(recorded).items() if (name, step) not in compared]:
        missing = format_some(sorted(left_out), _SHOWN, ", ")
        why = f"{len(left_out)} metrics of the record have no counterpart in the run: {missing}"
        return Finding(Verdict.NOT_COMPARED, (counted, why))
    if not apart:
        return Finding(Verdict.EQUAL, (counted,))
    name, step, value, other = apart[0]
    first = f"the first that differs is {name} at step {step}: {_show(value)} in the record, {_show(other)} here"
    finals = last_values(recorded)
    ours_at_end = {name: value for name, value in last_values(found).items() if name in finals}
    begin = min(step for _, step, _, _ in shared)
    if len(of_seeds) < MIN_RUNS_FOR_SPREAD or begin == end:
        names = sorted(finals, key=lambda each: _relative_difference(finals[each], ours_at_end[each]), reverse=True)
        differences = format_some(
            [f"{name} {_show(finals[name])}, here {_show(ours_at_end[name])}" for name in names], _SHOWN
        )
        plural = "s" if len(of_seeds) > 1 else ""
        lacks = "no numbers before the last ones" if begin == end else f"{max(1, len(of_seeds))} seed{plural}"
        return Finding(
            Verdict.NO_SPREAD,
            (counted, first, f"the record has {lacks}; the last values that differ most: {differences}"),
        )
    for name, step, value, other in apart:
        if step == begin and _relative_difference(value, other) > BEGINNING_TOLERANCE:
            why = f"it begins otherwise: {name} at step {step} is {_show(value)} in the record, {_show(other)} here"
            return Finding(Verdict.NOT_REPRODUCED, (counted, why))
    for label, curve in (others or {}).items():
        if (nearer := _nearer_to_other(recorded, found, curve, precisions)) is not None:
            return Finding(Verdict.NOT_REPRODUCED, (counted, f"{nearer} the record's {label} than to its own record"))
    seeds = [last_values(each) for each in of_seeds]
    return _judge_end(finals, ours_at_end, seeds, precisions, (counted, first))


def compare_studies(recorded: Mapping[str, Any], found: Mapping[str, Any], only: str | None = None) -> Finding:
    """Compare a study with its record, both as ablation.json has them.

    Args:
        recorded: The record.
        found: The study that was trained again.
        only: The runs that are compared, as the flag --only names them; None for all. The spread is always that of all
            seeds of the record.

    Returns:
        The finding.
    """
    recorded_values, after = study_values(recorded), study_values(found)
    selected = None if only is None else select_study_runs(recorded, only)
    before = {each: value for each, value in recorded_values.items() if selected is None or each[:4] in selected}
    metrics = [sorted({each.metric for each in values}) for values in (before, after)]
    if left_out := [metric for metric in metrics[0] if metric not in metrics[1]]:
        why = f"the record has the metric {', '.join(left_out)}; here are {', '.join(metrics[1]) or 'none'}"
        return Finding(Verdict.NOT_COMPARED, (why,))
    missing = [each for each in before if each not in after]
    if missing:
        arms = [", ".join(sorted({each.arm for each in values})) for values in (before, after)]
        why = (
            f"{len(missing)} of {len(before)} values of the record have no counterpart with their arm, task, seed and "
            f"tuned values; its arms are {arms[0]}, here they are {arms[1]}"
        )
        return Finding(Verdict.NOT_COMPARED, (why,))
    precision = recorded_precision(recorded_values.values())
    apart = [each for each in before if not precision.holds_equal(before[each], after[each])]
    counted = f"{len(before) - len(apart)} of {len(before)} values of runs are those of the record"
    if not apart:
        return Finding(Verdict.EQUAL, (counted,))
    first = apart[0]
    told = f"arm {first.arm!r}, seed {first.seed}: {_show(before[first])} in the record, {_show(after[first])} here"
    if (nearer := _nearer_to_other_arm(before, after)) is not None:
        return Finding(Verdict.NOT_REPRODUCED, (counted, told, nearer))
    cells: dict[str, tuple[list[float | None], list[float | None]]] = {}
    for each in before:
        cells.setdefault(_cell_name(each), ([], []))[1].append(after[each])
    for each in recorded_values:
        if _cell_name(each) in cells:
            cells[_cell_name(each)][0].append(recorded_values[each])
    fewest = min(len(values) for values, _ in cells.values())
    if fewest < MIN_RUNS_FOR_SPREAD:
        return Finding(Verdict.NO_SPREAD, (counted, told, f"the record has {fewest} seeds"))
    return _judge_spread(cells, dict.fromkeys(cells, precision), (counted, told))


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
            tuple(_setting(run, ""))[:4],
            {"arm": run["arm"], "task": run["task"], "seed": run["seed"], **run["hyperparameters"]},
        )
        for run in study.get("runs", ())
    )


def _cell_name(setting: Setting) -> str:
    """Return the name of all values that differ from one only by seed."""
    return " ".join(filter(None, (setting.arm, setting.task, *setting.hyperparameters, setting.metric)))


def _setting(run: Mapping[str, Any], metric: str) -> Setting:
    values = tuple(sorted(map(json.dumps, run["hyperparameters"].values())))
    return Setting(run["arm"], run["task"], run["seed"], values, metric)


def study_values(study: Mapping[str, Any]) -> dict[Setting, float | None]:
    """Return the values of the runs of a study by which values are tuned and arms are compared."""
    values: dict[Setting, float | None] = {}
    for run in study.get("runs", ()):
        for kind in ("selection", "reported"):
            values[_setting(run, study[f"{kind}_metric"])] = run[f"{kind}_value"]
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
    half = t * statistics.stdev(values) * math.sqrt(1 / num_values + 1 / count)
    mean = statistics.fmean(values)
    return Interval(mean - half, mean + half)


def _last_steps(curve: Curve) -> dict[str, int]:
    """Return the last step of each metric as "split/name"."""
    ordered = sorted(curve.items(), key=lambda entry: entry[0][1])
    return {f"{split}/{name}": step for (split, step), metrics in ordered for name in metrics}


def _nearer_to_other(recorded: Curve, found: Curve, other: Curve, precisions: Mapping[str, Precision]) -> str | None:
    """Say where a run is nearer to another recorded run than to its own record; None if it is not.

    The two are looked at where their own figures differ first. Runs that never do cannot be told apart.
    """
    for split, step in sorted(recorded, key=lambda place: place[1]):
        own, here, there = (curve.get((split, step), {}) for curve in (recorded, found, other))
        names = [name for name in own if name in here and name in there]
        if all(precisions[f"{split}/{name}"].holds_equal(own[name], there[name]) for name in names):
            continue
        to_own, to_other = (
            max(_relative_difference(here[name], curve[name]) for name in names) for curve in (own, there)
        )
        if to_other < to_own:
            return f"at step {step}, its {split} metrics are nearer to"
        return None
    return None


def _judge_end(
    recorded: Mapping[str, float | None],
    found: Mapping[str, float | None],
    of_seeds: Sequence[Mapping[str, float | None]],
    precisions: Mapping[str, Precision],
    reasons: tuple[str, ...],
) -> Finding:
    """Judge the last values of a run by what the values of the record's seeds differ by."""
    outside = []
    for name, value in recorded.items():
        other, sample = found[name], [values.get(name) for values in of_seeds]
        known = [each for each in sample if each is not None]
        if value is None or other is None or len(known) < len(sample):
            if value is not other:
                outside.append(f"{name} is not finite in every run")
            continue
        spread = max(known) - min(known) + precisions[name].rounding(max(map(abs, known)))
        if abs(other - value) > spread:
            outside.append(
                f"{name} is {_show(value)} in the record, {_show(other)} here; seeds differ by {_show(spread)}"
            )
    if outside:
        differences = format_some(outside, _SHOWN)
        why = f"{len(outside)} of {len(recorded)} differ by more than the record's seeds do: {differences}"
        return Finding(Verdict.NOT_REPRODUCED, (*reasons, why))
    why = f"it begins as its record, and {len(recorded)} of {len(recorded)} last values differ by less than seeds do"
    return Finding(Verdict.WITHIN_SPREAD, (*reasons, why))


def _nearer_to_other_arm(before: Mapping[Setting, float | None], after: Mapping[Setting, float | None]) -> str | None:
    """Say which arm of a study is nearer to another arm of the record than to its own; None if none is."""

    def distance(arm: str, other: str) -> float:
        here = [each for each in before if each.arm == arm and each._replace(arm=other) in before]
        squares = [_relative_difference(after[each], before[each._replace(arm=other)]) ** 2 for each in here]
        return math.sqrt(statistics.fmean(squares)) if squares else math.inf

    arms = list(dict.fromkeys(each.arm for each in before))
    for arm, other in itertools.permutations(arms, 2):
        if distance(arm, other) < distance(arm, arm):
            return f"the runs of arm {arm!r} are nearer to those of arm {other!r} in the record than to its own"
    return None


def _judge_spread(
    cells: Mapping[str, tuple[Sequence[float | None], Sequence[float | None]]],
    precisions: Mapping[str, Precision],
    reasons: tuple[str, ...],
) -> Finding:
    """Judge each mean of some values by the spread of those of the record, which are rounded."""
    outside = []
    for name, (of_record, of_run) in cells.items():
        before, after = ([value for value in values if value is not None] for values in (of_record, of_run))
        if len(before) < len(of_record) or len(after) < len(of_run):
            if before or after:
                outside.append(f"{name} is not finite in every run")
            continue
        interval, mean = prediction_interval(before, len(after), len(cells)), statistics.fmean(after)
        rounding = precisions[name].rounding(max(map(abs, before)))
        if not interval.low - rounding <= mean <= interval.high + rounding:
            outside.append(f"{name} is {_show(mean)}, outside of {_show(interval.low)} to {_show(interval.high)}")
    if outside:
        reason = f"{len(outside)} of {len(cells)} are outside of the spread: {format_some(outside, _SHOWN)}"
        return Finding(Verdict.NOT_REPRODUCED, (*reasons, reason))
    return Finding(
        Verdict.WITHIN_SPREAD,
        (*reasons, f"{len(cells)} of {len(cells)} are inside of the spread of the record's seeds"),
    )


def _relative_difference(one: float | None, other: float | None) -> float:
    """Return the distance of two numbers over the larger one; infinite if only one of them is finite."""
    if one is None or other is None:
        return 0.0 if one is other else math.inf
    return abs(one - other) / max(abs(one), abs(other)) if one != other else 0.0


def _precisions(curve: Curve) -> dict[str, Precision]:
    """Return how exactly each metric is recorded: by its own values if they are many, else by those of all metrics."""
    values: dict[str, list[float | None]] = {}
    for (split, _), metrics in curve.items():
        for name, value in metrics.items():
            values.setdefault(f"{split}/{name}", []).append(value)
    of_all = recorded_precision(value for own in values.values() for value in own)
    return {
        name: recorded_precision(own) if len(set(own)) >= _MIN_VALUES_FOR_PRECISION else of_all
        for name, own in values.items()
    }


def _show(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.7g}"
