"""Residual connections: the placement of norms around sub-layers, dropout and stochastic depth."""

import enum
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from transformer.attention.inverted_dropout import dropout
from transformer.layers.functional_module import Module
from transformer.layers.norm import LayerNorm, RmsNorm

Sublayer = Callable[[jax.Array, Any], tuple[jax.Array, Any]]


class NormPlacement(enum.Enum):
    """The placement of the norm around a sub-layer F.

    Attributes:
        POST: x = norm(x + F(x)) (Vaswani et al. 2017, section 3.1).
        PRE: x = x + F(norm(x)), and a norm after the last block (Xiong et al. 2020, section 3.1).
        SANDWICH: x = x + norm(F(norm(x))), and a norm after the last block (Ding et al. 2021, section 2.4).
        DEEPNORM: x = norm(alpha x + F(x)), alpha from the depth (Wang et al. 2022, figure 2).
        PARALLEL: x = x + attention(norm(x)) + feed_forward(norm(x)), one norm for all sub-layers of a block, and a norm
            after the last block (Wang and Komatsuzaki 2021; Chowdhery et al. 2022, section 2).
    """

    POST = "post"
    PRE = "pre"
    SANDWICH = "sandwich"
    DEEPNORM = "deepnorm"
    PARALLEL = "parallel"

    @property
    def final_norm(self) -> bool:
        """Whether the residual stream needs a norm after the last block."""
        return self in (NormPlacement.PRE, NormPlacement.SANDWICH, NormPlacement.PARALLEL)


class DropRates(NamedTuple):
    """Dropout rates in training: of features (`dropout`), and of whole sub-layers per example (`stochastic_depth`)."""

    dropout: float
    stochastic_depth: Float[Array, ""] | float


class Residual(Module):
    """The residual connection and norms around one sub-layer.

    Args:
        placement: The placement of the norm.
        make_norm: Makes a norm; None for a sub-layer that reads another's norm (parallel).
        alpha: DeepNorm's factor of x.
    """

    def __init__(
        self, placement: NormPlacement, make_norm: Callable[[], LayerNorm | RmsNorm] | None, alpha: float = 1.0
    ):
        self.norm = _absent if make_norm is None else make_norm()
        sandwich = placement is NormPlacement.SANDWICH and make_norm is not None
        self.output_norm = make_norm() if make_norm is not None and sandwich else _absent
        self.placement, self.alpha = placement, alpha

    def __call__(
        self, x: Float[Array, "B *N E"], sublayer: Sublayer, drop_rates: DropRates, key: Key[Array, ""] | None
    ) -> tuple[Float[Array, "B *N E"], Any]:
        """Apply a sub-layer with its residual connection.

        Args:
            x: The residual stream.
            sublayer: The sub-layer F: takes x and a key, and returns its output and anything else.
            drop_rates: Dropout rates.
            key: Random key; None means evaluation.

        Returns:
            The new residual stream, and what else `sublayer` returned.

        Raises:
            ValueError: If the placement is parallel (use `apply_sublayers`).
        """
        inner, outer = (None, None) if key is None else jax.random.split(key)
        match self.placement:
            case NormPlacement.POST | NormPlacement.DEEPNORM:
                y, extra = sublayer(x, inner)
                return self.norm(self.alpha * x + dropout_and_stochastic_depth(y, drop_rates, outer)), extra
            case NormPlacement.PRE:
                y, extra = sublayer(self.norm(x), inner)
                return x + dropout_and_stochastic_depth(y, drop_rates, outer), extra
            case NormPlacement.SANDWICH:
                y, extra = sublayer(self.norm(x), inner)
                return x + dropout_and_stochastic_depth(self.output_norm(y), drop_rates, outer), extra
            case NormPlacement.PARALLEL:
                raise ValueError("parallel sub-layers are added together: use apply_sublayers")


def _absent(x: jax.Array) -> jax.Array:
    raise ValueError("this sub-layer has no such norm")


def apply_sublayers(
    x: Float[Array, "B *N E"],
    sublayers: list[tuple[Residual, Sublayer]],
    drop_rates: DropRates,
    key: Key[Array, ""] | None,
) -> tuple[Float[Array, "B *N E"], tuple[Any, ...]]:
    """Apply the sub-layers of a block in sequence, or in parallel if that is the norm placement.

    Parallel sub-layers all read the first one's norm.

    Args:
        x: The residual stream.
        sublayers: Each sub-layer's residual connection and function.
        drop_rates: Dropout rates.
        key: Random key; None means evaluation.

    Returns:
        The new residual stream, and what else each function returned.
    """
    keys = [None] * len(sublayers) if key is None else list(jax.random.split(key, len(sublayers)))
    extras = []
    if sublayers[0][0].placement is NormPlacement.PARALLEL:
        normed, total = sublayers[0][0].norm(x), x
        for (_, function), of_sublayer in zip(sublayers, keys, strict=True):
            inner, outer = (None, None) if of_sublayer is None else jax.random.split(of_sublayer)
            y, extra = function(normed, inner)
            total = total + dropout_and_stochastic_depth(y, drop_rates, outer)
            extras.append(extra)
        return total, tuple(extras)
    for (residual, function), of_sublayer in zip(sublayers, keys, strict=True):
        x, extra = residual(x, function, drop_rates, of_sublayer)
        extras.append(extra)
    return x, tuple(extras)


def dropout_and_stochastic_depth(
    y: Float[Array, "B *N E"], drop_rates: DropRates, key: Key[Array, ""] | None
) -> Float[Array, "B *N E"]:
    """Apply dropout, then stochastic depth, which drops an example's whole sub-layer.

    What remains is divided by 1 - rate, so that nothing changes in evaluation (Huang et al. 2016, section 3, multiply
    by the survival probability at test time instead).

    Args:
        y: The output of a sub-layer.
        drop_rates: The rates.
        key: Random key; None returns y unchanged.

    Returns:
        The output, with parts set to zero and the rest scaled.
    """
    if key is None:
        return y
    features, depth = jax.random.split(key)
    y = dropout(y, drop_rates.dropout, features)
    if isinstance(drop_rates.stochastic_depth, float) and drop_rates.stochastic_depth == 0:
        return y
    survives_B = jax.random.uniform(depth, y.shape[:1]) >= drop_rates.stochastic_depth
    survives = survives_B.reshape(-1, *(1 for _ in y.shape[1:]))
    return jnp.where(survives, y / (1 - jnp.asarray(drop_rates.stochastic_depth, y.dtype)), 0).astype(y.dtype)
