"""Time the compilation of a decoder's training step.

`python -m experiments.benchmarks.programs.training_step_compilation SETTINGS`; SETTINGS are those of
decoder_training_step. No step runs.
"""

import tempfile
import time
from typing import Any

import jax

from experiments.benchmarks.programs.decoder_training_step import compile_training_step
from experiments.benchmarks.programs.program_main import program_main


def measure(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the seconds to compile with scanned layers, with a compile cache hit, and with unrolled layers."""
    loop, inline = ({**settings, "model": {"scan_unroll": unroll}} for unroll in (1, settings["layers"]))
    with tempfile.TemporaryDirectory() as folder:
        jax.config.update("jax_compilation_cache_dir", folder)
        cold = _compile_seconds(loop)
        jax.clear_caches()
        warm = _compile_seconds(loop)
        jax.config.update("jax_enable_compilation_cache", False)
        unrolled = _compile_seconds(inline)
    return {"seconds": {"scanned layers": [cold], "compile cache hit": [warm], "unrolled layers": [unrolled]}}


def _compile_seconds(settings: dict[str, Any]) -> float:
    begin, step, source = compile_training_step(settings)
    state = jax.eval_shape(begin, jax.random.key(settings["seed"]))
    start_seconds = time.perf_counter()
    step.lower(state, source[0]).compile()
    return time.perf_counter() - start_seconds


if __name__ == "__main__":
    program_main(measure)
