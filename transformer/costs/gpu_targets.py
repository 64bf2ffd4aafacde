"""What XLA's compiler must know of an NVIDIA GPU to compile for it without one."""

from typing import NamedTuple


class GpuTarget(NamedTuple):
    """A GPU as its driver describes it.

    Attributes:
        device_kind: The name that the driver gives it, by which `transformer.costs.chips` finds its rates.
        compute_capability: The major number of its compute capability.
        num_multiprocessors: Streaming multiprocessors.
        float32_units: float32 units of a multiprocessor.
        shared_memory: Bytes of shared memory of a multiprocessor.
        shared_memory_per_block: The most of these that one block of threads may ask for.
        l2_cache: Bytes of the level-2 cache.
        clock_rate_ghz: The highest clock rate, in GHz.
        memory_bytes: Bytes of device memory.
        memory_bandwidth: Bytes per second of device memory.
    """

    device_kind: str
    compute_capability: int
    num_multiprocessors: int
    float32_units: int
    shared_memory: int
    shared_memory_per_block: int
    l2_cache: int
    clock_rate_ghz: float
    memory_bytes: int
    memory_bandwidth: int


# NVIDIA's architecture white papers and CUDA programming guide; memory and bandwidth as the driver reports them, which
# XLA publishes with its own target configurations.
GPU_TARGETS = {
    "a100": GpuTarget(
        "NVIDIA A100-SXM4-80GB", 8, 108, 64, 167_936, 166_912, 41_943_040, 1.41, 85_100_068_864, 2_039_040_000_000
    ),
    "h100": GpuTarget(
        "NVIDIA H100 80GB HBM3", 9, 132, 128, 233_472, 232_448, 52_428_800, 1.98, 84_929_347_584, 3_352_320_000_000
    ),
    "h200": GpuTarget(
        "NVIDIA H200", 9, 132, 128, 233_472, 232_448, 52_428_800, 1.98, 151_397_597_184, 4_800_000_000_000
    ),
    "b200": GpuTarget(
        "NVIDIA B200", 10, 148, 128, 233_472, 232_448, 132_644_864, 1.965, 191_514_411_008, 7_672_320_000_000
    ),
}
# GPUs that one NVLink switch connects in NVIDIA's HGX and DGX systems.
GPUS_PER_HOST = 8


def target_config(target: GpuTarget) -> str:
    """Return the text of XLA's GpuTargetConfigProto for a GPU, with cuDNN 9.12 and CUDA 13.

    Limits that all these GPUs share are those of the CUDA programming guide.
    """
    return f"""
        gpu_device_info {{
          cuda_compute_capability {{ major: {target.compute_capability} }}
          core_count: {target.num_multiprocessors}
          fpus_per_core: {target.float32_units}
          clock_rate_ghz: {target.clock_rate_ghz}
          device_memory_size: {target.memory_bytes}
          memory_bandwidth: {target.memory_bandwidth}
          l2_cache_size: {target.l2_cache}
          shared_memory_per_core: {target.shared_memory}
          shared_memory_per_block: 49152
          shared_memory_per_block_optin: {target.shared_memory_per_block}
          registers_per_core_limit: 65536
          registers_per_block_limit: 65536
          threads_per_warp: 32
          threads_per_block_limit: 1024
          threads_per_core_limit: 2048
          block_dim_limit_x: 2147483647
          block_dim_limit_y: 65535
          block_dim_limit_z: 65535
        }}
        platform_name: "CUDA"
        dnn_version_info {{ major: 9 minor: 12 }}
        runtime_version {{ major: 13 }}
        device_description_str: "{target.device_kind}"
    """
