"""How a ring shares positions among its devices, without attention."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from transformer.attention.ring_attention import Ring

LENGTH = 48


def positions(ring: Ring, place: int) -> list[np.ndarray]:
    """The positions of each chunk of a device."""
    each = LENGTH // ring.size // ring.num_chunks
    return [int(start) + np.arange(each) for start in ring.starts(jnp.int32(place), each)]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("chunks", [1, 2])
def test_every_position_has_one_device(size: int, chunks: int) -> None:
    ring = Ring(("sequence",), size, chunks)
    owned = np.concatenate([chunk for place in range(size) for chunk in positions(ring, place)])
    np.testing.assert_array_equal(np.sort(owned), np.arange(LENGTH))


def products(ring: Ring) -> list[set[int]]:
    """In each step, the numbers of products of chunks that devices compute of a causal map."""
    steps = []
    for index in range(ring.size):
        counts = set()
        for place in range(ring.size):
            queries, keys = positions(ring, place), positions(ring, (place - index) % ring.size)
            visible = {(a, b) for a, q in enumerate(queries) for b, k in enumerate(keys) if q.max() >= k.min()}
            assert visible <= set(ring.pairs())
            counts.add(len(visible))
        steps.append(counts)
    return steps


@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_two_chunks_share_causal_work_evenly_and_one_does_not(size: int) -> None:
    assert products(Ring(("sequence",), size, 2)) == [{3}] + [{2}] * (size - 1)
    assert products(Ring(("sequence",), size, 1)) == [{1}] + [{0, 1}] * (size - 1)


@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_chunks_are_split_and_joined(size: int) -> None:
    mesh = jax.make_mesh((size,), ("sequence",), axis_types=(AxisType.Auto,), devices=jax.devices()[:size])
    ring = Ring(("sequence",), size, 2)
    over = PartitionSpec(None, "sequence")

    def there_and_back(x: jax.Array) -> tuple[jax.Array, ...]:
        split_into_chunks = ring.split_into_chunks(x, 1)
        return (*split_into_chunks, ring.join_chunks(split_into_chunks, 1))

    x = jnp.arange(2 * LENGTH).reshape(2, LENGTH)
    early, late, back = jax.jit(jax.shard_map(there_and_back, mesh=mesh, in_specs=over, out_specs=(over, over, over)))(
        x
    )
    np.testing.assert_array_equal(back, x)
    expected = [positions(ring, place) for place in range(size)]
    np.testing.assert_array_equal(early[0], np.concatenate([first for first, _ in expected]))
    np.testing.assert_array_equal(late[1], LENGTH + np.concatenate([last for _, last in expected]))
