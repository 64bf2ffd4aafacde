"""Placement of arrays on a mesh: the state by its logical axes, batches sharded by rows."""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from transformer.axes import Placement, check_count, placed
from transformer.config import UserError
from transformer.models.contract import Model
from transformer.models.interface import Interface
from transformer.tasks.contract import Batch
from transformer.training.state import TrainState, by_path
from transformer.training.step import Metrics, Step

MEGABYTE = 1e6


def traced_on[**P, R](placement: Placement, function: Callable[P, R]) -> Callable[P, R]:
    """The function, traced for a placement whenever it is compiled."""

    @functools.wraps(function)
    def traced(*arguments: P.args, **named: P.kwargs) -> R:
        with placed(placement):
            return function(*arguments, **named)

    return traced


def state_shardings(
    model: Model, abstract: TrainState, placement: Placement, replicate_below_mb: float = math.inf
) -> TrainState:
    """The sharding of every leaf of the state.

    Parameters are placed by the rules, and so are their averages and the optimiser's moments, which are dicts keyed by
    the parameter's path; all other leaves are whole on every device.

    Errors: UserError naming the parameter's path: for a logical axis that has no rule, for more or fewer names than
    dimensions, for an axis that the mesh does not divide evenly, for two dimensions along one mesh axis, and for a
    parameter above `replicate_below_mb` megabytes that stays whole under rules that shard parameters.
    """
    names, shapes = by_path(model.axes().params, is_names), by_path(abstract.variables.params)
    specs = {path: _checked_spec(path, axes, shapes[path], placement) for path, axes in names.items()}
    # Without `experts`: rules that shard experts alone do not shard the other parameters.
    dividing = any(placement.parts(name) > 1 for name in ("embed", "heads", "feed_forward", "vocabulary"))
    for path, spec in specs.items():
        megabytes = shapes[path].size * shapes[path].dtype.itemsize / MEGABYTE
        if dividing and megabytes > replicate_below_mb and not any(spec):
            raise UserError(
                f"the parameter {path} {shapes[path].shape} of {megabytes:.1f} MB would lie whole on every device, "
                f"above config.sharding.replicate_below_mb={replicate_below_mb}: choose config.sharding.rules that "
                f"divide one of its axes {names[path]}, or raise it"
            )
    mesh = placement.mesh

    def of_dict_by_path(path: Any, leaf: Any) -> NamedSharding:
        return NamedSharding(mesh, specs.get(getattr(path[-1], "key", ""), PartitionSpec()))

    shardings = jax.tree_util.tree_map_with_path(of_dict_by_path, abstract)
    of_parameters = [NamedSharding(mesh, specs[path]) for path in shapes]
    params = jax.tree.unflatten(jax.tree.structure(abstract.variables.params), of_parameters)
    return shardings._replace(variables=shardings.variables._replace(params=params))


def _checked_spec(path: str, names: tuple[str | None, ...], leaf: Any, placement: Placement) -> PartitionSpec:
    try:
        check_count(names, leaf.shape)
        placement.spec(names)
    except ValueError as error:
        raise UserError(f"the parameter {path} {leaf.shape} with logical axes {names}: {error}") from None
    for name, size in zip(names, leaf.shape, strict=True):
        parts = 1 if name is None or name == "groups" else placement.parts(name)
        if name is not None and size % parts:
            axes = " x ".join(f"config.sharding.{axis}={placement.mesh.shape[axis]}" for axis in placement.axes(name))
            raise UserError(
                f"{axes} does not divide the {size} of {name} in the parameter {path} {leaf.shape}: choose sizes that "
                + ("do, or give config.model.embedding_rows a multiple" if name == "vocabulary" else "do")
            )
    return placement.even_spec(names, leaf.shape)  # key/value heads, which may be too few, are then whole


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


def check_positions(interface: Interface, placement: Placement) -> None:
    """Refuse a task whose positions the mesh cannot divide.

    Errors: UserError naming the keys that can change it.
    """
    parts = placement.parts("length")
    for name, given in interface.inputs.items():
        if given.positions is not None and given.positions % parts:
            raise UserError(
                f"config.sharding.sequence={parts} does not divide the {given.positions} positions of the task's "
                f"{name}: give config.task a length that is a multiple of {parts}, or another sequence"
            )


def is_names(leaf: Any) -> bool:
    """Whether this is the logical names of an array's dimensions, a leaf of `Model.axes`."""
    return isinstance(leaf, tuple) and all(isinstance(name, str | None) for name in leaf)
