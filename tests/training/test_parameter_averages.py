"""Averages of parameters against their definitions."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.config import UserError
from transformer.models.model import replace_with_averaged
from transformer.training.parameter_averages import AverageKind, ParameterAverage, init_average, update_average

STEPS = 12


def parameters(step: int) -> dict[str, Any]:
    random = np.random.default_rng(step)
    return {
        "encoder": {"kernel": jnp.asarray(random.normal(size=(2, 3)), jnp.float32)},
        "head": {"bias": jnp.asarray(random.normal(size=4), jnp.float32)},
    }


def kernel(step: int) -> np.ndarray:
    return np.asarray(parameters(step)["encoder"]["kernel"], np.float64)


def follow(average: ParameterAverage, steps: int = STEPS) -> list[dict[str, np.ndarray]]:
    """The average before the first step and after each of `steps`."""
    update = jax.jit(lambda old, params, step: update_average(average, old, params, step))
    kept = [init_average(average, parameters(0))]
    for step in range(1, steps + 1):
        kept.append(update(kept[-1], parameters(step), jnp.int32(step)))
    return [{path: np.asarray(leaf) for path, leaf in one.items()} for one in kept]


def test_exponential() -> None:
    found = follow(ParameterAverage(AverageKind.EXPONENTIAL, decay=0.7))
    expected = kernel(0)
    for step in range(1, STEPS + 1):
        expected = 0.7 * expected + 0.3 * kernel(step)
        np.testing.assert_allclose(found[step]["encoder/kernel"], expected, atol=1e-6)


@pytest.mark.parametrize(("last", "every"), [(3, 2), (4, 3), (5, 1), (1, 4)])
def test_mean_of_the_last_snapshots(last: int, every: int) -> None:
    found = follow(ParameterAverage(AverageKind.MEAN, start=STEPS - last * every, every=every))
    snapshots = [kernel(STEPS - back * every) for back in range(last)]
    np.testing.assert_allclose(found[-1]["encoder/kernel"], np.mean(snapshots, axis=0), atol=1e-6)


def test_a_mean_moves_only_at_its_snapshots() -> None:
    start, every = 3, 4
    found = [one["encoder/kernel"] for one in follow(ParameterAverage(AverageKind.MEAN, start=start, every=every))]
    for step in range(start + every + 1):  # until its first snapshot it is the parameters, to the bit
        np.testing.assert_array_equal(found[step], parameters(step)["encoder"]["kernel"])
    for step in range(start + every + 1, STEPS + 1):
        if (step - start) % every:
            np.testing.assert_array_equal(found[step], found[step - 1])
    expected = np.mean([kernel(start + every), kernel(start + 2 * every)], axis=0)
    np.testing.assert_allclose(found[start + 2 * every], expected, atol=1e-6)


def test_patterns_choose_what_is_kept_and_what_is_replaced() -> None:
    average = ParameterAverage(AverageKind.EXPONENTIAL, decay=0.5, patterns=("head/*",))
    found = follow(average)
    assert all(set(one) == {"head/bias"} for one in found)
    params = parameters(STEPS)
    mixed = replace_with_averaged(params, found[-1])
    np.testing.assert_array_equal(mixed["head"]["bias"], found[-1]["head/bias"])
    np.testing.assert_array_equal(mixed["encoder"]["kernel"], params["encoder"]["kernel"])
    assert not np.array_equal(mixed["head"]["bias"], params["head"]["bias"])


def test_an_average_of_bfloat16_parameters_moves_and_is_read_in_their_type() -> None:
    average, steps = ParameterAverage(AverageKind.EXPONENTIAL, decay=0.999), 2000
    params = {"x": jnp.full(3, 2.0, jnp.bfloat16)}
    first = init_average(average, {"x": jnp.ones(3, jnp.bfloat16)})
    kept = jax.lax.fori_loop(1, steps + 1, lambda step, old: update_average(average, old, params, step), first)
    # In bfloat16 0.999 + 0.002 is 1: the average would never move.
    np.testing.assert_allclose(np.asarray(kept["x"], np.float64), 2 - 0.999**steps, rtol=1e-4)
    assert first["x"].dtype == kept["x"].dtype == np.float32
    read = replace_with_averaged(params, kept)["x"]
    assert read.dtype == jnp.bfloat16
    np.testing.assert_array_equal(read, kept["x"].astype(jnp.bfloat16))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"decay": 1.0}, "decay=1.0"),
        ({"decay": -0.1}, "decay=-0.1"),
        ({"every": 0}, "every=0"),
        ({"start": -1}, "start=-1"),
    ],
)
def test_values_that_cannot_be_are_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        ParameterAverage(AverageKind.MEAN, **fields)
