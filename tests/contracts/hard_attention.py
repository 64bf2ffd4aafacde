"""Hard attention by REINFORCE: one sampled glimpse, rewarded, against a moving-average baseline."""

import jax
import jax.numpy as jnp
import numpy as np

from tests.contracts.defaults import Toy, labeled, no_choice, task_spec
from transformer.attention.api import weighted_sum
from transformer.attention.capture import capture_weights, single_layer_maps
from transformer.attention.sites import Axis, AxisKind, Site
from transformer.layers.linear import Linear
from transformer.models.model import Aux, StatelessModule
from transformer.models.model_family import ModelFamily
from transformer.tasks.task import LossAux, Objective

PLACES, FEATURES, DECAY = 6, 4, 0.9


class Glimpse(StatelessModule):
    def __init__(self, config, interface, builder):
        axes = (("embed", FEATURES),), (("features", 1),)
        self.score = Linear(*axes, bias=False, builder=builder)

    def forward(self, state, inputs, forward_pass):
        logits = self.score(inputs["scene"])[..., 0]
        chosen = jax.random.categorical(forward_pass.key, logits) if forward_pass.train else jnp.argmax(logits, axis=-1)
        where = jax.nn.one_hot(chosen, PLACES)
        log_probability = jnp.sum(jax.nn.log_softmax(logits) * where, axis=-1)
        seen = weighted_sum(where[:, None, None], inputs["scene"][:, :, None])[:, 0, 0]
        maps = single_layer_maps(
            "glimpse",
            capture_weights(jax.nn.softmax(logits)[:, None, None], forward_pass.capture),
            forward_pass.capture,
        )
        return seen, Aux(maps, {"log_probability": log_probability}, state)


class FindTheMark(Toy):
    """One place of a noisy scene is marked in its first feature; the reward is 1 for looking there."""

    objectives = property(lambda self: (Objective("glimpse", self.loss),))

    def draw(self, random):
        scene = random.normal(size=(32, PLACES, FEATURES)).astype(np.float32)
        scene[..., 0] = np.eye(PLACES)[random.integers(0, PLACES, 32)]
        return {"scene": scene}

    def init_task_state(self, view, key):
        return {"baseline": jnp.float32(0)}

    def loss(self, view, batch, denominators, key):
        seen, aux = view.model.apply(view.variables, batch, train=view.train, key=key, capture=view.capture)
        reward, baseline = seen[:, 0], view.task_state["baseline"]
        loss = -jnp.sum((reward - baseline) * aux.extras["log_probability"]) / denominators["examples"]
        extra = {"baseline": DECAY * baseline + (1 - DECAY) * jnp.mean(reward)}
        metrics = {"loss": loss, "reward": jnp.sum(reward) / denominators["examples"]}
        return loss, LossAux.from_aux(aux, extra, metrics)

    def axis_labels(self, sites):
        marked = self.probe_batch["scene"][..., :1].argmax(axis=1)
        return labeled({"look": np.ones_like(marked)}, "glimpse", marked)


def attention_sites(config, interface):
    place = Axis("place", AxisKind.POINTS, num_positions=PLACES)
    return (Site("glimpse", Axis("look"), place, ("0",), ("0",)),)


FAMILY, TASK = ModelFamily(no_choice(), Glimpse, sites=attention_sites), task_spec(FindTheMark)
