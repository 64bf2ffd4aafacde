"""The one line by which a measured process answers."""

import json
import platform
import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import jax

LIBRARIES = ("jax", "jaxlib", "flax", "optax", "numpy")


def measured(measure: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Measure with the settings that stand behind the module's name, and print the result and the versions as JSON."""
    found = measure(json.loads(sys.argv[1]))
    versions = {name: version(name) for name in LIBRARIES} | {"python": platform.python_version()}
    print(json.dumps({**found, "versions": versions, "device": jax.devices()[0].device_kind}), flush=True)
