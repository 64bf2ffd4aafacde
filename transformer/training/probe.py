"""The probe: maps of every head on a fixed batch, in one program that is compiled once."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
from jax.sharding import NamedSharding, PartitionSpec

from transformer.attention.capture import Capture, Captured
from transformer.axes import Placement
from transformer.maps.plan import Plan, make_plan
from transformer.maps.tiers import MapsConfig, StoredMaps, Tiers
from transformer.models.contract import Model
from transformer.tasks.contract import Task
from transformer.training.evaluate import view_of
from transformer.training.mesh import by_examples
from transformer.training.placing import traced_on
from transformer.training.state import TrainState, key_for


class Probe(NamedTuple):
    """The plan of the probe batch's stored maps, and the function from the state to them."""

    plan: Plan
    run: Callable[[TrainState], dict[str, StoredMaps]]


def compile_probe(
    model: Model,
    task: Task,
    abstract: TrainState,
    placement: Placement,
    *,
    config: MapsConfig,
    times: int,
    parameters: str,
    tiers: Tiers | None = None,
) -> Probe:
    """The maps and statistics of every head on the probe batch, at the tiers that `config` affords for `times` steps.

    They are those of the `parameters` that the run is judged by, "raw" or those of an average. A resumed run passes the
    `tiers` of its store. Examples and heads are sharded over the devices where they divide evenly; each device keeps
    the maps of its own.
    """

    def look(state: TrainState, capture: Capture) -> Mapping[str, Captured]:
        return task.probe(view_of(model, state, parameters), capture, key_for(state.key, state.step, "probe")).maps

    abstract = abstract.for_looking()
    labels = task.labels(model.sites).completed(model.sites)
    everything = Capture(tuple(site.name for site in model.sites))
    traced = jax.eval_shape(lambda state: look(state, everything), abstract)
    plan = make_plan(traced, model.sites, labels, config, times, tiers)
    placed = by_examples(placement)

    def seen(state: TrainState) -> dict[str, StoredMaps]:
        return plan.keep(look(state, plan.request()))

    def lies(kept: jax.ShapeDtypeStruct) -> NamedSharding:
        return NamedSharding(placed.mesh, placed.even_spec(("batch", None, "heads"), kept.shape[:3]))

    lying = jax.tree.map(lies, jax.eval_shape(seen, abstract))
    if len({device.process_index for device in placed.mesh.devices.flat}) > 1:
        # The first process draws curves of the statistics, for which it needs all examples.
        whole = NamedSharding(placed.mesh, PartitionSpec())
        lying = {site: kept._replace(statistics=dict.fromkeys(kept.statistics, whole)) for site, kept in lying.items()}
    probe = jax.jit(traced_on(placed, seen), out_shardings=lying)
    return Probe(plan, lambda state: probe(state.for_looking()))
