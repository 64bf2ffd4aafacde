"""Pooling of a sequence's states by attention from a trained query."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from transformer.attention.capture import Capture, CapturedAttention
from transformer.attention.masks import Mask
from transformer.layers.feed_forward import FeedForward
from transformer.layers.functional_module import Module, ParameterBuilder
from transformer.layers.multi_head_attention import MultiHeadAttention
from transformer.layers.transformer_config import TransformerConfig


class AttentionPooling(Module):
    """y = h + FFN(norm(h)), where h = MultiHead(probe, X, X) (Lee et al. 2019; Zhai et al. 2022: MAP head).

    Args:
        config: The configuration of the Transformer whose states X are pooled.
        builder: Makes the parameters.
    """

    def __init__(self, config: TransformerConfig, *, builder: ParameterBuilder):
        self.probe = builder.parameter(jax.nn.initializers.xavier_uniform(), (1, config.width), ("positions", "embed"))
        self.attention = MultiHeadAttention(config, cross=True, builder=builder)
        self.norm = config.make_norm(builder)
        self.feed_forward = FeedForward(
            config.width,
            config.feed_forward,
            activation=config.activation,
            bias=config.biases.in_feed_forward,
            builder=builder,
        )

    def __call__(
        self, x_BxNxE: Float[Array, "B N E"], *, key: Key[Array, ""] | None, capture: Capture | None
    ) -> tuple[Float[Array, "B E"], CapturedAttention | None]:
        """Pool the states.

        Args:
            x_BxNxE: The states.
            key: Random key for dropout of attention weights; None means evaluation.
            capture: Which maps to capture.

        Returns:
            The pooled state, and what was captured of the one query.
        """
        probe = jnp.asarray(self.probe[...], x_BxNxE.dtype)
        probe_Bx1xE = jnp.broadcast_to(probe, (len(x_BxNxE), *probe.shape))
        h_Bx1xE, captured = self.attention(probe_Bx1xE, x_BxNxE, mask=Mask(), key=key, capture=capture)
        return (h_Bx1xE + self.feed_forward(self.norm(h_Bx1xE)))[:, 0], captured
