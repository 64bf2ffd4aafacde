"""What a run adds to its bare step, measured: `python -m transformer.benchmarks.programs.run_overhead SETTINGS`.

SETTINGS: `config`, the values of an experiment, and with `part` (loop, capture or maps) the arguments of the function
of transformer.benchmarks.run_overhead.
"""

import tempfile
from pathlib import Path
from typing import Any

from transformer.benchmarks import run_overhead
from transformer.benchmarks.programs.program_main import program_main
from transformer.training.config import resolve_config

PARTS = {
    "loop": run_overhead.time_training_loop,
    "capture": run_overhead.time_head_capture,
    "maps": run_overhead.time_attention_maps,
}


def measure(settings: dict[str, Any]) -> dict[str, Any]:
    """The seconds of each measurement, by what was measured."""
    experiment = resolve_config(settings["config"])
    with tempfile.TemporaryDirectory() as folder:
        counts = {"steps": settings["steps"], "repeats": settings["repeats"]}
        return {"seconds": PARTS[settings["part"]](experiment, Path(folder), **counts)}


if __name__ == "__main__":
    program_main(measure)
