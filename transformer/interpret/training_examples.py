"""The examples of a training batch: the loss of each, its texts, and the attention maps of one of them."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer.attention.capture import Capture, CapturedAttention
from transformer.attention.sites import Axis, Site
from transformer.config import UserError
from transformer.models.task_interface import Modality
from transformer.tasks.axis_labels import AxisLabels
from transformer.tasks.task import Batch, Objective, StateView, Task
from transformer.training.build import TrainingComponents
from transformer.training.compiled_evaluation import evaluation_view
from transformer.training.partitioning import trace_with_placement
from transformer.training.state import TrainState, derive_key

# The array of a batch that names the positions of an axis, where it is not called like the axis. Of an encoder-decoder
# the target axis shows what is predicted, and `target_input` what the decoder reads.
_ARRAYS_OF_AXES = {"target": ("labels", "target"), "target_input": ("target",)}


class ExampleLosses(NamedTuple):
    """The losses of the examples of a batch.

    Attributes:
        rows: The rows of the batch that are examples, and no padding.
        metrics: The metrics of each of these rows by name, as the training step calls them.
        skipped_objectives: Why an objective has no losses of single examples, by its name.
    """

    rows: tuple[int, ...]
    metrics: Mapping[str, np.ndarray]
    skipped_objectives: Mapping[str, str]


def measure_example_losses(components: TrainingComponents, state: TrainState, batch: Batch) -> ExampleLosses:
    """Compute the loss of every example of a training batch, each alone and without dropout.

    The batch is prepared (masked, sampled) with the key of the step that trains on it. The loss of an example is
    divided by its own tokens or examples.

    Args:
        components: The components of the run.
        state: The state with which the step began.
        batch: The batch.
    """
    task = components.task
    singles = [objective for objective in task.objectives if not objective.compares_rows]

    def measure(state: TrainState, batch: Batch) -> tuple[dict[str, jax.Array], jax.Array]:
        prepared, view = _prepare(components, state, batch)

        def measure_row(row: Batch) -> tuple[dict[str, jax.Array], jax.Array]:
            example = {name: array[None] for name, array in row.items()}
            denominators = task.denominators(example)
            metrics: dict[str, jax.Array] = {}
            for objective in singles:
                prefix = "" if len(task.objectives) == 1 else f"{objective.name}/"
                loss, aux = objective.loss_fn(view, example, denominators, _loss_key(state, objective))
                metrics |= {f"{prefix}{name}": value for name, value in {"loss": loss, **aux.metrics}.items()}
            return metrics, jnp.any(jnp.stack([jnp.sum(count) for count in denominators.values()]) > 0)

        return jax.lax.map(measure_row, dict(prepared))

    metrics, is_example = jax.device_get(jax.jit(trace_with_placement(components.placement, measure))(state, batch))
    rows = np.flatnonzero(is_example)
    return ExampleLosses(
        tuple(rows.tolist()),
        {name: values[rows] for name, values in metrics.items()},
        {objective.name: objective.compares_rows for objective in task.objectives if objective.compares_rows},
    )


def capture_example(
    components: TrainingComponents, state: TrainState, batch: Batch, row: int, capture: Capture
) -> Mapping[str, CapturedAttention]:
    """Capture the maps of one example of a training batch, in the pass of its loss without dropout.

    Args:
        components: The components of the run.
        state: The state with which the step began.
        batch: The batch.
        row: The row of the example.
        capture: What to capture.

    Raises:
        UserError: If the task's loss returns no maps.
    """
    task = components.task

    def look(state: TrainState, batch: Batch) -> dict[str, CapturedAttention]:
        prepared, view = _prepare(components, state, batch)
        example = {name: array[row : row + 1] for name, array in prepared.items()}
        maps: dict[str, CapturedAttention] = {}
        for objective in task.objectives:
            _, aux = objective.loss_fn(
                view._replace(capture=capture), example, task.denominators(example), _loss_key(state, objective)
            )
            maps = {**aux.maps, **maps}  # the first objective's, where several make a pass
        return maps

    maps = jax.jit(trace_with_placement(components.placement, look))(state, batch)
    if missing := sorted(set(capture.sites) - set(maps)):
        raise UserError(f"--example: the loss of this task returns no maps of {', '.join(missing)}")
    return maps


def _prepare(components: TrainingComponents, state: TrainState, batch: Batch) -> tuple[Batch, StateView]:
    """Return the prepared batch, and the view of the state with which its loss is computed without dropout."""
    view = evaluation_view(components.model, state, "raw")
    key = derive_key(state.key, state.step, "prepare")
    prepared, task_state = components.task.prepare_batch(view._replace(train=True), batch, key)
    return prepared, view._replace(task_state=task_state)


def _loss_key(state: TrainState, objective: Objective) -> jax.Array:
    return derive_key(state.key, state.step, objective.key_name)


def check_example(batch: Batch, row: int, step: int) -> None:
    """Refuse an example that the batch of a step does not have.

    Raises:
        UserError: If the batch has fewer rows.
    """
    num_rows = min(len(array) for array in batch.values())
    if not 0 <= row < num_rows:
        raise UserError(f"--example={row} is not in the batch of step {step}, whose examples are 0 to {num_rows - 1}")


def describe_example(task: Task, batch: Batch, row: int) -> dict[str, str]:
    """Return the texts of an example by the name of the input: tokens of text decoded, or the numbers of other tokens.

    Args:
        task: The task.
        batch: The batch.
        row: The row of the example.
    """
    tokenizer = getattr(task, "tokenizer", None)
    texts = {}
    for name in [*task.interface.inputs, "labels"]:
        ids = _token_row(task, batch, name, row)
        if ids is None or (name == "labels" and "target" not in batch):
            continue  # the labels of a language model are its tokens, shifted
        texts[name] = " ".join(map(str, ids)) if tokenizer is None else tokenizer.decode(ids)
    return texts


def label_example(task: Task, batch: Batch, row: int, sites: Sequence[Site], lengths: Mapping[str, int]) -> AxisLabels:
    """Name the positions of an example on every axis: by its tokens, else by their numbers.

    Args:
        task: The task.
        batch: The batch.
        row: The row of the example.
        sites: The attention modules.
        lengths: The number of positions of each axis by name.
    """
    tokenizer = getattr(task, "tokenizer", None)

    def name_positions(axis: Axis) -> tuple[str, ...]:
        for array in _ARRAYS_OF_AXES.get(axis.name, (axis.name,)):
            ids = _token_row(task, batch, array, row)
            if ids is not None and len(ids) <= lengths[axis.name]:
                return tuple(map(str, ids)) if tokenizer is None else tuple(tokenizer.labels(ids))
        return tuple(map(str, range(lengths[axis.name])))

    axes = {axis.name: axis for site in sites for axis in (site.query, site.key) if axis.names() is None}
    return AxisLabels({name: (name_positions(axis),) for name, axis in axes.items()}, (f"example {row}",))


def _token_row(task: Task, batch: Batch, name: str, row: int) -> list[int] | None:
    """Return the tokens of an array of a batch without its padding; None if it holds no tokens."""
    spec = task.interface.inputs.get(name)
    if name not in batch or (spec is not None and spec.modality is not Modality.TOKENS):
        return None
    ids_T = np.asarray(batch[name])[row]
    if ids_T.ndim != 1 or not np.issubdtype(ids_T.dtype, np.integer):
        return None
    length = len(ids_T)
    if name == "tokens" and "lengths" in batch:
        length = int(np.asarray(batch["lengths"])[row])
    elif task.interface.pad_id is not None:
        length = int(np.flatnonzero(ids_T != task.interface.pad_id).max(initial=-1)) + 1
    return [int(token) for token in ids_T[:length]]


def map_lengths(maps: Mapping[str, Any], sites: Sequence[Site]) -> dict[str, int]:
    """Return the number of positions of every axis from the shapes of whole maps."""
    lengths: dict[str, int] = {}
    for site in sites:
        queries, keys = maps[site.name].weights.shape[-2:]
        lengths |= {site.query.name: queries, site.key.name: keys}
    return lengths
