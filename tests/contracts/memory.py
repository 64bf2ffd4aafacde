"""A memory with slots, whose reading the model itself wants to be sharp: an auxiliary loss over real tokens."""

import jax
import jax.numpy as jnp
import numpy as np

from tests.contracts.defaults import Toy, labeled, no_choice, task_spec
from transformer.attention import Axis, AxisKind, Mask, Site, attend, capture_for_site, single_layer_maps
from transformer.layers.embedding import Embedding
from transformer.layers.initialization import Initialization, InitializationRule
from transformer.models.model import Aux, AuxiliaryLoss, StatelessModule
from transformer.models.model_family import ModelFamily
from transformer.models.task_interface import InputSpec, TaskInterface, signature
from transformer.tasks.losses import token_loss
from transformer.tasks.task import LossAux, Objective

SLOTS, SYMBOLS, CLASSES, WIDTH, LENGTH, PAD, WEIGHT = 4, 8, 4, 8, 6, 0, 0.3
SITE, SERVES = "memory/read", signature("symbols", output="classes")


class Memory(StatelessModule):
    def __init__(self, config, interface, builder):
        builder = builder.with_rule(InitializationRule(Initialization.T5))
        self.query = Embedding(2 * SYMBOLS, WIDTH, builder=builder)
        self.address = Embedding(SLOTS, WIDTH, builder=builder)
        self.content = Embedding(SLOTS, CLASSES, builder=builder)

    def forward(self, state, inputs, forward_pass):
        symbols_BxT = jnp.asarray(inputs["symbols"])
        q_BxTx1xE = self.query(symbols_BxT, jnp.float32)[:, :, None]
        slots = jnp.broadcast_to(jnp.arange(SLOTS), (len(symbols_BxT), SLOTS))
        k, v = (table(slots, jnp.float32)[:, :, None] for table in (self.address, self.content))
        lengths_B = jnp.sum(symbols_BxT != PAD, axis=1)
        mask, capture = Mask(query_lengths=lengths_B), capture_for_site(SITE, forward_pass.capture)
        logits, attended = attend(q_BxTx1xE, k, v, mask=mask, capture=capture)
        weights_BxTxS = jax.nn.softmax(jnp.einsum("bthe,bshe->bts", q_BxTx1xE, k) / WIDTH**0.5)
        entropy_BxT = -jnp.sum(weights_BxTxS * jnp.log(weights_BxTxS + 1e-9), axis=-1)
        real = jnp.arange(symbols_BxT.shape[1])[None] < lengths_B[:, None]
        sharpness = AuxiliaryLoss(jnp.sum(jnp.where(real, entropy_BxT, 0)), jnp.sum(real), WEIGHT)
        maps = single_layer_maps(SITE, attended.captured, forward_pass.capture)
        return logits[:, :, 0], Aux(maps, {}, state, {"sharpness": sharpness})


class Classify(Toy):
    """A symbol's class is its number modulo four; lengths are uneven, so that denominators matter."""

    interface = TaskInterface({"symbols": InputSpec((32, LENGTH))}, {}, pad_id=PAD, output=SERVES.output)
    objectives = property(lambda self: (Objective("classify", self.loss),))

    def draw(self, random):
        symbols = random.integers(1, SYMBOLS + 1, (32, LENGTH))
        return {"symbols": np.where(np.arange(LENGTH) < random.integers(1, LENGTH + 1, (32, 1)), symbols, PAD)}

    def denominators(self, batch):
        return {"tokens": jnp.sum(batch["symbols"] != PAD).astype(jnp.float32)}

    def loss(self, view, batch, denominators, key):
        logits, aux = view.model.apply(view.variables, batch, train=view.train, key=key, capture=view.capture)
        sums = token_loss(logits, batch["symbols"] % CLASSES, batch["symbols"] != PAD, label_smoothing=0.0)
        means = {"loss": sums.cross_entropy / denominators["tokens"], "accuracy": sums.correct / denominators["tokens"]}
        return means["loss"], LossAux.from_aux(aux, view.task_state, means)

    def axis_labels(self, sites):
        return labeled({"symbols": self.probe_batch["symbols"]}, SITE)


def attention_sites(config, interface):
    slots = Axis("memory", AxisKind.SLOTS, num_positions=SLOTS)
    return (Site(SITE, Axis("symbols"), slots, ("0",), ("0",)),)


FAMILY = ModelFamily(no_choice(), Memory, frozenset({SERVES}), sites=attention_sites)
TASK = task_spec(Classify)
