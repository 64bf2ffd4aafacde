"""The activations of a model by name, and edits of them, in the forward pass that trains.

A name joins the scopes of a value with "/", as in "decoder/self/queries", however a family is written. What every layer
has is one array with a leading axis of layers.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from transformer.attention.capture import Capture
from transformer.attention.pytree_dataclass import pytree_dataclass, static_field
from transformer.attention.requested_activations import request_activations
from transformer.config import UserError, close_matches
from transformer.models.model import Aux, Cache, Inputs, Model, Variables
from transformer.models.named_values import Change, Occurrences, evaluate, find_named_values, trace

PyTree = Any
Activations = Mapping[str, Array]
# Which entries of an axis an edit changes: one number, several, or arrays of them, which may be traced.
Index = int | Sequence[int] | Int[Array, "..."]


class ActivationKind(NamedTuple):
    """What the last part of a name says about an activation.

    Attributes:
        axes: Its axes.
        meaning: What it is.
        leading: The axis of its occurrences, in front of the others; None if it occurs once.
    """

    axes: tuple[str, ...]
    meaning: str
    leading: str | None = "layer"


_STREAM = ("example", "position", "feature")
_HEADS = ("example", "position", "head", "feature")
_MAP = ("example", "head", "position", "key")

# What stands behind the last "/" of a name, and in which stack or sub-layer it stands: see docs/guides/activations.md.
KINDS: Mapping[str, ActivationKind] = {
    "token_embeddings": ActivationKind(_STREAM, "the vectors of the tokens", leading=None),
    "position_embeddings": ActivationKind(_STREAM, "the vectors of the positions", leading=None),
    "residual": ActivationKind(_STREAM, "the residual stream before a layer, or after one of its sub-layers"),
    "input": ActivationKind(_STREAM, "what a sub-layer reads of the residual stream, behind its norm"),
    "norm_factor": ActivationKind(_STREAM, "the factor by which a norm multiplies, 1 / sqrt(variance + epsilon)"),
    "queries": ActivationKind(_HEADS, "the queries, before rotary positions"),
    "keys": ActivationKind(_HEADS, "the keys, before rotary positions; heads are those of keys and values"),
    "values": ActivationKind(_HEADS, "the values; heads are those of keys and values"),
    "self/logits": ActivationKind(_MAP, "the attention logits, also of keys that the mask hides"),
    "cross/logits": ActivationKind(_MAP, "the attention logits, also of keys that the mask hides"),
    "weights": ActivationKind(_MAP, "the attention weights, before dropout"),
    "head_outputs": ActivationKind(_HEADS, "each head's weighted sum of values, before the output matrix"),
    "head_contributions": ActivationKind(_HEADS, "what each head adds, behind its rows of the output matrix"),
    "output": ActivationKind(_STREAM, "what a sub-layer adds to the residual stream"),
    "before_activation": ActivationKind(_STREAM, "the hidden units before the activation function"),
    "hidden": ActivationKind(_STREAM, "the hidden units that the second matrix reads"),
    "states": ActivationKind(_STREAM, "the last states, behind the final norm", leading=None),
    "logits": ActivationKind(_STREAM, "the logits of all tokens", leading=None),
    "layer_outputs": ActivationKind(_STREAM, "the states of a recurrent layer at every position"),
    "recurrent_states": ActivationKind(("example", "feature"), "the state of a recurrent decoder", leading="position"),
    "contexts": ActivationKind(("example", "feature"), "the context vector that a decoder reads", leading="position"),
}


def activation_kind(name: str) -> ActivationKind | None:
    """Return the kind of an activation by its name; None where only its leading axis, of its occurrences, is known."""
    *scopes, last = name.split("/")
    if "experts" in scopes and "shared" not in scopes:
        return None
    kind = KINDS.get("/".join((*scopes[-1:], last))) or KINDS.get(last)
    outside_layers = scopes and scopes[-1] in ("final_norm", "embedding_norm")
    return kind if kind is None or not outside_layers else kind._replace(leading=None)


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

    def choices(self) -> dict[str, Any]:
        """The chosen entries by axis, of the axes on which some are chosen."""
        axes = ("layer", "example", "position", "head", "key", "feature")
        return {axis: chosen for axis in axes if (chosen := getattr(self, f"{axis}s")) is not None}


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
    weights = counted_BxT.reshape(*counted_BxT.shape, *(1 for _ in reference.shape[first + 2 :])).astype(
        reference.dtype
    )
    total = jnp.sum(jnp.where(weights > 0, reference, 0), axis=(first, first + 1), keepdims=True)
    return Edit(name, value=total / jnp.sum(weights), **where)


def fix_pattern(site: str, weights: Float[Array | np.ndarray, "..."], **where: Any) -> Edit:
    """Return an edit that fixes the attention weights of a site.

    Args:
        site: The name of the attention site, such as "decoder/self".
        weights: The weights, of a shape that broadcasts against [layer, example, head, query, key].
        **where: The chosen entries, as of `zero`; `positions` are those of the queries.
    """
    return Edit(f"{site}/weights", value=weights, **where)


def run_with_activations(
    model: Model,
    variables: Variables,
    inputs: Inputs,
    names: Sequence[str] = (),
    edits: Sequence[Edit] = (),
    *,
    method: str = "forward",
    key: Key[Array, ""] | None = None,
    capture: Capture | None = None,
    train: bool = False,
) -> tuple[PyTree, Aux, dict[str, Array]]:
    """Run a method of a model, change activations on the way and return some: a pure function of arrays.

    The program is the model's own. Attention logits, weights and the contributions of single heads are computed only if
    they are named, by the EINSUM backend.

    Args:
        model: The model.
        variables: Its variables.
        inputs: The inputs by name, [B, ...].
        names: The names of the activations to return, as they are after the edits.
        edits: The edits, applied in their order.
        method: The name of the method.
        key: Random key.
        capture: Which maps to capture.
        train: Whether dropout and the like act.

    Returns:
        The outputs, the auxiliary results and the activations.

    Raises:
        UserError: If the pass has no activation of a name, or an edit does not fit it.
    """

    def apply(variables: Variables, inputs: Inputs, key: Any, observe: Any) -> tuple[PyTree, Aux]:
        observed = capture if capture is None else dataclasses.replace(capture, observe=observe)
        with request_activations(_requested_names(names, edits)):
            return model.apply(variables, inputs, method=method, train=train, key=key, capture=observed)

    args = (variables, dict(inputs), key, None if capture is None else capture.observe)
    (outputs, aux), activations = _run(apply, args, names, edits)
    return outputs, aux, activations


def activation_shapes(
    model: Model, variables: Variables, inputs: Inputs, *, method: str = "forward"
) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the shape of every activation that a pass has, by name, without computing any.

    Args:
        model: The model.
        variables: Its variables, or their shapes.
        inputs: The inputs, or their shapes.
        method: The name of the method.
    """

    def apply(variables: Variables, inputs: Inputs) -> PyTree:
        with request_activations(("/logits", "/weights", "/head_contributions")):
            return model.apply(variables, inputs, method=method, train=False)

    closed, _ = trace(apply, variables, dict(inputs))
    return {
        name: jax.ShapeDtypeStruct(
            occurrences.shape.shape
            if _is_single(name, occurrences)
            else (occurrences.number, *occurrences.shape.shape),
            occurrences.shape.dtype,
        )
        for name, occurrences in find_named_values(closed).items()
        if occurrences.shape is not None
    }


