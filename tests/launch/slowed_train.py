"""The train command, slowed: `STEP_SECONDS` before each unit of work, `SAVE_SECONDS` for each save.

A save is under way all the while, before anything of it is written.
"""

import os
import runpy
import time
from typing import Any

import orbax.checkpoint as ocp

from transformer.runs.preemption import ProgressMonitor

_begin_unit, _save = ProgressMonitor.begin_unit, ocp.CheckpointManager.save


def begin_unit(self: ProgressMonitor, *words: Any, **options: Any) -> None:
    """Begin a unit a little later."""
    time.sleep(float(os.environ.get("STEP_SECONDS", "0")))
    _begin_unit(self, *words, **options)


def save(self: ocp.CheckpointManager, *words: Any, **options: Any) -> Any:
    """Save for a while."""
    time.sleep(float(os.environ.get("SAVE_SECONDS", "0")))
    return _save(self, *words, **options)


if __name__ == "__main__":
    ProgressMonitor.begin_unit = begin_unit  # type: ignore[method-assign]
    ocp.CheckpointManager.save = save  # type: ignore[method-assign]
    runpy.run_module("launch.train", run_name="__main__")
