"""The set Transformer: a set has no order and no padding, its pooling is the equation, its FLOPs."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.point_clouds.model import POOLED, Pooling, SetTransformerConfig
from experiments.point_clouds.signature import POINT_CLASSIFICATION
from tests import programs
from tests.models.random_models import fresh_variables
from tests.oracles import transformer as oracle
from transformer.attention import Capture
from transformer.config import UserError
from transformer.costs.flops import forward_flops
from transformer.layers.functional_module import Precision
from transformer.layers.transformer_config import Projections
from transformer.models import registry
from transformer.models.model import Model, Variables
from transformer.models.task_interface import InputSpec, Modality, TaskInterface

POINTS, LENGTHS = np.random.default_rng(0).random((3, 5, 2)).astype(np.float32), np.int32([5, 3, 1])


def set_transformer(precision: str = "float32", **changes: Any) -> tuple[SetTransformerConfig, Model]:
    config = SetTransformerConfig(**{"layers": 1, "width": 8, "heads": 2, "feed_forward": 8} | changes)
    inputs = {"points": InputSpec(POINTS.shape, jnp.float32, Modality.POINTS), "lengths": InputSpec((3,))}
    interface = TaskInterface(inputs, {"classes": 4}, output=POINT_CLASSIFICATION.output)
    return config, registry.build(config, interface, Precision(precision, precision))


@pytest.mark.parametrize("pooling", Pooling)
def test_the_order_of_points_and_what_stands_in_padding_change_nothing(pooling: Pooling) -> None:
    _, model = set_transformer(pooling=pooling)
    variables = fresh_variables(model)
    first, _ = programs.apply(model, variables, {"points": POINTS, "lengths": LENGTHS}, train=False)
    other = POINTS.copy()
    for row, length in enumerate(LENGTHS):
        other[row, :length] = POINTS[row, :length][::-1]
        other[row, length:] = np.nan
    second, _ = programs.apply(model, variables, {"points": other, "lengths": LENGTHS}, train=False)
    np.testing.assert_allclose(first, second, atol=1e-5)
    assert np.abs(first[0] - first[1]).max() > 1e-3


@pytest.mark.parametrize("pooling", Pooling)
def test_pooling_is_that_of_its_equation(pooling: Pooling) -> None:
    _, model = set_transformer(pooling=pooling, layers=0)
    variables = fresh_variables(model)
    capture = Capture(sites=tuple(site.name for site in model.sites))
    got, aux = programs.apply(model, variables, {"points": POINTS, "lengths": LENGTHS}, train=False, capture=capture)
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), variables.params)
    assert "norm" not in p
    for row, length in enumerate(LENGTHS):
        x = POINTS[row, :length] @ p["embed"]["kernel"] + p["embed"]["bias"]
        match pooling:
            case Pooling.MEAN:
                pooled = x.mean(0)
            case Pooling.MAX:
                pooled = x.max(0)
            case Pooling.ATTENTION:
                attention = p["attention"]
                q = np.einsum("se,ehd->shd", p["seed"], attention["query"]["kernel"])
                k, v = (np.einsum("ne,ehd->nhd", x, attention[name]["kernel"]) for name in ("key", "value"))
                logits = np.einsum("shd,nhd->hsn", q, k) / 2
                weights = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
                pooled = np.einsum("hsn,nhd,hde->e", weights, v, attention["output"]["kernel"])
                shown = aux.maps[POOLED].weights
                assert shown is not None
                np.testing.assert_allclose(shown[0, row, :, :, :length], weights, atol=1e-5)
        np.testing.assert_allclose(got[row], pooled @ p["head"]["kernel"] + p["head"]["bias"], atol=1e-5)


def multi_head_or_bare(weights: dict[str, Any], x: np.ndarray) -> np.ndarray:
    """Self-attention of `1 N E`; without projections softmax(V V' / sqrt(4)) V of each half of the eight features."""
    if weights:
        return oracle.multi_head(weights, x, x, {})[0]
    parts = []
    for part in np.split(x[0], 2, axis=-1):
        logits = np.exp(part @ part.T / 2)
        parts.append(logits / logits.sum(axis=-1, keepdims=True) @ part)
    return np.concatenate(parts, axis=-1)[None]


@pytest.mark.parametrize("projections", Projections)
def test_blocks_and_pooling_together_are_the_oracles(projections: Projections) -> None:
    with jax.enable_x64(True):
        _, model = set_transformer(layers=2, precision="float64", projections=projections)
        random = np.random.default_rng(2)
        params = jax.tree.map(lambda leaf: 0.5 * random.normal(size=leaf.shape), model.functional.shapes())
        inputs = {"points": POINTS.astype(np.float64), "lengths": LENGTHS}
        found, _ = jax.jit(lambda v: model.apply(v, inputs, train=False))(Variables(params, {}))
    for row, length in enumerate(LENGTHS):
        x = oracle.affine(params["embed"], POINTS[row : row + 1, :length].astype(np.float64))
        for block in oracle.layers_of(params["layers"]):
            normed = oracle.layer_norm(block["attention_residual"]["norm"], x)
            assert ("attention" in block) == (projections is Projections.LINEAR)
            x = x + multi_head_or_bare(block.get("attention", {}), normed)
            normed = oracle.layer_norm(block["feed_forward_residual"]["norm"], x)
            x = x + oracle.feed_forward(block["feed_forward"], normed)
        pooled = oracle.multi_head(params["attention"], params["seed"][None], oracle.layer_norm(params["norm"], x), {})
        np.testing.assert_allclose(found[row], oracle.affine(params["head"], pooled[0][0, 0]), rtol=0, atol=1e-11)


def test_flops_count_every_product() -> None:
    _, model = set_transformer()
    shape = jax.ShapeDtypeStruct((3, 5, 2), jnp.float32)
    counted = forward_flops(model, {"points": shape, "lengths": jax.ShapeDtypeStruct((3,), jnp.int32)})
    block = 2 * 5 * (4 * 8**2 + 2 * 8 * 8) + 4 * 5 * 5 * 8
    pooling = 2 * 8**2 * (2 * 5 + 2) + 2 * 2 * 5 * 8
    assert counted == 3 * (2 * 5 * 2 * 8 + block + pooling + 2 * 8 * 4)


@pytest.mark.parametrize("wrong", [{"layers": -1}, {"heads": 3}, {"dropout": 1.0}])
def test_unfit_values_are_refused(wrong: dict) -> None:
    with pytest.raises(UserError, match=rf"config\.model\.(width|{next(iter(wrong))})"):
        set_transformer(**wrong)
