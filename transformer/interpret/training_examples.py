"""The examples of a training batch: the loss of each, its texts, and the attention maps of one of them."""

import math
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
from transformer.training.step import split_microbatches

_TEXTS = ("tokens", "source", "target")  # the inputs of text; others number segments, types or classes
# The array of a batch that names the positions of an axis, where it is not called like the axis. Of an encoder-decoder
# the target axis shows what is predicted, and `target_input` what the decoder reads.
_ARRAYS_OF_AXES = {"target": ("labels", "target"), "target_input": ("target",)}


class ExampleLosses(NamedTuple):
    """The losses of the examples of a batch.

    Attributes:
        examples: The indices of the examples of the batch that are no padding.
        metrics: The metrics of each of these examples by name, as the training step calls them.
        skipped_objectives: Why an objective has no losses of single examples, by its name.
    """

    examples: tuple[int, ...]
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

        def measure_example(example: Batch) -> tuple[dict[str, jax.Array], jax.Array]:
            denominators = task.denominators(example)
            metrics: dict[str, jax.Array] = {}
            for objective in singles:
                prefix = "" if len(task.objectives) == 1 else f"{objective.name}/"
                loss, aux = objective.loss_fn(view, example, denominators, _loss_key(state, objective))
                metrics |= {f"{prefix}{name}": value for name, value in {"loss": loss, **aux.metrics}.items()}
            return metrics, jnp.any(jnp.stack([jnp.sum(count) for count in denominators.values()]) > 0)

        return jax.lax.map(measure_example, _split_examples(prepared))

    metrics, is_example = jax.device_get(jax.jit(trace_with_placement(components.placement, measure))(state, batch))
    examples = np.flatnonzero(is_example)
    return ExampleLosses(
        tuple(examples.tolist()),
        {name: values[examples] for name, values in metrics.items()},
        {objective.name: objective.compares_rows for objective in task.objectives if objective.compares_rows},
    )


def capture_example(
    components: TrainingComponents, state: TrainState, batch: Batch, index: int, capture: Capture
) -> Mapping[str, CapturedAttention]:
    """Capture the maps of one example of a training batch, in the pass of its loss without dropout.

    Args:
        components: The components of the run.
        state: The state with which the step began.
        batch: The batch.
        index: The index of the example.
        capture: What to capture.

    Raises:
        UserError: If the task's loss returns no maps.
    """
    task = components.task

    def look(state: TrainState, batch: Batch) -> dict[str, CapturedAttention]:
        prepared, view = _prepare(components, state, batch)
        example = {name: array[index] for name, array in _split_examples(prepared).items()}
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


def count_examples(batch: Batch) -> int:
    """Return the number of examples of a batch; one may have several rows, such as a question and its answers."""
    return math.gcd(*(len(array) for array in batch.values()))


def _split_examples(batch: Batch) -> dict[str, jax.Array]:
    """Cut a batch into its examples [example, row, ...], as microbatches are cut."""
    num_examples = count_examples(batch)
    return {name: split_microbatches(jnp.asarray(array), num_examples) for name, array in batch.items()}


def _loss_key(state: TrainState, objective: Objective) -> jax.Array:
    return derive_key(state.key, state.step, objective.key_name)


def check_example(batch: Batch, index: int, step: int) -> None:
    """Refuse an example that the batch of a step does not have.

    Raises:
        UserError: If the batch has fewer rows.
    """
    num_examples = count_examples(batch)
    if not 0 <= index < num_examples:
        raise UserError(
            f"--example={index} is not in the batch of step {step}, whose examples are 0 to {num_examples - 1}"
        )


def describe_example(task: Task, batch: Batch, index: int) -> dict[str, str | list[str]]:
    """Return the texts of an example by the name of the input: decoded, or the numbers of tokens that are no text.

    Args:
        task: The task.
        batch: The batch.
        index: The index of the example.

    Returns:
        A text, or several where the example has several rows.
    """
    tokenizer = getattr(task, "tokenizer", None)
    names = [name for name in _TEXTS if name in task.interface.inputs]
    texts: dict[str, str | list[str]] = {}
    # The labels of a language model are its tokens, shifted; those of a target say what follows.
    for name in [*names, *(["labels"] if "target" in names else [])]:
        rows = _token_rows(task, batch, name, index)
        if rows is not None:
            lines = [" ".join(map(str, ids)) if tokenizer is None else tokenizer.decode(ids) for ids in rows]
            texts[name] = lines[0] if len(lines) == 1 else lines
    return texts


def label_example(task: Task, batch: Batch, index: int, sites: Sequence[Site], shapes: Mapping[str, Any]) -> AxisLabels:
    """Name the positions of an example on every axis: by its tokens, else by their numbers.

    Args:
        task: The task.
        batch: The batch.
        index: The index of the example.
        sites: The attention modules.
        shapes: The whole maps by site, or their shapes.
    """
    tokenizer = getattr(task, "tokenizer", None)
    lengths, num_rows = {}, 1
    for site in sites:
        num_rows, _, lengths[site.query.name], lengths[site.key.name] = shapes[site.name].weights.shape[1:]

    def name_positions(axis: Axis) -> tuple[tuple[str, ...], ...]:
        for array in _ARRAYS_OF_AXES.get(axis.name, (axis.name,)):
            rows = _token_rows(task, batch, array, index)
            if rows is not None and len(rows) == num_rows and max(map(len, rows)) <= lengths[axis.name]:
                return tuple(tuple(map(str, ids) if tokenizer is None else tokenizer.labels(ids)) for ids in rows)
        return (tuple(map(str, range(lengths[axis.name]))),) * num_rows

    axes = {axis.name: axis for site in sites for axis in (site.query, site.key) if axis.names() is None}
    names = [f"example {index}"] if num_rows == 1 else [f"example {index}, row {number}" for number in range(num_rows)]
    return AxisLabels({name: name_positions(axis) for name, axis in axes.items()}, tuple(names))


def _token_rows(task: Task, batch: Batch, name: str, index: int) -> list[list[int]] | None:
    """Return the tokens of an example in an array of a batch, row by row without padding; None if it holds none."""
    spec = task.interface.inputs.get(name)
    if name not in batch or (spec is not None and spec.modality is not Modality.TOKENS):
        return None
    num_examples = count_examples(batch)
    ids_RxT = np.asarray(batch[name])[index::num_examples]
    if ids_RxT.ndim != 2 or not np.issubdtype(ids_RxT.dtype, np.integer):
        return None
    lengths = np.asarray(batch["lengths"])[index::num_examples] if name == "tokens" and "lengths" in batch else None
    rows = []
    for number, ids_T in enumerate(ids_RxT):
        length = len(ids_T)
        if lengths is not None:
            length = int(lengths[number])
        elif task.interface.pad_id is not None:
            length = int(np.flatnonzero(ids_T != task.interface.pad_id).max(initial=-1)) + 1
        rows.append([int(token) for token in ids_T[:length]])
    return rows
