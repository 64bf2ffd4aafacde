"""The maps of a few texts: a store with one step, for the page."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import jax

from transformer.attention.capture import Capture, CapturedAttention
from transformer.attention.sites import Site
from transformer.config import UserError
from transformer.maps.capture_plan import MapStorageConfig, plan_capture
from transformer.maps.store import MapStore
from transformer.tasks.axis_labels import AxisLabels

Look = Callable[[Capture], Mapping[str, CapturedAttention]]


def store_single_text(
    path: Path,
    sites: Sequence[Site],
    labels: AxisLabels,
    look: Look,
    config: MapStorageConfig,
    config_hash: str,
    step: int = 0,
) -> tuple[MapStore, Mapping[str, CapturedAttention]]:
    """Write what a pass captures to a new store, as its only step, as fine as the budget allows.

    Args:
        path: The directory of the store.
        sites: The attention modules.
        labels: The labels of the texts' positions.
        look: Runs the pass with a capture request and returns what it captured, by the name of the module.
        config: The budget.
        config_hash: The hash of the config.
        step: The training step of the parameters.

    Returns:
        The store, and what the pass captured.

    Raises:
        UserError: If the model has no attention.
    """
    if not sites:
        raise UserError("this model has no attention: there are no maps to show")
    shapes = jax.eval_shape(lambda: look(Capture(tuple(site.name for site in sites))))
    plan = plan_capture(shapes, sites, labels.with_axis_names(sites), config)
    store = MapStore.open(path, sites, plan.labels, config_hash, plan.resolutions, plan.sizes)
    captured = look(plan.request())
    store.write(step, jax.jit(plan.stored_maps)(captured))
    return store, captured
