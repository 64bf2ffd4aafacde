"""The linear layers of the heads with which bidirectional models are fine-tuned."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.layers.functional_module import ParameterBuilder
from transformer.layers.linear import Linear
from transformer.layers.transformer_config import TransformerConfig


def make_head_layer(
    config: TransformerConfig,
    outputs: int,
    builder: ParameterBuilder,
    axis: str = "features",
    bias: bool | None = None,
) -> Linear:
    """Build a linear layer from states to outputs along `axis`; None means a bias if feed-forward networks have any."""
    bias = config.biases.in_feed_forward if bias is None else bias
    return Linear((("embed", config.width),), ((axis, outputs),), bias=bias, builder=builder)


def make_class_layer(
    config: TransformerConfig, classes: int, builder: ParameterBuilder, bias: bool | None = None
) -> Linear:
    """Build a linear layer from states to the logits of classes, with a bias as `make_head_layer` has it."""
    return make_head_layer(config, classes, builder, axis="classes", bias=bias)


def mean_state(x_BxTxE: Float[Array, "B T E"], lengths_B: Int[Array, " B"] | None) -> Float[Array, "B E"]:
    """Return the mean of the states of each text's real tokens; None means that all are."""
    if lengths_B is None:
        return jnp.mean(x_BxTxE, axis=1)
    real_BxT = jnp.arange(x_BxTxE.shape[1]) < lengths_B[:, None]
    total_BxE = jnp.sum(jnp.where(real_BxT[..., None], x_BxTxE, 0), axis=1)
    return total_BxE / jnp.maximum(lengths_B, 1)[:, None].astype(total_BxE.dtype)


def last_state(x_BxTxE: Float[Array, "B T E"], lengths_B: Int[Array, " B"]) -> Float[Array, "B E"]:
    """Return the state at the last token of each text; that of an empty text is meaningless."""
    last_Bx1x1 = jnp.maximum(lengths_B - 1, 0)[:, None, None]
    return jnp.take_along_axis(x_BxTxE, last_Bx1x1, axis=1)[:, 0]
