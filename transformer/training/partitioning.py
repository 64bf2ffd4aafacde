"""The device mesh, and the partitioning of state and batches over it."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from transformer.config import Config, GreaterThan, UserError, lookup_by_name, suggest_nearest
from transformer.logical_axes import MESH_AXES, RULES, Placement, SequenceParallel, check_num_dimensions, use_placement
from transformer.models.model import Model, leaves_by_path
from transformer.models.task_interface import TaskInterface
from transformer.tasks.task import Batch
from transformer.training.state import TrainState
from transformer.training.step import StepMetrics, TrainStep

MEGABYTE = 1e6


@dataclasses.dataclass(frozen=True)
class ShardingConfig(Config, path="config.sharding"):
    """The device mesh, and the rules that place arrays on it (transformer.logical_axes).

    One of the sizes may be -1: the remaining devices. Sizes other than `data` need rules that use the axis.

    Attributes:
        data: The size of the mesh axis `data`, over which the batch is sharded and parameters are replicated.
        fsdp: The size of `fsdp`, over which the batch and parameters are sharded.
        expert: The size of `expert`, over which the batch and the experts are sharded.
        tensor: The size of `tensor`, over which heads, feed-forward units and the vocabulary are sharded.
        sequence: The size of `sequence`, over which the positions of activations are sharded, for contexts that one
            device does not hold.
        rules: The rules that map logical axes to mesh axes: a name of `transformer.logical_axes.RULES`.
        sequence_attention: How attention reaches keys on other devices of `sequence`: as a ring (Liu et al. 2023), or
            gathered, for what a ring does not compute.
        max_replicated_mb: The largest size, in MB, of a parameter that stays replicated under rules that shard
            parameters: one that the rules forget would cost its memory on every device.

    Raises:
        UserError: If the rules are unknown, several sizes are -1, or a size has no effect under the rules.
    """

    data: int = -1
    fsdp: int = 1
    expert: int = 1
    tensor: int = 1
    sequence: int = 1
    rules: str = "dp"
    sequence_attention: SequenceParallel = SequenceParallel.RING
    max_replicated_mb: Annotated[float, GreaterThan(0.0, " megabytes")] = 16.0

    def _check(self) -> None:
        rules = lookup_by_name(self.rules, RULES, "config.sharding.rules")
        sizes = self.sizes()
        for axis, size in sizes.items():
            if size != -1 and size < 1:
                raise UserError(f"config.sharding.{axis}={size} must be at least 1, or -1 for the rest")
            if size != 1 and axis != "data" and not any(axis in axes for axes in rules.values()):
                supporting_rules = [
                    name for name, axes_by_name in RULES.items() if any(axis in axes for axes in axes_by_name.values())
                ]
                raise UserError(
                    f"config.sharding.{axis}={size} divides nothing under config.sharding.rules={self.rules}: "
                    f"say 1, or rules={' or '.join(supporting_rules)}"
                )
        if list(sizes.values()).count(-1) > 1:
            inferred_keys = " and ".join(f"config.sharding.{axis}" for axis, size in sizes.items() if size == -1)
            raise UserError(f"{inferred_keys} are both -1: only one axis can be all that the others leave")

    def sizes(self) -> dict[str, int]:
        """Return the configured size of each axis of the mesh."""
        return {axis: getattr(self, axis) for axis in MESH_AXES}


def mesh_sizes(config: ShardingConfig, num_devices: int, num_slices: int = 1, kind: str = "") -> dict[str, int]:
    """Return the sizes of the axes of the mesh on so many devices; a size of -1 becomes what the others leave.

    Args:
        config: The sizes of its axes.
        num_devices: The number of devices.
        num_slices: The number of TPU slices that they are on. Each has an equal part of `data`.
        kind: The kind of the devices, for messages.

    Returns:
        The size of each axis.

    Raises:
        UserError: If the sizes do not multiply to the number of devices, or the slices cannot divide `data`.
    """
    sizes = config.sizes()
    num_fixed = math.prod(size for size in sizes.values() if size != -1)
    inferred_axes = [axis for axis, size in sizes.items() if size == -1]
    if num_devices % num_fixed if inferred_axes else num_devices != num_fixed:
        mesh = " x ".join(f"{axis}={size}" for axis, size in sizes.items() if size != 1)
        raise UserError(
            f"config.sharding asks for {mesh or 'one device'}, which does not make {num_devices} "
            f"{kind + ' ' if kind else ''}devices: choose sizes whose product is {num_devices}, one of them may be -1"
        )
    filled = {axis: num_devices // num_fixed if axis in inferred_axes else size for axis, size in sizes.items()}
    if filled["data"] % num_slices:
        raise UserError(
            f"config.sharding.data={filled['data']} must be a multiple of the {num_slices} slices of this run, which "
            f"divide the batch along it: say config.sharding.data={num_slices}, and other axes that fill one slice"
        )
    return filled


def make_mesh(config: ShardingConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Make the device mesh, laid out so that neighbors along an axis are connected.

    Of several TPU slices, each has an equal part of `data`: only gradients cross the network between slices.

    Args:
        config: The sizes of its axes.
        devices: The devices; by default all of the run's.

    Raises:
        UserError: If the sizes do not multiply to the number of devices, or the slices cannot divide `data`.
    """
    devices = jax.devices() if devices is None else list(devices)
    # Every host of GPUs is a slice, which the order of devices keeps together already.
    slices = len({getattr(device, "slice_index", 0) for device in devices}) if devices[0].platform == "tpu" else 1
    shape = tuple(mesh_sizes(config, len(devices), slices, devices[0].device_kind).values())
    # jax.make_mesh splits sides of a torus on v5e alone, so that v5p:4x4x4 could not have tensor=8.
    if slices == 1:
        placed = mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
    else:
        shape_within_slice, shape_across_slices = (shape[0] // slices, *shape[1:]), (slices, *(1 for _ in shape[1:]))
        placed = mesh_utils.create_hybrid_device_mesh(
            shape_within_slice, shape_across_slices, devices, allow_split_physical_axes=True
        )
    return Mesh(placed, MESH_AXES, axis_types=(AxisType.Auto,) * len(shape))


def make_placement(config: ShardingConfig, devices: Sequence[jax.Device] | None = None) -> Placement:
    """Make the device mesh with the rules of the config.

    Args:
        config: The mesh and its rules.
        devices: The devices; by default all of the run's.

    Raises:
        UserError: If the mesh does not fit the devices.
    """
    return Placement(make_mesh(config, devices), RULES[config.rules], config.sequence_attention)


def deviceless_placement(config: ShardingConfig, num_devices: int | None = None) -> Placement:
    """Return a placement on a mesh that has sizes and no devices, for shapes alone.

    Args:
        config: The mesh and its rules.
        num_devices: The number of devices; None for the product of the sizes, with 1 for -1.

    Raises:
        UserError: If the sizes do not multiply to the number of devices.
    """
    if num_devices is None:
        num_devices = math.prod(max(size, 1) for size in config.sizes().values())
    sizes = mesh_sizes(config, num_devices)
    mesh = AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))
    return Placement(mesh, RULES[config.rules], config.sequence_attention)  # type: ignore[arg-type]


