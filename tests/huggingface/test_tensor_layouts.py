"""A layout puts every number of a leaf where the other library keeps it, and takes it back."""

import numpy as np
import pytest

from transformer.huggingface import tensor_layouts
from transformer.huggingface.tensor_layouts import TensorLayout

E, H, D = 6, 2, 4


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def test_a_matrix_from_one_axis_to_heads_is_kept_with_its_outputs_first() -> None:
    kernel, x = drawn(E, H, D), drawn(E)
    tensor = tensor_layouts.LINEAR.write([kernel])
    expected = [sum(x[e] * kernel[e, h, d] for e in range(E)) for h in range(H) for d in range(D)]
    np.testing.assert_allclose(tensor @ x, expected, rtol=1e-5)


def test_a_matrix_from_heads_reads_them_one_behind_another() -> None:
    kernel, x = drawn(H, D, E), drawn(H, D)
    expected = [sum(x[h, d] * kernel[h, d, e] for h in range(H) for d in range(D)) for e in range(E)]
    np.testing.assert_allclose(tensor_layouts.FROM_HEADS.write([kernel]) @ x.reshape(-1), expected, rtol=1e-5)
    np.testing.assert_allclose(x.reshape(-1) @ tensor_layouts.TABLE_FROM_HEADS.write([kernel]), expected, rtol=1e-5)


def test_fused_leaves_lie_one_behind_another_or_in_turn_within_a_head() -> None:
    parts = [np.full((E, H, D), number, np.float32) for number in range(3)]
    blocks = tensor_layouts.TABLE.write(parts)
    assert blocks[0].tolist() == [0.0] * H * D + [1.0] * H * D + [2.0] * H * D
    by_heads = tensor_layouts.LINEAR_BY_HEADS.write(parts)
    assert by_heads[:, 0].tolist() == ([0.0] * D + [1.0] * D + [2.0] * D) * H
    biases = [part[0] for part in parts]
    assert tensor_layouts.VECTOR_BY_HEADS.write(biases).tolist() == by_heads[:, 0].tolist()


def test_the_matrices_of_all_experts_lie_in_turn_unit_by_unit() -> None:
    gates, linear = drawn(H, D, E), drawn(H, D, E) + 10
    tensor = tensor_layouts.MATRICES_BY_UNITS.write([gates, linear])
    assert tensor.shape == (H, D, 2 * E)
    np.testing.assert_array_equal(tensor[..., ::2], gates)
    np.testing.assert_array_equal(tensor[..., 1::2], linear)
    biases = tensor_layouts.VECTORS_BY_UNITS.write([gates[0], linear[0]])
    np.testing.assert_array_equal(biases, tensor[0])


@pytest.mark.parametrize(
    ("layout", "shapes"),
    [
        (tensor_layouts.VECTOR, [(E,)]),
        (tensor_layouts.VECTOR, [(H, D)] * 3),
        (tensor_layouts.VECTOR, [(H, D), (1, D), (1, D)]),
        (tensor_layouts.VECTOR_BY_HEADS, [(H, D)] * 3),
        (tensor_layouts.ROW_VECTOR, [(E,)]),
        (tensor_layouts.TABLE, [(E, 3)]),
        (tensor_layouts.TABLE, [(E, H, D)] * 3),
        (tensor_layouts.LINEAR, [(E, H, D), (E, 1, D), (E, 1, D)]),
        (tensor_layouts.LINEAR_BY_HEADS, [(E, H, D)] * 3),
        (tensor_layouts.FROM_HEADS, [(H, D, E)]),
        (tensor_layouts.TABLE_FROM_HEADS, [(H, D, E)]),
        (tensor_layouts.SAME_AXES, [(H, D, E)]),
        (tensor_layouts.VECTORS_BY_UNITS, [(H, D)] * 2),
        (tensor_layouts.MATRICES_BY_UNITS, [(H, D, E)] * 2),
    ],
)
def test_reading_is_the_inverse_of_writing_bit_by_bit(layout: TensorLayout, shapes: list[tuple[int, ...]]) -> None:
    leaves = [drawn(*shape) + number for number, shape in enumerate(shapes)]
    tensor = layout.write(leaves)
    assert tensor.shape == layout.tensor_shape(shapes)
    assert tensor.flags.c_contiguous
    for back, leaf in zip(layout.read(tensor, shapes), leaves, strict=True):
        assert back.shape == leaf.shape
        assert back.tobytes() == leaf.tobytes()
