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
    read = jnp.asarray([[1.0, 2, 3], [4, 5, 6]])[..., None]
    for memory, left in ((2, [[2, 3], [5, 6]]), (3, [[1, 2, 3], [4, 5, 6]]), (5, [[0, 0, 1, 2, 3], [0, 0, 4, 5, 6]])):
        assert next_memory(read, memory)[..., 0].tolist() == left
    # A memory that is longer than the first segment stands right before the second.
    joined = concatenate_memory(next_memory(read, 5), read + 6)
    assert joined[0, :, 0].tolist() == [0, 0, 1, 2, 3, 7, 8, 9]
    assert next_memory(joined, 5)[0, :, 0].tolist() == [2, 3, 7, 8, 9]
    gradient = jax.grad(lambda held, x: jnp.sum(concatenate_memory(held, x)))(next_memory(read, 5), read)
    assert not np.asarray(gradient).any()


def test_keys_are_real_as_far_back_as_the_text_goes() -> None:
    assert valid_keys(3, jnp.asarray([0, 1, 3, 9]), 2).astype(int).tolist() == [
        [0, 0, 0, 1, 1],
        [0, 0, 1, 1, 1],
        [1, 1, 1, 1, 1],
        [1, 1, 1, 1, 1],
    ]


def test_every_layer_of_every_period_has_its_own_memory() -> None:
    """Of layer n of example b the memory is 10 b + n; layers of a period are scanned together."""
    whole = (10 * np.arange(2)[:, None] + np.arange(4))[..., None, None]
    of_period = split_memory_by_layer(jnp.asarray(whole, jnp.float32), 2)
    assert of_period is not None
    assert [layer[..., 0, 0].tolist() for layer in of_period] == [[[0, 10], [2, 12]], [[1, 11], [3, 13]]]
    np.testing.assert_array_equal(stack_memory_of_layers(of_period), whole)
    assert split_memory_by_layer(None, 2) is None
