"""The one line by which a measured process answers."""

import json
import platform
import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import jax

from transformer.training.malloc_settings import keep_freed_memory

LIBRARIES = ("jax", "jaxlib", "flax", "optax", "numpy")


def measured(measure: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Measure with the settings that stand behind the module's name, and print the result and the versions as JSON.

    The process keeps its memory as those of the commands do.
    """
    kept = keep_freed_memory()
    found = measure(json.loads(sys.argv[1]))
    versions = {name: version(name) for name in LIBRARIES} | {"python": platform.python_version()}
    facts = {"versions": versions, "device": jax.devices()[0].device_kind, "memory_kept": kept}
    print(json.dumps({**found, **facts}), flush=True)