def single_device_placement() -> Placement:
    """Return the placement of everything on this process's first device, to read a run that was trained on any mesh."""
    return make_placement(ShardingConfig(), jax.local_devices()[:1])


def add_family_axes(placement: Placement, own: Mapping[str, tuple[str, ...]]) -> Placement:
    """Add a family's own logical axes to a placement.

    Args:
        placement: The placement.
        own: The mesh axes on which each logical axis lies; () replicates it.

    Raises:
        UserError: If a name exists already, a value is not a tuple, or it names an unknown mesh axis or one twice.
    """
    for name, axes in own.items():
        declaration = f"FAMILY.logical_axes={{{name!r}: {axes!r}}}"
        if name in placement.rules:
            raise UserError(
                f"{declaration} names a logical axis that has its place already, {placement.rules[name]} under these "
                "rules: choose another name"
            )
        if not isinstance(axes, tuple | list):
            raise UserError(f"{declaration} is no tuple of mesh axes: say ({axes!r},), or () for whole on every device")
        for axis in axes:
            if axis not in MESH_AXES:
                raise UserError(
                    f"{declaration} lies on {axis!r}, which is no axis of the mesh: "
                    f"{suggest_nearest(str(axis), MESH_AXES)}"
                )
        if len(set(axes)) != len(axes):
            raise UserError(f"{declaration} names a mesh axis twice: say each once")
    return placement._replace(rules={**placement.rules, **{name: tuple(axes) for name, axes in own.items()}})


