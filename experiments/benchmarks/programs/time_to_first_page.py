"""Time a training command to the first page that it serves.

`python -m experiments.benchmarks.programs.time_to_first_page SETTINGS`: `config`, the values of an experiment.
`launch.train --serve` runs twice with one compile cache, empty for the first, until the page that it serves has been
read once.
"""

import json
import os
import re
import signal
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from experiments.benchmarks.programs.program_main import program_main
from transformer.system.command_invocation import subprocess_command

# A config file for the command, which takes no values; a lambda, as this file defines no config of its own.
_CONFIG = """import json

from ml_collections import ConfigDict

get_config = lambda: ConfigDict(json.loads({values!r}))
"""


def measure(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the seconds from the command to its page, with a cold and a warm compile cache."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.py").write_text(_CONFIG.format(values=json.dumps(settings["config"])), encoding="utf-8")
        seconds = {way: [_time_to_page(folder, way)] for way in ("compile cache miss", "compile cache hit")}
    return {"seconds": seconds}


def _time_to_page(folder: Path, way: str) -> float:
    """Return the seconds of one run, in a directory of this name."""
    environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled")}
    words = [*subprocess_command("train"), f"--config={folder / 'config.py'}", f"--workdir={folder / way}", "--serve"]
    start_seconds = time.time()
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        line = ""
        try:
            for line in run.stdout:
                if address := re.search(r"http://127\.0\.0\.1:\d+\S*", line):
                    with urllib.request.urlopen(address[0]) as page:  # noqa: S310  the page of this machine
                        page.read()
                    return time.time() - start_seconds
        finally:
            run.send_signal(signal.SIGINT)
    raise RuntimeError(f"the run ended without a page: {line.strip()}")


if __name__ == "__main__":
    program_main(measure)
