"""What classifies a text by a language model: a linear map of the state behind its last token."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from transformer.attention.drop import dropout
from transformer.layers.linear import Linear
from transformer.layers.module import Builder, Module


class ClassHead(Module):
    """logits = h_m W, h_m the state at the last of a text's m tokens (Radford et al. 2018, equation 3).

    `rate` is that of the dropout on h_m.
    """

    def __init__(self, width: int, classes: int, *, rate: float, builder: Builder):
        self.rate = rate
        self.output = Linear((("embed", width),), (("features", classes),), bias=False, builder=builder)

    def __call__(
        self,
        x_BxTxE: Float[Array, "B T E"],
        lengths_B: Int[Array, " B"],
        key: Key[Array, ""] | None,
    ) -> Float[Array, "B C"]:
        """The logits in at least float32; those of a text without tokens mean nothing."""
        last_Bx1x1 = jnp.maximum(lengths_B - 1, 0)[:, None, None]
        last_BxE = jnp.take_along_axis(x_BxTxE, last_Bx1x1, axis=1)[:, 0]
        logits_BxC = self.output(dropout(last_BxE, self.rate, key))
        return logits_BxC.astype(jnp.promote_types(logits_BxC.dtype, jnp.float32))
