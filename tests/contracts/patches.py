"""Like a ViT: an image cut into a grid of patches behind a class token, one layer of self-attention."""

import dataclasses

import jax.numpy as jnp
import numpy as np

from tests.contracts.defaults import Toy, no_choice, task_spec
from transformer.attention.capture import capture_for_site, single_layer_maps
from transformer.attention.masks import Mask
from transformer.attention.sites import Axis, AxisKind, Site
from transformer.layers.embedding import Embedding
from transformer.layers.initialization import Initialization, InitializationRule
from transformer.layers.linear import Linear
from transformer.layers.multi_head_attention import MultiHeadAttention
from transformer.layers.transformer_config import Biases, PositionEncoding, TransformerConfig
from transformer.models.model import Aux, StatelessModule
from transformer.models.model_family import ModelFamily
from transformer.models.task_interface import InputSpec, Modality, TaskInterface, signature
from transformer.tasks.axis_labels import AxisLabels, GoldAlignment
from transformer.tasks.losses import token_loss
from transformer.tasks.task import LossAux, Objective

SIDE, PATCH, WIDTH, HEADS, SITE = 2, 4, 8, 2, "image/self"
SERVES = signature("image", output="class")


class Patches(StatelessModule):
    def __init__(self, config, interface, builder):
        # A bias of the keys has no gradient but rounding, which on a mesh is another.
        config = TransformerConfig(width=WIDTH, heads=HEADS, positions=PositionEncoding.NONE, biases=Biases.NONE)
        self.embed = Linear((("features", PATCH * PATCH),), (("embed", WIDTH),), bias=True, builder=builder)
        self.places = Embedding(2 * SIDE**2, WIDTH, builder=builder.with_rule(InitializationRule(Initialization.T5)))
        self.attention = MultiHeadAttention(config, cross=False, builder=builder)
        self.head = Linear((("embed", WIDTH),), (("features", SIDE**2),), bias=True, builder=builder)

    def forward(self, state, inputs, forward_pass):
        cut = jnp.asarray(inputs["image"]).reshape(-1, SIDE, PATCH, SIDE, PATCH)
        patches = self.embed(jnp.swapaxes(cut, 2, 3).reshape(-1, SIDE**2, PATCH * PATCH))
        x = jnp.pad(patches, ((0, 0), (1, 0), (0, 0))) + self.places(jnp.arange(SIDE**2 + 1), jnp.float32)[None]
        y, captured = self.attention(x, x, mask=Mask(), capture=capture_for_site(SITE, forward_pass.capture))
        return self.head((x + y)[:, 0]), Aux(single_layer_maps(SITE, captured, forward_pass.capture), {}, state)


class WhereIsTheBlob(Toy):
    """Which quarter of the image is bright."""

    interface = TaskInterface(
        {"image": InputSpec((32, SIDE * PATCH, SIDE * PATCH, 1), jnp.float32, Modality.IMAGE)}, {}, output="class"
    )
    objectives = property(lambda self: (Objective("classify", self.loss),))

    def draw(self, random):
        where = random.integers(0, SIDE**2, 32)
        bright = np.kron(np.eye(SIDE**2).reshape(-1, SIDE, SIDE), np.ones((PATCH, PATCH)))[where]
        image = bright + 0.3 * random.normal(size=bright.shape)
        return {"image": image[..., None].astype(np.float32), "label": where}

    def loss(self, view, batch, denominators, key):
        logits, aux = view.model.apply(view.variables, batch, train=view.train, key=key, capture=view.capture)
        every = jnp.ones_like(batch["label"][:, None], bool)
        sums = token_loss(logits[:, None], batch["label"][:, None], every, label_smoothing=0.0)
        means = {
            "loss": sums.cross_entropy / denominators["examples"],
            "accuracy": sums.correct / denominators["examples"],
        }
        return means["loss"], LossAux.from_aux(aux, view.task_state, means)

    def axis_labels(self, sites):
        images = np.repeat((255 * self.probe_batch["image"].clip(0, 1)).astype(np.uint8), 3, axis=-1)
        links = tuple((GoldAlignment(0, 1 + int(where), True),) for where in self.probe_batch["label"])
        labels = AxisLabels({}, tuple(f"image {n}" for n in range(len(links))), {SITE: links})
        return dataclasses.replace(labels, images={"patches": images})


def attention_sites(config, interface):
    grid = Axis("patches", AxisKind.GRID, shape=(SIDE, SIDE), stride=float(PATCH), num_leading_positions=1)
    return (Site(SITE, grid, grid, ("0",), tuple(map(str, range(HEADS)))),)


FAMILY = ModelFamily(no_choice(), Patches, frozenset({SERVES}), sites=attention_sites)
TASK = task_spec(WhereIsTheBlob)
