"""Published peak rates of accelerators, and a measured one for CPUs."""

from typing import Any, NamedTuple

import jax

GIB = 2**30


class Chip(NamedTuple):
    """An accelerator, by its vendor's figures.

    Attributes:
        name: The name.
        memory_bytes: Bytes of main memory.
        flops_per_second: Dense bfloat16 FLOPs per second.
        memory_bandwidth: Bytes per second of main memory.
        link_bandwidth: Bytes per second of one link in one direction.
        num_links: Links of a chip: two for each dimension of a TPU's torus, all links of a GPU to its switch.
        wraparound_multiple: The side from which on a slice's torus closes to rings; 0 if a switch connects the chips.
        network_bandwidth: Bytes per second of a chip's share of its host's network; None if not published.
        float32_slowdown: How many times longer a product of float32 operands takes at JAX's default precision.
    """

    name: str
    memory_bytes: int
    flops_per_second: float
    memory_bandwidth: float
    link_bandwidth: float
    num_links: int
    wraparound_multiple: int
    network_bandwidth: float | None
    float32_slowdown: float = 1.0


# Google's pages "TPU v4", "v5e", "v5p" and "v6e" (Cloud TPU documentation, system architecture). What they give of
# links is the sum over a chip, both directions: 400 GB/s on v5e, 800 on v6e, 1,200 on v5p. Of v4 they give all-reduce's
# 1.1 PB/s over 4,096 chips, which on v5e and v6e is links x link x chips: 45 GB/s. The host networks of v4 and v6e are
# not given. Slices of v4 and v5p are tori where their sides are multiples of 4; a side of v5e or v6e closes at the
# pod's own 16. One v5p has 96 GiB, of which programs get 95.
TPU_CHIPS = {
    "v4": Chip("TPU v4", 32 * GIB, 275e12, 1200e9, 45e9, 6, wraparound_multiple=4, network_bandwidth=None),
    "v5e": Chip("TPU v5e", 16 * GIB, 197e12, 819e9, 50e9, 4, wraparound_multiple=16, network_bandwidth=200e9 / 8 / 8),
    "v5p": Chip("TPU v5p", 95 * GIB, 459e12, 2765e9, 100e9, 6, wraparound_multiple=4, network_bandwidth=50e9 / 8),
    "v6e": Chip("TPU v6e", 32 * GIB, 918e12, 1638e9, 100e9, 4, wraparound_multiple=16, network_bandwidth=None),
}


def _gpu(
    name: str, memory: float, flops: float, bandwidth: float, link: float, links: int, network: float | None
) -> Chip:
    # float32 is multiplied in TensorFloat-32, at half the rate of bfloat16; a TPU multiplies it in bfloat16.
    return Chip(
        name,
        int(memory),
        flops,
        bandwidth,
        link,
        links,
        wraparound_multiple=0,
        network_bandwidth=network,
        float32_slowdown=2.0,
    )


# NVIDIA's data sheets of A100, H100, H200 and DGX B200; their operations "with sparsity" halved. NVLink: 12 links of
# 25 GB/s each way on A100, 18 on H100 and H200, 18 of 50 GB/s on B200. The PCIe card has NVLink by a bridge to one
# neighbor alone. The network of a GPU's host is its buyer's choice: given is that of NVIDIA's own DGX systems, an
# adapter a GPU of 200 Gb/s in the DGX A100 and of 400 Gb/s in the others.
_KINDS = {
    "TPU v4": TPU_CHIPS["v4"],
    "TPU v5 lite": TPU_CHIPS["v5e"],
    "TPU v5e": TPU_CHIPS["v5e"],
    "TPU v5": TPU_CHIPS["v5p"],
    "TPU v5p": TPU_CHIPS["v5p"],
    "TPU v6 lite": TPU_CHIPS["v6e"],
    "TPU v6e": TPU_CHIPS["v6e"],
    "NVIDIA A100-SXM4-40GB": _gpu("A100 40 GB", 40e9, 312e12, 1555e9, 25e9, 12, 25e9),
    "NVIDIA A100-SXM4-80GB": _gpu("A100 80 GB", 80e9, 312e12, 2039e9, 25e9, 12, 25e9),
    "NVIDIA H100 80GB HBM3": _gpu("H100 SXM", 80e9, 989.4e12, 3350e9, 25e9, 18, 50e9),
    "NVIDIA H100 PCIe": _gpu("H100 PCIe", 80e9, 756e12, 2000e9, 25e9, 12, None),
    "NVIDIA H200": _gpu("H200", 141e9, 989.4e12, 4800e9, 25e9, 18, 50e9),
    "NVIDIA B200": _gpu("B200", 180e9, 2250e12, 8000e9, 50e9, 18, 50e9),
}


def find_chip(device: Any) -> Chip | None:
    """Return the published figures of a device by its kind; None for unknown kinds and CPUs."""
    return _KINDS.get(device.device_kind)


def peak_flops(devices: list[jax.Device]) -> float | None:
    """Return the published peak FLOPs per second of all devices together; None for CPUs and unknown kinds."""
    chip = find_chip(devices[0])
    return chip.flops_per_second * len(devices) if chip else None
