"""The mesh of devices that a config asks for, and the rules that place logical axes on it."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import jax
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh

from transformer.axes import MESH_AXES, RULES, Placement, SequenceParallel
from transformer.config import UserError, choice, nearest


@dataclasses.dataclass(frozen=True)
class ShardingConfig:
    """The mesh and the rules that place arrays on it (transformer.axes).

    `data`, `fsdp`, `expert`, `tensor` and `sequence` are the sizes of the mesh's axes, one of which may be -1: the
    remaining devices. `rules` is a name of `axes.RULES`. `attention` says how attention reaches across
    divided positions. Where the rules shard parameters, one that they leave whole may have at most `replicate_below_mb`
    megabytes.
    """

    data: int = -1
    fsdp: int = 1
    expert: int = 1
    tensor: int = 1
    sequence: int = 1
    rules: str = "dp"
    attention: SequenceParallel = SequenceParallel.RING
    replicate_below_mb: float = 16.0

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
        if self.replicate_below_mb <= 0:
            raise UserError(f"config.sharding.replicate_below_mb={self.replicate_below_mb} must be above 0 megabytes")

    def sizes(self) -> dict[str, int]:
        """The configured size of each axis of the mesh."""
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
    # jax.make_mesh splits sides of a torus on v5e alone, so that v5p:4x4x4 could not have tensor=8.
    placed = mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
    return Mesh(placed, MESH_AXES, axis_types=(AxisType.Auto,) * len(shape))


def make_placement(config: ShardingConfig, devices: Sequence[jax.Device] | None = None) -> Placement:
    """The mesh of `make_mesh` with the rules of the config.

    Errors: as `make_mesh`.
    """
    return Placement(make_mesh(config, devices), RULES[config.rules], config.attention)


def one_device() -> Placement:
    """Everything on the first device of this process, to read a run that was trained on any mesh."""
    return make_placement(ShardingConfig(), jax.local_devices()[:1])


def with_axes(placement: Placement, own: Mapping[str, tuple[str, ...]]) -> Placement:
    """The placement with a family's own logical axes: by name the mesh axes on which each lies, () for whole.

    Errors: UserError for a name that the project's rules have already, and for a value that is no tuple of axes.
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

    So a map is whole on one device, and attention needs no keys of other devices.
    """
    rules = placement.rules
    # No other logical axis may use the mesh axes that examples now take.
    whole = {name: tuple(axis for axis in axes if axis != "sequence") for name, axes in rules.items()}
    batch = tuple(axis for axis in MESH_AXES if axis not in rules["heads"])
    beside_experts = tuple(axis for axis in batch if axis not in rules["experts"])
    return placement._replace(rules={**whole, "batch": batch, "expert_batch": beside_experts})
