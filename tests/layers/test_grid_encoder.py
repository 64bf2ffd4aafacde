"""The convolutions beneath attention over images, against loops of NumPy in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import programs
from transformer.attention import AxisKind
from transformer.config import UserError
from transformer.costs.flops import count_matmul_flops
from transformer.layers.functional_module import FunctionalModule
from transformer.layers.grid_encoder import GridEncoder, GridEncoderConfig

CONFIG = GridEncoderConfig(channels=(4, 6), strides=(2, 3), blocks_per_stage=1)


def convolved(x: np.ndarray, kernel: np.ndarray, stride: int) -> np.ndarray:
    rows, columns = (-(-size // stride) for size in x.shape[:2])
    padded = np.pad(x, ((1, 1), (1, 1), (0, 0)))
    out = np.zeros((rows, columns, kernel.shape[-1]))
    for row in range(rows):
        for column in range(columns):
            seen = padded[row * stride : row * stride + 3, column * stride : column * stride + 3]
            out[row, column] = np.einsum("vwi,vwif->f", seen, kernel)
    return out


def normed(x: np.ndarray, params: dict) -> np.ndarray:
    centered = x - x.mean(-1, keepdims=True)
    return centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-6) * params["scale"] + params["bias"]


def test_encoder_against_numpy() -> None:
    functional = FunctionalModule(lambda builder: GridEncoder(CONFIG, 3, builder=builder))
    params = programs.initial(functional.init)
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: leaf + 0.1 * rng.normal(size=leaf.shape).astype(np.float32), params)
    image = rng.normal(size=(2, 12, 18, 3)).astype(np.float32)
    got = programs.call(functional, params, image)
    wide = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    for number in range(2):
        x = image[number].astype(np.float64)
        for stage, stride in ((wide["stage_0"], 2), (wide["stage_1"], 3)):
            x = np.maximum(normed(convolved(x, stage["convolution"]["kernel"], stride), stage["norm"]), 0)
            block, y = stage["block_0"], x
            for name in ("first", "second"):
                read = np.maximum(normed(y, block[f"{name}_norm"]), 0)
                y = convolved(read, block[name]["kernel"], 1) + block[name]["bias"]
            x = x + y
        np.testing.assert_allclose(got[number], x, atol=2e-5)


def test_axis_and_flops() -> None:
    axis = CONFIG.axis("grid", 12, 18)
    assert (axis.kind, axis.shape, axis.stride) == (AxisKind.GRID, (2, 3), 6.0)
    first, second = 2 * 6 * 9 * 9 * 4 * (3 + 2 * 4), 2 * 2 * 3 * 9 * 6 * (4 + 2 * 6)
    functional = FunctionalModule(lambda builder: GridEncoder(CONFIG, 3, builder=builder))
    image = jax.ShapeDtypeStruct((1, 12, 18, 3), jnp.float32)
    program = jax.make_jaxpr(lambda params, image: functional.bind(params)(image))(functional.shapes(), image)
    assert count_matmul_flops(program.jaxpr) == first + second
    with pytest.raises(UserError, match="are not divided by 6"):
        CONFIG.axis("grid", 12, 16)


@pytest.mark.parametrize(
    "wrong", [{"channels": ()}, {"strides": (2,)}, {"channels": (0, 1, 1)}, {"blocks_per_stage": -1}]
)
def test_unfit_stages_are_refused(wrong: dict) -> None:
    with pytest.raises(UserError, match=rf"{next(iter(wrong))}.*must"):
        GridEncoderConfig(**wrong)