@dataclasses.dataclass(frozen=True, eq=False)
class EditedModel(Model):
    """A model with edited activations in every pass: of whole sequences, of prompts and of decoding steps.

    Attributes:
        edits: The edits, applied in their order.
    """

    edits: tuple[Edit, ...] = ()

    @classmethod
    def of(cls, model: Model, edits: Sequence[Edit]) -> "EditedModel":
        """Return a model with edits, behind those that it has."""
        fields = {field.name: getattr(model, field.name) for field in dataclasses.fields(Model)}
        earlier = model.edits if isinstance(model, EditedModel) else ()
        return cls(**fields, edits=(*earlier, *edits))

    @property
    def unedited(self) -> Model:
        """The model without edits."""
        return Model(**{field.name: getattr(self, field.name) for field in dataclasses.fields(Model)})

    def apply(
        self,
        variables: Variables,
        inputs: Inputs,
        *,
        method: str = "forward",
        train: bool,
        key: Key[Array, ""] | None = None,
        capture: Capture | None = None,
    ) -> tuple[PyTree, Aux]:
        """Run a method of the module, as `Model.apply` does."""
        outputs, aux, _ = run_with_activations(
            self.unedited, variables, inputs, (), self.edits, method=method, key=key, capture=capture, train=train
        )
        return outputs, aux

    def init_cache(
        self, variables: Variables, inputs: Inputs, *, num_beams: int, length: int
    ) -> tuple[Cache, Int[Array, " R"]]:
        """Prefill the cache, as `Model.init_cache` does."""

        def prefill(variables: Variables, inputs: Inputs) -> tuple[Cache, Array]:
            with request_activations(_requested_names((), self.edits)):
                return self.unedited.init_cache(variables, inputs, num_beams=num_beams, length=length)

        return _run(prefill, (variables, dict(inputs)), (), self.edits, part_of_decoding=True)[0]

    def step(
        self,
        variables: Variables,
        cache: Cache,
        tokens_R: Int[Array, " R"],
        *,
        key: Key[Array, ""] | None = None,
        capture: Capture | None = None,
    ) -> tuple[Float[Array, "R V"], Cache, Aux]:
        """Decode one step, as `Model.step` does; edits at positions act when their position is decoded."""

        def step(variables: Variables, cache: Cache, tokens_R: Array, key: Any) -> PyTree:
            with request_activations(_requested_names((), self.edits)):
                return self.unedited.step(variables, cache, tokens_R, key=key, capture=capture)

        position_R = cache.rows.get("position") if isinstance(cache.rows, Mapping) else None
        results, _ = _run(
            step, (variables, cache, tokens_R, key), (), self.edits, part_of_decoding=True, position_R=position_R
        )
        return results


