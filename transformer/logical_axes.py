"""Logical axes of arrays, the rules that place them on a device mesh, and the letters in array names.

Shape letters, used in names such as `weights_BxHxQxK` and in jaxtyping: B batch, R row (example x beam), Q query
length, K key length, S source length, T target length, H heads, D head dimension, E model width, F feed-forward width,
L layers, V vocabulary, G key and value heads.

A mesh has five axes, of size 1 if unused: `data`, `fsdp` and `expert` shard the batch, `fsdp` also the parameters,
`expert` the experts of a mixture, `tensor` heads, feed-forward networks and the vocabulary, and `sequence` the
positions of activations.
"""

import contextlib
import contextvars
import difflib
import enum
import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

# Neighbors along a later axis are closer to each other, and later axes communicate more in every layer.
MESH_AXES = ("data", "fsdp", "expert", "tensor", "sequence")

# The axis of vmapped training, which is an axis of no mesh.
VMAPPED_RUNS = "vmapped_runs"

# Of parameters: embed to vocabulary. Of activations: batch, expert_batch (the batch of an array that has experts as
# well), length, and those that they share with parameters. A family names others of its own (`unknown_axis`).
# The entries of `classes` and `vocabulary` have names, by which `config.initialize_from` matches them.
LOGICAL_AXES = frozenset(
    {
        "batch",
        "classes",
        "embed",
        "expert_batch",
        "experts",
        "features",
        "feed_forward",
        "groups",
        "head_dim",
        "heads",
        "layers",
        "length",
        "positions",
        "vocabulary",
    }
)

# Where each logical axis lies: the names of mesh axes, or none for "whole on every device".
Rules = Mapping[str, tuple[str, ...]]

_WHOLE: Rules = {name: () for name in sorted(LOGICAL_AXES)}
# Experts lie apart under all rules, and outside of their layers the devices that have them divide the batch among them
# (Lepikhin et al. 2020, GShard; Fedus et al. 2021, Switch Transformer): where an array that is laid out by "batch"
# becomes one that is laid out by "experts" and "expert_batch", the compiler inserts the all-to-all.
_DATA: Rules = {**_WHOLE, "batch": ("data", "expert"), "expert_batch": ("data",), "experts": ("expert",)}
_FSDP: Rules = {**_DATA, "batch": ("data", "fsdp", "expert"), "expert_batch": ("data", "fsdp"), "embed": ("fsdp",)}
_TENSOR: Rules = {name: ("tensor",) for name in ("heads", "groups", "feed_forward", "vocabulary")}
_POSITIONS: Rules = {"length": ("sequence",)}

# dp: every parameter but those of experts is whole on every device. fsdp: parameters, and with them the optimizer's
# moments, are divided along the model's width (Rajbhandari et al. 2020, ZeRO stage 3). tp: heads, feed-forward networks
# and the vocabulary are divided as well (Shoeybi et al. 2019, Megatron). sp: fsdp, and the positions of every sequence
# are divided. sp+tp: both at once.
RULES: Mapping[str, Rules] = {
    "dp": _DATA,
    "fsdp": _FSDP,
    "fsdp+tp": {**_FSDP, **_TENSOR},
    "sp": {**_FSDP, **_POSITIONS},
    "sp+tp": {**_FSDP, **_TENSOR, **_POSITIONS},
}

# The logical names of an array's dimensions; None for one that is whole on every device.
Names = tuple[str | None, ...]


class SequenceParallel(enum.Enum):
    """How attention reaches positions on other devices.

    Attributes:
        RING: Keys and values travel from device to device, and partial results are combined by their log-sum-exp (Liu
            et al. 2023, Ring Attention). Memory is linear in a device's own positions.
        GATHER: Every device gets all keys and values.
    """

    RING = "ring"
    GATHER = "gather"


class Placement(NamedTuple):
    """The placement of arrays on devices.

    Attributes:
        mesh: The device mesh.
        rules: The mesh axes of each logical axis.
        sequence_attention: How attention reaches positions on other devices.
    """

    mesh: Mesh
    rules: Rules
    sequence_attention: SequenceParallel = SequenceParallel.RING

    def mesh_axes(self, name: str) -> tuple[str, ...]:
        """Return the mesh axes of more than one device over which a logical axis is sharded.

        Raises:
            ValueError: If the logical axis has no rule.
        """
        return tuple(axis for axis in mesh_axes_for(name, self.rules) if self.mesh.shape[axis] > 1)

    def num_shards(self, name: str) -> int:
        """Return into how many parts a logical axis is sharded.

        Raises:
            ValueError: If the logical axis has no rule.
        """
        return count_shards(name, self.rules, self.mesh.shape)

    def even_mesh_axes(self, name: str, *sizes: int) -> tuple[str, ...]:
        """Return `mesh_axes`, or () if one of these sizes cannot be divided evenly.

        Raises:
            ValueError: If the logical axis has no rule.
        """
        return self.mesh_axes(name) if all(size % self.num_shards(name) == 0 for size in sizes) else ()

    def partition_spec(self, names: Names) -> PartitionSpec:
        """Return the PartitionSpec of an array.

        Args:
            names: The logical axes of its dimensions; None replicates a dimension.

        Raises:
            ValueError: If a logical axis has no rule, or two dimensions would lie on one mesh axis.
        """
        return partition_spec(names, {name: self.mesh_axes(name) for name in self.rules})

    def even_partition_spec(self, names: Names, shape: tuple[int, ...]) -> PartitionSpec:
        """Return the PartitionSpec of an array, replicating dimensions that cannot be divided evenly.

        Args:
            names: The logical axes of its dimensions.
            shape: Its shape.

        Raises:
            ValueError: If there are more or fewer names than dimensions, a logical axis has no rule, or two dimensions
                would lie on one mesh axis.
        """
        check_num_dimensions(names, shape)
        sizes = zip(names, shape, strict=True)
        return self.partition_spec(
            tuple(name if name and self.even_mesh_axes(name, size) else None for name, size in sizes)
        )


