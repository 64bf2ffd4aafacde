"""Small images and questions, and what holds of every family that answers them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.visual_question_answering.signature import VISUAL_QUESTION_ANSWERING
from transformer.layers.functional_module import Precision
from transformer.layers.grid_encoder import GridEncoderConfig
from transformer.models.model import Model, Variables
from transformer.models.model_family import ModelFamily
from transformer.models.task_interface import InputSpec, Modality, TaskInterface

VOCABULARY, CLASSES, LONGEST, SIZE = 7, 6, 4, 8
# Two by two places.
SMALL = GridEncoderConfig(channels=(4, 6), strides=(2, 2))
IMAGES = np.random.default_rng(0).normal(size=(3, SIZE, SIZE, 3)).astype(np.float32)
TOKENS = np.int32([[1, 2, 3, 4], [6, 5, 0, 0], [3, 0, 0, 0]])
LENGTHS = np.int32([4, 2, 1])
INTERFACE = TaskInterface(
    {
        "image": InputSpec((3, SIZE, SIZE, 3), jnp.float32, Modality.IMAGE),
        "tokens": InputSpec((3, LONGEST)),
        "lengths": InputSpec((3,)),
    },
    {"tokens": VOCABULARY, "classes": CLASSES},
    pad_id=0,
    output=VISUAL_QUESTION_ANSWERING.output,
)


def model_of(family: ModelFamily, config: Any) -> Model:
    return family.build(config, INTERFACE, Precision("float64", "float64"))


def random_variables(model: Model) -> Variables:
    normal = np.random.default_rng(1).normal
    shapes = model.functional.shapes()
    return Variables(jax.tree.map(lambda leaf: 0.7 * normal(size=leaf.shape).astype(leaf.dtype), shapes), {})


def without_padding(family: ModelFamily, config: Any) -> None:
    """A number that is no token's has a vector of NaN, of which nothing may come; nor of a row without a question."""
    with jax.enable_x64(True):
        model = model_of(family, config)
        variables = random_variables(model)
        images, lengths = np.append(IMAGES, IMAGES[:1], axis=0), np.append(LENGTHS, np.int32(0))
        padding = np.arange(LONGEST) >= lengths[:, None]

        @jax.jit
        def scored(params: Any, tokens: Any) -> Any:
            inputs = {"image": images, "tokens": tokens, "lengths": lengths}
            logits, _ = model.apply(Variables(params, {}), inputs, train=True)
            return jnp.sum(jnp.sin(logits)), logits

        def found(filling: int) -> Any:
            tokens = np.where(padding, np.int32(filling), np.append(TOKENS, TOKENS[:1], axis=0))
            (_, logits), gradients = jax.value_and_grad(scored, has_aux=True)(variables.params, tokens)
            return jax.device_get((logits, gradients))

        zeros, beyond = found(0), found(VOCABULARY + 5)
        jax.tree.map(np.testing.assert_array_equal, beyond, zeros)
        jax.tree.map(lambda leaf: np.testing.assert_array_equal(np.isfinite(leaf), True), beyond)
