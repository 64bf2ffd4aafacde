"""TPU slices: their names in Google Cloud, their numbers of chips and hosts, and their software.

Names, shapes and machines are those of the public documentation, "TPU v4", "v5e", "v5p", "v6e", "TPU7x", "Plan TPUs
in GKE" and "TPU software versions" of Google Cloud.
"""

import math
import re
from typing import NamedTuple

from transformer.config import UserError, suggest_nearest


class TpuGeneration(NamedTuple):
    """A generation of TPU chips.

    Attributes:
        accelerator_type_prefix: The prefix of accelerator types, such as v5p in v5p-512.
        cores_per_chip: The cores of a chip that accelerator types count: v5p-512 is 256 chips of 2 cores.
        gke_node_label: GKE's label of its nodes.
        machine_type_prefix: The prefix of its machine types.
        runtime_version: The software version of a TPU VM; None if it is only on GKE.
        num_dimensions: The dimensions of a slice.
        max_chips: The chips of the largest slice.
        devices_per_chip: The devices of a chip that jax lists.
    """

    accelerator_type_prefix: str
    cores_per_chip: int
    gke_node_label: str
    machine_type_prefix: str
    runtime_version: str | None
    num_dimensions: int
    max_chips: int
    devices_per_chip: int = 1


GENERATIONS = {
    "v4": TpuGeneration("v4", 2, "tpu-v4-podslice", "ct4p-hightpu", "tpu-ubuntu2204-base", 3, 4096),
    "v5e": TpuGeneration("v5litepod", 1, "tpu-v5-lite-podslice", "ct5lp-hightpu", "v2-alpha-tpuv5-lite", 2, 256),
    "v5p": TpuGeneration("v5p", 2, "tpu-v5p-slice", "ct5p-hightpu", "v2-alpha-tpuv5", 3, 6144),
    "v6e": TpuGeneration("v6e", 1, "tpu-v6e-slice", "ct6e-standard", "v2-alpha-tpuv6e", 2, 256),
    "tpu7x": TpuGeneration("tpu7x", 2, "tpu7x", "tpu7x-standard", None, 3, 9216, devices_per_chip=2),
}
# The shapes of 2-d generations, and those of 3-d ones below 4x4x4, each as the documentation writes it.
SHAPES_2D = ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
SMALL_SHAPES_3D = ((2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4))


class TpuSlice(NamedTuple):
    """A slice of one generation.

    Attributes:
        generation_name: The name of the generation.
        shape: The shape, in the order of the documentation.
    """

    generation_name: str
    shape: tuple[int, ...]

    @property
    def generation(self) -> TpuGeneration:
        """The generation of the slice."""
        return GENERATIONS[self.generation_name]

    @property
    def topology(self) -> str:
        """The shape as GKE labels its nodes: 4x8x8."""
        return "x".join(map(str, self.shape))

    @property
    def num_chips(self) -> int:
        """The number of chips."""
        return math.prod(self.shape)

    @property
    def num_devices(self) -> int:
        """The number of devices that jax lists."""
        return self.num_chips * self.generation.devices_per_chip

    @property
    def chips_per_host(self) -> int:
        """The chips of a host: all of a flat slice up to 2x4, else four."""
        return self.num_chips if len(self.shape) == 2 and self.num_chips <= 8 else 4

    @property
    def num_hosts(self) -> int:
        """The number of hosts, and so of processes."""
        return self.num_chips // self.chips_per_host

    @property
    def accelerator_type(self) -> str:
        """The accelerator type of a TPU VM with this number of chips."""
        return f"{self.generation.accelerator_type_prefix}-{self.num_chips * self.generation.cores_per_chip}"

    @property
    def machine_type(self) -> str:
        """The machine type of GKE's nodes."""
        return f"{self.generation.machine_type_prefix}-{self.chips_per_host}t"


def parse_slice(flag: str | None, config_topology: str) -> TpuSlice:
    """Parse a slice such as v5p:4x8x8, whose sizes may be in any order.

    Args:
        flag: The value of --topology.
        config_topology: The topology of the config, used if `flag` is None.

    Returns:
        The slice.

    Raises:
        UserError: If neither names a slice, or the generation or shape does not exist.
    """
    text, origin = (flag, "--topology") if flag else (config_topology, "config.topology")
    if not text:
        raise UserError("no topology: pass --topology=v5p:4x8x8, or set config.topology")
    name, colon, sizes = text.partition(":")
    if name not in GENERATIONS:
        raise UserError(
            f"{origin}={text} is not a TPU slice such as v5e:4x4 or v5p:4x8x8: {suggest_nearest(name, GENERATIONS)}"
        )
    if not colon or not re.fullmatch(r"[1-9]\d{0,3}(x[1-9]\d{0,3})*", sizes, flags=re.ASCII):
        raise UserError(f"{origin}={text} has no shape: write for example {name}:{example_shape(name)}")
    sorted_sizes = sorted(map(int, sizes.split("x")))
    shape = next(
        (listed_shape for listed_shape in (*SHAPES_2D, *SMALL_SHAPES_3D) if sorted(listed_shape) == sorted_sizes),
        tuple(sorted_sizes),
    )
    generation = GENERATIONS[name]
    if generation.num_dimensions == 2:
        if shape not in SHAPES_2D:
            raise UserError(f"{origin}={text} does not exist: {name} has {_format_shapes(SHAPES_2D)}")
    elif shape not in SMALL_SHAPES_3D and (len(shape) != 3 or any(size % 4 for size in shape)):
        raise UserError(
            f"{origin}={text} does not exist: {name} has {_format_shapes(SMALL_SHAPES_3D)}, and three multiples of 4, "
            f"such as {example_shape(name)}"
        )
    if math.prod(shape) > generation.max_chips:
        raise UserError(
            f"{origin}={text} has {math.prod(shape)} chips: a {name} slice has at most {generation.max_chips}"
        )
    return TpuSlice(name, shape)


def default_shape(name: str, chips: int) -> tuple[int, ...]:
    """Return the shape of an accelerator type, such as v5e-16: the one whose sides have the smallest sum.

    Args:
        name: The generation, such as "v5e".
        chips: The number of chips, of which the generation has a slice.

    Returns:
        The chips along each side.
    """
    listed = SHAPES_2D if GENERATIONS[name].num_dimensions == 2 else SMALL_SHAPES_3D
    cubes = chips // 64
    sides = range(1, cubes + 1)
    boxes = [sorted((a, b, cubes // (a * b))) for a in sides for b in sides if cubes % (a * b) == 0]
    shapes: list[tuple[int, ...]] = [shape for shape in listed if math.prod(shape) == chips]
    return min(shapes or [tuple(4 * side for side in box) for box in boxes], key=sum)


def example_shape(name: str) -> str:
    """Return a shape that the generation has."""
    return "4x4" if GENERATIONS[name].num_dimensions == 2 else "4x4x8"


def _format_shapes(shapes: tuple[tuple[int, ...], ...]) -> str:
    return ", ".join("x".join(map(str, shape)) for shape in shapes)
