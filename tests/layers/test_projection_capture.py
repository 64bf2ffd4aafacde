"""What lies beneath the weights, captured by a layer: norms and logits against NumPy in float64."""

from typing import Any

import jax
import numpy as np
import pytest

from transformer.attention.capture import Capture, CapturedAttention
from transformer.attention.masks import Mask
from transformer.attention.scores import Score
from transformer.layers.functional_module import FunctionalModule
from transformer.layers.multi_head_attention import MultiHeadAttention
from transformer.layers.transformer_config import PositionEncoding, TransformerConfig

Q, WIDTH, HEADS = 6, 16, 4


def captured(**changes: Any) -> tuple[np.ndarray, dict[str, Any], CapturedAttention]:
    """The input, the parameters and what was captured of one layer of causal self-attention."""
    changes = {"positions": PositionEncoding.NONE, "heads": HEADS, **changes}
    config = TransformerConfig(width=WIDTH, feed_forward=8, max_length=8, **changes)
    functional = FunctionalModule(lambda builder: MultiHeadAttention(config, cross=False, builder=builder))
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), functional.shapes())
    x = rng.normal(size=(2, Q, WIDTH)).astype(np.float32)
    capture = Capture(("here",), value_norms=True, query_key_vectors=True)
    run = jax.jit(lambda params, x: functional.bind(params)(x, x, mask=Mask(causal=True), capture=capture)[1])
    found = run(params, x)
    return x, params, found


def projected(x: np.ndarray, linear: dict[str, Any]) -> np.ndarray:
    """[B, position, head, component] in float64."""
    kernel, bias = (np.asarray(linear[name], np.float64) for name in ("kernel", "bias"))
    return np.einsum("bke,ehd->bkhd", x.astype(np.float64), kernel) + bias


@pytest.mark.parametrize("kv_heads", [HEADS, 2])
def test_a_norm_is_that_of_the_value_behind_the_heads_own_part_of_the_output(kv_heads: int) -> None:
    x, params, found = captured(kv_heads=kv_heads)
    v, output = projected(x, params["value"]), np.asarray(params["output"]["kernel"], np.float64)
    weights = np.asarray(found.weights, np.float64)
    for head in range(HEADS):
        transformed = v[:, :, head // (HEADS // kv_heads)] @ output[head]
        norms = np.linalg.norm(transformed, axis=-1)
        np.testing.assert_allclose(found.value_norms[:, head], norms, rtol=1e-5)
        # |alpha f(x)|, vector by vector, is the weight times the norm.
        vectors = weights[:, head, :, :, None] * transformed[:, None]
        np.testing.assert_allclose(
            np.linalg.norm(vectors, axis=-1), weights[:, head] * np.asarray(found.value_norms)[:, head, None], atol=1e-5
        )


@pytest.mark.parametrize("changes", [{}, {"kv_heads": 2}, {"score": Score.DOT}, {"positions": PositionEncoding.ROTARY}])
def test_the_products_are_the_models_own_logits(changes: dict[str, Any]) -> None:
    x, params, found = captured(**changes)
    assert found.query_key_vectors is not None
    assert bool(found.query_key_vectors.is_whole_logit)
    q, k = (np.asarray(side, np.float64) for side in found.query_key_vectors[:2])
    logits = float(found.query_key_vectors.scale) * np.einsum(
        "bqhd,bkhd->bhqk", q, np.repeat(k, HEADS // k.shape[2], axis=2)
    )
    logits[..., ~np.tri(Q, dtype=bool)] = -np.inf
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    np.testing.assert_allclose(found.weights, weights / weights.sum(-1, keepdims=True), atol=1e-5)
    if "positions" not in changes:
        np.testing.assert_allclose(q, projected(x, params["query"]), atol=1e-5)
        np.testing.assert_allclose(k, projected(x, params["key"]), atol=1e-5)


def test_what_is_no_product_or_not_that_alone_says_so() -> None:
    assert captured(score=Score.ADDITIVE)[2].query_key_vectors is None
    for positions in (PositionEncoding.ALIBI, PositionEncoding.SHAW, PositionEncoding.TRANSFORMER_XL):
        vectors = captured(positions=positions)[2].query_key_vectors
        assert vectors is not None
        assert not bool(vectors.is_whole_logit), positions
    # What Shaw's positions add to the values belongs to a pair, not to a key.
    assert captured(positions=PositionEncoding.SHAW)[2].value_norms is None
