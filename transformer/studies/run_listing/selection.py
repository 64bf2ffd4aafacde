"""Choose runs of a listing by conditions, sort them, group them, and find the config keys in which they differ."""

import fnmatch
import json
import math
import operator
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from transformer.config import ABSENT, UserError, config_text, suggest_nearest
from transformer.runs.jsonl_reading import MetricName
from transformer.studies.run_listing.listing import Listing, StudySummary
from transformer.studies.run_listing.run_summary import RunSummary

_CONDITION = re.compile(r"(.+?)(!=|<=|>=|=|<|>)(.*)", re.DOTALL)
_ORDERS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_UNITS = {
    "age": {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0},
    "size": {"kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12},
}
_KIND_KEYS = ("task.name", "model.family")
_FIELDS = ("name", "study", "state", "step", "age", "size")
RunValue = Callable[[RunSummary], Any]
"""What a key has in a run: a number, a text or any other JSON value; `ABSENT` if the run does not have it."""


class RunGroup(NamedTuple):
    """Runs with the same values of the keys by which they are grouped.

    Attributes:
        values: The values as JSON values, `ABSENT` for a key that the runs do not have.
        runs: The runs.
    """

    values: tuple[Any, ...]
    runs: Sequence[RunSummary]


class ListedRuns(NamedTuple):
    """The part of a listing that is shown.

    Attributes:
        listing: The whole listing.
        runs: The runs, in their order.
        metrics: The metrics of which values are shown.
        keys: The config keys in which the runs differ, which JSON and the page have.
        table_keys: The config keys that are columns of the table.
    """

    listing: Listing
    runs: Sequence[RunSummary]
    metrics: Sequence[MetricName]
    keys: Sequence[str]
    table_keys: Sequence[str] = ()

    def studies(self) -> Sequence[StudySummary]:
        """Return the sweeps and ablations: those of the runs if only some are shown."""
        names = {run.files.study for run in self.runs}
        shows_all = len(self.runs) == len(self.listing.runs)
        return [study for study in self.listing.studies if shows_all or study.name in names]


def run_value(listing: Listing, key: str) -> RunValue:
    """Return the function that reads a key of a run: a field, config.KEY, or a metric, of which the best value counts.

    Raises:
        UserError: If no run has such a key; the message names those that there are.
    """
    if key in _FIELDS:
        now = time.time()
        fields: Mapping[str, RunValue] = {
            "name": lambda run: run.name,
            "study": lambda run: run.files.study,
            "state": lambda run: run.state.value,
            "step": lambda run: run.step,
            "age": lambda run: now - run.files.modified,
            "size": lambda run: run.num_bytes,
        }
        return fields[key]
    if key.startswith("config."):
        config_key = key.removeprefix("config.")
        if any(config_key in run.config for run in listing.runs):
            return lambda run: run.config.get(config_key, ABSENT)
        config_keys = {f"config.{known_key}" for run in listing.runs for known_key in run.config}
        raise UserError(f"no run has the key {key!r}: {suggest_nearest(key, sorted(config_keys))}")
    metrics = {str(metric): metric for metric in listing.metrics()}
    if key in metrics:
        return lambda run: metric_value(listing, run, metrics[key])
    candidates = [*_FIELDS, *metrics, *{f"config.{known_key}" for run in listing.runs for known_key in run.config}]
    raise UserError(f"unknown key {key!r}: {suggest_nearest(key, candidates)}")


def metric_value(listing: Listing, run: RunSummary, metric: MetricName) -> Any:
    """Return the best value of a metric in a run, the last one if it has no direction, `ABSENT` without one."""
    point = run.best(metric, listing.direction(metric)) or run.last(metric)
    return ABSENT if point is None else point[1]


def select_runs(listing: Listing, conditions: Iterable[str]) -> list[RunSummary]:
    """Return the runs for which every condition holds, such as "state=running", "config.model.width>=128".

    Raises:
        UserError: If a condition is malformed, or names a key that no run has.
    """
    tests = [_parse_condition(listing, condition) for condition in conditions]
    return [run for run in listing.runs if all(test(run) for test in tests)]


def _parse_condition(listing: Listing, condition: str) -> Callable[[RunSummary], bool]:
    match = _CONDITION.fullmatch(condition)
    if match is None:
        raise UserError(
            f"--filter={condition} is no condition: write KEY=VALUE with =, !=, <, <=, > or >=, as state=running or "
            "config.model.width=128"
        )
    key, sign, text = match.groups()
    read_value = run_value(listing, key)
    if sign in _ORDERS:
        bound, compare = _parse_bound(condition, key, text), _ORDERS[sign]
        return lambda run: _is_number(value := read_value(run)) and compare(value, bound)
    if key in _UNITS:
        raise UserError(f"--filter={condition} compares exactly: write {key}<{text} or {key}>{text}")
    return (
        (lambda run: _equals(read_value(run), text))
        if sign == "="
        else (lambda run: not _equals(read_value(run), text))
    )


def _parse_bound(condition: str, key: str, text: str) -> float:
    units = _UNITS.get(key, {})
    match = re.fullmatch(r"([-+]?[\d.]+(?:e[-+]?\d+)?) ?([a-z]*)", text.strip(), re.ASCII | re.IGNORECASE)
    unit = match[2].lower() if match else ""
    try:
        if match is None or (unit and unit not in units):
            raise ValueError
        return float(match[1]) * units.get(unit, 1.0)
    except ValueError:
        examples = {"age": ": write 90s, 15m, 2h or 3d", "size": ": write 500kB, 25MB or 1GB"}
        raise UserError(f"--filter={condition}: {text!r} is no number{examples.get(key, '')}") from None


def _equals(value: Any, text: str) -> bool:
    """Whether a value is what a text says: equal as JSON, as a number, or as text, in which * stands for anything."""
    if value is ABSENT:
        return False
    words = value if isinstance(value, str) else config_text(value)
    if words == text or ("*" in text and fnmatch.fnmatchcase(words, text.replace("[", "[[]"))):
        return True
    try:
        parsed_value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return (_is_number(value) and _is_number(parsed_value) and value == parsed_value) or (
        not isinstance(value, str) and config_text(value) == config_text(parsed_value)
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def sort_runs(listing: Listing, runs: Sequence[RunSummary], key: str) -> list[RunSummary]:
    """Sort runs by a key, from low to high, or with "-" before it from high to low; those without it come last.

    Raises:
        UserError: If no run has such a key.
    """
    read_value = run_value(listing, key.removeprefix("-"))
    having = [run for run in runs if read_value(run) is not ABSENT]
    lacking = [run for run in runs if read_value(run) is ABSENT]
    return [*sorted(having, key=lambda run: sort_key(read_value(run)), reverse=key.startswith("-")), *lacking]


def sort_key(value: Any) -> tuple[int, float, str]:
    """Return what orders any JSON values: numbers, then everything else as text."""
    if _is_number(value):
        return (0, math.inf if math.isnan(value) else float(value), "")
    return (1, 0.0, value if isinstance(value, str) else config_text(value))


def group_runs(listing: Listing, runs: Sequence[RunSummary], keys: Sequence[str]) -> list[RunGroup]:
    """Group runs by the values of some keys, in the order of the values.

    Raises:
        UserError: If no run has such a key.
    """
    readers = [run_value(listing, key) for key in keys]
    groups: dict[tuple[str, ...], RunGroup] = {}
    for run in runs:
        values = tuple(read_value(run) for read_value in readers)
        identity = tuple(map(config_text, values))
        groups[identity] = RunGroup(values, [*groups[identity].runs, run] if identity in groups else [run])
    return sorted(groups.values(), key=lambda group: [sort_key(value) for value in group.values])


def differing_keys(runs: Sequence[RunSummary]) -> list[str]:
    """Return the config keys in which runs differ, first those that all runs have, without the name.

    A run whose config cannot be read differs in nothing.
    """
    configs = [run.config for run in runs if run.config]
    keys = dict.fromkeys(key for config in configs for key in config if key != "name")
    different = [key for key in keys if len({_identity(config.get(key, ABSENT)) for config in configs}) > 1]
    return sorted(different, key=lambda key: not all(key in config for config in configs))


def table_keys(runs: Sequence[RunSummary], named_keys: Iterable[str] = ()) -> list[str]:
    """Return the config keys that are columns of the table of runs.

    Two runs of different tasks or model families differ in nearly all keys, which says nothing. So these are the keys
    that are named, then the task and the family if they differ, then those in which runs of one task and family differ.

    Args:
        runs: The runs.
        named_keys: Keys of a group, a condition or an order, as "config.KEY"; others are ignored.
    """
    kinds: dict[tuple[tuple[str, Any], ...], list[RunSummary]] = {}
    for run in runs:
        kinds.setdefault(tuple(_identity(run.config.get(key, ABSENT)) for key in _KIND_KEYS), []).append(run)
    all_keys = differing_keys(runs)
    within_kinds = {key for group in kinds.values() for key in differing_keys(group)}
    config_keys = [key.removeprefix("config.") for key in named_keys if key.startswith("config.")]
    kind_keys = [key for key in _KIND_KEYS if key in all_keys]
    return list(dict.fromkeys([*config_keys, *kind_keys, *(key for key in all_keys if key in within_kinds)]))


def condition_keys(conditions: Iterable[str]) -> list[str]:
    """Return the key of every condition."""
    return [match[1] for condition in conditions if (match := _CONDITION.fullmatch(condition))]


def _identity(value: Any) -> tuple[str, Any]:
    """Return what is equal for values that are equal as JSON."""
    is_plain = value is None or isinstance(value, str | bool | int)
    return (type(value).__name__, value if is_plain else config_text(value))


def short_keys(keys: Sequence[str]) -> dict[str, str]:
    """Return the shortest ends of dotted keys that tell them apart, by key."""
    names = {}
    for key in keys:
        parts = key.split(".")
        ends = (".".join(parts[-length:]) for length in range(1, len(parts) + 1))
        names[key] = next(
            (
                end
                for end in ends
                if not any(another_key != key and f".{another_key}".endswith(f".{end}") for another_key in keys)
            ),
            key,
        )
    return names
