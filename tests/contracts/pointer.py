"""A pointer network: the output IS an attention, over as many classes as the source has positions."""

import jax.numpy as jnp
import numpy as np

from tests.contracts.defaults import Toy, labeled, no_choice, task_spec
from transformer.attention.api import score
from transformer.attention.capture import capture_weights, single_layer_maps
from transformer.attention.masks import Mask, dense_mask
from transformer.attention.normalizers import softmax
from transformer.attention.scores import Score
from transformer.attention.sites import Axis, Site
from transformer.layers.embedding import Embedding
from transformer.layers.initialization import Initialization, InitializationRule
from transformer.models.model import Aux, StatelessModule
from transformer.models.model_family import ModelFamily
from transformer.models.task_interface import InputSpec, TaskInterface, signature
from transformer.tasks.losses import token_loss
from transformer.tasks.task import LossAux, Objective

SYMBOLS, LENGTH, WIDTH, PAD = 9, 8, 16, 0
ROWS = SYMBOLS + 1  # even, so that two devices can share the tables


SERVES = signature("asked", "given", output="places")


class Pointer(StatelessModule):
    def __init__(self, config, interface, builder):
        builder = builder.with_rule(InitializationRule(Initialization.T5))
        self.query = Embedding(ROWS, WIDTH, builder=builder)
        self.key = Embedding(ROWS, WIDTH, builder=builder)

    def forward(self, state, inputs, forward_pass):
        q, k = self.query(inputs["asked"], jnp.float32), self.key(inputs["given"], jnp.float32)
        logits = score(q[:, :, None], k[:, :, None], Score.SCALED_DOT)
        allowed = dense_mask(Mask(key_lengths=jnp.sum(inputs["given"] != PAD, axis=1)), LENGTH, LENGTH)
        maps = single_layer_maps(
            "pointer", capture_weights(softmax(logits, allowed), forward_pass.capture), forward_pass.capture
        )
        return jnp.where(allowed, logits, -1e9)[:, 0], Aux(maps, {}, state)


class WhereIsIt(Toy):
    """Point at where each asked symbol stands; lengths are uneven, so that the denominator matters."""

    interface = TaskInterface(
        {name: InputSpec((32, LENGTH)) for name in SERVES.inputs}, {}, pad_id=PAD, output=SERVES.output
    )
    objectives = property(lambda self: (Objective("pointer", self.loss),))

    def draw(self, random):
        given = random.permuted(np.tile(np.arange(1, SYMBOLS), (32, 1)), axis=1)
        real = np.arange(LENGTH) < random.integers(2, LENGTH + 1, (32, 1))
        place = random.integers(0, real.sum(axis=1, keepdims=True), given.shape)
        asked = np.where(real, np.take_along_axis(given, place, axis=1), PAD)
        return {"given": np.where(real, given, PAD), "asked": asked, "place": place}

    def denominators(self, batch):
        return {"tokens": jnp.sum(batch["asked"] != PAD).astype(jnp.float32)}

    def loss(self, view, batch, denominators, key):
        logits, aux = view.model.apply(view.variables, batch, train=view.train, key=key, capture=view.capture)
        sums = token_loss(logits, batch["place"], batch["asked"] != PAD, label_smoothing=0.0)
        means = {"loss": sums.cross_entropy / denominators["tokens"], "accuracy": sums.correct / denominators["tokens"]}
        return means["loss"], LossAux.from_aux(aux, view.task_state, means)

    def axis_labels(self, sites):
        probed = self.probe_batch
        return labeled({"asked": probed["asked"], "given": probed["given"]}, "pointer", probed["place"])


def attention_sites(config, interface):
    return (Site("pointer", Axis("asked"), Axis("given"), ("0",), ("0",)),)


FAMILY = ModelFamily(no_choice(), Pointer, frozenset({SERVES}), sites=attention_sites)
TASK = task_spec(WhereIsIt)
