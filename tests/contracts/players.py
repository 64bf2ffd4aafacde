"""The model of the two players: a generator that is a self-attention, a critic with spectral norm."""

import jax
import jax.numpy as jnp

from experiments.sagan.spectral_norm import SpectralNorm
from tests.contracts.defaults import no_choice
from transformer.attention.capture import single_layer_maps
from transformer.attention.masks import Mask
from transformer.attention.sites import Axis, Site
from transformer.layers.feed_forward import FeedForward
from transformer.layers.functional_module import Module
from transformer.layers.multi_head_attention import MultiHeadAttention
from transformer.layers.transformer_config import PositionEncoding, TransformerConfig
from transformer.models.model import Aux
from transformer.models.model_family import ModelFamily

WIDTH, HEADS, HIDDEN, SITE = 4, 2, 16, "generator/points"


class Players(Module):
    def __init__(self, config, interface, builder):
        config = TransformerConfig(width=WIDTH, heads=HEADS, positions=PositionEncoding.NONE)
        self.generator = MultiHeadAttention(config, cross=False, builder=builder)
        self.critic = FeedForward(WIDTH, HIDDEN, activation=config.activation, bias=True, builder=builder)
        self.norm = SpectralNorm((WIDTH, HIDDEN))

    def initial_state(self, key):
        return {"critic": self.norm.initial_state(key)}

    def forward(self, state, inputs, forward_pass):
        points, captured = self.generator(inputs["noise"], inputs["noise"], mask=Mask(), capture=forward_pass.capture)
        return points, Aux(single_layer_maps(SITE, captured, forward_pass.capture), {}, state)

    def judge(self, state, inputs, forward_pass):
        """The critic, whose first map is held to a largest singular value of 1."""
        kernel, normed = self.norm(self.critic.expand.kernel[...], state["critic"], train=forward_pass.train)
        hidden = self.critic.expand(inputs["points"], kernel)
        score = jnp.sum(self.critic.contract(jax.nn.relu(hidden)), axis=-1)
        return score, Aux({}, {}, {"critic": normed})


def attention_sites(config, interface):
    axis, heads = Axis("points"), tuple(str(head) for head in range(HEADS))
    return (Site(SITE, axis, axis, ("0",), heads),)


FAMILY = ModelFamily(no_choice(), Players, sites=attention_sites)
