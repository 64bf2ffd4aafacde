"""The memory of earlier segments that a model carries from one training step to the next and over a long text."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from transformer.models.model import Aux
from transformer.tasks.task import Batch, EvaluationReport, StateView

# A function that scores a segment with its memory: returns sums, and what the segment leaves.
SegmentScorer = Callable[[Batch], tuple[dict[str, Array], Mapping[str, Array]]]


def empty_memory(view: StateView, inputs: Mapping[str, Any]) -> Float[Array, "B L M E"] | None:
    """Return the memory before anything was read.

    Args:
        view: The state.
        inputs: The inputs of one segment, of which only the shapes matter.

    Returns:
        Zeros, or None for a model without a memory.
    """

    def extras(inputs: Mapping[str, Any]) -> Mapping[str, Array]:
        return view.model.apply(view.variables, inputs, method="hidden", train=False)[1].extras

    memory = jax.eval_shape(extras, dict(inputs)).get("memory")
    return None if memory is None else jnp.zeros(memory.shape, memory.dtype)


def initial_memory_state(view: StateView, rows: int, context_length: int) -> dict[str, Array]:
    """Return what a task over segments carries before its first step.

    Args:
        view: The state.
        rows: Rows in a batch.
        context_length: Tokens in a segment.

    Returns:
        `memory` [B, L, M, E], what the rows have left; `past` [B], how many tokens were read; and `end` [B], where in
        the stream of tokens they end, to check that the next segment follows. Empty for a model without a memory.
    """
    memory = empty_memory(view, {"tokens": jax.ShapeDtypeStruct((rows, context_length), jnp.int32)})
    if memory is None:
        return {}
    return {"memory": memory, "past": jnp.zeros(rows, jnp.int32), "end": jnp.full(rows, -1, jnp.int32)}


def add_memory_to_batch(view: StateView, batch: Batch) -> tuple[Batch, dict[str, Array]]:
    """Add the memory to a training batch.

    The memory of a row counts as empty unless it ends where the row's segment begins: after a new epoch has begun,
    batches were skipped, or the last step made no update.

    Args:
        view: The state, whose `task_state` holds the memory.
        batch: Segments with `index` and `past`.

    Returns:
        The batch with `memory` and `past`, and the next `task_state`, its memory still to be replaced.
    """
    if "memory" not in view.task_state:
        return batch, view.task_state
    index_B, length = jnp.asarray(batch["index"]), batch["tokens"].shape[1]
    goes_on_B = (index_B == view.task_state["end"]) & (jnp.asarray(batch["past"]) > 0)
    past_B = jnp.where(goes_on_B, view.task_state["past"], 0)
    carried = {"memory": view.task_state["memory"], "past": past_B + length, "end": index_B + length}
    return {**batch, "memory": carried["memory"], "past": past_B}, carried


def next_memory_state(view: StateView, batch: Batch, aux: Aux) -> dict[str, Array]:
    """Return the `task_state` that a loss hands on, with the memory that its rows have left.

    A microbatch fills in its own lanes only. The training step takes the mean over microbatches, so these are
    multiplied by their number.

    Args:
        view: The state that the loss read.
        batch: The batch or microbatch.
        aux: The auxiliary results of the model's pass.
    """
    own = aux.extras.get("memory")
    if own is None or not view.train:
        return {} if own is None else {"memory": own}
    parts = len(view.task_state["memory"]) // len(own)
    if parts > 1:
        own = jnp.zeros_like(view.task_state["memory"]).at[jnp.asarray(batch["lane"])].set(own * parts)
    return {**view.task_state, "memory": own}


def sums_with_and_without_memory(
    view: StateView, batch: Batch, segments: int, score: SegmentScorer
) -> dict[str, Array]:
    """Sum over segments with the memory, and the loss without it.

    Args:
        view: The state.
        batch: Rows of several segments.
        segments: The number of segments in a row.
        score: A function from one segment with its memory to its sums and what it leaves.

    Returns:
        The sums with the memory, and `loss_without_memory`, the loss of each segment read by itself.
    """
    sums = sums_over_segments(view, batch, segments, score, remember=True)
    alone = sums_over_segments(view, batch, segments, score, remember=False)
    return {**sums, "loss_without_memory": alone["loss"]}


def sums_over_segments(
    view: StateView, batch: Batch, segments: int, score: SegmentScorer, *, remember: bool
) -> dict[str, Array]:
    """Sum `score` over the segments of long rows, each with the memory of those before it.

    Args:
        view: The state.
        batch: Rows of several segments. Every array of two axes is cut into segments; `lengths` become the lengths
            within them.
        segments: The number of segments in a row.
        score: A function from one segment with its memory to its sums and what it leaves.
        remember: Whether segments read the memory. Otherwise each is read as if it were the first.
    """
    segment_arrays = {
        name: jnp.moveaxis(jnp.reshape(jnp.asarray(value), (len(value), segments, -1)), 1, 0)
        for name, value in batch.items()
        if value.ndim == 2
    }
    rows, width = segment_arrays["tokens"].shape[1:]
    past_S = jnp.arange(segments) * width
    lengths_SxB = jnp.clip(jnp.asarray(batch["lengths"]) - past_S[:, None], 0, width)
    first = empty_memory(view, {"tokens": segment_arrays["tokens"][0]})

    def read(memory: Array | None, segment: tuple[Any, Array, Array]) -> tuple[Array | None, dict[str, Array]]:
        values, lengths_B, past = segment
        memory_inputs = {} if memory is None else {"memory": memory, "past": jnp.full(rows, past if remember else 0)}
        sums, extras = score({**values, "lengths": lengths_B, **memory_inputs})
        return extras.get("memory"), sums

    _, sums = jax.lax.scan(read, first, (segment_arrays, lengths_SxB, past_S))
    return {name: jnp.sum(value, axis=0) for name, value in sums.items()}


def memory_report(sums: Mapping[str, Any], segments: int) -> EvaluationReport:
    """Divide the sums of `sums_with_and_without_memory` by the tokens, and add the perplexity of both losses.

    Args:
        sums: The sums.
        segments: The number of segments in a row, for the note.
    """
    tokens = max(sums["tokens"], 1)
    means = {name: value / tokens for name, value in sums.items() if name != "tokens"}
    for name in ("loss", "loss_without_memory"):
        means[name.replace("loss", "perplexity")] = float(np.exp(min(means[name], 700.0)))
    return EvaluationReport(means, note=f"{int(sums['tokens'])} tokens in texts of {segments} segments")
