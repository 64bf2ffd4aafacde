"""The main function of a benchmark program."""

import json
import platform
import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import jax

from transformer.training.malloc_settings import keep_freed_memory

LIBRARIES = ("jax", "jaxlib", "flax", "optax", "numpy")


def program_main(measure: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Call `measure` with the settings of the command line, and print the result and the versions as JSON.

    The process reuses freed memory, as the commands do.
    """
    memory_kept = keep_freed_memory()
    measurements = measure(json.loads(sys.argv[1]))
    versions = {name: version(name) for name in LIBRARIES} | {"python": platform.python_version()}
    facts = {"versions": versions, "device": jax.devices()[0].device_kind, "memory_kept": memory_kept}
    print(json.dumps({**measurements, **facts}), flush=True)
