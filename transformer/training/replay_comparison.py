"""Compare what a replay computed with what its run recorded: bit for bit, and where they differ, by how much."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from transformer.maps.store import MapStore
from transformer.runs.array_digests import compute_digests
from transformer.runs.checkpoint import StoredCheckpoint
from transformer.runs.checkpoint_files import named_leaves, to_stored_array
from transformer.runs.jsonl_reading import HEAD_RECORDS, read_records
from transformer.runs.run_directory import RunDirectory, RunStart, describe_environment
from transformer.system.terminal import pluralize
from transformer.training.metric_accumulator import depends_on_speed
from transformer.training.state import TrainState

# The facts of a start on which the last bits of a result depend, and how they are called.
_CAUSES = {"processor": "processor", "cpus": "number of cores", "devices": "devices", "commit": "commit"}
_PACKAGES = ("jax", "jaxlib")


class Comparison(NamedTuple):
    """Replayed values beside recorded ones.

    Attributes:
        what: What was compared, in words with their number.
        num_compared: The number of lines or arrays.
        num_different: How many of them are not equal.
        first_different_step: The first step at which they differ; None if all are equal.
        largest_difference: The largest difference: of numbers relative to the larger one, of arrays relative to the
            largest element.
        largest_name: The name of the metric, statistic or array that has it.
    """

    what: str
    num_compared: int
    num_different: int = 0
    first_different_step: int | None = None
    largest_difference: float = 0.0
    largest_name: str = ""


def compare_metrics(recorded: Path, replayed: Path, first: int, last: int) -> Comparison:
    """Compare the training metrics of two metrics.jsonl, without those that depend on speed.

    Args:
        recorded: The file of the run.
        replayed: The file of the replay.
        first: The step after which lines are compared.
        last: The last step.
    """
    lines = [
        {
            record["step"]: {
                name: value
                for name, value in record.items()
                if name not in ("step", "split") and not depends_on_speed(name)
            }
            for record in read_records(path)
            if record["split"] == "train" and first < record["step"] <= last
        }
        for path in (recorded, replayed)
    ]
    return _compare_lines("metrics.jsonl", *lines)


def compare_head_statistics(recorded: Path, replayed: Path, first: int, last: int) -> Comparison:
    """Compare the head statistics of two heads.jsonl; arguments as of `compare_metrics`."""
    lines: list[dict[int, dict[str, Any]]] = []
    for path in (recorded, replayed):
        by_step: dict[int, dict[str, Any]] = {}
        for record in read_records(path, HEAD_RECORDS):
            if first < record["step"] <= last:
                values = {f"{record['site']}/{name}": value for name, value in record.items()}
                by_step.setdefault(record["step"], {}).update(
                    {name: value for name, value in values.items() if name.split("/")[-1] not in ("step", "site")}
                )
        lines.append(by_step)
    return _compare_lines("heads.jsonl", *lines)


def _compare_lines(name: str, recorded: Mapping[int, Mapping], replayed: Mapping[int, Mapping]) -> Comparison:
    """Compare the values of the steps that both have."""
    steps = sorted(recorded.keys() & replayed.keys())
    differences = {}
    for step in steps:
        names = recorded[step].keys() | replayed[step].keys()
        unequal = {
            value_name: _largest_relative_difference(recorded[step].get(value_name), replayed[step].get(value_name))
            for value_name in names
            if recorded[step].get(value_name) != replayed[step].get(value_name)
        }
        if unequal:
            differences[step] = max((difference, value_name) for value_name, difference in unequal.items())
    spans = f" (steps {steps[0]} to {steps[-1]})" if len(steps) > 1 else f" (step {steps[0]})" if steps else ""
    what = f"{pluralize(len(steps), 'line')} of {name}{spans}"
    if not differences:
        return Comparison(what, len(steps))
    return Comparison(what, len(steps), len(differences), min(differences), *max(differences.values()))


def _largest_relative_difference(recorded: Any, replayed: Any) -> float:
    """Return the largest difference of numbers relative to the larger of each two; infinite if one is missing."""
    values = [np.asarray(value, np.float64) for value in (recorded, replayed)]  # None becomes NaN
    if values[0].shape != values[1].shape:
        return math.inf
    sizes = np.maximum(*map(np.abs, values))
    with np.errstate(invalid="ignore"):
        relative = np.abs(values[0] - values[1]) / np.where(sizes > 0, sizes, 1)
    both_missing = np.isnan(values[0]) & np.isnan(values[1])
    return float(np.where(both_missing, 0, np.where(np.isnan(relative), math.inf, relative)).max(initial=0))


def compare_maps(recorded: MapStore, replayed: MapStore, step: int) -> Comparison:
    """Compare every stored array of a step of two map stores.

    Args:
        recorded: The store of the run.
        replayed: The store of the replay.
        step: The step, which both have.
    """
    arrays = [_stored_arrays(store, step) for store in (recorded, replayed)]
    return _compare_arrays(f"the maps of step {step}", step, *arrays)


def _stored_arrays(store: MapStore, step: int) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    for site in store.sites:
        for level in store.levels(site.name):
            parts = store.read_quantized(site.name, step, level.name)._asdict()
            arrays |= {f"{site.name}/{level.name}/{part}": np.asarray(array) for part, array in parts.items()}
        rows, top = store.read_rows(site.name, step), store.read_top(site.name, step)
        arrays |= {} if rows is None else {f"{site.name}/rows": rows[1]}
        arrays |= {} if top is None else {f"{site.name}/top/keys": top[0], f"{site.name}/top": top[1]}
        arrays[f"{site.name}/statistics"] = store.statistics(site.name).values[store.steps.index(step)]
    return arrays


def compare_state(checkpoint: StoredCheckpoint, state: TrainState) -> Comparison:
    """Compare a state with a checkpoint of its step, by the digests of all arrays; those that differ are read."""
    leaves = named_leaves(state)
    digests = compute_digests({name: to_stored_array(name, leaf) for name, leaf in leaves.items()})
    unequal = [name for name, digest in checkpoint.digests.items() if digests.get(name) != digest]
    restored = checkpoint.restore_leaves({name: leaves[name] for name in unequal if name in leaves})
    what = f"the {pluralize(len(checkpoint.digests), 'array')} of the checkpoint of step {checkpoint.step}"
    if not unequal:
        return Comparison(what, len(checkpoint.digests))
    differences = [
        (_array_difference(*(np.asarray(to_stored_array(name, leaf)) for leaf in (restored[name], leaves[name]))), name)
        if name in restored
        else (math.inf, name)
        for name in unequal
    ]
    return Comparison(what, len(checkpoint.digests), len(unequal), checkpoint.step, *max(differences))


def _compare_arrays(
    what: str, step: int, recorded: Mapping[str, np.ndarray], replayed: Mapping[str, np.ndarray]
) -> Comparison:
    what = f"{pluralize(len(recorded), 'array')} of {what}"
    differences = [
        (math.inf if name not in replayed else _array_difference(array, replayed[name]), name)
        for name, array in recorded.items()
        if name not in replayed or array.tobytes() != replayed[name].tobytes()
    ]
    if not differences:
        return Comparison(what, len(recorded))
    return Comparison(what, len(recorded), len(differences), step, *max(differences))


def _array_difference(recorded: np.ndarray, replayed: np.ndarray) -> float:
    """Return the largest difference of two arrays relative to their largest element."""
    if recorded.shape != replayed.shape:
        return math.inf
    first, second = (np.nan_to_num(np.asarray(array, np.float64)) for array in (recorded, replayed))
    largest = max(np.abs(first).max(initial=0), np.abs(second).max(initial=0))
    return float(np.abs(first - second).max(initial=0) / (largest or 1))


def is_bit_identical(comparisons: Sequence[Comparison]) -> bool | None:
    """Return whether all that was compared is equal; None if nothing was compared."""
    compared = [comparison for comparison in comparisons if comparison.num_compared]
    return all(not comparison.num_different for comparison in compared) if compared else None


def describe_comparisons(comparisons: Sequence[Comparison], directory: RunDirectory) -> str:
    """Describe in one line whether a replay is bit for bit what ran, and if not, how far off it is and what differs.

    Args:
        comparisons: What was compared.
        directory: The run directory, which records the machines that trained the run.
    """
    compared = [comparison for comparison in comparisons if comparison.num_compared]
    if not compared:
        return "not compared with what ran: the run recorded nothing on the replayed steps"
    if is_bit_identical(compared):
        return f"bit-identical to what ran: {_join([comparison.what for comparison in compared])} are equal"
    parts = [
        f"{comparison.num_different} of {comparison.what} differ"
        + ("" if comparison.first_different_step is None else f", the first at step {comparison.first_different_step}")
        + f", by at most {comparison.largest_difference:.2g} relative ({comparison.largest_name})"
        for comparison in compared
        if comparison.num_different
    ]
    return f"not bit-identical to what ran: {'; '.join(parts)}; {describe_other_machine(directory)}"


def describe_other_machine(directory: RunDirectory) -> str:
    """Describe how this process differs from those that trained a run, as far as the last bits depend on it."""
    environment = describe_environment()
    differences = []
    for start in directory.starts():
        differences += [
            f"{words} {_text(earlier)} then, {_text(now)} now"
            for words, earlier, now in _environment_pairs(start, environment)
            if earlier is not None and earlier != now
        ]
    if not differences:
        return "processor, devices, packages and commit are those of the run; XLA_FLAGS and --vmap change results too"
    return "; ".join(dict.fromkeys(differences))


def _environment_pairs(start: RunStart, environment: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    pairs = [
        (words, earlier if fact != "devices" or earlier is None else vars(earlier), environment[fact])
        for fact, words in _CAUSES.items()
        for earlier in [getattr(start, fact)]
    ]
    return pairs + [(name, start.packages.get(name), environment["packages"].get(name)) for name in _PACKAGES]


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{value['count']} x {value['kind']}"
    return str(value)


def _join(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
