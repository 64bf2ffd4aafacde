"""What a model with a memory of earlier segments carries: from one training step to the next, and over a long text."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer.models.contract import Aux
from transformer.tasks.contract import Batch, View

# What scores a segment behind its memory: sums, and what the segment hands on.
Score = Callable[[Batch], tuple[dict[str, Array], Mapping[str, Array]]]


def empty_memory(view: View, inputs: Mapping[str, Any]) -> Float[Array, "B L M E"] | None:
    """The memory of texts of which nothing was read yet, by the shapes of one segment; None of a model without one."""

    def extras(inputs: Mapping[str, Any]) -> Mapping[str, Array]:
        return view.model.apply(view.variables, inputs, method="hidden", train=False)[1].extras

    memory = jax.eval_shape(extras, dict(inputs)).get("memory")
    return None if memory is None else jnp.zeros(memory.shape, memory.dtype)


def first_memory(view: View, rows: int, context: int) -> dict[str, Array]:
    """What a task over segments of `context` tokens carries before its first step: nothing without a memory."""
    memory = empty_memory(view, {"tokens": jax.ShapeDtypeStruct((rows, context), jnp.int32)})
    return {} if memory is None else {"memory": memory}


def next_memory(view: View, batch: Batch, aux: Aux) -> dict[str, Array]:
    """What a loss hands on: the memory that its rows have left.

    Of a training batch that is cut, each part fills its own lanes; the step takes the mean over the parts, so that what
    each fills is multiplied with their number.
    """
    own = aux.extras.get("memory")
    if own is None:
        return {}
    parts = len(view.extra["memory"]) // len(own) if view.train else 1
    if parts == 1:
        return {"memory": own}
    return {"memory": jnp.zeros_like(view.extra["memory"]).at[jnp.asarray(batch["lane"])].set(own * parts)}


def over_segments(view: View, batch: Batch, segments: int, score: Score, *, remember: bool) -> dict[str, Array]:
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