def probe_placement(placement: Placement) -> Placement:
    """Return the placement of the probe, a pass over few examples.

    Positions are not sharded, and examples are sharded over all axes except those of heads, so that a map is whole on
    one device and attention needs no keys of other devices.
    """
    rules = placement.rules
    # No other logical axis may use the mesh axes that examples now take.
    rules_without_sequence = {name: tuple(axis for axis in axes if axis != "sequence") for name, axes in rules.items()}
    batch = tuple(axis for axis in MESH_AXES if axis not in rules["heads"])
    beside_experts = tuple(axis for axis in batch if axis not in rules["experts"])
    return placement._replace(rules={**rules_without_sequence, "batch": batch, "expert_batch": beside_experts})


def state_shardings(
    model: Model, abstract: TrainState, placement: Placement, max_replicated_mb: float = math.inf
) -> TrainState:
    """Return the sharding of every leaf of the training state.

    Parameters are placed by the rules, and so are their averages and the optimizer's moments, which are dicts by the
    parameter's path. All other leaves are replicated.

    Args:
        model: The model, whose parameters have logical axes.
        abstract: The training state as shapes.
        placement: The placement.
        max_replicated_mb: The largest size, in MB, of a parameter that stays replicated under rules that shard
            parameters.

    Raises:
        UserError: If a logical axis has no rule, the axes do not fit the dimensions, the mesh does not divide an axis,
            two dimensions lie along one mesh axis, or a parameter above `max_replicated_mb` stays replicated. The
            message names the parameter.
    """
    shapes = leaves_by_path(abstract.variables.params)
    specs = parameter_specs(model, shapes, placement, max_replicated_mb)
    mesh = placement.mesh

    def sharding_by_path(path: Any, leaf: Any) -> NamedSharding:
        return NamedSharding(mesh, specs.get(getattr(path[-1], "key", ""), PartitionSpec()))

    shardings = jax.tree_util.tree_map_with_path(sharding_by_path, abstract)
    parameter_shardings = [NamedSharding(mesh, specs[path]) for path in shapes]
    params = jax.tree.unflatten(jax.tree.structure(abstract.variables.params), parameter_shardings)
    return shardings._replace(variables=shardings.variables._replace(params=params))


def parameter_specs(
    model: Model, shapes: Mapping[str, Any], placement: Placement, max_replicated_mb: float = math.inf
) -> dict[str, PartitionSpec]:
    """Return the PartitionSpec of every parameter by path.

    Args:
        model: The model, whose parameters have logical axes.
        shapes: The parameters by path, as arrays or shapes.
        placement: The placement, whose mesh need have no devices.
        max_replicated_mb: The largest size, in MB, of a parameter that stays replicated under rules that shard
            parameters.

    Raises:
        UserError: As `state_shardings`.
    """
    names = leaves_by_path(model.axes().params, is_axis_names)
    specs = {path: _checked_spec(path, axes, shapes[path], placement) for path, axes in names.items()}
    # Without `experts`: rules that shard experts alone do not shard the other parameters.
    dividing = any(placement.num_shards(name) > 1 for name in ("embed", "heads", "feed_forward", "vocabulary"))
    for path, spec in specs.items():
        megabytes = shapes[path].size * shapes[path].dtype.itemsize / MEGABYTE
        if dividing and megabytes > max_replicated_mb and not any(spec):
            raise UserError(
                f"the parameter {path} {shapes[path].shape} of {megabytes:.1f} MB would lie whole on every device, "
                f"above config.sharding.max_replicated_mb={max_replicated_mb}: choose config.sharding.rules that "
                f"divide one of its axes {names[path]}, or raise it"
            )
    return specs


def _checked_spec(path: str, names: tuple[str | None, ...], leaf: Any, placement: Placement) -> PartitionSpec:
    try:
        check_num_dimensions(names, leaf.shape)
        placement.partition_spec(names)
    except ValueError as error:
        raise UserError(f"the parameter {path} {leaf.shape} with logical axes {names}: {error}") from None
    for name, size in zip(names, leaf.shape, strict=True):
        parts = 1 if name is None or name == "groups" else placement.num_shards(name)
        if name is not None and size % parts:
            axes = " x ".join(
                f"config.sharding.{axis}={placement.mesh.shape[axis]}" for axis in placement.mesh_axes(name)
            )
            raise UserError(
                f"{axes} does not divide the {size} of {name} in the parameter {path} {leaf.shape}: choose sizes that "
                + ("do, or give config.model.vocab_size a multiple" if name == "vocabulary" else "do")
            )
    return placement.even_partition_spec(names, leaf.shape)  # key/value heads, which may be too few, are then whole


