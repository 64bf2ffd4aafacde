"""Find the first activation of a pass that is not finite: where a NaN or an infinity comes from."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from transformer.models.activation_names import activation_kind, is_single
from transformer.models.named_values import evaluate, execution_order, find_named_values, trace


class NonFiniteValue(NamedTuple):
    """The first activation with an entry that is not finite.

    Attributes:
        name: The name of the activation.
        layer: The layer, or the step of a recurrent model; None if it occurs once.
        entry: The first such entry, by axis.
    """

    name: str
    layer: int | None
    entry: tuple[int, ...]

    def __str__(self) -> str:
        kind = activation_kind(self.name)
        axes = () if kind is None else kind.axes
        places = zip(axes, self.entry, strict=True) if len(axes) == len(self.entry) else enumerate(self.entry)
        place = ", ".join(f"{axis} {index}" if axes else str(index) for axis, index in places)
        leading = "layer" if kind is None or kind.leading is None else kind.leading
        return f"{self.name}{'' if self.layer is None else f', {leading} {self.layer}'} ({place})"


def first_non_finite_value(function: Callable[..., Any], *args: Any) -> NonFiniteValue | None:
    """Return the first activation that is not finite, in the order in which they are computed; None if all are finite.

    The activations are those of the model's own pass, jitted, on the devices on which the arguments lie.

    Args:
        function: What runs the model, such as a loss: a pure function of arrays.
        *args: Its arguments.
    """
    closed, _ = trace(function, *args)
    named_values = find_named_values(closed)
    summaries = {
        name: _locate_logits if name.endswith("/logits") else _locate
        for name, (_, shape) in named_values.items()
        if shape is not None and jnp.issubdtype(shape.dtype, jnp.inexact)
    }

    def locate(*leaves: Array) -> dict[str, tuple[Array, Array]]:
        return evaluate(closed, leaves, summaries, {})[1]

    located = jax.device_get(jax.jit(locate)(*jax.tree.leaves(args)))
    for name, number in execution_order(closed):
        if name in located and located[name][0][number]:
            count, shape = named_values[name]
            assert shape is not None
            index = np.unravel_index(located[name][1][number], shape.shape)
            layer = None if is_single(name, count) else number
            return NonFiniteValue(name, layer, tuple(int(position) for position in index))
    return None


def _locate(x: Array) -> tuple[Bool[Array, ""], Int[Array, ""]]:
    """Whether an array has an entry that is not finite, and the place of the first in row-major order."""
    return _first_true(~jnp.isfinite(x))


def _locate_logits(x: Array) -> tuple[Bool[Array, ""], Int[Array, ""]]:
    """The same of attention logits, which a bias of minus infinity may hide."""
    return _first_true(jnp.isnan(x) | jnp.isposinf(x))


def _first_true(is_bad: Bool[Array, "..."]) -> tuple[Bool[Array, ""], Int[Array, ""]]:
    return jnp.any(is_bad), jnp.argmax(is_bad.ravel())
