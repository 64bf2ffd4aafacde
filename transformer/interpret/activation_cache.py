"""The activations of a loaded model on a few texts, by name, with and without edits."""

import dataclasses
import fnmatch
import functools
from collections.abc import Iterator, Mapping, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.attention.requested_activations import HEAD_CONTRIBUTIONS
from transformer.config import UserError, close_matches
from transformer.models.activation_names import activation_kind
from transformer.models.activations import activation_occurrences, check_edits, run_with_activations
from transformer.models.edits import Edit
from transformer.models.model import Inputs, Model, Variables
from transformer.tasks.axis_labels import AxisLabels


@dataclasses.dataclass(frozen=True, repr=False)
class ActivationCache(Mapping[str, Array]):
    """Activations by name; `cache["decoder/residual"][3]` is the residual stream before layer 3.

    Attributes:
        arrays: The activations, [layer, example, ...] where each layer has one; padding of shorter texts included.
        labels: The tokens of the texts, by axis.
    """

    arrays: Mapping[str, Array]
    labels: AxisLabels

    def __getitem__(self, name: str) -> Array:
        if name not in self.arrays:
            near = close_matches(name, self.arrays) or list(self.arrays)
            raise KeyError(f"{name!r} is not in this cache: it has {', '.join(near[:6])}")
        return self.arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)

    def __repr__(self) -> str:
        lines = (f"  {name}: {' x '.join(_axis_sizes(name, array))}" for name, array in self.arrays.items())
        return "\n".join(("ActivationCache(", *lines, ")"))


def _axis_sizes(name: str, array: Array) -> list[str]:
    kind = activation_kind(name)
    axes: tuple[str, ...] = () if kind is None else kind.all_axes
    if len(axes) != array.ndim:
        return [str(size) for size in array.shape]
    return [f"{axis} {size}" for axis, size in zip(axes, array.shape, strict=True)]


def choose_names(model: Model, inputs: Inputs, names: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of activations of a pass that match patterns of fnmatch, in the order of the pass.

    Args:
        model: The model.
        inputs: The inputs.
        names: Names or patterns, such as "decoder/self/*"; None means all. The contributions of single heads take as
            much memory as all heads times the residual stream: only what ends with their name includes them.

    Raises:
        UserError: If the pass has no activation that a name or pattern matches.
    """
    occurrences = activation_occurrences(model, inputs)
    if names is None:
        names = [name for name, (_, shape) in occurrences.items() if shape is not None]
        names = [name for name in names if not name.endswith(HEAD_CONTRIBUTIONS)]
    names = (names,) if isinstance(names, str) else names
    if not isinstance(names, Sequence) or not all(isinstance(pattern, str) for pattern in names):
        raise UserError(f"names={names!r} are names of activations or patterns of them, such as 'decoder/self/*'")
    for pattern in names:
        if not fnmatch.filter(occurrences, pattern):
            near = close_matches(pattern, occurrences) or list(occurrences)
            raise UserError(f"{pattern!r} is no activation of this model: name one, such as {', '.join(near[:6])}")
    return tuple(
        name
        for name in occurrences
        if any(
            fnmatch.fnmatchcase(name, pattern)
            and (pattern.endswith(HEAD_CONTRIBUTIONS) or not name.endswith(HEAD_CONTRIBUTIONS))
            for pattern in names
        )
    )


def compute_activations(
    model: Model, variables: Variables, inputs: Inputs, names: tuple[str, ...], edits: Sequence[Edit]
) -> tuple[Array, dict[str, Array]]:
    """Return the outputs of `forward` and activations, compiled once for the names and kinds of edits.

    Raises:
        UserError: If an edit does not fit its activation.
    """
    check_edits(edits, activation_occurrences(model, inputs))
    outputs, activations = _run(model, names, variables, dict(inputs), tuple(edits))
    return outputs, {name: activations[name] for name in names}  # a compiled program returns them sorted


@functools.partial(jax.jit, static_argnums=(0, 1))
def _run(
    model: Model, names: tuple[str, ...], variables: Variables, inputs: Inputs, edits: tuple[Edit, ...]
) -> tuple[Array, dict[str, Array]]:
    outputs, _, activations = run_with_activations(model, variables, inputs, names, edits)
    return outputs, activations


@jax.jit
def token_losses(
    logits_BxTxV: Float[Array, "B T V"], predicted_BxT: Int[Array, "B T"]
) -> tuple[Float[Array, "B T"], Float[Array, ""]]:
    """Return -log p of each predicted token, 0 where none is predicted, and their mean.

    Args:
        logits_BxTxV: The logits.
        predicted_BxT: The tokens; -1 where none is predicted.
    """
    wide = jnp.promote_types(logits_BxTxV.dtype, jnp.float32)
    log_probs = jax.nn.log_softmax(logits_BxTxV.astype(wide), axis=-1)
    chosen_BxT = jnp.take_along_axis(log_probs, jnp.maximum(predicted_BxT, 0)[..., None], axis=-1)[..., 0]
    counted_BxT = predicted_BxT >= 0
    losses_BxT = jnp.where(counted_BxT, -chosen_BxT, 0)
    return losses_BxT, jnp.sum(losses_BxT) / jnp.sum(counted_BxT)
