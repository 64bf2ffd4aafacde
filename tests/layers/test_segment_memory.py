"""What a segment leaves for the next and how layers share it, position by position."""

import jax
import jax.numpy as jnp
import numpy as np

from transformer.layers.segment_memory import (
    concatenate_memory,
    next_memory,
    split_memory_by_layer,
    stack_memory_of_layers,
    valid_keys,
)


def test_a_memory_ends_with_what_was_read_last() -> None:
    read = np.float32([[1, 2, 3], [4, 5, 6]])[..., None]
    after, joined_to = jax.jit(next_memory, static_argnums=1), jax.jit(concatenate_memory)
    for memory, left in ((2, [[2, 3], [5, 6]]), (3, [[1, 2, 3], [4, 5, 6]]), (5, [[0, 0, 1, 2, 3], [0, 0, 4, 5, 6]])):
        assert np.asarray(after(read, memory))[..., 0].tolist() == left
    # A memory that is longer than the first segment stands right before the second.
    joined = np.asarray(joined_to(after(read, 5), read + 6))
    assert joined[0, :, 0].tolist() == [0, 0, 1, 2, 3, 7, 8, 9]
    assert np.asarray(after(joined, 5))[0, :, 0].tolist() == [2, 3, 7, 8, 9]
    gradient = jax.jit(jax.grad(lambda held, x: jnp.sum(concatenate_memory(held, x))))(after(read, 5), read)
    assert not np.asarray(gradient).any()


def test_keys_are_real_as_far_back_as_the_text_goes() -> None:
    found = jax.jit(valid_keys, static_argnums=(0, 2))(3, np.int32([0, 1, 3, 9]), 2)
    assert np.asarray(found, int).tolist() == [
        [0, 0, 0, 1, 1],
        [0, 0, 1, 1, 1],
        [1, 1, 1, 1, 1],
        [1, 1, 1, 1, 1],
    ]


def test_every_layer_of_every_period_has_its_own_memory() -> None:
    """Of layer n of example b the memory is 10 b + n; layers of a period are scanned together."""
    whole = (10 * np.arange(2)[:, None] + np.arange(4))[..., None, None]
    of_period = jax.jit(split_memory_by_layer, static_argnums=1)(whole.astype(np.float32), 2)
    assert of_period is not None
    assert [np.asarray(layer)[..., 0, 0].tolist() for layer in of_period] == [[[0, 10], [2, 12]], [[1, 11], [3, 13]]]
    np.testing.assert_array_equal(jax.jit(stack_memory_of_layers)(of_period), whole)
    assert split_memory_by_layer(None, 2) is None
