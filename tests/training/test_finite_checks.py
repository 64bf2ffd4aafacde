"""Checks for NaN and infinity: every kind at every place, and no second copy of what is checked."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.training.finite_checks import find_non_finite, is_finite

TYPES = (jnp.float32, jnp.bfloat16, jnp.float16)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("as_array", [jnp.asarray, np.asarray])
@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 37, 1023])
def test_a_value_that_is_not_finite_is_found(dtype, as_array, value: float, place: int) -> None:
    values = np.full((4, 256), -1.0)
    values.flat[place] = value
    arrays = {"a": as_array(np.ones(3, dtype)), "b": as_array(values.astype(dtype))}
    assert find_non_finite(arrays) == "b"
    assert not is_finite(arrays)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("as_array", [jnp.asarray, np.asarray])
def test_the_largest_numbers_and_empty_arrays_are_finite(dtype, as_array) -> None:
    largest = float(jnp.finfo(dtype).max)
    arrays = {"a": as_array(np.array([-largest, largest, 0], dtype)), "b": as_array(np.zeros((0, 3), dtype))}
    assert find_non_finite(arrays) is None
    assert is_finite(arrays)


def test_integers_and_keys_are_passed_over() -> None:
    assert find_non_finite({"step": jnp.int32(3), "key": jax.random.key(0), "count": 2}) is None


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_large_array_is_checked_without_another_of_its_size(dtype) -> None:
    compiled = jax.jit(is_finite).lower(jax.ShapeDtypeStruct((1024, 1024), dtype)).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 4096
