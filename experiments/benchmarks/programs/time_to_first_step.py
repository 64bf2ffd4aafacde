"""Time a command of an experiment to its first step.

`python -m experiments.benchmarks.programs.time_to_first_step SETTINGS`: `config`, the values of an experiment. It
starts in two fresh processes that share a compile cache, empty for the first. Each time includes the imports.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def measure(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the seconds from the start of a process to the end of its first step, with a cold and a warm cache."""
    with tempfile.TemporaryDirectory() as folder:
        cold, warm = _run_in_subprocess(settings, folder), _run_in_subprocess(settings, folder)
    rows = {"compile cache miss": [cold.pop("seconds")], "compile cache hit": [warm.pop("seconds")]}
    return {"seconds": rows, **cold}


def _run_in_subprocess(settings: dict[str, Any], folder: str) -> dict[str, Any]:
    environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": folder, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    words = [sys.executable, "-m", __spec__.name, json.dumps({**settings, "began": time.time()})]
    process = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    if process.returncode:
        raise RuntimeError((process.stderr.strip().splitlines() or ["no output"])[-1])
    return json.loads(process.stdout.strip().splitlines()[-1])


def _run_first_step(settings: dict[str, Any]) -> dict[str, Any]:
    """One step of the run, in this process."""
    import jax

    from transformer.training.build import build_components, make_jitted_train_step
    from transformer.training.config import resolve_config
    from transformer.training.partitioning import shard_host_batches

    experiment = resolve_config(settings["config"])
    with tempfile.TemporaryDirectory() as folder:
        components = build_components(experiment, Path(folder))
        state = components.init_state(jax.random.key(experiment.run.seed))
        step = shard_host_batches(make_jitted_train_step(experiment, components), components.placement)
        jax.block_until_ready(step(state, components.task.training_batches(experiment.run.seed)[0]))
    return {"seconds": time.time() - settings["began"]}


if __name__ == "__main__":
    from experiments.benchmarks.programs.program_main import program_main

    program_main(lambda settings: _run_first_step(settings) if "began" in settings else measure(settings))
