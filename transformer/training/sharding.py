"""Where arrays lie: a mesh over all devices, the state by its logical axes, batches divided by rows."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from transformer.axes import MESH_AXES, RULES, Placement, SequenceParallel, check_count, placed
from transformer.config import UserError, choice, nearest
from transformer.models.contract import Model
from transformer.training.state import TrainState, by_path

MEGABYTE = 1e6


@dataclasses.dataclass(frozen=True)
class ShardingConfig:
    """The mesh and the rules that place arrays on it (transformer.axes).

    `data`, `fsdp`, `expert`, `tensor` and `sequence` are the sizes of the mesh's axes, one of which may be -1: all
    devices that the others leave. `rules` is a name of `axes.RULES`. `attention` says how attention reaches across
    divided positions. Where the rules divide parameters, one that they leave whole may have at most `largest_whole`
    megabytes.
    """

    data: int = -1
    fsdp: int = 1
    expert: int = 1
    tensor: int = 1
    sequence: int = 1
    rules: str = "dp"
    attention: SequenceParallel = SequenceParallel.RING
    largest_whole: float = 16.0

    def __post_init__(self) -> None:
        rules = choice(self.rules, RULES, "config.sharding.rules")
        sizes = self.sizes()
        for axis, size in sizes.items():
            if size != -1 and size < 1:
                raise UserError(f"config.sharding.{axis}={size} must be at least 1, or -1 for the rest")
            if size != 1 and axis != "data" and not any(axis in axes for axes in rules.values()):
                able = [name for name, other in RULES.items() if any(axis in axes for axes in other.values())]
                raise UserError(
                    f"config.sharding.{axis}={size} divides nothing under config.sharding.rules={self.rules}: "
                    f"say 1, or rules={' or '.join(able)}"
                )
        if list(sizes.values()).count(-1) > 1:
            rest = " and ".join(f"config.sharding.{axis}" for axis, size in sizes.items() if size == -1)
            raise UserError(f"{rest} are both -1: only one axis can be all that the others leave")
        if self.largest_whole <= 0:
            raise UserError(f"config.sharding.largest_whole={self.largest_whole} must be above 0 megabytes")

    def sizes(self) -> dict[str, int]:
        """The size of each axis of the mesh, as it is said."""
        return {axis: getattr(self, axis) for axis in MESH_AXES}


def make_mesh(config: ShardingConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """The mesh over `devices` (all of the run's), by default, laid out so that neighbours on an axis are neighbours.

    Errors: UserError where the sizes do not multiply to the number of devices.
    """
    devices = jax.devices() if devices is None else list(devices)
    sizes = config.sizes()
    said = math.prod(size for size in sizes.values() if size != -1)
    rest = [axis for axis, size in sizes.items() if size == -1]
    if len(devices) % said if rest else len(devices) != said:
        mesh = " x ".join(f"{axis}={size}" for axis, size in sizes.items() if size != 1)
        raise UserError(
            f"config.sharding asks for {mesh or 'one device'}, which does not make {len(devices)} "
            f"{devices[0].device_kind} devices: choose sizes whose product is {len(devices)}, one of them may be -1"
        )
    shape = tuple(len(devices) // said if axis in rest else size for axis, size in sizes.items())
    # Of GPUs every host is a slice.
    slices = {getattr(device, "slice_index", 0) for device in devices}
    if len(slices) > 1 and devices[0].platform == "tpu":
        raise UserError(f"the devices are of {len(slices)} slices, and a run is one slice: start it on one of them")
    # jax.make_mesh refuses to split a side of a torus but on v5e: tensor=8 would not be a mesh of v5p:4x4x4.
    placed = mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
    return Mesh(placed, MESH_AXES, axis_types=(AxisType.Auto,) * len(shape))


def make_placement(config: ShardingConfig, devices: Sequence[jax.Device] | None = None) -> Placement:
    """The mesh of `make_mesh` with the rules of the config.

    Errors: as `make_mesh`.
    """
    return Placement(make_mesh(config, devices), RULES[config.rules], config.attention)


def one_device() -> Placement:
    """Everything on the first device of this process: how a run is read that was trained anywhere."""
    return make_placement(ShardingConfig(), jax.local_devices()[:1])


def with_axes(placement: Placement, own: Mapping[str, tuple[str, ...]]) -> Placement:
    """The placement with a family's own logical axes: by name the mesh axes on which each lies, () for whole.

    Errors: UserError for a name that the project's rules have already, and for what is no tuple of different mesh axes.
    """
    for name, axes in own.items():
        said = f"FAMILY.logical_axes={{{name!r}: {axes!r}}}"
        if name in placement.rules:
            raise UserError(
                f"{said} names a logical axis that has its place already, {placement.rules[name]} under these rules: "
                "choose another name"
            )
        if not isinstance(axes, tuple | list):
            raise UserError(f"{said} is no tuple of mesh axes: say ({axes!r},), or () for whole on every device")
        for axis in axes:
            if axis not in MESH_AXES:
                raise UserError(
                    f"{said} lies on {axis!r}, which is no axis of the mesh: {nearest(str(axis), MESH_AXES)}"
                )
        if len(set(axes)) != len(axes):
            raise UserError(f"{said} names a mesh axis twice: say each once")
    return placement._replace(rules={**placement.rules, **{name: tuple(axes) for name, axes in own.items()}})


def by_examples(placement: Placement) -> Placement:
    """The placement of a pass over few examples: positions whole, examples divided over all axes but those of heads.

    So a map's rows and columns are on one device, and no attention needs another's keys.
    """
    rules = placement.rules
    # What else lies where positions did would meet the examples.
    whole = {name: tuple(axis for axis in axes if axis != "sequence") for name, axes in rules.items()}
    batch = tuple(axis for axis in MESH_AXES if axis not in rules["heads"])
    beside_experts = tuple(axis for axis in batch if axis not in rules["experts"])
    return placement._replace(rules={**whole, "batch": batch, "expert_batch": beside_experts})


def traced_on[**P, R](placement: Placement, function: Callable[P, R]) -> Callable[P, R]:
    """The function, traced for a placement whenever it is compiled."""

    @functools.wraps(function)
    def traced(*arguments: P.args, **named: P.kwargs) -> R:
        with placed(placement):
            return function(*arguments, **named)

    return traced


def state_shardings(
    model: Model, abstract: TrainState, placement: Placement, largest_whole: float = math.inf
) -> TrainState:
    """The sharding of every leaf of the state.

    Parameters lie as the rules say, and so do their averages and the optimiser's moments, which are dicts keyed by
    the parameter's path; all else is whole on every device.

    Errors: UserError naming the parameter's path: for a logical axis that has no rule, for more or fewer names than
    dimensions, for an axis that the mesh does not divide evenly, for two dimensions along one mesh axis, and for a
    parameter above `largest_whole` megabytes that rules which divide parameters leave whole.
    """
    names, shapes = by_path(model.axes().params, is_names), by_path(abstract.variables.params)
    specs = {path: _checked_spec(path, axes, shapes[path], placement) for path, axes in names.items()}
    # Not `experts`: to divide those alone leaves it as it was said of the others.
    dividing = any(placement.parts(name) > 1 for name in ("embed", "heads", "feed_forward", "vocabulary"))
    for path, spec in specs.items():
        megabytes = shapes[path].size * shapes[path].dtype.itemsize / MEGABYTE
        if dividing and megabytes > largest_whole and not any(spec):
            raise UserError(
                f"the parameter {path} {shapes[path].shape} of {megabytes:.1f} MB would lie whole on every device, "
                f"above config.sharding.largest_whole={largest_whole}: choose config.sharding.rules that divide one "
                f"of its axes {names[path]}, or raise it"
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
    return placement.even_spec(names, leaf.shape)  # groups, which may be too few, are then whole


def batch_sharding(shape: tuple[int, ...], placement: Placement) -> NamedSharding:
    """Rows divided over the mesh; whole on every device where their number cannot be."""
    return NamedSharding(placement.mesh, placement.even_spec(("batch",)[: len(shape)], shape[:1]))


def shard_batch(batch: Mapping[str, Any], placement: Placement) -> dict[str, jax.Array]:
    """A batch of host arrays, the same on every process, as global arrays; each process places its own rows alone."""

    def place(array: Any) -> jax.Array:
        if isinstance(array, jax.Array) and not array.is_fully_addressable:
            return array
        whole = np.asarray(array)
        return jax.make_array_from_process_local_data(batch_sharding(whole.shape, placement), whole, whole.shape)

    return jax.tree.map(place, dict(batch))


def is_names(leaf: Any) -> bool:
    """Whether this is the logical names of an array's dimensions, a leaf of `Model.axes`."""
    return isinstance(leaf, tuple) and all(isinstance(name, str | None) for name in leaf)
