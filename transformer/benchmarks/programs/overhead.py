"""What a run adds to its bare step, measured: `python -m transformer.benchmarks.programs.overhead SETTINGS`.

SETTINGS: `config`, the values of an experiment, and with `part` (loop, capture or maps) the arguments of the function
of transformer.benchmarks.overhead.
"""

import tempfile
from pathlib import Path
from typing import Any

from transformer.benchmarks import overhead
from transformer.benchmarks.programs.process import measured
from transformer.training.config import resolve

PARTS = {"loop": overhead.of_loop, "capture": overhead.of_capture, "maps": overhead.of_maps}


def measure(settings: dict[str, Any]) -> dict[str, Any]:
    """The seconds of each measurement, by what was measured."""
    experiment = resolve(settings["config"])
    with tempfile.TemporaryDirectory() as folder:
        counts = {"steps": settings["steps"], "repeats": settings["repeats"]}
        return {"seconds": PARTS[settings["part"]](experiment, Path(folder), **counts)}


if __name__ == "__main__":
    measured(measure)
