"""Check on abstract shapes, before the first step, that task, model and device memory fit each other."""

import contextlib
import dataclasses
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters.partial_eval import dce_jaxpr

from transformer.attention.capture import Capture, CapturedAttention
from transformer.attention.sites import Site
from transformer.config import UserError
from transformer.costs.chips import find_chip
from transformer.models.model import Aux, Model, leaves_by_path
from transformer.models.task_interface import TaskInterface
from transformer.tasks.axis_labels import AxisLabels
from transformer.tasks.task import Batch, Evaluation, LossAux, Objective, Task
from transformer.training.compiled_evaluation import evaluation_view
from transformer.training.state import TrainState, derive_key

GB = 1e9


def check_task_fits_model(
    model: Model, task: Task, abstract: TrainState, batch: Batch, capture: Capture | None
) -> None:
    """Check that a task and a model fit each other: attention sites, labels, losses, evaluations and the first batch.

    Args:
        model: The model.
        task: The task.
        abstract: The training state as shapes.
        batch: The first training batch.
        capture: The capture of training batches, if there is one.

    Raises:
        UserError: If they do not fit; one line that names the site, axis, input, objective or evaluation. Errors of a
            task's or a model's own code are raised unchanged, with a note that names the traced pass.
    """
    _check_names(model.sites)
    labels = task.axis_labels(model.sites).with_axis_names(model.sites)
    _check_probe(model, task, abstract, labels)
    _check_objectives(model, task, abstract, batch, capture)
    _check_evaluations(model, task, abstract)


def check_memory(abstract: Any, gradients: Any, memory: float | None, *, shared: bool) -> None:
    """Check that a training state fits into the memory of its devices.

    Args:
        abstract: The shapes and shardings of the state.
        gradients: Those of the gradients that exist at the same time.
        memory: The bytes of one device or, if `shared`, of all devices of this process; None if unknown.
        shared: Whether the devices of this process share their memory.

    Raises:
        UserError: If it does not fit; the message has both sizes and the largest array.
    """
    sizes = [
        (_device_bytes(leaf, shared), path, leaf) for path, leaf in jax.tree.leaves_with_path((abstract, gradients))
    ]
    needed = sum(size for size, _, _ in sizes)
    if memory is None or needed <= memory:
        return
    _, path, leaf = max(sizes, key=lambda entry: entry[0])
    raise UserError(
        f"out of memory: parameters and optimizer state take {needed / GB:,.0f} GB, and this device has "
        f"{memory / GB:,.0f} GB: use a smaller model, or shard it with config.sharding; the largest array is "
        f"{jax.tree_util.keystr(path[1:], simple=True, separator='/')} of {'x'.join(map(str, leaf.shape))}"
    )


def device_memory(device: Any, files: Path = Path("/")) -> float | None:
    """Return the bytes available for arrays on a device; None if unknown.

    Args:
        device: The device. A CPU has the memory of the machine, including swap.
        files: The root of the file system, for tests.
    """
    if device.platform == "cpu":
        try:
            lines = (files / "proc" / "meminfo").read_text(encoding="ascii").splitlines()
            memory_info = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
            return memory_info["MemTotal"] + memory_info.get("SwapTotal", 0)
        except (OSError, ValueError, KeyError, IndexError):
            return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    memory_info = device.memory_stats() or {}
    chip = find_chip(device)
    return memory_info.get("bytes_limit") or (None if chip is None else chip.memory_bytes)


def describe_skipped_evaluations(model: Model, evaluations: Sequence[Evaluation]) -> list[str]:
    """Return a line for each evaluation that is skipped because the model lacks the maps that it reads."""
    return [
        f"evaluation {evaluation.split}/{evaluation.name} is skipped: the model has no attention map of "
        f"{evaluation.required_axes[0]} over {evaluation.required_axes[1]}"
        for evaluation in evaluations
        if evaluation.required_axes is not None and not evaluation.applies(model.sites)
    ]


@dataclasses.dataclass(frozen=True)
class _RecordingModel(Model):
    """A model that records the capture and the results of each pass, and refuses packed rows that it would mix."""

    model: Model | None = None
    passes: list[tuple[Capture | None, Aux]] = dataclasses.field(default_factory=list)

    def apply(self, variables: Any, inputs: Any, **request: Any) -> tuple[Any, Aux]:
        """Run a method of the module as `Model.apply` does, and record it."""
        assert self.model is not None
        if "segments" in inputs:
            self._check_segments(variables, inputs, request)
        outputs, aux = self.model.apply(variables, inputs, **request)
        self.passes.append((request.get("capture"), aux))
        return outputs, aux

    def _check_segments(self, variables: Any, inputs: Any, request: Mapping[str, Any]) -> None:
        model = self.model
        assert model is not None
        traced = jax.make_jaxpr(lambda segments: model.apply(variables, {**inputs, "segments": segments}, **request)[0])
        jaxpr = traced(inputs["segments"]).jaxpr
        _, reads_segments = dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
        if not any(reads_segments):
            raise UserError(
                "the model does not read the `segments` of packed rows, so that the texts of a row would see each "
                "other: mask attention by inputs['segments'], or say config.task.batching=windows"
            )


