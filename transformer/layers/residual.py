"""Residual connections: where the norm stands around a sub-layer."""

import enum
from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array, Float, Key

from transformer.layers.dropout import dropout
from transformer.layers.module import Keys, Module, Parameter
from transformer.layers.norm import LayerNorm


class NormPlacement(enum.Enum):
    """Where the norm stands: after the addition, or before the sub-layer."""

    POST = "post"
    PRE = "pre"


class Residual(Module):
    """One sub-layer F with its residual connection, its norm and its dropout.

    post: x = norm(x + dropout(F(x))) (Vaswani et al. 2017, sections 3.1 and 5.4).
    pre: x = x + dropout(F(norm(x))) (Xiong et al. 2020, section 3.1).
    """

    def __init__(self, width: int, placement: NormPlacement, *, parameter: Parameter, keys: Keys):
        self.norm = LayerNorm(width, parameter=parameter, keys=keys)
        self.placement = placement

    def __call__(
        self,
        x: Float[Array, "*B E"],
        function: Callable[[jax.Array], tuple[jax.Array, Any]],
        rate: float,
        key: Key[Array, ""] | None,
    ) -> tuple[Float[Array, "*B E"], Any]:
        """Apply the sub-layer `function`, which returns its output and whatever else it has to say."""
        match self.placement:
            case NormPlacement.POST:
                y, extra = function(x)
                return self.norm(x + dropout(y, rate, key)), extra
            case NormPlacement.PRE:
                y, extra = function(self.norm(x))
                return x + dropout(y, rate, key), extra
