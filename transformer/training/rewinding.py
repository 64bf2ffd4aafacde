"""Going back to a checkpoint of a run and past batches that stop it: recorded, so that every later start does alike."""

import io
import shlex
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer.config import UserError
from transformer.data.batches import Source
from transformer.models.paths import by_path
from transformer.named import trust_words
from transformer.runs.endings import Failed
from transformer.runs.processes import decided, primary
from transformer.storage import storage_of
from transformer.training.assembly import Assembly
from transformer.training.batches import BadBatch, Vetted, merged, number_of
from transformer.training.faults import Diverged
from transformer.training.opened import OpenRun
from transformer.training.state import TrainState

# Facts in environment.json: what was last asked for, the batches that the run leaves out, and a step that it is on its
# way back to: a process that is killed on that way is followed by one that goes the rest of it.
_ASKED, _PASSED, _GOING_BACK = "rewind", "passed_batches", "going_back_to"


class Rewind(NamedTuple):
    """Go back to the checkpoint of `step` (None: the latest), and leave out the next `skip` batches."""

    step: int | None
    skip: int

    def __str__(self) -> str:
        """The flags that ask for it."""
        return f"--skip={self.skip}" if self.step is None else f"--rewind={self.step} --skip={self.skip}"


def rewound(run: OpenRun, wanted: Rewind | None) -> None:
    """Bring a run's checkpoints and records to where `wanted` says; what was asked for last is not done twice.

    All processes call it together.

    Errors: UserError for a step without a checkpoint.
    """
    steps = run.checkpoints.steps()
    target = decided(lambda: _target(run, wanted, steps))
    if target is not None:
        run.checkpoints.drop_after(target)
        if primary():
            run.directory.record(**{_GOING_BACK: None})


def _target(run: OpenRun, wanted: Rewind | None, steps: list[int]) -> int | None:
    facts = run.directory.facts()
    under_way = facts.get(_GOING_BACK)
    if wanted is None or list(wanted) == facts.get(_ASKED):
        if wanted is not None and under_way is None:
            print(f"{wanted} was done before and changes nothing: to go past more, say another --skip", flush=True)
        return under_way
    step = max(steps, default=0) if wanted.step is None else wanted.step
    if step not in (0, *steps):
        there = f"of steps {', '.join(map(str, steps))}" if steps else "none"
        raise UserError(f"--rewind={step}: the run has checkpoints {there}, and 0 is its start")
    if wanted.skip < 0:
        raise UserError(f"--skip={wanted.skip} must be a number of batches, 0 or more")
    passed = [list(each) for each in merged(facts.get(_PASSED) or [])]
    first = number_of(step, passed)
    if wanted.skip:
        last = number_of(step + wanted.skip - 1, passed)
        passed = [list(each) for each in merged([*passed, [first, last - first + 1]])]
    run.directory.record(**{_ASKED: list(wanted), _PASSED: passed, _GOING_BACK: step})
    print(f"going back to step {step}, past {wanted.skip} batches from number {first} on", flush=True)
    return step


def batches_of(run: OpenRun, assembly: Assembly) -> Source:
    """The batches of a run, looked over, without those that it leaves out."""
    passed = decided(lambda: run.directory.facts().get(_PASSED) or [])
    return Vetted(assembly.task.source(run.experiment.run.seed), assembly.task.interface, passed)


def explained(diverged: Diverged, run: OpenRun, batches: Source) -> Diverged:
    """What stopped a run, with the way past it; its batches are kept in the run directory, to be looked at."""
    steps = range(diverged.first, diverged.step + 1)
    names = [_keep(run, step, batches[step - 1]) for step in steps if primary()]
    way = _way_past(run, diverged.step)
    return Diverged(
        diverged.first,
        diverged.step,
        f"{diverged.reason}. Their batches are kept in {run.directory.path}: {', '.join(names)}. The run, of seed "
        f"{run.experiment.run.seed}, goes on from step {way.step} and meets them again: to go past them, "
        f"{_command(run, way)}; a higher config.faults.stop_after bears more of them",
    )


def passable(bad: BadBatch, run: OpenRun) -> BadBatch:
    """The batch that stopped a run, with the way past it."""
    way = _way_past(run, bad.step)
    return BadBatch(bad.step, f"{bad}; to go past all batches from step {way.step} up to it, {_command(run, way)}")


def _way_past(run: OpenRun, step: int) -> Rewind:
    """What to ask for to go past the batches from the latest checkpoint up to that of `step`."""
    latest = max((saved for saved in run.checkpoints.steps() if saved <= step), default=0)
    way = Rewind(latest, step - latest)
    asked = decided(lambda: run.directory.facts().get(_ASKED))
    # The same request once more would count as done: one batch more makes it another.
    return way._replace(skip=way.skip + 1) if list(way) == asked else way


def _command(run: OpenRun, way: Rewind) -> str:
    trust = trust_words(run.experiment.to_config())
    words = ["python", "-m", "launch.train", f"--workdir={run.directory.path}", *trust]
    return f"{shlex.join(words)} {way}"


def _keep(run: OpenRun, step: int, batch: Any) -> str:
    """Write the batch of a step beside the run's records; return the file's name."""
    content, path = io.BytesIO(), run.directory.path / f"batch-of-step-{step}.npz"
    arrays: dict[str, Any] = {name: np.asarray(array) for name, array in batch.items()}
    np.savez(content, **arrays)
    storage_of(path).replace(path, content.getvalue())
    return path.name


def check_finite(state: TrainState, run: OpenRun, latest: int | None) -> None:
    """Errors: Failed naming the first parameter that is not finite: no update could mend it."""
    params = by_path(state.variables.params)
    sound = jax.device_get(_are_finite(params))
    for name in params:
        if not sound[name]:
            where = "at the start" if latest is None else f"in checkpoint {latest}"
            steps = [step for step in run.checkpoints.steps() if latest is None or step < latest]
            raise Failed(
                f"the parameter {name} is not finite {where}, and no update can mend it: "
                + ("begin with others" if latest is None else f"go back with --rewind={max(steps, default=0)}")
            )


@jax.jit
def _are_finite(params: dict[str, Any]) -> dict[str, Any]:
    return {name: jnp.all(jnp.isfinite(leaf)) for name, leaf in params.items()}
