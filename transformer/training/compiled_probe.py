"""Compile the capture of attention maps on the probe batch."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
from jax.sharding import NamedSharding, PartitionSpec

from transformer.attention.capture import Capture, CapturedAttention
from transformer.logical_axes import Placement
from transformer.maps.capture_plan import CapturePlan, MapStorageConfig, StoredMaps, StoredResolutions, plan_capture
from transformer.models.model import Model
from transformer.tasks.task import Task
from transformer.training.compiled_evaluation import evaluation_view
from transformer.training.partitioning import probe_placement, trace_with_placement
from transformer.training.state import TrainState, derive_key


class Probe(NamedTuple):
    """The capture of the probe batch's maps.

    Attributes:
        capture_plan: Which maps are stored.
        run: A function from the training state to the maps by site.
    """

    capture_plan: CapturePlan
    run: Callable[[TrainState], dict[str, StoredMaps]]


def compile_probe(
    model: Model,
    task: Task,
    abstract: TrainState,
    placement: Placement,
    *,
    config: MapStorageConfig,
    times: int,
    parameters: str,
    resolutions: StoredResolutions | None = None,
) -> Probe:
    """Compile the capture of the maps and statistics of every head on the probe batch.

    Args:
        model: The model.
        task: The task.
        abstract: The training state as shapes.
        placement: The placement on devices.
        config: The size and the budget of stored maps.
        times: How often maps are stored, which share the budget.
        parameters: "raw", or the name of the average by which the run is judged.
        resolutions: Those of an existing map store, for a resumed run; None chooses those that `config` affords.
    """
    plan = plan_probe(model, task, abstract, config, times, parameters, resolutions)
    return Probe(plan, compile_planned_probe(model, task, abstract, placement, plan, parameters))


def plan_probe(
    model: Model,
    task: Task,
    abstract: TrainState,
    config: MapStorageConfig,
    times: int,
    parameters: str,
    resolutions: StoredResolutions | None = None,
) -> CapturePlan:
    """Plan what is stored of the probe batch, from the shapes of its maps; arguments as in `compile_probe`."""
    labels = task.axis_labels(model.sites).with_axis_names(model.sites)
    everything = Capture(tuple(site.name for site in model.sites))
    traced = jax.eval_shape(
        lambda state: _probe_maps(model, task, state, parameters, everything), abstract.without_optimizers()
    )
    return plan_capture(traced, model.sites, labels, config, times, resolutions)


def compile_planned_probe(
    model: Model, task: Task, abstract: TrainState, placement: Placement, plan: CapturePlan, parameters: str
) -> Callable[[TrainState], dict[str, StoredMaps]]:
    """Compile the capture of what a plan stores of the probe batch.

    Examples and heads are sharded over the devices if they divide evenly; each device keeps the maps of its own.

    Args:
        model: The model.
        task: The task.
        abstract: The training state as shapes.
        placement: The placement on devices.
        plan: Which maps are stored.
        parameters: "raw", or the name of the average by which the run is judged.

    Returns:
        A function from the training state to the maps by site.
    """
    on_mesh = probe_placement(placement)

    def capture_maps(state: TrainState) -> dict[str, StoredMaps]:
        return plan.stored_maps(_probe_maps(model, task, state, parameters, plan.request()))

    def map_sharding(stored: jax.ShapeDtypeStruct) -> NamedSharding:
        return NamedSharding(on_mesh.mesh, on_mesh.even_partition_spec(("batch", None, "heads"), stored.shape[:3]))

    # One function, which jax traces once for its shapes and for its program.
    capture_maps = trace_with_placement(on_mesh, capture_maps)
    shardings = jax.tree.map(map_sharding, jax.eval_shape(capture_maps, abstract.without_optimizers()))
    if len({device.process_index for device in on_mesh.mesh.devices.flat}) > 1:
        # The first process plots the statistics, for which it needs all examples.
        replicated = NamedSharding(on_mesh.mesh, PartitionSpec())
        shardings = {
            site: site_shardings._replace(statistics=dict.fromkeys(site_shardings.statistics, replicated))
            for site, site_shardings in shardings.items()
        }
    probe = jax.jit(capture_maps, out_shardings=shardings)
    return lambda state: probe(state.without_optimizers())


def _probe_maps(
    model: Model, task: Task, state: TrainState, parameters: str, capture: Capture
) -> Mapping[str, CapturedAttention]:
    view = evaluation_view(model, state, parameters)
    return task.probe(view, capture, derive_key(state.key, state.step, "probe")).maps
