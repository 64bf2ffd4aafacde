"""What a model with a memory of earlier segments carries: from one training step to the next, and over a long text."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from transformer.models.model import Aux
from transformer.tasks.task import Batch, EvaluationReport, StateView

# What scores a segment behind its memory: sums, and what the segment hands on.
SegmentScorer = Callable[[Batch], tuple[dict[str, Array], Mapping[str, Array]]]


def empty_memory(view: StateView, inputs: Mapping[str, Any]) -> Float[Array, "B L M E"] | None:
    """The memory of texts of which nothing was read yet, by the shapes of one segment; None of a model without one."""

    def extras(inputs: Mapping[str, Any]) -> Mapping[str, Array]:
        return view.model.apply(view.variables, inputs, method="hidden", train=False)[1].extras

    memory = jax.eval_shape(extras, dict(inputs)).get("memory")
    return None if memory is None else jnp.zeros(memory.shape, memory.dtype)


def initial_memory(view: StateView, rows: int, context: int) -> dict[str, Array]:
    """What a task over segments of `context` tokens carries before its first step: nothing without a memory.

    `memory` [B, L, M, E] is what the rows have left; `past` [B], how many tokens it is of, and `end` [B], where in the
    stream these end, say whether the next segment stands behind it.
    """
    memory = empty_memory(view, {"tokens": jax.ShapeDtypeStruct((rows, context), jnp.int32)})
    if memory is None:
        return {}
    return {"memory": memory, "past": jnp.zeros(rows, jnp.int32), "end": jnp.full(rows, -1, jnp.int32)}


def with_memory(view: StateView, batch: Batch) -> tuple[Batch, dict[str, Array]]:
    """A training batch with the memory of each row and its `past`, and what the step carries on but for the memory.

    A memory that ends anywhere but where its row's segment begins counts as empty: another epoch has begun, batches are
    passed by, or the step before made no update and has left nothing.
    """
    if "memory" not in view.extra:
        return batch, view.extra
    index_B, length = jnp.asarray(batch["index"]), batch["tokens"].shape[1]
    goes_on_B = (index_B == view.extra["end"]) & (jnp.asarray(batch["past"]) > 0)
    past_B = jnp.where(goes_on_B, view.extra["past"], 0)
    carried = {"memory": view.extra["memory"], "past": past_B + length, "end": index_B + length}
    return {**batch, "memory": carried["memory"], "past": past_B}, carried


def next_memory(view: StateView, batch: Batch, aux: Aux) -> dict[str, Array]:
    """What a loss hands on: the memory that its rows have left, with what `behind_memory` carries.

    Of a training batch that is cut, each part fills its own lanes; the step takes the mean over the parts, so that what
    each fills is multiplied with their number.
    """
    own = aux.extras.get("memory")
    if own is None or not view.train:
        return {} if own is None else {"memory": own}
    parts = len(view.extra["memory"]) // len(own)
    if parts > 1:
        own = jnp.zeros_like(view.extra["memory"]).at[jnp.asarray(batch["lane"])].set(own * parts)
    return {**view.extra, "memory": own}


def with_and_without_memory(view: StateView, batch: Batch, segments: int, score: SegmentScorer) -> dict[str, Array]:
    """The sums of `over_segments`, and `loss_without_memory`: the loss that each segment has by itself."""
    sums = sums_over_segments(view, batch, segments, score, remember=True)
    alone = sums_over_segments(view, batch, segments, score, remember=False)
    return {**sums, "loss_without_memory": alone["loss"]}


def sums_over_segments(
    view: StateView, batch: Batch, segments: int, score: SegmentScorer, *, remember: bool
) -> dict[str, Array]:
    """The sums of `score` over the segments of long rows, each behind the memory of those before it.

    Every value of the batch with two axes is cut into so many segments, `lengths` into the lengths within them. Unless
    `remember`, every segment is read as if it were the first; of a model without a memory it is.
    """
    cut = {
        name: jnp.moveaxis(jnp.reshape(jnp.asarray(value), (len(value), segments, -1)), 1, 0)
        for name, value in batch.items()
        if value.ndim == 2
    }
    rows, width = cut["tokens"].shape[1:]
    past_S = jnp.arange(segments) * width
    lengths_SxB = jnp.clip(jnp.asarray(batch["lengths"]) - past_S[:, None], 0, width)
    first = empty_memory(view, {"tokens": cut["tokens"][0]})

    def read(memory: Array | None, segment: tuple[Any, Array, Array]) -> tuple[Array | None, dict[str, Array]]:
        values, lengths_B, past = segment
        behind = {} if memory is None else {"memory": memory, "past": jnp.full(rows, past if remember else 0)}
        sums, left = score({**values, "lengths": lengths_B, **behind})
        return left.get("memory"), sums

    _, sums = jax.lax.scan(read, first, (cut, lengths_SxB, past_S))
    return {name: jnp.sum(value, axis=0) for name, value in sums.items()}


def segment_report(sums: Mapping[str, Any], segments: int) -> EvaluationReport:
    """The means of `with_and_without_memory` over the tokens, and the perplexity of either loss."""
    tokens = max(sums["tokens"], 1)
    means = {name: value / tokens for name, value in sums.items() if name != "tokens"}
    for name in ("loss", "loss_without_memory"):
        means[name.replace("loss", "perplexity")] = float(np.exp(min(means[name], 700.0)))
    return EvaluationReport(means, note=f"{int(sums['tokens'])} tokens in texts of {segments} segments")
