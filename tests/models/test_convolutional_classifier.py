"""The residual network over images: its readout, its maps, its FLOPs, what it refuses."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import programs
from tests.oracles import grids
from transformer.attention import Capture
from transformer.config import UserError
from transformer.costs.flops import forward_flops
from transformer.layers.functional_module import Precision
from transformer.layers.grid_encoder import GridEncoderConfig
from transformer.models import registry
from transformer.models.convolutional_classifier import ConvolutionalClassifierConfig, site_name
from transformer.models.model import Model, Variables
from transformer.models.task_interface import IMAGE_CLASSIFICATION, InputSpec, Modality, TaskInterface

CONFIG = ConvolutionalClassifierConfig(
    GridEncoderConfig((4, 6), (2, 2), blocks_per_stage=1), attention_stages=(0,), attention_reduction=2
)
IMAGE = np.random.default_rng(0).normal(size=(2, 8, 12, 3)).astype(np.float32)


def model_of(config: ConvolutionalClassifierConfig, precision: str = "float32") -> Model:
    inputs = {"image": InputSpec(IMAGE.shape, jnp.float32, Modality.IMAGE)}
    interface = TaskInterface(inputs, {"classes": 5}, output=IMAGE_CLASSIFICATION.output)
    return registry.build(config, interface, Precision(precision, precision))


def test_logits_are_the_oracles() -> None:
    with jax.enable_x64(True):
        model = model_of(CONFIG, "float64")
        random = np.random.default_rng(1)
        params = jax.tree.map(lambda leaf: 0.5 * random.normal(size=leaf.shape), model.functional.shapes())
        found, _ = jax.jit(lambda v: model.apply(v, {"image": IMAGE.astype(np.float64)}, train=False))(
            Variables(params, {})
        )
    for row, image in zip(np.asarray(found), IMAGE.astype(np.float64), strict=True):
        x = grids.residual_stage(params["stage_0"], image, 2)
        block = params["attention_0"]
        kernels = {name: block[name]["kernel"] for name in ("query", "key", "value", "output")}
        x = grids.residual_stage(params["stage_1"], grids.grid_attention(kernels, block["gamma"][0], x), 2)
        mean = grids.rectified(grids.layer_norm(params["norm"], x)).mean((0, 1))
        np.testing.assert_allclose(row, mean @ params["head"]["kernel"] + params["head"]["bias"], rtol=0, atol=1e-11)


@pytest.mark.slow
def test_without_gamma_the_attention_changes_nothing_and_shows_its_map() -> None:
    plain, attending = model_of(ConvolutionalClassifierConfig(CONFIG.encoder)), model_of(CONFIG)
    assert plain.sites == ()
    variables = programs.initial(attending.init)
    params = {name: leaf for name, leaf in variables.params.items() if name != "attention_0"}
    capture = Capture(sites=(site_name(0),))
    logits, aux = attending.apply(variables, {"image": IMAGE}, train=False, capture=capture)
    expected, _ = plain.apply(variables._replace(params=params), {"image": IMAGE}, train=False)
    np.testing.assert_array_equal(logits, expected)
    weights = aux.maps[site_name(0)].weights
    assert weights is not None
    assert weights.shape == (1, 2, 1, 24, 24)
    (site,) = attending.sites
    assert (site.key.shape, site.key.stride) == ((4, 6), 2.0)


def test_flops_count_every_product() -> None:
    batch = {"image": jax.ShapeDtypeStruct((3, 8, 12, 3), jnp.float32)}
    first, second = 2 * 24 * 9 * 4 * (3 + 2 * 4), 2 * 6 * 9 * 6 * (4 + 2 * 6)
    attention = 2 * 24 * (3 * 4 * 2 + 2 * 4) + 4 * 24 * 24 * 2
    assert forward_flops(model_of(CONFIG), batch) == 3 * (first + second + attention + 2 * 6 * 5)


@pytest.mark.parametrize(
    "wrong",
    [
        {"attention_stages": (2,)},
        {"attention_stages": (-1,)},
        {"attention_stages": (0, 0)},
        {"attention_reduction": 0},
        {"dropout": 1.0},
    ],
)
def test_unfit_values_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(wrong))):
        ConvolutionalClassifierConfig(CONFIG.encoder, **wrong)
