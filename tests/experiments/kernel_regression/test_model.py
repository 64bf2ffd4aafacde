"""Kernel regression against its equations, one query and one point at a time in float64."""

import math
import statistics
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.kernel_regression.data import KERNEL_REGRESSION, NO_POINT
from experiments.kernel_regression.model import (
    POOLING,
    Kernel,
    KernelRegressionConfig,
    LearnedBandwidth,
    check_ring_attention_placement,
)
from tests import programs
from transformer.attention import Capture
from transformer.config import UserError
from transformer.layers.functional_module import Precision
from transformer.logical_axes import SequenceParallel
from transformer.models import registry
from transformer.models.model import Model, Variables
from transformer.models.task_interface import InputSpec, Modality, TaskInterface
from transformer.training.partitioning import ShardingConfig, make_placement

# Two data sets of six points with two features, and four queries: two see all points, two leave one out.
RANDOM = np.random.default_rng(0)
POINTS, VALUES, QUERIES = (RANDOM.uniform(0, 3, shape) for shape in ((2, 6, 2), (2, 6), (2, 4, 2)))
EXCLUDED = np.int32([[NO_POINT, 2, NO_POINT, 5], [0, NO_POINT, 1, NO_POINT]])
INPUTS = {"queries": QUERIES, "points": POINTS, "values": VALUES, "excluded": EXCLUDED}
BANDWIDTHS = np.array([0.7, 1.6])


def make_model(**choices: Any) -> Model:
    config = KernelRegressionConfig(**choices)
    inputs = {name: InputSpec(x.shape, x.dtype, Modality.POINTS) for name, x in INPUTS.items()}
    interface = TaskInterface(inputs, {}, output=KERNEL_REGRESSION.output)
    return registry.build(config, interface, Precision("float64", "float64"))


def threshold(clipped: Callable[[float], np.ndarray], scores: np.ndarray) -> np.ndarray:
    """The weights at the threshold where they sum to one, found by bisection."""
    low, high = scores.min() - 2.0, scores.max()
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if clipped(middle).sum() > 1 else (low, middle)
    return clipped(low)


def expected_weights(kernel: Kernel, u_N: np.ndarray) -> np.ndarray:
    """The weights of points at these distances in units of the bandwidth."""
    match kernel:
        case Kernel.UNIFORM:
            heights = np.ones_like(u_N)
        case Kernel.BOXCAR:
            heights = np.float64(u_N <= 1)
        case Kernel.GAUSSIAN:
            heights = np.array([statistics.NormalDist().pdf(u) for u in u_N])
        case Kernel.EPANECHNIKOV:
            return threshold(lambda c: np.maximum(-(u_N**2) / 2 - c, 0), -(u_N**2) / 2)
        case Kernel.BIWEIGHT:
            return threshold(lambda c: np.maximum(-(u_N**2) / 4 - c, 0) ** 2, -(u_N**2) / 4)
    return heights / max(heights.sum(), 1e-300)


@pytest.mark.parametrize("kernel", Kernel, ids=lambda kernel: kernel.value)
def test_predictions_and_maps_are_those_of_the_kernel(kernel: Kernel) -> None:
    with jax.enable_x64(True):
        learnable = kernel not in (Kernel.UNIFORM, Kernel.BOXCAR)
        learned = LearnedBandwidth.PER_FEATURE if learnable else LearnedBandwidth.NONE
        model = make_model(kernel=kernel, bandwidth=0.8, learned_bandwidth=learned)
        bandwidths = BANDWIDTHS if learnable else np.array([0.8, 0.8])
        params = {"log_bandwidth": np.log(bandwidths if learnable else [0.8])}
        found, aux = programs.apply(model, Variables(params, {}), INPUTS, train=False, capture=Capture((POOLING,)))
    map_BxQxN = np.asarray(aux.maps[POOLING].weights)[0, :, 0]
    np.testing.assert_allclose(aux.extras["bandwidths"], bandwidths, rtol=1e-14)
    for row, query in np.ndindex(EXCLUDED.shape):
        seen = np.array([point for point in range(6) if point != EXCLUDED[row, query]])
        difference = (QUERIES[row, query] - POINTS[row, seen]) / bandwidths
        weights = expected_weights(kernel, np.array([math.hypot(*pair) for pair in difference]))
        np.testing.assert_allclose(map_BxQxN[row, query, seen], weights, rtol=0, atol=1e-12)
        assert found[row, query] == pytest.approx(weights @ VALUES[row, seen], abs=1e-12)
        assert map_BxQxN[row, query].sum() == pytest.approx(weights.sum(), abs=1e-12)


@pytest.mark.parametrize("learned", [LearnedBandwidth.PER_FEATURE, LearnedBandwidth.NONE], ids=lambda each: each.value)
def test_the_gradient_of_the_bandwidth_is_the_difference_quotient(learned: LearnedBandwidth) -> None:
    with jax.enable_x64(True):
        model = make_model(bandwidth=0.9, learned_bandwidth=learned)
        start = np.log([0.9, 0.6] if learned is LearnedBandwidth.PER_FEATURE else [0.9])

        def loss(log_bandwidth: jax.Array) -> jax.Array:
            output, _ = model.apply(Variables({"log_bandwidth": log_bandwidth}, {}), INPUTS, train=True)
            return jnp.sum(jnp.sin(output))

        run = jax.jit(jax.value_and_grad(loss))
        gradient = np.asarray(run(start)[1])
        for number, step in enumerate(1e-6 * np.eye(len(start))):
            quotient = float(run(start + step)[0] - run(start - step)[0]) / 2e-6
            expected = 0 if learned is LearnedBandwidth.NONE else quotient
            assert abs(quotient) > 1e-3
            assert gradient[number] == pytest.approx(expected, rel=1e-6, abs=0)


def test_a_run_begins_with_the_bandwidth_of_its_config() -> None:
    with jax.enable_x64(True):
        model = make_model(bandwidth=0.3, learned_bandwidth=LearnedBandwidth.PER_FEATURE)
        params = model.init(jax.random.key(0)).params
    np.testing.assert_allclose(params["log_bandwidth"], np.log([0.3, 0.3]), rtol=1e-14)


def test_a_ring_is_refused() -> None:
    def check(how: SequenceParallel, parts: int = 2) -> None:
        config = ShardingConfig(data=1, sequence=parts, rules="sp", sequence_attention=how)
        placement = make_placement(config, jax.devices()[:parts])
        check_ring_attention_placement(KernelRegressionConfig(), placement)

    with pytest.raises(UserError, match="say sequence_attention=gather, or sequence=1"):
        check(SequenceParallel.RING)
    check(SequenceParallel.GATHER)
    check(SequenceParallel.RING, parts=1)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"bandwidth": 0.0}, r"config\.model\.bandwidth=0\.0 must be above 0"),
        ({"bandwidth": math.inf}, r"config\.model\.bandwidth=inf must be a finite number"),
        ({"kernel": "boxcar"}, r"kernel=boxcar has no gradient .*=shared needs: say learned_bandwidth=none, or k"),
        ({"kernel": "uniform", "learned_bandwidth": "per_feature"}, r"kernel=uniform .*learned_bandwidth=per_feature"),
        ({"kernel": "gausian"}, r"config\.model\.kernel='?gausian'? .*gaussian"),
        ({"learned_bandwidth": True}, r"config\.model\.learned_bandwidth="),
    ],
)
def test_unfit_values_are_refused(wrong: dict, says: str) -> None:
    with pytest.raises(UserError, match=says) as refused:
        registry.model_config({"family": "experiments.kernel_regression.model", **wrong})
    assert "\n" not in str(refused.value)
