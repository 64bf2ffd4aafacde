"""Faults planted in the code, which the comparison of runs must be seen to catch: each is named by what differs."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.faults.outcome import Row
from tests.faults.subject import config, differences, forked, result, use_cache
from tests.training.small_run import Killed
from transformer.runs import checkpoint
from transformer.training import config as experiment
from transformer.training import driver, loop
from transformer.training.state import TrainState
from transformer.training.writers.jsonl import JsonLinesFile
from transformer.training.writers.writer import Progress, Report, Writer

STEPS, STOPPED = 20, 13

Plant = Callable[[pytest.MonkeyPatch], None]


class Stopped(Writer):
    """What ends a run between two steps, as a kill does."""

    def write(self, report: Report) -> None:
        if isinstance(report, Progress) and report.step == STOPPED:
            raise Killed


def planted(folder: Path) -> list[Row]:
    """Stop a run, plant a fault, go on, and compare with the run that was never stopped."""
    values, cache = config(folder, steps=STEPS, log_every=1), folder / "cache"
    assert forked(folder, _stopped_and_resumed, values, folder / "whole", cache, None).code == 0
    reference = forked(folder, result, folder / "whole").value
    missed, named = [], []
    for name in PLANTS:
        run = folder / name.replace(" ", "-")
        ended = forked(folder, _stopped_and_resumed, values, run, cache, name)
        if ended.code:  # refused or crashed: noticed as well
            named.append(f"{name}: {ended.said.strip().splitlines()[-1][:80]}")
            continue
        found = differences(reference, forked(folder, result, run).value)
        (named if found else missed).append(f"{name}: {found[0] if found else 'nothing'}")
    print("\n".join(named), flush=True)
    sound = folder / "sound"
    assert forked(folder, _stopped_and_resumed, values, sound, cache, "").code == 0
    clean = not differences(reference, forked(folder, result, sound).value)
    measured = (
        f"{len(named)} of {len(PLANTS)} named; without a fault {'nothing differs' if clean else 'the run DIFFERS'}"
    )
    return [
        Row("planted faults that the comparison must catch", f"{measured} {missed or ''}".strip(), clean and not missed)
    ]


def _stopped_and_resumed(values: dict[str, Any], run: Path, cache: Path, plant: str | None) -> None:
    """A run; with a `plant` it is stopped, and goes on with the fault of that name ("" for none)."""
    use_cache(cache)
    resolved = experiment.resolve_config(values)
    if plant is not None:
        with contextlib.suppress(Killed):
            driver.train(resolved, run, writer=Stopped())
    with pytest.MonkeyPatch.context() as patch:
        if plant:
            PLANTS[plant](patch)
        driver.train(resolved, run)


def _resumed_with(change: Callable[[TrainState], TrainState]) -> Plant:
    def plant(patch: pytest.MonkeyPatch) -> None:
        resume = driver.resume_run

        def changed(*arguments: Any) -> Any:
            resumed = resume(*arguments)
            assert resumed is not None
            return resumed._replace(state=change(resumed.state))

        patch.setattr(driver, "resume_run", changed)

    return plant


def _batches(order: Callable[[Iterator[Any]], Iterator[Any]]) -> Plant:
    def plant(patch: pytest.MonkeyPatch) -> None:
        iterate = loop.iterate_batches
        patch.setattr(loop, "iterate_batches", lambda source, start, stop: order(iterate(source, start, stop)))

    return plant


def _one_bit(tree: Any) -> Any:
    """One bit of the largest number of the first leaf of fractions, flipped: of a zero it would be rounded away."""
    leaves, structure = jax.tree.flatten(tree)
    place = next(n for n, leaf in enumerate(leaves) if leaf.dtype == jnp.float32 and leaf.size > 1)
    bits = np.array(leaves[place])
    bits.reshape(-1).view(np.uint32)[np.argmax(np.abs(bits))] ^= 1 << 8
    leaves[place] = jax.device_put(bits, leaves[place].sharding)
    return jax.tree.unflatten(structure, leaves)


def _stale(patch: pytest.MonkeyPatch) -> None:
    """The state of the checkpoint before, taken for the newest."""
    read = checkpoint.Checkpoints.read

    def read_older_state(self: Any, step: int) -> Any:
        newest, older = read(self, step), read(self, step - 5)

        def restore(abstract: Any, *prefix: Any) -> Any:
            state = older.restore(abstract, *prefix)
            return state._replace(step=state.step + 5)

        newest.restore = restore  # type: ignore[method-assign]
        return newest

    patch.setattr(checkpoint.Checkpoints, "read", read_older_state)


def _unverified(patch: pytest.MonkeyPatch) -> None:
    """A flipped bit that no digest is compared for."""
    patch.setattr(checkpoint, "find_mismatched_arrays", lambda *_: [])
    _resumed_with(lambda state: state._replace(variables=_one_bit(state.variables)))(patch)


def _gradient(patch: pytest.MonkeyPatch) -> None:
    """A gradient of one step with one bit flipped reaches the parameters as one that is too large by a little."""
    compiled = driver.make_jitted_train_step

    def corrupted(*arguments: Any) -> Any:
        step = compiled(*arguments)

        def run(state: Any, batch: Any, observe: Any) -> Any:
            state, metrics = step(state, batch, observe)
            if int(state.step) == STOPPED + 1:
                state = state._replace(variables=_one_bit(state.variables))
            return state, metrics

        run.lower = step.lower  # type: ignore[attr-defined]
        return run

    patch.setattr(driver, "make_jitted_train_step", corrupted)


def _dropped_line(patch: pytest.MonkeyPatch) -> None:
    append, count = JsonLinesFile.append, [0]

    def sometimes(self: JsonLinesFile, record: Any) -> None:
        count[0] += 1
        if count[0] != 2:
            append(self, record)

    patch.setattr(JsonLinesFile, "append", sometimes)


def _dropped(batches: Iterator[Any]) -> Iterator[Any]:
    kept = list(batches)
    return iter([*kept[1:], kept[0]])


def _repeated(batches: Iterator[Any]) -> Iterator[Any]:
    kept = list(batches)
    return iter([kept[0], *kept[:-1]])


def _reordered(batches: Iterator[Any]) -> Iterator[Any]:
    first, second, *rest = batches
    return iter([second, first, *rest])


def _fresh(state: TrainState) -> TrainState:
    return state._replace(optimizers=jax.tree.map(jnp.zeros_like, state.optimizers))


PLANTS: dict[str, Plant] = {
    "a stale state is restored": _stale,
    "a flipped bit is restored unverified": _unverified,
    "a flipped bit in the parameters": _resumed_with(lambda s: s._replace(variables=_one_bit(s.variables))),
    "a flipped bit in the optimizer": _resumed_with(lambda s: s._replace(optimizers=_one_bit(s.optimizers))),
    "a corrupted gradient": _gradient,
    "the optimizer is not restored": _resumed_with(_fresh),
    "dropout is seeded again": _resumed_with(lambda s: s._replace(key=jax.random.fold_in(s.key, 1))),
    "the step is counted twice": _resumed_with(lambda s: s._replace(step=s.step + 1)),
    "a batch is dropped": _batches(_dropped),
    "a batch is repeated": _batches(_repeated),
    "two batches are exchanged": _batches(_reordered),
    "records are not cut on resuming": lambda patch: patch.setattr(JsonLinesFile, "truncate", lambda *_, **__: None),
    "a line of the records is dropped": _dropped_line,
}