def _requested_names(names: Sequence[str], edits: Sequence[Edit]) -> list[str]:
    return [*names, *(edit.name for edit in edits)]


def _run(
    function: Any,
    args: tuple[PyTree, ...],
    names: Sequence[str],
    edits: Sequence[Edit],
    *,
    part_of_decoding: bool = False,
    position_R: Int[Array, " R"] | None = None,
) -> tuple[PyTree, dict[str, Array]]:
    """Run a function of the model with edits, and return its results and the activations of the names.

    Args:
        function: The function.
        args: Its arguments.
        names: The names of the activations.
        edits: The edits.
        part_of_decoding: Whether it is the prefill or a step of decoding, which need not have what is edited.
        position_R: The position that a step decodes, of each row.
    """
    closed, structure = trace(function, *args)
    occurrences = find_named_values(closed)
    changes: dict[str, list[Change]] = {}
    for name in dict.fromkeys(names):
        _check_name(name, occurrences)
    for edit in edits:
        if part_of_decoding and edit.name not in occurrences:
            continue
        _check_name(edit.name, occurrences)
        changes.setdefault(edit.name, []).append(_resolve_edit(edit, occurrences[edit.name], position_R))
    flat, activations = evaluate(closed, jax.tree.leaves(args), names, changes)
    named = {name: activations[name][0] if _is_single(name, occurrences[name]) else activations[name] for name in names}
    return jax.tree.unflatten(structure, flat), named


def _is_single(name: str, occurrences: Occurrences) -> bool:
    kind = activation_kind(name)
    return occurrences.number == 1 and kind is not None and kind.leading is None


def _check_name(name: str, occurrences: Mapping[str, Occurrences]) -> None:
    if name not in occurrences:
        near = close_matches(name, occurrences)
        candidates = near or sorted(occurrences)
        raise UserError(f"{name!r} is no activation of this pass: name one, such as {', '.join(candidates[:6])}")
    if occurrences[name].shape is None:
        raise UserError(f"{name!r} has different shapes in different layers: it has no array of all layers")


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


