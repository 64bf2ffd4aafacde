"""The placement of a training state on a mesh, by the logical axes of its parameters."""

import math
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from transformer.axes import Placement, check_count
from transformer.config import UserError
from transformer.models.contract import Model
from transformer.models.interface import Interface
from transformer.models.paths import by_path
from transformer.training.state import TrainState

MEGABYTE = 1e6


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
