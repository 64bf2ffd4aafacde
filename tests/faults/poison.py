"""Batches that would spoil a run, given to the real loop: what becomes of its state, and the way past it."""

import contextlib
import io
import random
import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tests.faults import small_config
from transformer.config import UserError
from transformer.models.model import leaves_by_path
from transformer.runs.checkpoint import Checkpoints
from transformer.runs.jsonl_reading import read_records
from transformer.training import build, partitioning, rollback
from transformer.training import config as experiment
from transformer.training.checked_batches import CheckedBatches
from transformer.training.driver import train
from transformer.training.rollback import RollbackRequest
from transformer.training.update_guard import TrainingDiverged

Batch = dict[str, Any]
VECTORS: dict[str, Any] = {
    "name": "vectors",
    "task": {
        "name": "experiments.neural_turing_machine.task",
        "problem": "copy",
        "num_bits": 3,
        "batch_size": 4,
        "max_size": 3,
        "eval_sizes": [2],
        "num_eval_examples": 4,
    },
    "model": {"family": "experiments.neural_turing_machine.lstm_controller", "layers": 1, "width": 8},
    "maps_every": 0,
    "head_statistics_every": 0,
    "parameter_averages": {},
}


def config(**changes: Any) -> dict[str, Any]:
    """The run that is attacked, on one device, with a checkpoint every five steps of which the last alone is kept."""
    return {
        **small_config.get_config().to_dict(),
        "steps": 20,
        "checkpoint_every": 5,
        "keep_checkpoints": 1,
        "eval_every": 0,
        "maps_every": 20,
        # A mean takes its samples by the number of the step, whether that is skipped or not.
        "parameter_averages": {"last": {"kind": "exponential", "decay": 0.5}},
    } | changes


class Poisoned:
    """A source of which some batches, by their numbers from 0, are spoiled."""

    def __init__(self, source: Any, numbers: Collection[int], spoil: Callable[[Batch], Batch]):
        self._source, self._numbers, self._spoil = source, numbers, spoil

    def __getitem__(self, number: int) -> Batch:
        batch = dict(self._source[number])
        return self._spoil(batch) if number in self._numbers else batch


def filled(name: str, value: float) -> Callable[[Batch], Batch]:
    """Spoil the first number of an array."""

    def spoil(batch: Batch) -> Batch:
        array = np.array(batch[name])
        array.flat[0] = value
        return {**batch, name: array}

    return spoil


def padded(batch: Batch) -> Batch:
    """Leave nothing but padding."""
    return {**batch, "counts": np.zeros_like(batch["counts"])}


SPOILT: dict[str, tuple[dict[str, Any], Callable[[Batch], Batch]]] = {
    "nan": (VECTORS, filled("vectors", np.nan)),
    "inf": (VECTORS, filled("vectors", np.inf)),
    "padding": ({}, padded),
}


def attacks(folder: Path, seed: int) -> Iterator[tuple[str, list[str]]]:
    """Each attack by name, with what is wrong of how the run bore it."""
    drawn = random.Random(seed)
    with one_device(), contextlib.redirect_stdout(io.StringIO()):
        for name, (changes, spoil) in SPOILT.items():
            at = drawn.randrange(6, 9)
            yield f"{name} once", once(folder / f"{name}-once", config(**changes), at, spoil)
            yield f"{name} ten times", ten_times(folder / f"{name}-ten", config(**changes), at, spoil)
            yield f"{name} twice ten times", twice_ten_times(folder / f"{name}-twice", config(**changes), spoil)
            yield f"{name} at the last step", once(folder / f"{name}-last", config(**changes), 19, spoil)
        for token in (-7, 10**6):
            yield f"token {token}", bad_token(folder / f"token{token}", config(), drawn.randrange(6, 15), token)


@contextlib.contextmanager
def one_device() -> Iterator[None]:
    """Runs on one device, whatever the number of those that there are."""
    before = build.make_placement
    build.make_placement = lambda config: partitioning.single_device_placement()  # type: ignore[assignment]
    try:
        yield
    finally:
        build.make_placement = before


@contextlib.contextmanager
def spoilt(numbers: Collection[int], spoil: Callable[[Batch], Batch]) -> Iterator[None]:
    """Runs whose sources are spoilt."""

    def vetted(source: Any, *more: Any) -> CheckedBatches:
        return CheckedBatches(Poisoned(source, numbers, spoil), *more)

    rollback.CheckedBatches = vetted  # type: ignore[misc,assignment]
    try:
        yield
    finally:
        rollback.CheckedBatches = CheckedBatches  # type: ignore[misc]


def state_of(run: Path, values: dict[str, Any], step: int | None = None) -> dict[str, np.ndarray]:
    """The leaves of a checkpoint, the latest by default."""
    resolved = experiment.resolve_config(values)
    with contextlib.closing(Checkpoints.open_read_only(run / "checkpoints")) as checkpoints:
        at = checkpoints.latest() if step is None else step
        state = checkpoints.read(at).restore(build.build_components(resolved, run).abstract_state)  # type: ignore[arg-type]
    return {
        path: np.asarray(leaf)
        for path, leaf in leaves_by_path(state._replace(key=jax.random.key_data(state.key))).items()
    }


