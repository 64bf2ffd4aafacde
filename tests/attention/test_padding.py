"""What stands in padding has no effect, be it NaN: not on the output, not on a gradient, not on what is captured.

Other numbers in the same places are the truth: all must be the same to the last bit.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.attention import (
    Additive,
    AttentionSpec,
    Backend,
    Capture,
    Concat,
    Cosine,
    General,
    Location,
    Mask,
    Mlp,
    Normaliser,
    Parameters,
    Score,
    attend,
    capture_weights,
    clear_keys,
    clear_queries,
    dense,
    normalise,
    prepare_keys,
    read,
    score,
)

B, Q, K, H, G, D, A = 2, 3, 5, 2, 1, 4, 3
QUERIES, KEYS = np.array([3, 2]), np.array([3, 5])
WEIGHT = np.random.default_rng(0).normal(size=(H, 2 * D, A)).astype(np.float32)
PARTS: dict[Score, Any] = {
    Score.GENERAL: General(jnp.asarray(WEIGHT[:, :D, :1] * WEIGHT[:, None, D:, 0])),
    Score.ADDITIVE: Additive(*map(jnp.asarray, (WEIGHT[:, :D], WEIGHT[:, D:], WEIGHT[:, 0]))),
    Score.CONCAT: Concat(jnp.asarray(WEIGHT), jnp.asarray(WEIGHT[:, 0])),
    Score.MLP: Mlp(jnp.asarray(WEIGHT), jnp.asarray(WEIGHT[:, 1]), jnp.asarray(WEIGHT[:, 0])),
    Score.COSINE: Cosine(jnp.full((1, 1, 1), 2.0)),
    Score.LOCATION: Location(jnp.asarray(np.repeat(WEIGHT[:, :D, :1], K, axis=2))),
}
MASKS: dict[str, Callable[[], Mask]] = {
    "lengths": lambda: Mask(query_lengths=jnp.asarray(QUERIES), key_lengths=jnp.asarray(KEYS)),
    "allowed": lambda: Mask(
        query_lengths=jnp.asarray(QUERIES), allowed=jnp.asarray(np.arange(K) < KEYS[:, None])[:, None, None]
    ),
}


def inputs(filling: float) -> tuple[jax.Array, ...]:
    """Queries, keys and values with this number in all padding."""
    random = np.random.default_rng(1)
    arrays = []
    for shape, lengths in (((B, Q, H, D), QUERIES), ((B, K, G, D), KEYS), ((B, K, G, D), KEYS)):
        array = random.normal(size=shape).astype(np.float32)
        array[np.arange(shape[1]) >= lengths[:, None]] = filling
        arrays.append(jnp.asarray(array))
    return tuple(arrays)


def everything(call: Callable[..., Any], params: Parameters, filling: float) -> Any:
    """The output, what was captured, and the gradients of q, k, v and all parameters.

    All cases have the same shapes: operation by operation they share what is compiled, as whole programs they do not.
    """

    def loss(params: Parameters, *arrays: jax.Array) -> tuple[jax.Array, Any]:
        output, captured = call(*arrays, params)
        return jnp.sum(jnp.sin(output)), (output, captured)

    with jax.disable_jit():
        (_, found), gradients = jax.value_and_grad(loss, (0, 1, 2, 3), has_aux=True)(params, *inputs(filling))
    return found, gradients


def check(call: Callable[..., Any], params: Parameters) -> None:
    wild, tame = everything(call, params, np.nan), everything(call, params, 1.0)
    for one, other in zip(jax.tree.leaves(wild), jax.tree.leaves(tame), strict=True):
        np.testing.assert_array_equal(one, other)
        assert np.isfinite(one).all()


CASES = [
    *((kind, Normaliser.SOFTMAX, Backend.EINSUM) for kind in Score),
    *((Score.DOT, kind, Backend.EINSUM) for kind in Normaliser if kind is not Normaliser.SOFTMAX),
    *((Score.SCALED_DOT, Normaliser.SOFTMAX, backend) for backend in (Backend.BLOCKWISE, Backend.XLA)),
]


# `make test` takes the two masks in turn.
@pytest.mark.parametrize(
    ("kind", "normaliser", "backend", "mask"),
    [
        pytest.param(
            *case,
            mask,
            id="-".join((*(choice.value for choice in case), mask)),
            marks=[pytest.mark.slow] if (number + turn) % 2 else [],
        )
        for number, case in enumerate(CASES)
        for turn, mask in enumerate(MASKS)
    ],
)
def test_attend_does_not_see_what_stands_in_padding(
    kind: Score, normaliser: Normaliser, backend: Backend, mask: str
) -> None:
    def call(q: jax.Array, k: jax.Array, v: jax.Array, params: Parameters) -> Any:
        spec = AttentionSpec(kind, normaliser, backend=backend)
        output, attended = attend(q, k, v, spec=spec, mask=MASKS[mask](), params=params, capture=Capture(("here",)))
        return output, attended.captured

    check(call, Parameters(PARTS.get(kind)))


@pytest.mark.parametrize("kind", [Score.DOT, Score.ADDITIVE, Score.COSINE], ids=lambda kind: kind.value)
def test_the_stages_do_not_see_what_stands_in_padding(kind: Score) -> None:
    def call(q: jax.Array, k: jax.Array, v: jax.Array, params: Parameters) -> Any:
        mask = MASKS["lengths"]()
        q, k, v = clear_queries(mask, q), clear_keys(mask, k), clear_keys(mask, v)
        logits = score(q, prepare_keys(k, kind, params=params), kind, params=params)
        weights = normalise(logits, dense(mask, Q, K)).values
        return read(weights, v), capture_weights(weights, Capture(("here",)), logits=logits, mask=mask)

    check(call, Parameters(PARTS.get(kind)))


def test_a_hidden_logit_that_is_nan_has_no_effect_on_any_weight() -> None:
    """Whoever scores by other means hides by `allowed` alone."""
    allowed = jnp.asarray(np.arange(K) < KEYS[:, None])[:, None, None]
    logits = np.random.default_rng(2).normal(size=(B, H, Q, K)).astype(np.float32)

    for kind in (Normaliser.SOFTMAX, Normaliser.SPARSEMAX, Normaliser.ENTMAX15, Normaliser.STRAIGHT_THROUGH):

        def loss(logits: jax.Array, kind: Normaliser = kind) -> tuple[jax.Array, jax.Array]:
            weights = normalise(logits, allowed, kind, key=jax.random.key(0), train=True).values
            return jnp.sum(jnp.sin(weights * jnp.arange(K))), weights

        run = jax.jit(jax.value_and_grad(loss, has_aux=True))
        wild, tame = (run(np.where(allowed, logits, np.float32(filling))) for filling in (np.nan, 0.0))
        jax.tree.map(np.testing.assert_array_equal, wild, tame)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(wild))
