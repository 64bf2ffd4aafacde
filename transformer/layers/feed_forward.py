"""The position-wise feed-forward network."""

import jax
from jaxtyping import Array, Float

from transformer.layers.linear import Linear
from transformer.layers.module import Keys, Module, Parameter


class FeedForward(Module):
    """FFN(x) = max(0, x W_1 + b_1) W_2 + b_2 (Vaswani et al. 2017, equation 2)."""

    def __init__(self, width: int, hidden: int, *, parameter: Parameter, keys: Keys):
        model, inner = (("embed", width),), (("feed_forward", hidden),)
        self.expand = Linear(model, inner, bias=True, parameter=parameter, keys=keys)
        self.contract = Linear(inner, model, bias=True, parameter=parameter, keys=keys)

    def __call__(self, x: Float[Array, "*B E"]) -> Float[Array, "*B E"]:
        """Map every position by itself."""
        return self.contract(jax.nn.relu(self.expand(x)))
