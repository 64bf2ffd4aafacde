"""Stacking states, batches and reports of several runs along a leading axis, and taking one run out."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from transformer.axes import Placement
from transformer.config import UserError
from transformer.data.batches import Source
from transformer.tasks.contract import Batch, Report
from transformer.training.state import TrainState
from transformer.training.step import Metrics, Step


class StackedBatches:
    """The batches of several sources, those of one step stacked."""

    def __init__(self, sources: Sequence[Source]):
        self._sources = sources

    def __getitem__(self, step: int) -> Batch:
        """The batches of one step: every array has a leading axis of sources.

        Errors: UserError where their shapes differ.
        """
        batches = [source[step] for source in self._sources]
        for batch in batches:
            for name, array in batch.items():
                shape, first = np.shape(array), np.shape(batches[0][name])
                if shape != first:
                    raise UserError(
                        f"the batches of two seeds differ in shape at step {step + 1}: {name!r} is {shape} and "
                        f"{first}, which one program cannot train; give config.task.lengths a single length, or train "
                        "one by one"
                    )
        return {name: np.stack([np.asarray(batch[name]) for batch in batches]) for name in batches[0]}


def stacked_on(placement: Placement) -> NamedSharding:
    """The placement of stacked arrays: whole, on the runs' one device."""
    return NamedSharding(placement.mesh, PartitionSpec())


def stack_states(states: Sequence[TrainState], placement: Placement) -> TrainState:
    """The states stacked into one."""

    def stack(*states: TrainState) -> TrainState:
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)

    return jax.jit(stack, out_shardings=stacked_on(placement))(*states)


@jax.jit
def take_run(state: TrainState, run: int) -> TrainState:
    """The state of one run."""
    return jax.tree.map(lambda leaf: leaf[run], state)


def stack_reports(reports: Sequence[Report | None]) -> Report:
    """The runs' reports as one: each number, and the samples, a sequence over the runs, None where a run has none."""
    present = [report for report in reports if report is not None]
    names = dict.fromkeys(name for report in present for name in report.scalars)
    scalars: dict[str, Any] = {
        name: tuple(None if report is None else report.scalars.get(name) for report in reports) for name in names
    }
    samples: Any = tuple(() if report is None else report.samples for report in reports)
    return Report(scalars, samples if any(samples) else ())


def vectorise(step: Step) -> Step:
    """The step of several runs at once: a leading axis of every leaf of state, batch and metrics.

    They differ in their states, key and hyper-parameters included, and in their batches' examples; `observe` holds for
    all.
    """

    def vmapped(state: TrainState, batch: Mapping[str, Any], observe: bool = False) -> tuple[TrainState, Metrics]:
        return jax.vmap(step, in_axes=(0, 0, None))(state, batch, observe)

    return vmapped
