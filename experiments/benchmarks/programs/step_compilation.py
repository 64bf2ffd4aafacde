"""Compile a training step for a GPU that need not be there, and count its memory and its traffic.

`python -m experiments.benchmarks.programs.step_compilation SETTINGS`: `topology`; `file`, and `changes` to the config
of a config file, or `sizes` for a peer's file, whose `lower_step(sizes, devices)` returns a `jax.stages.Lowered`. No
step runs.
"""

import json
import os
import runpy
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformer.costs.compiled_program import CompiledProgram

NUM_SOURCE_LINES = 10


def measure(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the seconds of compilation, and the counts of the compiled program."""
    defined = runpy.run_path(settings["file"])
    if "lower_step" in defined:
        program, seconds = _compile_peer(defined["lower_step"], settings["sizes"], settings["topology"])
    else:
        program, seconds = _compile_config(defined["get_config"], settings["changes"], settings["topology"])
    return {"seconds": [seconds], "compiled": _summarize_program(program)}


def _compile_peer(
    lower_step: Callable[..., Any], sizes: Mapping[str, Any], topology: str
) -> tuple["CompiledProgram", float]:
    import jax
    import numpy as np

    from transformer.costs.compiled_program import analyze_program
    from transformer.costs.topologies import compile_lowered, topology_devices, use_compute_capability

    devices = topology_devices(topology)
    with use_compute_capability(devices[0]):
        lowered = lower_step(sizes, devices)
    compiled, seconds = compile_lowered(lowered)
    return analyze_program(compiled, jax.sharding.Mesh(np.array(devices), ("device",))), seconds


def _compile_config(
    get_config: Callable[[], Any], changes: Mapping[str, Any], topology: str
) -> tuple["CompiledProgram", float]:
    from transformer.aot.aot_compile import compile_ahead_of_time
    from transformer.training.config import resolve_config

    config = get_config()
    config.update(changes)
    report = compile_ahead_of_time(resolve_config(config.to_dict()), topology)
    if report.program is None:
        raise RuntimeError(f"the step does not fit into the memory of {topology}")
    return report.program, report.compile_seconds


def _summarize_program(program: "CompiledProgram") -> dict[str, Any]:
    return {
        "bytes_moved": program.bytes_moved,
        "peak_bytes": program.peak_bytes,
        "argument_bytes": program.argument_bytes,
        "float32_flops": program.float32_flops,
        "collectives": sum(collective.num_executions for collective in program.collectives),
        "loops_without_trip_count": list(program.loops_without_trip_count),
        "attention_kernels": dict(program.attention_kernels),
        "fingerprint": program.fingerprint,
        "source_lines": [
            {"line": source_line.line, "bytes": source_line.num_bytes, "source": source_line.source}
            for source_line in program.source_lines[:NUM_SOURCE_LINES]
        ],
    }


if __name__ == "__main__":
    from transformer.costs.topologies import compile_environment_variables

    # Before jax is imported.
    os.environ.update(compile_environment_variables(json.loads(sys.argv[1])["topology"]))
    from experiments.benchmarks.programs.program_main import program_main

    program_main(measure)
