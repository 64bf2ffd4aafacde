"""Whether a run's state has room on this machine: known from abstract shapes, before anything compiles.

Only the state is counted: parameters, moments, averages, and the gradients where all of them exist at one time.
Activations are not, so that what could run is never refused; launch.compile says what a step really takes.
"""

import math
import os
from pathlib import Path
from typing import Any

import jax

from transformer.config import UserError
from transformer.costs.chips import chip_of

GB = 1e9


def check_room(abstract: Any, gradients: Any, memory: float | None) -> None:
    """Refuse a state that is larger than the memory of its devices.

    `abstract` has the shapes and shardings of the state, `gradients` those of what exists beside it, and `memory` is
    the bytes of one device or, where the devices of this process share them, of all; None where nobody says it.

    Errors: UserError with both sizes and what is largest.
    """
    sizes = [(_held(leaf), path, leaf) for path, leaf in jax.tree.leaves_with_path((abstract, gradients))]
    needed = sum(size for size, _, _ in sizes)
    if memory is None or needed <= memory:
        return
    _, path, leaf = max(sizes, key=lambda each: each[0])
    raise UserError(
        f"the state of this model takes {needed / GB:,.0f} GB, parameters and moments alone, and this machine has "
        f"{memory / GB:,.0f} GB for it: choose a smaller model, or divide it by config.sharding; the largest array is "
        f"{jax.tree_util.keystr(path[1:], simple=True, separator='/')} of {'x'.join(map(str, leaf.shape))}"
    )


def memory_of(device: Any, files: Path = Path("/")) -> float | None:
    """The bytes that the arrays of a device may take; of a CPU's those of the machine, with what it swaps to."""
    if device.platform == "cpu":
        try:
            lines = (files / "proc" / "meminfo").read_text(encoding="ascii").splitlines()
            told = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
            return told["MemTotal"] + told.get("SwapTotal", 0)
        except (OSError, ValueError, KeyError, IndexError):
            return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    told = device.memory_stats() or {}
    chip = chip_of(device)
    return told.get("bytes_limit") or (None if chip is None else chip.memory)


def _held(leaf: Any) -> int:
    """The bytes of an array on one device, or on all of this process where they share their memory."""
    shape, devices = leaf.shape, list(leaf.sharding.addressable_devices)
    together = len(devices) if devices and devices[0].platform == "cpu" else 1
    return math.prod(leaf.sharding.shard_shape(shape)) * leaf.dtype.itemsize * together
