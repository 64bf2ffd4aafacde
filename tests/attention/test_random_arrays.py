"""What is drawn as a vector is what jax.random draws in several axes, on one device and divided over some."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.attention.random_arrays import draw_array, random_uint16
from transformer.logical_axes import use_placement, with_logical_constraint
from transformer.training.partitioning import ShardingConfig, make_placement

DRAWS = {
    "bits": (jax.random.bits, jnp.uint16),
    "uniform": (jax.random.uniform, jnp.float32),
    "gumbel": (jax.random.gumbel, jnp.float32),
    "randint": (partial(jax.random.randint, minval=0, maxval=77),),
}


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("shape", [(), (5,), (0, 3), (3, 7), (8, 5, 3)])
def test_the_numbers_are_those_of_jax_random(name: str, shape: tuple[int, ...]) -> None:
    draw: Callable[..., Any]
    draw, *more = DRAWS[name]
    key = jax.random.key(3)

    @jax.jit
    def draw_both(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        return draw_array(draw, key, shape, *more), draw(key, shape, *more)

    np.testing.assert_array_equal(*draw_both(key))


def test_devices_that_divide_an_array_draw_what_one_does() -> None:
    key, shape = jax.random.key(3), (8, 4, 6)
    placement = make_placement(ShardingConfig(data=4, tensor=2, rules="fsdp+tp"))

    @jax.jit
    def divided(key: jax.Array) -> jax.Array:
        with use_placement(placement):
            return with_logical_constraint(draw_array(jax.random.bits, key, shape, jnp.uint16), "batch", "heads", None)

    found = divided(key)
    assert not found.sharding.is_fully_replicated
    alone = jax.jit(lambda key: draw_array(jax.random.bits, key, shape, jnp.uint16))(key)
    np.testing.assert_array_equal(found, alone)


@pytest.mark.parametrize("shape", [(), (5,), (0, 3), (3, 7), (8, 5, 4)])
def test_half_words_are_the_two_halves_of_each_word(shape: tuple[int, ...]) -> None:
    size = int(np.prod(shape))

    @jax.jit
    def draw_both(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        return random_uint16(key, shape), jax.random.bits(key, (-(-size // 2),), jnp.uint32)

    found, words = map(np.asarray, draw_both(jax.random.key(3)))
    assert (found.shape, found.dtype) == (shape, jnp.uint16)
    halves = np.stack([words % 2**16, words // 2**16], axis=-1).reshape(-1)[:size]
    np.testing.assert_array_equal(found.reshape(-1), halves)


@pytest.mark.parametrize("last", [6, 5])
def test_devices_that_divide_an_array_draw_the_half_words_of_one(last: int) -> None:
    key, shape = jax.random.key(3), (8, 4, last)
    placement = make_placement(ShardingConfig(data=4, tensor=2, rules="fsdp+tp"))

    @jax.jit
    def divided(key: jax.Array) -> jax.Array:
        with use_placement(placement):
            return with_logical_constraint(random_uint16(key, shape), "batch", "heads", None)

    found = divided(key)
    assert not found.sharding.is_fully_replicated
    np.testing.assert_array_equal(found, jax.jit(random_uint16, static_argnums=1)(key, shape))