def _resolve_edit(edit: Edit, occurrences: Occurrences, position_R: Array | None) -> Change:
    """Spread an edit over the occurrences of its activation.

    Args:
        edit: The edit.
        occurrences: The occurrences.
        position_R: The position that a step of decoding reads, of each row; None if the pass has all positions.

    Raises:
        UserError: If the edit does not fit the activation.
    """
    assert occurrences.shape is not None
    shape = (occurrences.number, *occurrences.shape.shape)
    kind = activation_kind(edit.name)
    axes = ("layer",) if kind is None else (kind.leading or "layer", *kind.axes)
    if axes[1:] == _STREAM and len(shape) == 5:  # a norm over the features of each head
        axes = ("layer", *_HEADS)
    choices = edit.choices()
    if unknown := sorted(set(choices) - set(axes)):
        raise UserError(f"an edit of {edit.name} chooses {unknown[0]}s: it has the axes {', '.join(axes)}")
    mask = jnp.ones((1,) * len(shape), bool)
    for axis, chosen in choices.items():
        number = axes.index(axis)
        if axis == "position" and position_R is not None:
            in_row_R = jnp.isin(position_R, _checked_index(edit, axis, chosen, None))
            mask = mask & in_row_R.reshape(1, -1, *(1 for _ in shape[2:]))
        else:
            size = shape[number]
            index = _checked_index(edit, axis, chosen, size)
            is_chosen = jnp.isin(jnp.arange(size), jnp.where(index < 0, index + size, index))
            mask = mask & is_chosen.reshape(*(1 for _ in shape[:number]), size, *(1 for _ in shape[number + 1 :]))
    value = None if edit.value is None else jnp.asarray(edit.value)
    if value is not None and position_R is not None and "position" in axes:
        value, mask = _value_at_positions(value, axes, position_R, mask)
    arrays = _ResolvedEdit(
        _spread(edit, "mask", mask, shape),
        None if edit.factor is None else _spread(edit, "factor", jnp.asarray(edit.factor), shape),
        None if value is None else _spread(edit, "value", value, shape),
    )
    return Change(_apply_edit, arrays)


def _checked_index(edit: Edit, axis: str, chosen: Index, size: int | None) -> Array:
    """The chosen entries as an array; those that are known are checked."""
    if not isinstance(chosen, jax.core.Tracer):
        values = np.atleast_1d(np.asarray(chosen))
        lowest = 0 if size is None else -size
        if not np.issubdtype(values.dtype, np.integer):
            raise UserError(f"an edit of {edit.name} chooses {axis}s={chosen}: give numbers of {axis}s")
        if np.any(values < lowest) or (size is not None and np.any(values >= size)):
            limit = "at least 0 in decoding" if size is None else f"0 ... {size - 1}"
            raise UserError(f"an edit of {edit.name} chooses {axis}s={chosen}: {axis}s are {limit}")
    return jnp.atleast_1d(jnp.asarray(chosen))


def _value_at_positions(value: Array, axes: tuple[str, ...], position_R: Array, mask: Array) -> tuple[Array, Array]:
    """The value of an edit at the position that each row decodes, and the mask without rows beyond the value's end."""
    value = value.reshape((1,) * (len(axes) - value.ndim) + value.shape)
    example, position = axes.index("example"), axes.index("position")
    rows, length = len(position_R), value.shape[position]
    if value.shape[example] > 1:
        value = jnp.repeat(value, rows // value.shape[example], axis=example)
    if length == 1:
        return value, mask
    by_row = [1] * len(axes)
    by_row[example] = rows
    index = jnp.minimum(position_R, length - 1).reshape(by_row)
    value = jnp.broadcast_to(value, (*value.shape[:example], rows, *value.shape[example + 1 :]))
    return jnp.take_along_axis(value, index, axis=position), mask & (position_R < length).reshape(by_row)


def _spread(edit: Edit, part: str, array: Array, shape: tuple[int, ...]) -> Array:
    """Give an array the axes of the activation, the first of its full size and others of size 1 where it has none."""
    try:
        fits = np.broadcast_shapes(array.shape, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        raise UserError(f"an edit of {edit.name} has the {part} {array.shape}, which does not broadcast to {shape}")
    array = array.reshape((1,) * (len(shape) - array.ndim) + array.shape)
    return jnp.broadcast_to(array, (shape[0], *array.shape[1:]))
