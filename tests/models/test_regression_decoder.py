"""The decoder over vectors: its equation in float64, no look ahead, its FLOPs counted."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.architecture_variants import exact, kind_of, lively
from tests.oracles import transformer as oracle
from transformer.attention import Capture
from transformer.config import UserError
from transformer.costs.flops import forward_flops
from transformer.layers.functional_module import Precision
from transformer.models import registry
from transformer.models.model import Model
from transformer.models.regression_decoder import RegressionDecoderConfig
from transformer.models.task_interface import VECTOR_REGRESSION, InputSpec, Modality, TaskInterface

VECTORS = np.random.default_rng(0).standard_normal((2, 6, 3)).astype(np.float32)


def regression_decoder(**changes: Any) -> tuple[RegressionDecoderConfig, Model]:
    config = RegressionDecoderConfig(
        **{"layers": 2, "width": 8, "heads": 2, "feed_forward": 12, "max_length": 7} | changes
    )
    inputs = {"vectors": InputSpec(VECTORS.shape, jnp.float32, Modality.POINTS)}
    return config, registry.build(
        config, TaskInterface(inputs, {"numbers": 2}, output=VECTOR_REGRESSION.output), Precision()
    )


def test_it_is_its_equation_and_nothing_looks_ahead() -> None:
    config, model = regression_decoder()
    variables = lively(model)
    capture = Capture(sites=("decoder/self",))
    apply = jax.jit(lambda vectors: model.apply(variables, {"vectors": vectors}, train=False, capture=capture))
    got, aux = apply(VECTORS)

    weights = exact(variables.params)
    stack = oracle.Stack(kind_of(config.blocks), True, 1.0, None)
    x = oracle.affine(weights["embed"], VECTORS.astype(np.float64)) + weights["positions"]["table"][:6]
    facts = {"query_lengths": np.full(2, 6), "key_lengths": np.full(2, 6)}
    x, maps = stack.run(weights["layers"], x, facts)
    np.testing.assert_allclose(got, oracle.affine(weights["head"], stack.norm(weights["norm"], x)), atol=1e-4)
    np.testing.assert_allclose(aux.maps["decoder/self"].weights, maps["attention"], atol=1e-5)

    later = VECTORS.copy()
    later[:, 4:] += 1
    moved = np.abs(np.asarray(apply(later)[0] - got)).max(axis=(0, 2))
    assert not moved[:4].any()
    assert (moved[4:] > 1e-3).all()


def test_flops_count_every_product() -> None:
    _, model = regression_decoder()
    layer = 2 * 6 * (4 * 8**2 + 2 * 8 * 12) + 4 * 6 * 6 * 8
    assert forward_flops(model, {"vectors": VECTORS}) == 2 * (2 * layer + 2 * 6 * 8 * (3 + 2))


@pytest.mark.parametrize("wrong", [{"layers": 0}, {"heads": 3}, {"dropout": 1.0}, {"max_length": 5}])
def test_unfit_values_are_refused(wrong: dict) -> None:
    with pytest.raises(UserError, match=rf"config\.model\.(width|{next(iter(wrong))})"):
        regression_decoder(**wrong)
