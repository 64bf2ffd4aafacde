"""A program that writes maps step by step until it is killed; it says where it starts, and each step that it begins.

What was written after its last checkpoint is dropped at the start, as a resumed run drops it.
"""

import sys
from pathlib import Path

import numpy as np

from transformer.attention.sites import Axis, Site
from transformer.maps.capture_plan import quantize_maps
from transformer.maps.store import MapStore
from transformer.tasks.axis_labels import AxisLabels

CHECKPOINTED = 5
SITE = Site("decoder/self", Axis("tokens"), Axis("tokens"), ("0", "1"), ("0", "1", "2", "3"))
LABELS = AxisLabels({"tokens": (tuple(map(str, range(48))),)}, ("numbers",))


def weights_at(step: int) -> np.ndarray:
    """The maps of a step: [layer, example, head, query, key]."""
    return np.random.default_rng(step).dirichlet(np.ones(48), size=(2, 1, 4, 48)).astype(np.float32)


def open_store(path: Path) -> MapStore:
    """The one store of this program."""
    return MapStore.open(path, (SITE,), LABELS, "abc")


if __name__ == "__main__":
    store = open_store(Path(sys.argv[1]))
    start = len(store.steps) // CHECKPOINTED * CHECKPOINTED
    store.truncate(after_step=start)
    print(start, flush=True)
    for step in range(start + 1, 10_000):
        print(step, flush=True)
        store.write(step, {SITE.name: quantize_maps(weights_at(step), store.levels(SITE.name))})
