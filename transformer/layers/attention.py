"""Multi-head attention: four projections around attend()."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer.attention.attend import AttentionSpec, attend
from transformer.attention.capture import Capture, Captured
from transformer.attention.masks import Mask
from transformer.layers.linear import Linear
from transformer.layers.module import Keys, Module, Parameter


class MultiHeadAttention(Module):
    """MultiHead(Q, K, V) = Concat(head_1, ..., head_H) W_O (Vaswani et al. 2017, section 3.2.2).

    head_i = Attention(Q W_Q,i, K W_K,i, V W_V,i) with depth D = width / heads.

    Errors: ValueError when `heads` does not divide `width`.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        bias: bool,
        spec: AttentionSpec,
        parameter: Parameter,
        keys: Keys,
    ):
        if width % heads:
            raise ValueError(f"width={width} is not divisible by heads={heads}")
        model = (("embed", width),)
        split = (("heads", heads), ("head_depth", width // heads))
        self.query = Linear(model, split, bias=bias, parameter=parameter, keys=keys)
        self.key = Linear(model, split, bias=bias, parameter=parameter, keys=keys)
        self.value = Linear(model, split, bias=bias, parameter=parameter, keys=keys)
        self.output = Linear(split, model, bias=bias, parameter=parameter, keys=keys)
        self.spec = spec

    def keys_and_values(
        self, memory_BxKxE: Float[Array, "B K E"]
    ) -> tuple[Float[Array, "B K H D"], Float[Array, "B K H D"]]:
        """The projected keys and values of a memory: what a decoder caches."""
        return self.key(memory_BxKxE), self.value(memory_BxKxE)

    def read(
        self,
        x_BxQxE: Float[Array, "B Q E"],
        k_BxKxHxD: Float[Array, "B K H D"],
        v_BxKxHxD: Float[Array, "B K H D"],
        *,
        mask: Mask,
        capture: Capture | None = None,
    ) -> tuple[Float[Array, "B Q E"], Captured | None]:
        """Attend from x to keys and values that are already projected."""
        output_BxQxHxD, captured = attend(
            self.query(x_BxQxE), k_BxKxHxD, v_BxKxHxD, spec=self.spec, mask=mask, capture=capture
        )
        return self.output(output_BxQxHxD), captured

    def __call__(
        self,
        x_BxQxE: Float[Array, "B Q E"],
        memory_BxKxE: Float[Array, "B K E"],
        *,
        mask: Mask,
        capture: Capture | None = None,
    ) -> tuple[Float[Array, "B Q E"], Captured | None]:
        """Attend from x to a memory; self-attention where both are the same."""
        return self.read(x_BxQxE, *self.keys_and_values(memory_BxKxE), mask=mask, capture=capture)


def write_cache(
    cache_RxKxHxD: Float[Array, "R K H D"],
    new_Rx1xHxD: Float[Array, "R 1 H D"],
    position_R: jnp.ndarray,
) -> Float[Array, "R K H D"]:
    """The cache with each row's new key or value at that row's position."""
    here_RxK = jnp.arange(cache_RxKxHxD.shape[1])[None] == position_R[:, None]
    return jnp.where(here_RxK[:, :, None, None], new_Rx1xHxD, cache_RxKxHxD)
