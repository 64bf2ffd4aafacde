"""Dropout of attention weights: which are dropped, how the others grow, on average, and where it is refused."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.attention.api import attend
from transformer.attention.attention_spec import AttentionParameters, AttentionSpec, Backend
from transformer.attention.capture import Capture
from transformer.attention.inverted_dropout import check_dropout_rate, dropout
from transformer.attention.masks import Mask
from transformer.attention.normalizers import Normalizer, Reweighting
from transformer.attention.positions import AttentionPosition, Shaw
from transformer.attention.statistics import ENTROPY, LARGEST_WEIGHT

B, Q, K, H, D = 2, 6, 8, 4, 4
KEY = jax.random.key(5)
RATE = 0.25


def inputs() -> tuple[jax.Array, jax.Array]:
    normal = np.random.default_rng(0).normal
    return tuple(jax.device_put(normal(size=shape).astype(np.float32)) for shape in ((B, Q, H, D), (B, K, 2, D)))


def values() -> jax.Array:
    return jax.device_put(np.random.default_rng(1).normal(size=(B, K, 2, 3)).astype(np.float32))


def call(v: Any, mask: Mask | None = None, params: Any = None, **options: Any) -> tuple[Any, Any]:
    """Attention of the same queries and keys to these values."""
    q, k = inputs()
    chosen = {name: options.pop(name) for name in ("train", "key") if name in options}
    mask = Mask(causal=True) if mask is None else mask
    wanted = Capture(("here",), statistics=(ENTROPY, LARGEST_WEIGHT))
    return attend(q, k, v, spec=AttentionSpec(**options), mask=mask, params=params, capture=wanted, **chosen)


def weights_used(**options: Any) -> np.ndarray:
    """The weights that multiply the values, read off values that are the rows of the identity: [B, H, Q, K]."""
    identity = jax.device_put(np.broadcast_to(np.eye(K, dtype=np.float32)[None, :, None], (B, K, 2, K)))
    return np.moveaxis(np.asarray(call(identity, **options)[0]), 2, 1)


EXTENT = Mask(window=(2, 2), center=jax.device_put(np.full((B, H, Q), 3, np.float32)))


@pytest.mark.parametrize(
    "choices",
    [
        {},
        pytest.param({"normalizer": Normalizer.SPARSEMAX}, marks=pytest.mark.slow),
        {"normalizer": Normalizer.HARD},
        pytest.param({"normalizer": Normalizer.STRAIGHT_THROUGH}, marks=pytest.mark.slow),
        {"reweighting": Reweighting.GAUSSIAN, "mask": EXTENT},
    ],
    ids=str,
)
def test_each_weight_is_dropped_or_scaled_and_what_is_captured_is_neither(choices: dict[str, Any]) -> None:
    options = {"dropout": RATE, "train": True, "key": KEY, **choices}
    used = weights_used(**options)
    v = values()
    output, attended = call(v, **options)
    before = np.asarray(attended.captured.weights)
    kept = used != 0
    np.testing.assert_allclose(used[kept], before[kept] / (1 - RATE), rtol=1e-5)
    assert 0 < (before[~kept] != 0).sum() < (before != 0).sum()
    of_heads = np.repeat(np.asarray(v), H // 2, axis=2)
    np.testing.assert_allclose(output, np.einsum("bhqk,bkhd->bqhd", used, of_heads), rtol=0, atol=1e-6)
    # As without dropout, from the key that the sampler then gets.
    sampler = {"train": True, "key": jax.random.split(KEY)[0]}
    plain = call(v, **(choices | (sampler if attended.log_prob is not None else {})))[1]
    for found, expected in zip(jax.tree.leaves(attended), jax.tree.leaves(plain), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_the_mean_over_many_keys_is_the_output_without_dropout() -> None:
    q, k = inputs()
    v = values()

    @jax.jit
    @jax.vmap
    def drawn(key: jax.Array) -> jax.Array:
        return attend(q, k, v, spec=AttentionSpec(dropout=RATE), mask=Mask(causal=True), train=True, key=key)[0]

    outputs = np.asarray(drawn(jax.random.split(KEY, 2000)), np.float64)
    plain = np.asarray(call(v)[0])
    error = outputs.std(axis=0) / np.sqrt(len(outputs))
    # The largest of 144 numbers of a standard normal is below 4.5 but once in a thousand.
    assert np.abs((outputs.mean(axis=0) - plain) / error).max() < 4.5
    assert np.abs(outputs[0] - plain).max() > 0.1


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_the_rate_is_the_share_that_is_dropped(rate: float) -> None:
    size = 200_000
    found = np.asarray(jax.jit(dropout, static_argnums=1)(np.ones(size, np.float32), rate, KEY))
    assert abs((found == 0).mean() - rate) < 4.5 * np.sqrt(rate * (1 - rate) / size)
    np.testing.assert_allclose(found[found != 0], 1 / (1 - rate), rtol=2e-4)


def test_examples_heads_and_queries_are_dropped_apart() -> None:
    used = weights_used(dropout=0.5, train=True, key=KEY, mask=Mask()) != 0
    rows = used.reshape(-1, K)
    assert len(np.unique(rows, axis=0)) > len(rows) / 2
    again = weights_used(dropout=0.5, train=True, key=jax.random.key(6), mask=Mask()) != 0
    assert (used != again).mean() > 0.3


def test_the_gradient_is_that_of_the_weights_that_were_kept() -> None:
    q, k = inputs()
    v = values()
    kept = (weights_used(dropout=RATE, train=True, key=KEY, mask=Mask()) != 0) / np.float32(1 - RATE)

    def dropped(q: Any, k: Any, v: Any) -> Any:
        return jnp.sum(attend(q, k, v, spec=AttentionSpec(dropout=RATE), mask=Mask(), train=True, key=KEY)[0] ** 2)

    def written_out(q: Any, k: Any, v: Any) -> Any:
        of_heads_k, of_heads_v = jnp.repeat(k, H // 2, axis=2), jnp.repeat(v, H // 2, axis=2)
        weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, of_heads_k) / np.sqrt(D))
        return jnp.sum(jnp.einsum("bhqk,bkhd->bqhd", weights * kept, of_heads_v) ** 2)

    both = (jax.jit(jax.grad(attention, (0, 1, 2)))(q, k, v) for attention in (dropped, written_out))
    for found, expected in zip(*both, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_shaws_values_are_read_by_the_same_weights() -> None:
    table = Shaw(*jax.device_put((np.zeros((2 * K + 1, D), np.float32), np.ones((2 * K + 1, 3), np.float32))))

    @jax.jit
    def output_of(table: Shaw) -> jax.Array:
        options = {"position": AttentionPosition.SHAW, "params": AttentionParameters(position=table), "dropout": RATE}
        return call(jnp.zeros((B, K, 2, 3)), train=True, key=KEY, **options)[0]

    output = np.asarray(output_of(table))
    identity = weights_used(dropout=RATE, train=True, key=KEY)
    np.testing.assert_allclose(output[..., 0], np.moveaxis(identity.sum(-1), 1, 2), rtol=0, atol=1e-6)


@pytest.mark.parametrize("backend", [Backend.EINSUM, Backend.BLOCKWISE, Backend.XLA])
def test_evaluation_and_a_rate_of_zero_are_the_same_program_on_any_backend(backend: Backend) -> None:
    q, k = inputs()

    def program(rate: float, **options: Any) -> str:
        spec = AttentionSpec(backend=backend, dropout=rate)
        return str(jax.make_jaxpr(lambda q, k: attend(q, k, k, spec=spec, mask=Mask(), **options)[0])(q, k))

    plain = program(0.0)
    for rate, options in ((RATE, {}), (RATE, {"key": KEY}), (0.0, {"train": True}), (0.0, {"train": True, "key": KEY})):
        assert program(rate, **options) == plain


@pytest.mark.parametrize("backend", [Backend.BLOCKWISE, Backend.XLA, Backend.CUDNN, Backend.SPLASH])
def test_a_backend_without_weights_refuses_and_names_the_one_that_has_them(backend: Backend) -> None:
    says = (
        "score=scaled_dot x normalizer=softmax x position=none x mask=causal+dropout: "
        f"backend={backend.value} does not take dropout; backend=einsum computes it as it stands; nearest here: "
        "score=scaled_dot x normalizer=softmax x position=none x mask=causal"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(says)}$"):
        call(jnp.zeros((B, K, 2, D)), backend=backend, dropout=RATE, train=True, key=KEY)


def test_auto_takes_einsum_however_long() -> None:
    x = jax.ShapeDtypeStruct((1, 2**14, 1, 8), jnp.float32)

    def largest(**options: Any) -> int:
        spec = AttentionSpec(dropout=RATE)
        traced = jax.make_jaxpr(lambda x: attend(x, x, x, spec=spec, mask=Mask(), **options)[0])(x)
        return max(variable.aval.size for line in traced.eqns for variable in line.outvars)

    assert largest() < 2**28
    assert largest(train=True, key=KEY) == 2**28


@pytest.mark.parametrize("normalizer", [Normalizer.SOFTMAX, Normalizer.HARD])
def test_a_missing_key_is_refused(normalizer: Normalizer) -> None:
    with pytest.raises(ValueError, match=r"^dropout=0.25 drops weights in training and key=None; give attend\(\) a"):
        call(jnp.zeros((B, K, 2, D)), normalizer=normalizer, dropout=RATE, train=True)


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5, float("nan")])
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    for make in (lambda: AttentionSpec(dropout=rate), lambda: check_dropout_rate("dropout", rate)):
        with pytest.raises(ValueError, match=rf"^dropout={rate} must be at least 0 and below 1"):
            make()


def test_a_rate_next_to_one_leaves_something_finite() -> None:
    found = np.asarray(jax.jit(dropout, static_argnums=1)(np.ones(1000, np.float32), 1 - 2**-20, KEY))
    assert np.isfinite(found).all()