def mesh_axes_for(name: str, rules: Rules) -> tuple[str, ...]:
    """Return the mesh axes on which the rules place a logical axis.

    Raises:
        ValueError: If it has no rule; JAX itself would silently replicate it.
    """
    if name not in rules:
        raise ValueError(describe_unknown_axis(name, rules))
    return rules[name]


def count_shards(name: str, rules: Rules, mesh_sizes: Mapping[str, int]) -> int:
    """Return into how many parts a logical axis is sharded by a mesh of these sizes.

    Raises:
        ValueError: If the logical axis has no rule.
    """
    return math.prod(mesh_sizes[axis] for axis in mesh_axes_for(name, rules))


def describe_unknown_axis(name: str, rules: Rules) -> str:
    """Return the message about an unknown logical axis: the known ones, and how to define another."""
    ordered = sorted(rules, key=lambda axis: (-difflib.SequenceMatcher(None, name, axis).ratio(), axis))
    return (
        f"logical axis {name!r} has no rule; known, the nearest first: {', '.join(ordered)}; a family names one of its "
        f"own with the mesh axes on which it lies, () for whole: FAMILY.logical_axes={{{name!r}: ()}}"
    )


def check_num_dimensions(names: Names, shape: tuple[int, ...]) -> None:
    """Check that an array has a name for each dimension.

    Raises:
        ValueError: If there are more or fewer names than dimensions.
    """
    if len(names) != len(shape):
        raise ValueError(
            f"{len(names)} logical axes {names} for the {len(shape)} dimensions of shape {shape}: say one for each, "
            "None for a dimension that is whole"
        )


def partition_spec(names: Names, rules: Rules) -> PartitionSpec:
    """Return the PartitionSpec of an array.

    Args:
        names: The logical axes of its dimensions; None replicates a dimension.
        rules: The mesh axes of each logical axis.

    Raises:
        ValueError: If a logical axis has no rule, or two dimensions would lie on one mesh axis.
    """
    placed = [() if name is None else mesh_axes_for(name, rules) for name in names]
    used = [axis for axes in placed for axis in axes]
    if len(set(used)) != len(used):
        raise ValueError(f"the rules put two dimensions of {names} on one mesh axis: {placed}")
    return PartitionSpec(*[axes[0] if len(axes) == 1 else axes or None for axes in placed])


_placement: contextvars.ContextVar[Placement | None] = contextvars.ContextVar("placement", default=None)


@contextlib.contextmanager
def use_placement(placement: Placement) -> Iterator[None]:
    """Trace the code inside the context for a placement, which `with_logical_constraint` and attention then know.

    Enter it inside the function that is compiled, so that no trace is used for another placement.
    """
    token = _placement.set(placement)
    try:
        with jax.sharding.use_abstract_mesh(placement.mesh.abstract_mesh):
            yield
    finally:
        _placement.reset(token)


def target_platform() -> str:
    """Return the platform that is compiled for, such as "cpu", "gpu" or "tpu", which a mesh in context may set."""
    target = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if target is None else target.platform


def target_device() -> jax.Device:
    """Return one of the devices that are compiled for: the placement's, or else this process's first device."""
    placement = _placement.get()
    return jax.local_devices()[0] if placement is None else placement.mesh.devices.flat[0]


def is_vmapped() -> bool:
    """Whether the code being traced is in vmapped training, whose axis of runs is named `VMAPPED_RUNS`."""
    try:
        jax.lax.axis_size(VMAPPED_RUNS)
    except NameError:
        return False
    return True


def current_placement() -> Placement | None:
    """Return the placement that is being traced for; None outside of one, where all is on one device."""
    return _placement.get()


def is_sharded() -> bool:
    """Whether the code being traced is sharded over several devices."""
    placed = current_placement()
    return placed is not None and placed.mesh.size > 1


def with_logical_constraint(x: jax.Array, *names: str | None) -> jax.Array:
    """Constrain an array to the placement of its logical axes, if there is a placement in context.

    It is for activations: a dimension that cannot be divided evenly, such as the one position of a decoding step, is
    replicated.

    Args:
        x: The array.
        *names: The logical axes of its dimensions; None replicates a dimension.

    Raises:
        ValueError: If there are more or fewer names than dimensions or, with a placement in context, a name is unknown
            or two dimensions would lie on one mesh axis.
    """
    placed = current_placement()
    try:
        if placed is None:
            check_num_dimensions(names, x.shape)
            return x
        spec = placed.even_partition_spec(names, x.shape)
    except ValueError as error:
        arguments = ", ".join(("x", *map(repr, names)))
        raise ValueError(f"with_logical_constraint({arguments}) of an array of shape {x.shape}: {error}") from None
    return x if placed.mesh.size == 1 else jax.lax.with_sharding_constraint(x, NamedSharding(placed.mesh, spec))
