"""Where every parameter of an experiment lies on its mesh, from shapes alone: neither devices nor arrays are needed."""

import math
from typing import NamedTuple

from jax.sharding import PartitionSpec

from transformer.models import registry as models
from transformer.models.model import leaves_by_path
from transformer.tasks import registry as tasks
from transformer.training.config import ExperimentConfig
from transformer.training.partitioning import (
    add_family_axes,
    deviceless_placement,
    is_axis_names,
    parameter_specs,
)


class ParameterSharding(NamedTuple):
    """A parameter and its part on a device.

    Attributes:
        path: Its path.
        shape: Its shape.
        axes: The logical axis of each dimension.
        spec: The mesh axes of each dimension.
        num_bytes: The bytes of all of it.
        bytes_per_device: The bytes of the part that one device holds.
    """

    path: str
    shape: tuple[int, ...]
    axes: tuple[str | None, ...]
    spec: PartitionSpec
    num_bytes: int
    bytes_per_device: int


def list_parameter_shardings(
    experiment: ExperimentConfig, num_devices: int | None = None
) -> tuple[dict[str, int], list[ParameterSharding]]:
    """Return the sizes of the mesh, and every parameter with its part on a device.

    Args:
        experiment: The experiment.
        num_devices: The number of devices; None for as many as the config's mesh names.

    Raises:
        UserError: If the mesh does not fit the devices, or a parameter does not fit the mesh.
    """
    family = models.FAMILIES[models.family_name(experiment.model)]
    placement = add_family_axes(deviceless_placement(experiment.sharding, num_devices), family.logical_axes)
    parts = placement.num_shards("batch") * experiment.run.num_microbatches
    interface = tasks.build_synthetic_task(experiment.task, parts).interface
    model = models.build(experiment.model, interface, experiment.precision)
    shapes = leaves_by_path(model.shapes().params)
    specs = parameter_specs(model, shapes, placement, experiment.sharding.max_replicated_mb)
    axes = leaves_by_path(model.axes().params, is_axis_names)
    mesh = dict(placement.mesh.shape)
    parameters = []
    for path, leaf in shapes.items():
        num_bytes = leaf.size * leaf.dtype.itemsize
        parts = math.prod(mesh[axis] for axis in _mesh_axes(specs[path]))
        # Every sharded dimension is divided evenly, which `parameter_specs` checks.
        parameters.append(ParameterSharding(path, leaf.shape, axes[path], specs[path], num_bytes, num_bytes // parts))
    return mesh, parameters


def _mesh_axes(spec: PartitionSpec) -> list[str]:
    return [axis for entry in spec if entry is not None for axis in ([entry] if isinstance(entry, str) else entry)]