def _check_names(sites: Sequence[Site]) -> None:
    names = [site.name for site in sites]
    if len(set(names)) != len(names):
        raise UserError(f"the model's sites {names} hold a name twice: give each its own")
    axes = {axis.name: axis for site in sites for axis in (site.query, site.key)}
    for site in sites:
        for axis in (site.query, site.key):
            if axis != axes[axis.name]:
                raise UserError(f"the axis {axis.name!r} of site {site.name!r} is described in two ways: name it anew")


def _check_probe(model: Model, task: Task, abstract: TrainState, labels: AxisLabels) -> None:
    everything = Capture(tuple(site.name for site in model.sites))
    watched = _record_passes(model)

    def look(state: TrainState) -> Mapping[str, CapturedAttention]:
        return task.probe(
            evaluation_view(watched, state, "raw"), everything, derive_key(state.key, state.step, "probe")
        ).maps

    with _note_traced_pass("Task.probe"):
        maps = jax.eval_shape(look, abstract.without_optimizers())
    for site_name in maps:
        if site_name not in everything.sites:
            raise UserError(
                f"the model returns a map of {site_name!r}, which is no site of it: declare it in Model.sites beside "
                f"{list(everything.sites)}, or leave it out of Aux.maps"
            )
    for site in model.sites:
        if site.name not in maps:
            passed = any(capture is not None for capture, _ in watched.passes)
            returned = any(site.name in aux.maps for _, aux in watched.passes)
            raise UserError(
                f"the probe returns no map of the site {site.name!r}, which the model declares: "
                + (
                    "Task.probe drops the Aux of its pass; return it"
                    if returned
                    else "its forward pass must put it into Aux.maps where capture_for_site(site, capture) asks for it"
                    if passed
                    else "Task.probe must pass its `capture` on to the model"
                )
            )
        _check_map(site, maps[site.name], labels)


def _check_map(site: Site, captured: CapturedAttention, labels: AxisLabels) -> None:
    if captured.weights is None:
        raise UserError(f"the probe returns statistics of the site {site.name!r} without its maps")
    shape = captured.weights.shape
    if len(shape) != 5:
        raise UserError(
            f"the map of the site {site.name!r} has shape {shape}; a map is [layers, examples, heads, queries, keys]"
            + (": add the axis of layers, also for one layer" if len(shape) == 4 else "")
        )
    names = {0: ("layers", site.layers), 2: ("heads", site.heads)}
    for dimension, (what, labeled) in names.items():
        if shape[dimension] != len(labeled):
            raise UserError(
                f"the map of the site {site.name!r} has {shape[dimension]} {what}, but the site names "
                f"{len(labeled)}: {list(labeled)}"
            )
    if shape[1] != len(labels.titles):
        raise UserError(
            f"the map of the site {site.name!r} has {shape[1]} examples, but Task.axis_labels describes "
            f"{len(labels.titles)}: the probe and the labels must be of the same examples"
        )
    for dimension, axis in ((3, site.query), (4, site.key)):
        longest = max(map(len, labels.tokens[axis.name]), default=0)
        if shape[dimension] < longest:
            raise UserError(
                f"the map of the site {site.name!r} has {shape[dimension]} positions of {axis.name!r}, but "
                f"{'the axis' if axis.names() else 'Task.axis_labels'} names {longest}"
            )


def _check_objectives(model: Model, task: Task, abstract: TrainState, batch: Batch, capture: Capture | None) -> None:
    watched = _record_passes(model)
    dropped: set[str] = set()
    added: set[str] = set()
    looked = False
    for objective in task.objectives:
        watched.passes.clear()
        inputs, value, aux = _traced(watched, task, objective, abstract, batch, capture)
        _check_inputs(task.interface, inputs)
        _check_loss(objective, value, aux, abstract)
        returned = {name for _, recorded_pass in watched.passes for name in recorded_pass.losses}
        dropped |= returned - set(aux.losses)
        added |= set(aux.losses)
        looked |= bool(aux.maps)
    if forgotten := sorted(dropped - added):
        raise UserError(
            f"the model adds the losses {forgotten}, which no objective passes on: return LossAux.of(aux, ...) of the "
            "pass that they come from"
        )
    if capture is not None and model.sites and not looked:
        raise UserError(
            f"config.head_statistics_every asks for statistics of the training batch's heads, but no objective of this "
            "task "
            f"({', '.join(each.name for each in task.objectives)}) passes view.capture to its model and the maps on: "
            "let it, or set config.head_statistics_every=0"
        )


