"""Device topologies to compile for: TPU slices without TPUs, fake CPU devices, and local GPUs.

jax is imported inside the functions, because `compile_environment_variables` says what must be set before that.
"""

import importlib.util
import math
import os
import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from transformer.config import UserError

if TYPE_CHECKING:
    import jax

_FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_SMALL = ("1x1x1", "2x2x1", "2x2x2", "2x2x4", "2x4x4")
# By generation, the most chips of one slice that can be booked; smaller ones are those of _FLAT in two dimensions, and
# in three those of _SMALL or sides that are multiples of 4 (Cloud TPU documentation, supported configurations).
_LARGEST = {"v4": 4096, "v5e": 256, "v5p": 6144, "v6e": 256}
_TWO_DIMENSIONS = ("v5e", "v6e")
_EXAMPLES = "use v5e:4x4, v5p:4x4x8, v4:4x4x4, v6e:8x8, cpu:8 or gpu:1"


class OutOfMemoryError(Exception):
    """Raised if a program does not fit into device memory; the message is the compiler's."""


def compile_environment_variables(topology: str) -> dict[str, str]:
    """Return the environment variables to set before jax is imported, to compile for a topology.

    Raises:
        UserError: If the name is not a topology.
    """
    platform, size = parse_topology(topology)
    if platform == "cpu":
        flags = re.sub(r"--xla_force_host_platform_device_count=\d+", "", os.environ.get("XLA_FLAGS", ""))
        flags = f"{flags} --xla_force_host_platform_device_count={size}".strip()
        return {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    if platform == "gpu":
        return {}
    return {
        # The compiler of TPUs is no backend: programs for it are lowered on the CPU.
        "JAX_PLATFORMS": "cpu",
        # Two processes may hold libtpu at once, neither has a TPU to fight over, and none asks a cloud what it is.
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "true",
        "TPU_SKIP_MDS_QUERY": "1",
        # libtpu warns at length where these are missing; the topology, not they, say what is compiled for.
        "TPU_ACCELERATOR_TYPE": "v5litepod-4",
        "TPU_WORKER_HOSTNAMES": "localhost",
    }


def _suggest_topology(topology: str) -> str:
    """Suggest the topology for a slice that is named by its number of chips."""
    named = re.fullmatch(r"(v5e|v5litepod|v6e)-(\d+)", topology)
    sides = [sides for sides in _FLAT if named and math.prod(map(int, sides.split("x"))) == int(named[2])]
    return f"use {named[1].replace('litepod', 'e')}:{sides[0]}" if named and sides else ""


def parse_topology(topology: str) -> tuple[str, str]:
    """Split a topology into its platform or TPU generation and its size.

    Args:
        topology: The name, such as "v5e:4x4", "cpu:8" or "gpu:1".

    Returns:
        The platform or generation, and the size: a number, or a shape such as "4x4x8".

    Raises:
        UserError: If the name is not a topology, or if the slice does not exist.
    """
    platform, colon, size = topology.partition(":")
    if platform in ("cpu", "gpu"):
        if not re.fullmatch(r"[1-9]\d*", size):
            raise UserError(f"topology={topology!r} needs a number of devices, such as {platform}:8")
        return platform, size
    if platform not in _LARGEST or not colon:
        raise UserError(f"topology={topology!r} is not a topology: {_suggest_topology(topology) or _EXAMPLES}")
    if platform in _TWO_DIMENSIONS:
        if size not in (*_FLAT, "4x2", "8x4", "16x8"):
            raise UserError(f"topology={topology!r} is not a slice of {platform}; there are {', '.join(_FLAT)}")
        return platform, size
    sides = [int(side) for side in size.split("x")] if re.fullmatch(r"\d+(x\d+)*", size) else []
    multiples = len(sides) == 3 and all(side and side % 4 == 0 for side in sides)
    if not (size in _SMALL or multiples) or math.prod(sides) > _LARGEST[platform]:
        raise UserError(
            f"topology={topology!r} is not a slice of {platform}; there are {', '.join(_SMALL)} and three sides that "
            f"are multiples of 4, with at most {_LARGEST[platform]} chips in all"
        )
    return platform, size


def topology_devices(topology: str) -> Sequence["jax.Device"]:
    """Return the devices of a topology: those of a TPU slice, which need not be present, or local CPU or GPU devices.

    Raises:
        UserError: If the name is not a topology, if libtpu is missing, or if there are fewer local devices.
    """
    platform, size = parse_topology(topology)
    if platform in ("cpu", "gpu"):
        return _local_devices(platform, int(size))
    if importlib.util.find_spec("libtpu") is None:
        raise UserError(
            f"topology={topology!r} needs libtpu, the TPU compiler, which exists for Linux on x86-64 only: install it, "
            "or use cpu:N"
        )
    for key, value in compile_environment_variables(topology).items():
        os.environ.setdefault(key, value)
    import jax
    from jax.experimental import topologies

    # One device a chip, as a booked v4 has it; the other generations have it by themselves.
    options: dict[str, Any] = {"chip_config_name": "megacore"} if platform == "v4" else {}
    try:
        return tuple(topologies.get_topology_desc(platform="tpu", topology_name=topology, **options).devices)
    except jax.errors.JaxRuntimeError as error:
        raise UserError(f"topology={topology!r} is unknown to libtpu: {str(error).splitlines()[0]}") from error


def _local_devices(platform: str, count: int) -> Sequence["jax.Device"]:
    import jax

    try:
        devices = jax.devices(platform)
    except RuntimeError as error:
        raise UserError(
            f"topology={platform}:{count} needs a {platform.upper()}, and jax sees none on this machine"
        ) from error
    if len(devices) < count:
        more = f"; set XLA_FLAGS=--xla_force_host_platform_device_count={count} for more" if platform == "cpu" else ""
        raise UserError(f"topology={platform}:{count} needs {count} devices, and this machine has {len(devices)}{more}")
    return tuple(devices[:count])


def compile_lowered(lowered: "jax.stages.Lowered") -> tuple["jax.stages.Compiled", float]:
    """Compile a lowered program.

    Returns:
        The compiled program, and the seconds that compilation took.

    Raises:
        OutOfMemoryError: If the compiler finds that it does not fit into device memory.
    """
    import jax

    began = time.perf_counter()
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" in str(error):
            raise OutOfMemoryError(str(error)) from error
        raise
    return compiled, time.perf_counter() - began
