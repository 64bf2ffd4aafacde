"""The model of the two players: a generator that is a self-attention, a critic with spectral norm."""

import jax
import jax.numpy as jnp

from transformer.attention.capture import captured_at
from transformer.attention.masks import Mask
from transformer.attention.sites import Axis, Site
from transformer.layers.attention import MultiHeadAttention
from transformer.layers.block_config import BlockConfig, Positions
from transformer.layers.feed_forward import FeedForward
from transformer.layers.initialisation import Initialise
from transformer.layers.module import Functional, Module, Parameter
from transformer.models.contract import Aux, Model

WIDTH, HEADS, HIDDEN, SITE = 4, 2, 16, "generator/points"


def unit(x):
    return jax.lax.stop_gradient(x / jnp.linalg.norm(x))


class Players(Module):
    def __init__(self, keys):
        config = BlockConfig(width=WIDTH, heads=HEADS, positions=Positions.NONE)
        same = {
            "initialise": Initialise(config.initialisation, 1, config.depth),
            "parameter": Parameter(),
            "keys": keys,
        }
        self.generator = MultiHeadAttention(config, cross=False, **same)
        self.critic = FeedForward(WIDTH, HIDDEN, activation=config.activation, bias=True, **same)

    def initial_state(self, key):
        return {"direction": unit(jax.random.normal(key, (HIDDEN,)))}

    def forward(self, state, inputs, *, train, key=None, capture=None):
        points, captured = self.generator(inputs["noise"], inputs["noise"], mask=Mask(), capture=capture)
        return points, Aux(captured_at(SITE, captured, capture), {}, state)

    def judge(self, state, inputs, *, train, key=None, capture=None):
        """Spectral norm by one power iteration a step (Miyato et al. 2018, algorithm 1)."""
        kernel = self.critic.expand.kernel[...]
        left = unit(kernel @ state["direction"])
        right = unit(left @ kernel)
        hidden = inputs["points"] @ kernel / (left @ kernel @ right) + self.critic.expand.bias[...]
        score = jnp.sum(self.critic.contract(jax.nn.relu(hidden)), axis=-1)
        return score, Aux({}, {}, {"direction": right} if train else state)


def model():
    axis, heads = Axis("points"), tuple(str(head) for head in range(HEADS))
    return Model(Functional(Players), (Site(SITE, axis, axis, ("0",), heads),))
