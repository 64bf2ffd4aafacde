"""SNAIL: its equations in float64, no look ahead by gradients, the paper's sizes, its FLOPs, what it refuses."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.architecture_variants import exact, lively
from tests.oracles import snail as oracle
from transformer.attention import Capture
from transformer.config import UserError
from transformer.costs.flops import forward_flops
from transformer.layers.batch_norm import BatchStatistics
from transformer.layers.functional_module import Precision
from transformer.models import registry
from transformer.models.model import Model, Variables, count_parameters
from transformer.models.snail import SITE, EnabledBlocks, SnailConfig, dilations, image_grid_shape
from transformer.models.task_interface import (
    FEW_SHOT_CLASSIFICATION,
    VECTOR_REGRESSION,
    InputSpec,
    Modality,
    TaskInterface,
)

RANDOM = np.random.default_rng(0)
WAYS, STEPS = 3, 6
IMAGES = RANDOM.random((2, STEPS, 9, 8, 1)).astype(np.float32)
SHOWN = np.array([[1, 3, 2, 2, 1, 0], [3, 1, 1, 2, 3, 0]], np.int32)
VECTORS = RANDOM.standard_normal((2, STEPS, 4)).astype(np.float32)
SMALL: dict[str, Any] = {
    "embedding_width": 5,
    "channels": (2, 3),
    "key_sizes": (4, 3, 2),
    "value_sizes": (2, 4, 3),
    "filters": (3, 2),
}


def of_images(shape: tuple[int, ...] = IMAGES.shape, ways: int = WAYS, **changes: Any) -> Model:
    inputs = {"images": InputSpec(shape, jnp.float32, Modality.IMAGE), "shown": InputSpec(shape[:2])}
    interface = TaskInterface(inputs, {"classes": ways}, output=FEW_SHOT_CLASSIFICATION.output)
    return registry.build(SnailConfig(**changes), interface, Precision())


def of_vectors(**changes: Any) -> Model:
    inputs = {"vectors": InputSpec(VECTORS.shape, jnp.float32, Modality.POINTS)}
    interface = TaskInterface(inputs, {"numbers": 3}, output=VECTOR_REGRESSION.output)
    return registry.build(SnailConfig(**SMALL | changes), interface, Precision())


def with_statistics(model: Model) -> Variables:
    """Lively weights, and statistics as they may be behind some training."""
    random = np.random.default_rng(5)
    state = {
        f"norm_{number}": BatchStatistics(
            0.2 * random.standard_normal(width).astype(np.float32) - 0.5,
            0.5 + random.random(width).astype(np.float32),
        )
        for number, width in enumerate(SMALL["channels"])
    }
    return lively(model)._replace(state=state)


def test_it_is_its_equations_over_images() -> None:
    model = of_images(**SMALL)
    variables = with_statistics(model)
    capture = Capture(sites=(SITE,))
    apply = jax.jit(lambda inputs: model.apply(variables, inputs, train=False, capture=capture))
    got, aux = apply({"images": IMAGES, "shown": SHOWN})

    weights, told = exact(variables.params), np.eye(WAYS + 1)[SHOWN][..., 1:]
    flat = IMAGES.reshape(-1, *IMAGES.shape[2:]).astype(np.float64)
    embedded = oracle.embed(weights["embedding"], variables.state, flat).reshape(2, STEPS, -1)
    assert embedded.std(axis=(0, 1)).min() > 0.01
    blocks = ("attention", "convolutions", "attention", "convolutions", "attention")
    expected, maps = oracle.run(weights, np.concatenate([embedded, told], axis=-1), blocks, dense=3)
    np.testing.assert_allclose(got, expected, atol=1e-5)
    np.testing.assert_allclose(np.asarray(aux.maps[SITE].weights)[:, :, 0], maps, atol=1e-6)
    assert jax.tree.all(jax.tree.map(np.array_equal, aux.state, variables.state))


@pytest.mark.slow
def test_in_training_images_are_normed_by_their_own_statistics() -> None:
    model = of_images(**SMALL)
    variables = with_statistics(model)
    apply = jax.jit(lambda inputs: model.apply(variables, inputs, train=True)[1].state)
    state = apply({"images": IMAGES, "shown": SHOWN})
    first = exact(variables.params)["embedding"]["convolution_0"]["kernel"]
    flat = np.pad(IMAGES.reshape(-1, *IMAGES.shape[2:]).astype(np.float64), ((0, 0), (1, 1), (1, 1), (0, 0)))
    sums = sum(flat[:, y : y + 9, x : x + 8] @ first[y, x] for y in range(3) for x in range(3))
    np.testing.assert_allclose(
        state["norm_0"].mean, 0.9 * variables.state["norm_0"].mean + 0.1 * sums.mean(axis=(0, 1, 2)), atol=1e-6
    )


@pytest.mark.parametrize(
    "enabled_blocks",
    [
        EnabledBlocks.BOTH,
        pytest.param(EnabledBlocks.ATTENTION, marks=pytest.mark.slow),
        pytest.param(EnabledBlocks.CONVOLUTIONS, marks=pytest.mark.slow),
    ],
)
def test_no_gradient_comes_from_a_later_step_and_all_earlier_ones_have_some(enabled_blocks: EnabledBlocks) -> None:
    model = of_vectors(enabled_blocks=enabled_blocks)
    variables = lively(model)
    mixed = jnp.asarray(RANDOM.standard_normal(3))

    def outputs(vectors: jax.Array) -> jax.Array:
        return jnp.einsum("bto,o->t", model.apply(variables, {"vectors": vectors}, train=False)[0], mixed)

    gradient_QxBxKxI = np.asarray(jax.jit(jax.jacrev(outputs))(VECTORS))
    reached = (gradient_QxBxKxI != 0).any(axis=(1, 3))
    np.testing.assert_array_equal(reached, np.tri(STEPS, dtype=bool))
    assert len(model.sites) == (enabled_blocks is not EnabledBlocks.CONVOLUTIONS)


@pytest.mark.slow
def test_no_gradient_comes_from_a_later_image() -> None:
    model = of_images(**SMALL)
    variables = with_statistics(model)

    def of_third(images: jax.Array) -> jax.Array:
        return jnp.sum(model.apply(variables, {"images": images, "shown": SHOWN}, train=False)[0][:, 2])

    gradient = np.asarray(jax.jit(jax.grad(of_third))(IMAGES))
    assert not gradient[:, 3:].any()
    assert gradient[:, :3].any(axis=(0, 2, 3, 4)).all()


@pytest.mark.parametrize(
    ("length", "expected"), [(1, ()), (2, (1,)), (6, (1, 2, 4)), (8, (1, 2, 4)), (26, (1, 2, 4, 8, 16))]
)
def test_dilations_reach_the_first_step_from_the_last(length: int, expected: tuple[int, ...]) -> None:
    assert dilations(length) == expected
    assert sum(expected) >= length - 1


def test_the_papers_network_for_omniglot_has_its_sizes() -> None:
    model = of_images((2, 6, 28, 28, 1), 5)
    convolutions = 9 * 64 * (1 + 3 * 64) + 4 * 2 * 64
    blocks, width = 0, 64 + 5
    for kind, *sizes in (("a", 64, 32), ("c", 128), ("a", 256, 128), ("c", 128), ("a", 512, 256)):
        if kind == "a":
            # A bias of the keys would change nothing.
            blocks, width = blocks + (width + 1) * (2 * sizes[0] + sizes[1]) - sizes[0], width + sizes[1]
        for _ in range(3 if kind == "c" else 0):
            blocks, width = blocks + 2 * (2 * width + 1) * sizes[0], width + sizes[0]
    assert width == 1253
    expected = convolutions + (64 + 1) * 64 + blocks + (width + 1) * 5
    assert count_parameters(model.functional.shapes()) == expected == 3_212_414
    (site,) = model.sites
    assert (site.layers, site.key.shape, site.key.stride, site.causal) == (("0", "1", "2"), (2, 3), 28.0, True)


@pytest.mark.parametrize("length", [2, 6, 21, 26, 101])
def test_images_lie_in_a_grid_that_has_room_for_them_and_no_empty_row(length: int) -> None:
    rows, columns = image_grid_shape(length)
    assert rows * columns >= length > (rows - 1) * columns
    assert rows <= columns <= rows + 2


def test_flops_count_every_product() -> None:
    counted = forward_flops(of_images(**SMALL), {"images": IMAGES, "shown": SHOWN})
    each = 2 * 9 * (9 * 8 * 1 * 2 + 4 * 4 * 2 * 3) + 2 * (2 * 2 * 3) * 5
    stack = 0
    for width, key, value in ((8, 4, 2), (19, 3, 4), (29, 2, 3)):
        stack += 2 * width * (2 * key + value) + 2 * STEPS * (key + value)
    for width, filters in ((10, 3), (13, 3), (16, 3), (23, 2), (25, 2), (27, 2)):
        stack += 2 * 2 * 2 * width * filters
    assert counted == 2 * STEPS * (each + stack + 2 * 32 * WAYS)
    stack = sum(2 * w * (2 * k + v) + 2 * STEPS * (k + v) for w, k, v in ((5, 4, 2), (7, 3, 4), (11, 2, 3)))
    counted = forward_flops(of_vectors(enabled_blocks=EnabledBlocks.ATTENTION), {"vectors": VECTORS})
    assert counted == 2 * STEPS * (2 * 4 * 5 + stack + 2 * 14 * 3)


@pytest.mark.parametrize(
    "wrong",
    [
        {"embedding_width": 0},
        {"key_sizes": (4, 3)},
        {"value_sizes": (2, 4, 0)},
        {"filters": ()},
        {"channels": ()},
        {"channels": (2, 2, 2, 2)},
    ],
)
def test_unfit_values_are_refused(wrong: dict) -> None:
    with pytest.raises(UserError, match=rf"config\.model\.{next(iter(wrong))}"):
        of_images(**SMALL | wrong)


def test_parts_that_leave_nothing_are_refused() -> None:
    with pytest.raises(UserError, match=r"config\.model\.enabled_blocks=convolutions leaves nothing"):
        SnailConfig(blocks=(), key_sizes=(), value_sizes=(), filters=(), enabled_blocks=EnabledBlocks.CONVOLUTIONS)
