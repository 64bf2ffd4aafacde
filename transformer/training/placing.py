"""Programs traced for a placement, and batches divided over its devices by rows."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from transformer.axes import Placement, placed
from transformer.tasks.contract import Batch
from transformer.training.state import TrainState
from transformer.training.step import Metrics, Step


def traced_on[**P, R](placement: Placement, function: Callable[P, R]) -> Callable[P, R]:
    """The function, traced for a placement whenever it is compiled."""

    @functools.wraps(function)
    def traced(*arguments: P.args, **named: P.kwargs) -> R:
        with placed(placement):
            return function(*arguments, **named)

    return traced


def batch_sharding(shape: tuple[int, ...], placement: Placement) -> NamedSharding:
    """Rows sharded over the mesh; whole on every device where their number does not divide."""
    return NamedSharding(placement.mesh, placement.even_spec(("batch",)[: len(shape)], shape[:1]))


def shard_batch(batch: Mapping[str, Any], placement: Placement) -> dict[str, jax.Array]:
    """A batch of host arrays, the same on every process, as global arrays; each process places its own rows alone."""

    def place(array: Any) -> jax.Array:
        if isinstance(array, jax.Array) and not array.is_fully_addressable:
            return array
        whole = np.asarray(array)
        return jax.make_array_from_process_local_data(batch_sharding(whole.shape, placement), whole, whole.shape)

    return jax.tree.map(place, dict(batch))


def on_host_batches(step: Step, placement: Placement) -> Step:
    """The compiled step, fed with batches of the host: each is divided over the devices on its way in."""

    def sharded(state: TrainState, batch: Batch, observe: bool = False) -> tuple[TrainState, Metrics]:
        return step(state, shard_batch(batch, placement), observe)

    return sharded
