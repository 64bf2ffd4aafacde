"""The names of activations: what the last part of a name says about its axes, whatever the family.

A name joins the scopes of a value with "/", as in "decoder/self/queries".
"""

from collections.abc import Mapping
from typing import NamedTuple


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

    @property
    def all_axes(self) -> tuple[str, ...]:
        """Its axes, with that of its occurrences in front if it has one."""
        return self.axes if self.leading is None else (self.leading, *self.axes)


STREAM = ("example", "position", "feature")
HEADS = ("example", "position", "head", "feature")
MAP = ("example", "head", "position", "key")

# What stands behind the last "/" of a name, and in which stack or sub-layer it stands: see docs/guides/activations.md.
KINDS: Mapping[str, ActivationKind] = {
    "token_embeddings": ActivationKind(STREAM, "the vectors of the tokens", leading=None),
    "position_embeddings": ActivationKind(STREAM, "the vectors of the positions", leading=None),
    "residual": ActivationKind(STREAM, "the residual stream before a layer, or after one of its sub-layers"),
    "input": ActivationKind(STREAM, "what a sub-layer reads of the residual stream, behind its norm"),
    "norm_factor": ActivationKind(STREAM, "the factor by which a norm multiplies, 1 / sqrt(variance + epsilon)"),
    "queries": ActivationKind(HEADS, "the queries, before rotary positions"),
    "keys": ActivationKind(HEADS, "the keys, before rotary positions; heads are those of keys and values"),
    "values": ActivationKind(HEADS, "the values; heads are those of keys and values"),
    "self/logits": ActivationKind(MAP, "the attention logits, also of keys that the mask hides"),
    "cross/logits": ActivationKind(MAP, "the attention logits, also of keys that the mask hides"),
    "attention/logits": ActivationKind(MAP, "the attention logits of what is no sub-layer of a Transformer"),
    "weights": ActivationKind(MAP, "the attention weights, before dropout"),
    "head_outputs": ActivationKind(HEADS, "each head's weighted sum of values, before the output matrix"),
    "attention/head_outputs": ActivationKind(
        ("example", "query", "head", "feature"), "each head's context in a recurrent decoder", leading="position"
    ),
    "head_contributions": ActivationKind(HEADS, "what each head adds, behind its rows of the output matrix"),
    "output": ActivationKind(STREAM, "what a sub-layer adds to the residual stream"),
    "before_activation": ActivationKind(STREAM, "the hidden units before the activation function"),
    "hidden": ActivationKind(STREAM, "the hidden units that the second matrix reads"),
    "states": ActivationKind(STREAM, "the last states, behind the final norm", leading=None),
    "logits": ActivationKind(STREAM, "the logits of all tokens", leading=None),
    "layer_outputs": ActivationKind(STREAM, "the states of a recurrent layer at every position"),
    "recurrent_states": ActivationKind(("example", "feature"), "the state of a recurrent decoder", leading="position"),
    "alignments": ActivationKind(
        ("example", "head", "beam", "key"), "the attention weights of a recurrent decoder", leading="position"
    ),
    "contexts": ActivationKind(("example", "feature"), "the context vector that a decoder reads", leading="position"),
}


def activation_kind(name: str) -> ActivationKind | None:
    """Return the kind of an activation by its name; None where only its leading axis, of its occurrences, is known."""
    *scopes, last = name.split("/")
    if "experts" in scopes and "shared" not in scopes:
        return None
    kind = KINDS.get("/".join((*scopes[-1:], last))) or KINDS.get(last)
    outside_layers = scopes and scopes[-1] in ("final_norm", "embedding_norm", "head")
    return kind if kind is None or not outside_layers else kind._replace(leading=None)


def is_single(name: str, number: int) -> bool:
    """Return whether an activation with so many occurrences is one array without an axis of them."""
    kind = activation_kind(name)
    return number == 1 and kind is not None and kind.leading is None
