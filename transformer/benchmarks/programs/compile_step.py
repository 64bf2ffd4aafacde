"""How long a decoder's step takes to compile: `python -m transformer.benchmarks.programs.compile_step SETTINGS`.

SETTINGS are those of decoder_step; nothing is computed.
"""

import tempfile
import time
from typing import Any

import jax

from transformer.benchmarks.programs.decoder_step import stepping
from transformer.benchmarks.programs.process import measured


def measure(settings: dict[str, Any]) -> dict[str, Any]:
    """The seconds to trace and compile the layers as a loop, to find that program compiled, and with them in line."""
    loop, in_line = ({**settings, "model": {"scan_unroll": unroll}} for unroll in (1, settings["layers"]))
    with tempfile.TemporaryDirectory() as folder:
        jax.config.update("jax_compilation_cache_dir", folder)
        cold = _seconds(loop)
        jax.clear_caches()
        warm = _seconds(loop)
        jax.config.update("jax_enable_compilation_cache", False)
        unrolled = _seconds(in_line)
    return {"seconds": {"a loop over the layers": [cold], "found compiled": [warm], "layers in line": [unrolled]}}


def _seconds(settings: dict[str, Any]) -> float:
    begin, step, source = stepping(settings)
    state = jax.eval_shape(begin, jax.random.key(settings["seed"]))
    began = time.perf_counter()
    step.lower(state, source[0]).compile()
    return time.perf_counter() - began


if __name__ == "__main__":
    measured(measure)