def check_sequence_divides(interface: TaskInterface, placement: Placement) -> None:
    """Check that the mesh divides the positions of a task's inputs.

    Args:
        interface: The task's interface.
        placement: The placement.

    Raises:
        UserError: If it does not; the message names the keys that can change it.
    """
    parts = placement.num_shards("length")
    for name, input_spec in interface.inputs.items():
        if input_spec.positions is not None and input_spec.positions % parts:
            raise UserError(
                f"config.sharding.sequence={parts} does not divide the {input_spec.positions} positions of the task's "
                f"{name}: give config.task a length that is a multiple of {parts}, or another sequence"
            )


def is_axis_names(leaf: Any) -> bool:
    """Whether this is the tuple of an array's logical axes, a leaf of `Model.axes`."""
    return isinstance(leaf, tuple) and all(isinstance(name, str | None) for name in leaf)


def trace_with_placement[**P, R](placement: Placement, function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function so that it is traced for a placement whenever it is compiled."""

    @functools.wraps(function)
    def traced(*arguments: P.args, **options: P.kwargs) -> R:
        with use_placement(placement):
            return function(*arguments, **options)

    return traced


def batch_sharding(shape: tuple[int, ...], placement: Placement) -> NamedSharding:
    """Return the sharding of an array of a batch: rows over the mesh, replicated if their number does not divide."""
    return NamedSharding(placement.mesh, placement.even_partition_spec(("batch",)[: len(shape)], shape[:1]))


def shard_batch(batch: Mapping[str, Any], placement: Placement) -> dict[str, jax.Array]:
    """Place a batch on the devices.

    Args:
        batch: Host arrays, the same on every process; each process copies only its own rows.
        placement: The placement.

    Returns:
        Global arrays.
    """

    def place(array: Any) -> jax.Array:
        if isinstance(array, jax.Array) and not array.is_fully_addressable:
            return array
        if isinstance(array, jax.Array) and array.sharding == batch_sharding(array.shape, placement):
            return array
        host_array = np.asarray(array)
        return jax.make_array_from_process_local_data(
            batch_sharding(host_array.shape, placement), host_array, host_array.shape
        )

    return jax.tree.map(place, dict(batch))


def rows_of_process(num_rows: int, placement: Placement) -> tuple[int, int]:
    """Return the first row of a batch that a device of this process holds, and the one after the last.

    Args:
        num_rows: The number of rows of the batch.
        placement: The placement.

    Returns:
        0 and `num_rows` if the rows of this process do not follow one another.
    """
    row_slices = batch_sharding((num_rows,), placement).addressable_devices_indices_map((num_rows,)).values()
    parts = sorted({rows.indices(num_rows)[:2] for index in row_slices if index is not None for rows in index})
    if any(before[1] != after[0] for before, after in itertools.pairwise(parts)):
        return 0, num_rows
    return parts[0][0], parts[-1][1]


def shard_rows(rows: Mapping[str, Any], num_rows: int, placement: Placement) -> dict[str, jax.Array]:
    """Place the rows of this process on its devices.

    Args:
        rows: The rows of `rows_of_process`, host arrays.
        num_rows: The number of rows of the whole batch.
        placement: The placement.

    Returns:
        Global arrays.
    """

    def place(array: np.ndarray) -> jax.Array:
        shape = (num_rows, *array.shape[1:])
        return jax.make_array_from_process_local_data(batch_sharding(shape, placement), array, shape)

    return jax.tree.map(place, dict(rows))


def shard_host_batches(step: TrainStep, placement: Placement) -> TrainStep:
    """Wrap a compiled step so that it takes batches of host arrays."""

    def sharded(state: TrainState, batch: Batch, observe: bool = False) -> tuple[TrainState, StepMetrics]:
        return step(state, shard_batch(batch, placement), observe)

    return sharded
