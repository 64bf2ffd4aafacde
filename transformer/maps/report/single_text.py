"""The maps of a few texts: a store of one step, and the page of it."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import jax

from transformer.attention.capture import Capture, CapturedAttention
from transformer.attention.sites import Site
from transformer.config import UserError
from transformer.maps.capture_plan import MapsConfig, plan_capture
from transformer.maps.store import MapStore
from transformer.tasks.axis_labels import AxisLabels

Look = Callable[[Capture], Mapping[str, CapturedAttention]]


def store_single_text(
    path: Path,
    sites: Sequence[Site],
    labels: AxisLabels,
    look: Look,
    config: MapsConfig,
    config_hash: str,
    step: int = 0,
) -> tuple[MapStore, Mapping[str, CapturedAttention]]:
    """A new store at `path` with what `look` captures, as one step, as fine as the budget of `config` allows; and that.

    Raises:
        UserError: For a model without attention.
    """
    if not sites:
        raise UserError("this model has no attention: there are no maps to show")
    whole = jax.eval_shape(lambda: look(Capture(tuple(site.name for site in sites))))
    plan = plan_capture(whole, sites, labels.completed(sites), config)
    store = MapStore.open(path, sites, plan.labels, config_hash, plan.tiers, plan.sizes)
    captured = look(plan.request())
    store.write(step, jax.jit(plan.stored_maps)(captured))
    return store, captured
