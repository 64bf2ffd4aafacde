"""What devices can do at best: published figures, or a measured one for processors that have none."""

import time

import jax
import jax.numpy as jnp

# Dense bfloat16 matrix products, in operations a second, from the vendors' data sheets.
PUBLISHED_BFLOAT16 = {
    "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA H100 80GB HBM3": 989.4e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H200": 989.4e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5p": 459e12,
    "TPU v6 lite": 918e12,
}


def peak_flops(devices: list[jax.Device]) -> float:
    """Operations a second of all devices together: published for accelerators, measured on a CPU.

    Fake CPU devices share one processor, so that it counts once. Unknown accelerators give infinity: a
    utilisation of 0 shows that their figure is missing, where a guess would mislead.
    """
    kind = devices[0].device_kind
    if devices[0].platform == "cpu":
        return measured_matmul(devices[0])
    return PUBLISHED_BFLOAT16.get(kind, float("inf")) * len(devices)


def measured_matmul(device: jax.Device, size: int = 1024, repeats: int = 5) -> float:
    """The best rate of a float32 product of two square matrices."""
    matrix = jax.device_put(jnp.ones((size, size), jnp.float32), device)
    multiply = jax.jit(jnp.matmul)
    multiply(matrix, matrix).block_until_ready()
    best = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        multiply(matrix, matrix).block_until_ready()
        best = min(best, time.perf_counter() - began)
    return 2 * size**3 / best