def not_finite(state: dict[str, np.ndarray]) -> list[str]:
    """The leaves that hold a number that is none."""
    return [
        f"{path} is not finite"
        for path, leaf in state.items()
        if leaf.dtype.kind == "f" and not np.isfinite(leaf).all()
    ]


def once(run: Path, values: dict[str, Any], at: int, spoil: Callable[[Batch], Batch]) -> list[str]:
    """One spoilt batch: the run ends as one in which no update was made at that step, and says so."""
    with spoilt({at}, spoil):
        train(experiment.resolve_config(values), run)
    faults = not_finite(state_of(run, values))
    skipped = {
        record["step"]: record["skipped_updates"]
        for record in read_records(run / "metrics.jsonl")
        if record["split"] == "train"
    }
    if sum(skipped.values()) != 1:
        faults.append(f"it reports {skipped} steps without an update")
    # The same run up to that step, and its state a step later.
    with spoilt({at}, spoil):
        for steps in (at, at + 1):
            train(
                experiment.resolve_config({**values, "steps": steps, "log_every": 1, "checkpoint_every": 0}),
                run.with_name(f"{run.name}-{steps}"),
            )
    before, after = (state_of(run.with_name(f"{run.name}-{steps}"), values) for steps in (at, at + 1))
    return faults + [
        f"{path} has changed" for path in before if path != "step" and before[path].tobytes() != after[path].tobytes()
    ]


def ten_times(run: Path, values: dict[str, Any], at: int, spoil: Callable[[Batch], Batch]) -> list[str]:
    """Ten in a row: the run stops with all that it had, and goes past them when it is told to."""
    faults = []
    resolved = experiment.resolve_config(values)
    with spoilt(range(at, at + 10), spoil):
        said = stopped(resolved, run)
        if said is None or f"steps {at + 1} to {at + 10}, 10 in a row" not in said:
            return [f"it did not stop: {said}"]
        faults += not_finite(state_of(run, values))
        faults += [
            f"{run.name}: no batch of step {step} is kept"
            for step in range(at + 1, at + 11)
            if not (run / f"batch-of-step-{step}.npz").is_file()
        ]
        way = _way_past(said)
        if way is None or not way.step or way.step + way.num_batches_to_skip != at + 10:
            return [*faults, f"it names no way past: {said}"]
        train(resolved, run, rewind=way)
        train(resolved, run, rewind=way)  # the same command again has nothing to do
        # Another run that never met them.
        other = run.with_name(f"{run.name}-other")
        train(experiment.resolve_config({**values, "steps": way.step}), other)
        train(resolved, other, rewind=way)
    one, two = state_of(run, values), state_of(other, values)
    return faults + not_finite(one) + [f"{path} differs" for path in one if one[path].tobytes() != two[path].tobytes()]


def twice_ten_times(run: Path, values: dict[str, Any], spoil: Callable[[Batch], Batch]) -> list[str]:
    """Ten in a row, and behind them ten at the same steps: what it says leads past both."""
    resolved, followed = experiment.resolve_config({**values, "checkpoint_every": 0}), []
    with spoilt(range(20), spoil):
        said = stopped(resolved, run)
        while said is not None and len(followed) < 3:
            way = _way_past(said)
            if way is None:
                return [f"it names no way past: {said}"]
            followed.append(way)
            said = stopped(resolved, run, way)
    if said is not None or len(followed) != 2:
        return [f"behind {', '.join(map(str, followed))} it says: {said}"]
    return not_finite(state_of(run, values))


def _way_past(said: str) -> RollbackRequest | None:
    """What the command that the run's last words name asks for."""
    found = re.search(r"--rollback_to_step=(\d+) --skip_batches=(\d+)", said)
    return RollbackRequest(int(found[1]), int(found[2])) if found else None


def stopped(resolved: experiment.ExperimentConfig, run: Path, way: RollbackRequest | None = None) -> str | None:
    """Why a run stopped; None where it did not."""
    try:
        train(resolved, run, rewind=way)
    except TrainingDiverged as diverged:
        return str(diverged)
    return None


def bad_token(run: Path, values: dict[str, Any], at: int, token: int) -> list[str]:
    """A token of no vocabulary: refused by name, and passed by when the run is told to."""
    resolved = experiment.resolve_config(values)
    with spoilt({at}, filled("tokens", token)):
        try:
            train(resolved, run)
        except UserError as error:
            said = str(error)
        else:
            return ["it is not refused"]
        way = _way_past(said)
        if f"batch {at} (counted from 0) has tokens[0, 0] = {token}" not in said or way is None:
            return [f"it says: {said}"]
        train(resolved, run, rewind=way)
    return not_finite(state_of(run, values))
