"""Edits of a model's activations: to zero, scale, add to and replace what a forward pass computes."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from transformer.attention.pytree_dataclass import pytree_dataclass, static_field
from transformer.config import UserError
from transformer.models.activation_names import HEADS, STREAM, activation_kind
from transformer.models.named_values import Change, Occurrences

# Which entries of an axis an edit changes: one number, several, or arrays of them, which may be traced.
Index = int | np.integer | Sequence[int] | Int[Array | np.ndarray, "..."]
_CHOSEN_AXES = ("layer", "example", "position", "head", "key", "feature")


@pytree_dataclass
class Edit:
    """A change of an activation, x = factor x + value, of the chosen entries alone; a pytree of arrays.

    The functions below make edits. Their choices and values may be traced, so that `jax.vmap` over them runs many edits
    in one program and `jax.grad` gives the derivative with respect to a value.

    Attributes:
        name: The name of the activation.
        factor: What is multiplied; None drops the old value.
        value: What is added, of a shape that broadcasts against [layer, example, ...]; None adds nothing.
        layers: The layers; None means all, as for the other choices.
        examples: The examples.
        positions: The positions of the sequence, or of the queries in a map.
        heads: The heads.
        keys: The keys of a map.
        features: The features.
    """

    name: str = static_field()
    factor: Float[Array, "..."] | float | None = None
    value: Float[Array | np.ndarray, "..."] | float | None = None
    layers: Index | None = None
    examples: Index | None = None
    positions: Index | None = None
    heads: Index | None = None
    keys: Index | None = None
    features: Index | None = None

    def __post_init__(self) -> None:
        # Several numbers are one array: a list would be several leaves of the pytree.
        for axis, index in self.choices().items():
            if isinstance(index, Sequence):
                object.__setattr__(self, f"{axis}s", np.asarray(index))

    def choices(self) -> dict[str, Any]:
        """The chosen entries by axis, of the axes on which some are chosen."""
        return {axis: index for axis in _CHOSEN_AXES if (index := getattr(self, f"{axis}s")) is not None}


def zero(name: str, **where: Any) -> Edit:
    """Return an edit that sets an activation to zero.

    Args:
        name: The name of the activation.
        **where: The chosen `layers`, `examples`, `positions`, `heads`, `keys` and `features`: a number or several.
    """
    return Edit(name, **where)


def scale(name: str, factor: float | Float[Array, "..."], **where: Any) -> Edit:
    """Return an edit that multiplies an activation by a factor."""
    return Edit(name, factor=factor, **where)


def add(name: str, value: Float[Array | np.ndarray, "..."] | float, **where: Any) -> Edit:
    """Return an edit that adds to an activation, for instance a steering vector [feature]."""
    return Edit(name, factor=1.0, value=value, **where)


def replace(name: str, value: Float[Array | np.ndarray, "..."] | float, **where: Any) -> Edit:
    """Return an edit that replaces an activation, for instance by that of another text (activation patching).

    Args:
        name: The name of the activation.
        value: Of a shape that broadcasts against the whole activation, [layer, example, position, ...]; where entries
            are chosen, the value's own entries at the same places.
        **where: The chosen entries, as of `zero`.
    """
    return Edit(name, value=value, **where)


def replace_by_mean(
    name: str,
    reference: Float[Array | np.ndarray, "L B T *F"],
    lengths_B: Int[Array | np.ndarray, " B"] | None = None,
    **where: Any,
) -> Edit:
    """Return an edit that replaces an activation by its mean over the examples and positions of a reference batch.

    Args:
        name: The name of the activation.
        reference: The activation of the reference batch.
        lengths_B: The positions that count of each example; None means all.
        **where: The chosen entries, as of `zero`.
    """
    kind = activation_kind(name)
    if kind is None or kind.axes[1] != "position":
        raise UserError(
            f"{name} has no mean over positions: name an activation with positions, such as decoder/self/output"
        )
    reference = jnp.asarray(reference)
    first = 0 if kind.leading is None else 1
    counted_BxT = jnp.ones(reference.shape[first : first + 2], bool)
    if lengths_B is not None:
        counted_BxT = jnp.arange(reference.shape[first + 1])[None] < jnp.asarray(lengths_B)[:, None]
    counted = counted_BxT.reshape(*counted_BxT.shape, *(1 for _ in reference.shape[first + 2 :]))
    total = jnp.sum(jnp.where(counted, reference, 0), axis=(first, first + 1), keepdims=True)
    return replace(name, total / jnp.sum(counted_BxT), **where)


def fix_pattern(site: str, weights: Float[Array | np.ndarray, "..."], **where: Any) -> Edit:
    """Return an edit that fixes the attention weights of a site.

    Args:
        site: The name of the attention site, such as "decoder/self".
        weights: The weights, of a shape that broadcasts against [layer, example, head, query, key].
        **where: The chosen entries, as of `zero`; `positions` are those of the queries.
    """
    return Edit(f"{site}/weights", value=weights, **where)


class _ResolvedEdit(NamedTuple):
    """An edit for every occurrence of its activation.

    Attributes:
        mask: The entries that it changes, with axes of size 1 where it changes all.
        factor: The factor; None drops the old value.
        value: What is added; None adds nothing.
    """

    mask: Bool[Array, "N ..."]
    factor: Float[Array, "N ..."] | None
    value: Float[Array, "N ..."] | None


def _apply_edit(edit: _ResolvedEdit, x: Array) -> Array:
    new = jnp.zeros_like(x) if edit.factor is None else x * edit.factor.astype(x.dtype)
    if edit.value is not None:
        new = new + edit.value.astype(x.dtype)
    return jnp.where(edit.mask, new, x)


def resolve_edit(edit: Edit, occurrences: Occurrences, position_RxT: Int[Array, "R T"] | None = None) -> Change:
    """Spread an edit over the occurrences of its activation.

    Args:
        edit: The edit.
        occurrences: The occurrences.
        position_RxT: In decoding, the positions of the text that a pass reads, of each row; R = 1 for all rows alike.
            There an edit may choose positions, and have values for some, that this pass does not read. None means that
            the pass reads the whole text.

    Raises:
        UserError: If the edit does not fit the activation.
    """
    assert occurrences.shape is not None
    shape = (occurrences.number, *occurrences.shape.shape)
    kind = activation_kind(edit.name)
    axes = ("layer",) if kind is None else (kind.leading or "layer", *kind.axes)
    if axes[1:] == STREAM and len(shape) == 5:  # a norm over the features of each head
        axes = ("layer", *HEADS)
    choices = edit.choices()
    if unknown := sorted(set(choices) - set(axes)):
        raise UserError(f"an edit of {edit.name} chooses {unknown[0]}s: it has the axes {', '.join(axes)}")
    if not {"example", "position"} <= set(axes):
        position_RxT = None
    elif position_RxT is not None and len(position_RxT) > 1:
        # Where beams are no rows, those of an example have one position.
        position_RxT = position_RxT[:: len(position_RxT) // shape[axes.index("example")]]
    mask = jnp.ones((1,) * len(shape), bool)
    for axis, index in choices.items():
        size = shape[axes.index(axis)]
        if axis == "position" and position_RxT is not None:
            is_chosen_RxT = jnp.isin(position_RxT, _checked_index(edit, axis, index, None))
            mask = mask & _on_axes(is_chosen_RxT, axes, ("example", "position"))
        else:
            entries = _checked_index(edit, axis, index, size)
            is_chosen = jnp.isin(jnp.arange(size), jnp.where(entries < 0, entries + size, entries))
            mask = mask & _on_axes(is_chosen, axes, (axis,))
    value = None if edit.value is None else jnp.asarray(edit.value)
    if value is not None and position_RxT is not None:
        value, has_value = _value_at_positions(value, axes, position_RxT)
        mask = mask & has_value
    arrays = _ResolvedEdit(
        _spread(edit, "mask", mask, shape),
        None if edit.factor is None else _spread(edit, "factor", jnp.asarray(edit.factor), shape),
        None if value is None else _spread(edit, "value", value, shape),
    )
    return Change(_apply_edit, arrays)


def _on_axes(array: Array, axes: tuple[str, ...], own_axes: tuple[str, ...]) -> Array:
    """Give an array of some axes all of them, of size 1 where it has none."""
    order = sorted(range(len(own_axes)), key=lambda number: axes.index(own_axes[number]))
    sizes = dict(zip(own_axes, array.shape, strict=True))
    return jnp.transpose(array, order).reshape([sizes.get(axis, 1) for axis in axes])


def _value_at_positions(
    value: Array, axes: tuple[str, ...], position_RxT: Int[Array, "R T"]
) -> tuple[Array, Bool[Array, "..."]]:
    """The value of an edit at the positions that a pass reads, and where it has one: not beyond its last position."""
    value = value.reshape((1,) * (len(axes) - value.ndim) + value.shape)
    example, position = axes.index("example"), axes.index("position")
    rows, length = len(position_RxT), value.shape[position]
    if 1 < value.shape[example] < rows:
        value = jnp.repeat(value, rows // value.shape[example], axis=example)
    index = _on_axes(position_RxT, axes, ("example", "position"))
    if length == 1:
        return value, jnp.ones_like(index, bool)
    if rows > 1:
        value = jnp.broadcast_to(value, (*value.shape[:example], rows, *value.shape[example + 1 :]))
    return jnp.take_along_axis(value, jnp.minimum(index, length - 1), axis=position), index < length


def _checked_index(edit: Edit, axis: str, index: Any, size: int | None) -> Array:
    """The chosen entries as an array; those that are known are checked."""
    if not isinstance(index, jax.core.Tracer):
        values = np.atleast_1d(np.asarray(index))
        lowest = 0 if size is None else -size
        if not np.issubdtype(values.dtype, np.integer):
            raise UserError(f"an edit of {edit.name} chooses {axis}s={index}: give numbers of {axis}s")
        if np.any(values < lowest) or (size is not None and np.any(values >= size)):
            limit = "at least 0 in decoding" if size is None else f"0 ... {size - 1}"
            raise UserError(f"an edit of {edit.name} chooses {axis}s={index}: {axis}s are {limit}")
    return jnp.atleast_1d(jnp.asarray(index))


def _spread(edit: Edit, part: str, array: Array, shape: tuple[int, ...]) -> Array:
    """Give an array the axes of the activation, the first of its full size and others of size 1 where it has none."""
    try:
        fits = np.broadcast_shapes(array.shape, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        hint = "; one of another text fits only if both have as many tokens" if array.ndim == len(shape) else ""
        raise UserError(
            f"an edit of {edit.name} has the {part} {array.shape}, which does not broadcast to {shape}{hint}"
        )
    array = array.reshape((1,) * (len(shape) - array.ndim) + array.shape)
    return jnp.broadcast_to(array, (shape[0], *array.shape[1:]))
