"""The probe: what every head does on a fixed batch, in one program that is compiled once."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
from jax.sharding import NamedSharding, PartitionSpec

from transformer.attention.capture import Capture, Captured
from transformer.axes import Placement
from transformer.maps.plan import Plan, make_plan
from transformer.maps.tiers import Kept, MapsConfig, Tiers
from transformer.models.contract import Model
from transformer.tasks.contract import Task
from transformer.training.evaluate import view_of
from transformer.training.mesh import by_examples
from transformer.training.sharding import traced_on
from transformer.training.state import TrainState, key_for


class Probe(NamedTuple):
    """What is kept of the probe batch, and the function from the state to it."""

    plan: Plan
    run: Callable[[TrainState], dict[str, Kept]]


def compile_probe(
    model: Model,
    task: Task,
    abstract: TrainState,
    placement: Placement,
    *,
    config: MapsConfig,
    times: int,
    tiers: Tiers | None = None,
) -> Probe:
    """The maps and statistics of every head on the probe batch, kept as `config` allows it to be so many `times`.

    Where the run has kept some already, by its `tiers`, it goes on with these.

    Where the examples can be divided evenly over the devices they are, and so are the heads; each device keeps what it
    found of its own.
    """

    def look(state: TrainState, capture: Capture) -> Mapping[str, Captured]:
        return task.probe(view_of(model, state), capture, key_for(state.key, state.step, "probe")).maps

    abstract = abstract.for_looking()
    labels = task.labels(model.sites).completed(model.sites)
    everything = Capture(tuple(site.name for site in model.sites))
    traced = jax.eval_shape(lambda state: look(state, everything), abstract)
    plan = make_plan(traced, model.sites, labels, config, times, tiers)
    here = by_examples(placement)

    def seen(state: TrainState) -> dict[str, Kept]:
        return plan.keep(look(state, plan.request()))

    def lies(kept: jax.ShapeDtypeStruct) -> NamedSharding:
        return NamedSharding(here.mesh, here.even_spec(("batch", None, "heads"), kept.shape[:3]))

    lying = jax.tree.map(lies, jax.eval_shape(seen, abstract))
    if len({device.process_index for device in here.mesh.devices.flat}) > 1:
        # The first process shows statistics as curves, for which it needs those of all examples.
        whole = NamedSharding(here.mesh, PartitionSpec())
        lying = {site: kept._replace(statistics=dict.fromkeys(kept.statistics, whole)) for site, kept in lying.items()}
    probe = jax.jit(traced_on(here, seen), out_shardings=lying)
    return Probe(plan, lambda state: probe(state.for_looking()))
