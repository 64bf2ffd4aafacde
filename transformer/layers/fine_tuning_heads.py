"""The linear layers of the heads with which bidirectional models are fine-tuned."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.layers.functional_module import ParameterBuilder
from transformer.layers.linear import Linear
from transformer.layers.transformer_config import TransformerConfig


def make_head_layer(
    config: TransformerConfig, outputs: int, builder: ParameterBuilder, axis: str = "features"
) -> Linear:
    """Build a linear layer from states to outputs along `axis`, with a bias if feed-forward networks have any."""
    return Linear((("embed", config.width),), ((axis, outputs),), bias=config.biases.in_feed_forward, builder=builder)


def make_class_layer(config: TransformerConfig, classes: int, builder: ParameterBuilder) -> Linear:
    """Build a linear layer from states to the logits of classes."""
    return make_head_layer(config, classes, builder, axis="classes")


def last_state(x_BxTxE: Float[Array, "B T E"], lengths_B: Int[Array, " B"]) -> Float[Array, "B E"]:
    """Return the state at the last token of each text; that of an empty text is meaningless."""
    last_Bx1x1 = jnp.maximum(lengths_B - 1, 0)[:, None, None]
    return jnp.take_along_axis(x_BxTxE, last_Bx1x1, axis=1)[:, 0]
