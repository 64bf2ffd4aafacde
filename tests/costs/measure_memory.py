"""Predicted against measured peak memory of one training step on the CPU: `python -m tests.costs.measure_memory`.

A fresh process for each decoder: it compiles the step, makes the state, returns what the allocator holds unused, sets
the kernel's high-water mark of resident memory back, and runs the step once. Measured is what that mark rose by, and
the arguments, which were there before. Prints figures; asserts nothing. Linux alone.
"""

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

MEGABYTE = 1e6
CASES: dict[str, dict[str, Any]] = {
    "4 layers of 256, 16 rows of 256": {"layers": 4, "width": 256, "rows": 16, "max_length": 256},
    "8 layers of 512, 8 rows of 256": {"layers": 8, "width": 512, "rows": 8, "max_length": 256},
    "8 layers of 512, 8 rows of 256, remat full": {
        "layers": 8,
        "width": 512,
        "rows": 8,
        "max_length": 256,
        "remat": "full",
    },
    "12 layers of 768, 4 rows of 256": {"layers": 12, "width": 768, "rows": 4, "max_length": 256},
}


def resident(field: str) -> int:
    """A line of /proc/self/status in bytes: VmRSS, what is resident now, or VmHWM, the most there was."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def measure(case: str) -> dict[str, float]:
    """Predicted and measured bytes of one decoder; only in a process that has done nothing else."""
    import jax
    import jax.numpy as jnp

    from tests.costs.small_decoder import training
    from transformer.costs.compiled_program import analyze_program
    from transformer.layers.transformer_config import Remat
    from transformer.models.decoder import DecoderConfig
    from transformer.training.partitioning import ShardingConfig

    chosen = CASES[case]
    config = DecoderConfig(
        layers=chosen["layers"], width=chosen["width"], heads=chosen["width"] // 64,
        feed_forward=4 * chosen["width"], max_length=chosen["max_length"], remat=Remat(chosen.get("remat", "none")),
    )  # fmt: skip
    made = training(config, ShardingConfig(), jax.devices()[:1], rows=chosen["rows"])
    compiled = made.lowered().compile()
    program = analyze_program(compiled, made.placement.mesh)
    state = jax.block_until_ready(made.make(jax.random.key(0)))
    batch = {name: jnp.zeros(leaf.shape, leaf.dtype) for name, leaf in made.batch.items()}
    jax.block_until_ready(batch)
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    state, metrics = compiled(state, batch)
    jax.block_until_ready((state, metrics))
    return {"predicted": program.peak_bytes, "measured": resident("VmHWM") - before + program.argument_bytes}


def main() -> None:
    """Every case in a process of its own, which would else reuse what the one before it left."""
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1])))
        return
    # Large blocks come from the kernel and go back to it, so that what was free before does not hide what is needed.
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
    for case in CASES:
        words = [sys.executable, "-m", "tests.costs.measure_memory", case]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
        predicted, measured = found["predicted"] / MEGABYTE, found["measured"] / MEGABYTE
        more = 100 * (measured / predicted - 1)
        print(f"{case}: predicted {predicted:.1f} MB, measured {measured:.1f} MB, {more:+.1f}%", flush=True)


if __name__ == "__main__":
    main()
