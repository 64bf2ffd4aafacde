"""Self-attention within a grid of features, that begins by adding nothing (Zhang et al. 2019, SAGAN)."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer.attention.api import attend
from transformer.attention.capture import Capture, Captured
from transformer.attention.scores import INNER_PRODUCT
from transformer.attention.spec import AttentionSpec
from transformer.layers.linear import Linear
from transformer.layers.module import Builder, Module

_SPEC = AttentionSpec(INNER_PRODUCT)


class GridAttention(Module):
    """y_j = gamma o_j + x_j with o_j = W_v sum_i beta_ji W_h x_i (Zhang et al. 2019, equations 1 to 3).

    beta_ji is the softmax over the places i of (W_f x_i)' (W_g x_j), without a scale; f, g and h have 1 / `reduction`
    of the features, at least one. gamma is one number that begins at 0, so that the block is the identity.
    """

    def __init__(self, channels: int, *, reduction: int = 8, builder: Builder):
        self.channels, self.inner = channels, max(channels // reduction, 1)
        whole, inner = (("embed", channels),), (("groups", 1), ("head_dim", self.inner))
        self.query = Linear(whole, inner, bias=False, builder=builder)
        self.key = Linear(whole, inner, bias=False, builder=builder)
        self.value = Linear(whole, inner, bias=False, builder=builder)
        self.output = Linear(inner, whole, bias=False, builder=builder)
        self.gamma = builder.parameter(jax.nn.initializers.zeros, (1,), ("features",))

    def __call__(
        self,
        x_BxYxXxC: Float[Array, "B Y X C"],
        *,
        kernels: Mapping[str, Array] | None = None,
        capture: Capture | None = None,
    ) -> tuple[Float[Array, "B Y X C"], Captured | None]:
        """The grid with what it reads of itself; `kernels` by name stand in for its own (normed ones)."""
        batch, rows, columns, _ = x_BxYxXxC.shape
        x_BxNxC, given = x_BxYxXxC.reshape(batch, rows * columns, -1), kernels or {}
        q, k, v = (
            layer(x_BxNxC, given.get(name))
            for name, layer in (("query", self.query), ("key", self.key), ("value", self.value))
        )
        read_BxNx1xD, attended = attend(q, k, v, spec=_SPEC, capture=capture)
        o_BxNxC = self.output(read_BxNx1xD, given.get("output"))
        y_BxNxC = jnp.asarray(self.gamma[...], x_BxNxC.dtype)[None, None] * o_BxNxC + x_BxNxC
        return y_BxNxC.reshape(x_BxYxXxC.shape), attended.captured


def attention_operations(channels: int, places: int, reduction: int = 8) -> int:
    """Matrix products of the block over one grid of so many places, 2 for a multiplication and an addition."""
    inner = max(channels // reduction, 1)
    return 2 * places * inner * (4 * channels + 2 * places)
