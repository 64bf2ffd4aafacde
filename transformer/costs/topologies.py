"""Device topologies to compile for: TPU slices and NVIDIA GPUs without either, fake CPU devices, and local GPUs.

jax is imported inside the functions, because `compile_environment_variables` says what must be set before that.
"""

import contextlib
import importlib.util
import math
import os
import re
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from transformer.config import UserError
from transformer.costs.gpu_targets import GPU_TARGETS, GPUS_PER_HOST, target_config

if TYPE_CHECKING:
    import jax

_FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_SMALL = ("1x1x1", "2x2x1", "2x2x2", "2x2x4", "2x4x4")
# By generation, the most chips of one slice that can be booked; smaller ones are those of _FLAT in two dimensions, and
# in three those of _SMALL or sides that are multiples of 4 (Cloud TPU documentation, supported configurations).
_LARGEST = {"v4": 4096, "v5e": 256, "v5p": 6144, "v6e": 256}
_TWO_DIMENSIONS = ("v5e", "v6e")
_EXAMPLES = "use v5e:4x4, v5p:4x4x8, v4:4x4x4, v6e:8x8, h100:8, cpu:8 or gpu:1"
# jax's plugins that have XLA's compiler for NVIDIA GPUs, the newest first.
_CUDA_PLUGINS = ("jax_cuda13_plugin", "jax_cuda12_plugin")


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
    if platform in GPU_TARGETS:
        return {
            # Programs are lowered on the CPU, and a GPU that is there is left alone.
            "JAX_PLATFORMS": "cpu",
            "CUDA_VISIBLE_DEVICES": "-1",
            # The plugin asks no driver for its version.
            "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
        }
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
    match = re.fullmatch(r"(v5e|v5litepod|v6e)-(\d+)", topology)
    sides = [sides for sides in _FLAT if match and math.prod(map(int, sides.split("x"))) == int(match[2])]
    return f"use {match[1].replace('litepod', 'e')}:{sides[0]}" if match and sides else ""


def parse_topology(topology: str) -> tuple[str, str]:
    """Split a topology into its platform or TPU generation and its size.

    Args:
        topology: The name, such as "v5e:4x4", "h100:8", "h100:2x8" (hosts x GPUs), "cpu:8" or "gpu:1".

    Returns:
        The platform, generation or GPU, and the size: a number, or a shape such as "4x4x8".

    Raises:
        UserError: If the name is not a topology, or if the slice does not exist.
    """
    platform, colon, size = topology.partition(":")
    if platform in ("cpu", "gpu"):
        if not re.fullmatch(r"[1-9]\d*", size):
            raise UserError(f"topology={topology!r} needs a number of devices, such as {platform}:8")
        return platform, size
    if platform in GPU_TARGETS:
        _parse_gpus(topology, size)
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


class TopologySize(NamedTuple):
    """The devices of a topology.

    Attributes:
        num_devices: Their number.
        memory_bytes: Bytes of main memory of each; None if unknown.
    """

    num_devices: int
    memory_bytes: int | None


def topology_size(topology: str) -> TopologySize:
    """Return the number and the memory of a topology's devices, of which none need be there, nor a compiler for them.

    Raises:
        UserError: If the name is not a topology.
    """
    platform, size = parse_topology(topology)
    if platform in ("cpu", "gpu"):
        return TopologySize(int(size), None)
    if platform in GPU_TARGETS:
        return TopologySize(math.prod(_parse_gpus(topology, size)), GPU_TARGETS[platform].memory_bytes)
    from transformer.costs.chips import TPU_CHIPS  # imports jax

    return TopologySize(math.prod(map(int, size.split("x"))), TPU_CHIPS[platform].memory_bytes)