def _traced(
    model: _RecordingModel,
    task: Task,
    objective: Objective,
    abstract: TrainState,
    batch: Batch,
    capture: Capture | None,
) -> tuple[Any, Any, Any]:
    """Return the shapes of the prepared batch, of the loss and of its aux."""

    def run(state: TrainState, batch: Batch) -> tuple[Any, Any, Any]:
        view = evaluation_view(model, state, "raw")._replace(train=True, capture=capture)
        prepared, extra = task.prepare_batch(view, batch, derive_key(state.key, state.step, "prepare"))
        view = view._replace(task_state=extra)
        key = derive_key(state.key, state.step, objective.key_name)
        value, aux = objective.loss_fn(view, prepared, task.denominators(prepared), key)
        if not isinstance(aux, LossAux):
            raise UserError(
                f"the loss of the objective {objective.name!r} returns a {type(aux).__name__} beside its value: it "
                "must return (loss, LossAux)"
            )
        return prepared, value, aux

    with _note_traced_pass(f"the loss of the objective {objective.name!r}"):
        return jax.eval_shape(run, abstract, device_array_shapes(batch))


def _check_inputs(interface: TaskInterface, batch: Mapping[str, Any]) -> None:
    for name, input_spec in interface.inputs.items():
        if name not in batch:
            raise UserError(
                f"the task's interface names the input {name!r}, which its batches lack: they have {sorted(batch)}"
            )
        array = batch[name]
        if len(array.shape) != len(input_spec.shape):
            raise UserError(
                f"the input {name!r} of the first batch has shape {array.shape}, but the task's interface says "
                f"{tuple(input_spec.shape)}"
            )
        if jnp.issubdtype(array.dtype, jnp.floating) != jnp.issubdtype(input_spec.dtype, jnp.floating):
            raise UserError(
                f"the input {name!r} of the first batch is {array.dtype}, but the task's interface says "
                f"{jnp.dtype(input_spec.dtype).name}"
            )
        if input_spec.positions is not None and array.shape[1] > input_spec.positions:
            raise UserError(
                f"the input {name!r} of the first batch has {array.shape[1]} positions, more than the "
                f"{input_spec.positions} of the task's interface"
            )


def _check_loss(objective: Objective, value: Any, aux: LossAux, abstract: TrainState) -> None:
    numbers = {"the loss": value, **{f"the metric {name!r}": metric for name, metric in aux.metrics.items()}}
    for what, number in numbers.items():
        if number.shape != ():
            raise UserError(f"{what} of the objective {objective.name!r} has shape {number.shape}; it must be a number")
    for what, before, after in (
        ("state", abstract.variables.state, aux.state),
        ("task_state", abstract.task_state, aux.task_state),
    ):
        shapes = [{path: (x.shape, x.dtype) for path, x in leaves_by_path(tree).items()} for tree in (before, after)]
        differing = [path for path in {**shapes[0], **shapes[1]} if shapes[0].get(path) != shapes[1].get(path)]
        if differing:
            path = differing[0]
            raise UserError(
                f"the objective {objective.name!r} returns {what}[{path!r}] as {shapes[1].get(path, 'nothing')}, where "
                f"a step begins with {shapes[0].get(path, 'nothing')}: LossAux.{what} must keep its shapes and types"
            )


def _check_evaluations(model: Model, task: Task, abstract: TrainState) -> None:
    traced: set[Any] = set()  # by equality: two accesses of one method are two objects
    for evaluation in task.evaluations:
        if evaluation.parameters not in ("raw", *abstract.averages):
            raise UserError(
                f"the evaluation {evaluation.split}/{evaluation.name} is of the average {evaluation.parameters!r}, "
                f"which this run does not keep: say raw{''.join(f' or {name}' for name in abstract.averages)}"
            )
        if not evaluation.applies(model.sites) or evaluation.step in traced or not len(evaluation.batches):
            continue
        traced.add(evaluation.step)

        def measure(state: TrainState, batch: Batch, evaluation: Evaluation = evaluation) -> Any:
            view = evaluation_view(model, state, evaluation.parameters)
            return evaluation.step(view, batch, derive_key(state.key, state.step, evaluation.name))

        with _note_traced_pass(f"the evaluation {evaluation.split}/{evaluation.name}"):
            jax.eval_shape(measure, abstract.without_optimizers(), device_array_shapes(evaluation.batches[0]))


def device_array_shapes(batch: Batch) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the shapes and types of arrays on a device, where 64 bits become 32 unless jax_enable_x64 is set."""
    return {
        name: jax.ShapeDtypeStruct(array.shape, jax.dtypes.canonicalize_dtype(array.dtype))
        for name, array in batch.items()
    }


def _record_passes(model: Model) -> _RecordingModel:
    return _RecordingModel(model.functional, model.sites, model.max_length, model)


@contextlib.contextmanager
def _note_traced_pass(what: str) -> Iterator[None]:
    """Add a note that names the traced pass to any error."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        error.add_note(f"raised by {what}, which is traced for its shapes before the first step")
        raise


def _device_bytes(leaf: Any, shared: bool) -> int:
    """Return the bytes of an array on one device, or on all of this process's devices if they share their memory."""
    count = len(leaf.sharding.addressable_devices) if shared else 1
    return math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize * count
