"""The importance of heads and residual branches: how a loss changes with a gate on each (Michel et al. 2019)."""

import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from transformer.attention.rare_branch import compute_if
from transformer.attention.sites import Site

# Names of the statistics: of each head, of the residual branch that its attention writes, and of the feed-forward
# network's branch in the same layer.
IMPORTANCE, BRANCH_IMPORTANCE, FEED_FORWARD_IMPORTANCE = "importance", "branch_importance", "feed_forward_importance"


class ImportanceGates(NamedTuple):
    """Gates of the heads and residual branches of one attention site; scans over layers take the leading axis L away.

    They are zeros. The forward pass does not read them, as if each gate were 1, and the gradient of a loss with respect
    to them is its importance: the sum over examples b of |dL/dg_b|, where g_b multiplies the output of a head, or what
    a branch adds to the residual stream, in example b alone. That is how Michel et al. 2019 (equation 2) take the
    absolute value: for every example, so that effects of opposite signs do not cancel.

    Attributes:
        heads: Of each head's output, before the output projection.
        branch: Of what the attention adds to the residual stream.
        feed_forward: Of what the layer's feed-forward network adds to it; None at cross-attention.
    """

    heads: Float[Array, "*L H"]
    branch: Float[Array, "*L 1"]
    feed_forward: Float[Array, "*L 1"] | None

    def by_statistic(self) -> dict[str, Array]:
        """The gates by the name of the statistic that their gradient becomes."""
        gates = {IMPORTANCE: self.heads, BRANCH_IMPORTANCE: self.branch, FEED_FORWARD_IMPORTANCE: self.feed_forward}
        return {name: gate for name, gate in gates.items() if gate is not None}


class OutputGates(NamedTuple):
    """Gates of the output of one sub-layer of one layer.

    Attributes:
        heads: Of its heads; None for none.
        branch: Of the whole output; None for none, or where a later operation has it.
        observe: A traced switch; where it is False the gates' gradient is zero and costs next to nothing.
    """

    heads: Float[Array, " H"] | None = None
    branch: Float[Array, " 1"] | None = None
    observe: Bool[Array, ""] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is no gate."""
        return self.heads is None and self.branch is None


def initial_gates(sites: Iterable[Site]) -> dict[str, ImportanceGates]:
    """Return the gates of every layer and head of the sites, by name."""
    gates = {}
    for site in sites:
        layers, branch = len(site.layers), jnp.zeros((len(site.layers), 1))
        gates[site.name] = ImportanceGates(jnp.zeros((layers, len(site.heads))), branch, branch)
    return gates


def gate_input(
    x: Float[Array, "..."], shape: tuple[int, ...], gates: OutputGates
) -> tuple[Float[Array, "..."], Float[Array, " B"]]:
    """Return the inputs x of the linear map at the end of a sub-layer, with gates on their heads and on its output.

    The output y is x W + b for some W. So a gate on it has dL/dg = <dL/dy, y> = <dL/dx, x> + <dL/dy, b>, of which the
    backward pass has all factors: y itself, which a residual connection need not store, is never needed.

    Args:
        x: The inputs, in the shape in which the map stores them for its own gradient, so that they are stored once.
        shape: Their shape with the axes of examples and heads, [B, N, H, D] with gates of heads, else [B, ...].
        gates: The gates.

    Returns:
        x; and zeros for `gate_bias`, whose gradient is the second term in each example.
    """
    return _gate(shape, x, *gates)


def gate_bias(
    y: Float[Array, "B ..."], bias: Float[Array, "..."], zeros_B: Float[Array, " B"], gates: OutputGates
) -> Float[Array, "B ..."]:
    """Return the output y of the map, whose bias `gate_input` does not see; `zeros_B` comes from there."""
    if gates.branch is None:
        return y
    return _gate_bias(y, jax.lax.stop_gradient(bias), zeros_B, gates.observe)


def gate_branch(y: Float[Array, "B ..."], gates: OutputGates | None) -> Float[Array, "B ..."]:
    """Return `y`, with a gate on all of it; unlike `gate_input`, this stores y for the backward pass."""
    return y if gates is None else _gate(y.shape, y, *gates)[0]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _gate(
    shape: tuple[int, ...], x: Array, heads: Array | None, branch: Array | None, observe: Array | None
) -> tuple[Array, Array]:
    return _gate_forward(shape, x, heads, branch, observe)[0]


def _gate_forward(
    shape: tuple[int, ...], x: Array, heads: Array | None, branch: Array | None, observe: Array | None
) -> tuple[tuple[Array, Array], tuple[Any, ...]]:
    return (x, jnp.zeros(shape[0], _wide_dtype(x))), (x, heads, branch, observe)


def _gate_backward(shape: tuple[int, ...], saved: tuple[Any, ...], gradients: tuple[Array, Array]) -> tuple[Any, ...]:
    x, heads, branch, observe = saved
    x_gradient, bias_gradient_B = gradients

    def measure() -> tuple[Array | None, Array | None]:
        wide_gradient = x_gradient.astype(_wide_dtype(x))
        # What stands in padding has no gradient, and no effect, NaN included.
        products = jnp.where(wide_gradient == 0, 0, x.astype(wide_gradient.dtype) * wide_gradient).reshape(shape)
        if heads is None:
            heads_gradient = None
            sum_B = jnp.sum(products, axis=tuple(range(1, products.ndim)))
        else:
            sum_BxH = jnp.sum(products, axis=(1, 3))
            heads_gradient = jnp.sum(jnp.abs(sum_BxH), axis=0).astype(heads.dtype)
            sum_B = jnp.sum(sum_BxH, axis=1)
        if branch is None:
            return heads_gradient, None
        return heads_gradient, jnp.sum(jnp.abs(sum_B + bias_gradient_B))[None].astype(branch.dtype)

    return x_gradient, *compute_if(observe, measure), None


_gate.defvjp(_gate_forward, _gate_backward)


@jax.custom_vjp
def _gate_bias(y: Array, bias: Array, zeros_B: Array, observe: Array | None) -> Array:
    return y


def _gate_bias_forward(y: Array, bias: Array, zeros_B: Array, observe: Array | None) -> tuple[Array, tuple[Any, ...]]:
    return y, (bias, observe)


def _gate_bias_backward(saved: tuple[Any, ...], y_gradient: Array) -> tuple[Any, ...]:
    bias, observe = saved

    def measure() -> Array:
        wide = _wide_dtype(y_gradient)
        by_feature = jnp.sum(y_gradient.astype(wide), axis=tuple(range(1, y_gradient.ndim - bias.ndim)))
        return jnp.sum(by_feature * bias.astype(wide), axis=tuple(range(1, by_feature.ndim)))

    return y_gradient, None, compute_if(observe, measure), None


_gate_bias.defvjp(_gate_bias_forward, _gate_bias_backward)


def _wide_dtype(x: Array) -> Any:
    return jnp.promote_types(x.dtype, jnp.float32)