def _parse_gpus(topology: str, size: str) -> tuple[int, int]:
    """Return the hosts and the GPUs of each."""
    name = topology.partition(":")[0]
    match = re.fullmatch(r"(?:([1-9]\d*)x)?([1-9]\d*)", size)
    if match is None:
        raise UserError(f"topology={topology!r} needs a number of GPUs, as in {name}:8, or hosts x GPUs: {name}:2x8")
    hosts, gpus = int(match[1] or 1), int(match[2])
    if gpus > GPUS_PER_HOST:
        nearest = f"{name}:{math.ceil(gpus / GPUS_PER_HOST)}x{GPUS_PER_HOST}"
        raise UserError(f"topology={topology!r} has more than the {GPUS_PER_HOST} GPUs of one host: use {nearest}")
    return hosts, gpus


def topology_devices(topology: str) -> Sequence["jax.Device"]:
    """Return the devices of a topology: those of TPUs or named GPUs need not be present, CPU and GPU devices are local.

    Raises:
        UserError: If the name is not a topology, if its compiler is missing, or if there are fewer local devices.
    """
    platform, size = parse_topology(topology)
    if platform in ("cpu", "gpu"):
        return _local_devices(platform, int(size))
    if platform in GPU_TARGETS:
        return _gpu_topology_devices(topology)
    if importlib.util.find_spec("libtpu") is None:
        raise UserError(
            f"topology={topology!r} needs libtpu, the TPU compiler, which exists for Linux on x86-64 only: install it "
            "with `make install` in the checkout or `pip install 'jax[tpu]'`, or use cpu:N"
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


def _gpu_topology_devices(topology: str) -> Sequence["jax.Device"]:
    if not any(importlib.util.find_spec(plugin) for plugin in _CUDA_PLUGINS):
        import jax

        raise UserError(
            f"topology={topology!r} needs XLA's compiler for NVIDIA GPUs, which exists for Linux alone: pip install "
            f"'jax[cuda13]=={jax.__version__}', here or in an environment whose Python --compiler_python names"
        )
    for key, value in compile_environment_variables(topology).items():
        os.environ.setdefault(key, value)
    import jax
    from jax.experimental import topologies

    name, size = parse_topology(topology)
    hosts, gpus = _parse_gpus(topology, size)
    # slices x hosts x GPUs of a host
    description = {"target_config": target_config(GPU_TARGETS[name]), "topology": f"1x{hosts}x{gpus}"}
    try:
        return tuple(topologies.get_topology_desc(platform="cuda", **description).devices)
    except (jax.errors.JaxRuntimeError, NotImplementedError) as error:
        raise UserError(
            f"topology={topology!r}: jax's CUDA plugin does not compile for it: {str(error).splitlines()[0]}"
        ) from error


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


@contextlib.contextmanager
def use_compute_capability(device: "jax.Device") -> Iterator[None]:
    """Trace for a GPU that is not there: JAX asks a local GPU whether cuDNN's attention supports a call.

    Args:
        device: A device that is compiled for; nothing is done if it is no GPU.
    """
    capability = getattr(device, "compute_capability", None)
    if device.platform != "gpu" or capability is None:
        yield
        return
    from jax._src.cudnn import fused_attention_stablehlo as fused

    def numbers(text: str) -> tuple[int, ...]:
        return tuple(map(int, text.split(".")))

    answers = {
        "check_compute_capability": lambda required: numbers(capability) >= numbers(required),
        "is_cuda_compute_capability_equal": lambda required: numbers(capability) == numbers(required),
    }
    before = {name: getattr(fused, name) for name in answers if hasattr(fused, name)}
    try:
        for name in before:
            setattr(fused, name, answers[name])
        yield
    finally:
        for name, function in before.items():
            setattr(fused, name, function)


def compile_lowered(lowered: "jax.stages.Lowered") -> tuple["jax.stages.Compiled", float]:
    """Compile a lowered program.

    Returns:
        The compiled program, and the seconds that compilation took.

    Raises:
        OutOfMemoryError: If the compiler finds that it does not fit into device memory.
    """
    import jax

    start_seconds = time.perf_counter()
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" in str(error):
            raise OutOfMemoryError(str(error)) from error
        raise
    return compiled, time.perf_counter() - start_seconds
