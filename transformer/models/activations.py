"""The activations of a model by name, and edits of them, in the forward pass that trains.

A name joins the scopes of a value with "/", as in "decoder/self/queries", however a family is written. What every layer
has is one array with a leading axis of layers.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from transformer.attention.capture import Capture
from transformer.attention.requested_activations import ON_REQUEST, request_activations
from transformer.config import UserError, close_matches
from transformer.models.activation_names import activation_kind, is_single
from transformer.models.edits import Edit, resolve_edit
from transformer.models.model import Aux, Cache, Inputs, Model, Variables
from transformer.models.named_values import Change, Occurrences, evaluate, find_named_values, trace

PyTree = Any


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


def activation_occurrences(model: Model, inputs: Inputs, *, method: str = "forward") -> Mapping[str, Occurrences]:
    """Return how often a pass has each activation, and its shape, by name, without computing any.

    Args:
        model: The model.
        inputs: The inputs, or their shapes.
        method: The name of the method.
    """
    shapes = tuple((name, tuple(array.shape), str(array.dtype)) for name, array in sorted(inputs.items()))
    return _occurrences_for_shapes(model, shapes, method)


@functools.lru_cache(maxsize=64)
def _occurrences_for_shapes(
    model: Model, shapes: tuple[tuple[str, tuple[int, ...], str], ...], method: str
) -> Mapping[str, Occurrences]:
    def apply(variables: Variables, inputs: Inputs) -> PyTree:
        with request_activations(f"/{activation}" for activation in ON_REQUEST):
            return model.apply(variables, inputs, method=method, train=False)

    inputs = {name: jax.ShapeDtypeStruct(shape, dtype) for name, shape, dtype in shapes}
    return find_named_values(trace(apply, model.shapes(), inputs)[0])


def check_edits(edits: Sequence[Edit], occurrences: Mapping[str, Occurrences]) -> None:
    """Check that edits fit the activations of a pass, as far as their choices are known.

    Raises:
        UserError: If one does not.
    """
    for edit in edits:
        _check_name(edit.name, occurrences)
        jax.eval_shape(lambda edit=edit: resolve_edit(edit, occurrences[edit.name], None).arrays)


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
        """Prefill the cache, as `Model.init_cache` does.

        Raises:
            UserError: If neither the prefill nor a step has the activation of an edit.
        """

        def prefill(variables: Variables, inputs: Inputs) -> tuple[Cache, Array]:
            with request_activations(_requested_names((), self.edits)):
                return self.unedited.init_cache(variables, inputs, num_beams=num_beams, length=length)

        args = (variables, dict(inputs))
        cache, first_R = _run(prefill, args, (), self.edits, decodes=True)[0]
        prefilled = find_named_values(trace(prefill, *args)[0])
        stepped = find_named_values(trace(self._unedited_step(None), variables, cache, first_R, None)[0])
        for edit in self.edits:
            _check_name(edit.name, {**prefilled, **stepped})
        return cache, first_R

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
        rows = cache.rows
        position_R = rows.get("position") if isinstance(rows, Mapping) else getattr(rows, "position", None)
        position_Rx1 = None if position_R is None else position_R[:, None]
        args = (variables, cache, tokens_R, key)
        step = self._unedited_step(capture)
        return _run(step, args, (), self.edits, decodes=True, position_RxT=position_Rx1)[0]

    def _unedited_step(self, capture: Capture | None) -> Callable[..., PyTree]:
        """Return the step of the unedited model, which has all activations that are edited."""

        def step(variables: Variables, cache: Cache, tokens_R: Array, key: Any) -> PyTree:
            with request_activations(_requested_names((), self.edits)):
                return self.unedited.step(variables, cache, tokens_R, key=key, capture=capture)

        return step


def _requested_names(names: Sequence[str], edits: Sequence[Edit]) -> list[str]:
    return [*names, *(edit.name for edit in edits)]


def _run(
    function: Any,
    args: tuple[PyTree, ...],
    names: Sequence[str],
    edits: Sequence[Edit],
    *,
    decodes: bool = False,
    position_RxT: Int[Array, "R T"] | None = None,
) -> tuple[PyTree, dict[str, Array]]:
    """Run a function of the model with edits, and return its results and the activations of the names.

    Args:
        function: The function.
        args: Its arguments.
        names: The names of the activations.
        edits: The edits.
        decodes: Whether it is the prefill or a step of decoding, which need not have what is edited.
        position_RxT: The positions of the text that a step reads, of each row; None means that all are read.
    """
    closed, structure = trace(function, *args)
    occurrences = find_named_values(closed)
    changes: dict[str, list[Change]] = {}
    for name in dict.fromkeys(names):
        _check_name(name, occurrences)
    for edit in edits:
        if decodes and edit.name not in occurrences:
            continue
        _check_name(edit.name, occurrences)
        own_occurrences = occurrences[edit.name]
        positions = (
            _prefilled_positions(edit.name, own_occurrences) if decodes and position_RxT is None else position_RxT
        )
        changes.setdefault(edit.name, []).append(resolve_edit(edit, own_occurrences, positions))
    flat, activations = evaluate(closed, jax.tree.leaves(args), dict.fromkeys(names, _identity), changes)
    arrays = {
        name: activations[name][0] if is_single(name, occurrences[name].number) else activations[name] for name in names
    }
    return jax.tree.unflatten(structure, flat), arrays


def _prefilled_positions(name: str, occurrences: Occurrences) -> Int[Array, "1 T"] | None:
    """The positions of an activation in a prefill, which begins a text; None if it has none."""
    kind = activation_kind(name)
    if kind is None or occurrences.shape is None or "position" not in kind.axes:
        return None
    return jnp.arange(occurrences.shape.shape[kind.axes.index("position")])[None]


def _identity(activation: Array) -> Array:
    """Keep all of an activation."""
    return activation


def _check_name(name: str, occurrences: Mapping[str, Occurrences]) -> None:
    if name not in occurrences:
        near = close_matches(name, occurrences)
        candidates = near or sorted(occurrences)
        raise UserError(f"{name!r} is no activation of this pass: name one, such as {', '.join(candidates[:6])}")
    if occurrences[name].shape is None:
        raise UserError(f"{name!r} has different shapes in different layers: it has no array of all layers")
