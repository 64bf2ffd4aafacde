"""The log-sum-exp that attend() returns on request, against NumPy in float64: values, gradients, types, meshes."""

import contextlib
import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from transformer.attention import AttentionPosition, AttentionSpec, Backend, Mask, Normalizer, Softcap, attend
from transformer.logical_axes import MESH_AXES, RULES, Placement, SequenceParallel, use_placement

BATCH, LENGTH, HEADS, GROUPS, DEPTH = 2, 6, 4, 2, 8


def arrays(length: int = LENGTH, dtype: Any = np.float32) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    shapes = [(BATCH, length, heads, DEPTH) for heads in (HEADS, GROUPS, GROUPS)]
    return [random.normal(size=shape).astype(dtype) for shape in shapes]


def logits_of(q: Any, k: Any) -> np.ndarray:
    """The products of queries and keys over sqrt(D) in float64, one pair after the other."""
    q, k = (np.asarray(x, np.float64) for x in (q, k))
    logits = np.empty((len(q), q.shape[2], q.shape[1], k.shape[1]))
    for b, h, i, j in np.ndindex(*logits.shape):
        logits[b, h, i, j] = q[b, i, h] @ k[b, j, h // (q.shape[2] // k.shape[2])] / np.sqrt(q.shape[3])
    return logits


def log_sum(logits: np.ndarray) -> np.ndarray:
    largest = logits.max(axis=-1)
    safe = np.where(np.isfinite(largest), largest, 0)
    with np.errstate(divide="ignore"):
        return np.log(np.exp(logits - safe[..., None]).sum(axis=-1)) + safe


CAUSAL = np.tril(np.ones((LENGTH, LENGTH), bool))
# The last query and the last two keys of the second example are padding.
LENGTHS = jax.device_put(np.int32([LENGTH, LENGTH - 2]))
INSIDE = np.arange(LENGTH) < np.asarray(LENGTHS)[:, None]
BIAS = jax.device_put(np.random.default_rng(1).normal(size=(1, HEADS, LENGTH, LENGTH)).astype(np.float32))
SLOPES = 2.0 ** (-8 * (np.arange(HEADS) + 1) / HEADS)
AWAY = np.abs(np.arange(LENGTH)[:, None] - np.arange(LENGTH))


def by_head(logits: Any, batch: Any, head: Any, query: Any, key: Any, /) -> Any:
    """A function that tells heads, queries and keys apart."""
    return logits * (1 + head) - 0.1 * (query - 2 * key)


REQUESTS: dict[str, tuple[dict[str, Any], dict[str, Any], Any]] = {
    "plain": ({}, {}, lambda x: x),
    "causal": ({}, {"mask": Mask(causal=True)}, lambda x: np.where(CAUSAL, x, -np.inf)),
    "padded": (
        {},
        {"mask": Mask(query_lengths=LENGTHS, key_lengths=LENGTHS)},
        lambda x: np.where((INSIDE[:, :, None] & INSIDE[:, None])[:, None], x, -np.inf),
    ),
    "bias": ({"temperature": 2.0}, {"bias": BIAS}, lambda x: (x + np.asarray(BIAS, np.float64)) / 2),
    "softcap": (
        {"logit_modification": Softcap(0.7), "temperature": 0.5},
        {"mask": Mask(causal=True)},
        lambda x: np.where(CAUSAL, 1.4 * np.tanh(x / 0.7), -np.inf),
    ),
    "function": (
        {"logit_modification": by_head},
        {},
        lambda x: by_head(x, 0, np.arange(HEADS)[:, None, None], np.arange(LENGTH)[:, None], np.arange(LENGTH)),
    ),
    "alibi": ({"position": AttentionPosition.ALIBI}, {}, lambda x: x - SLOPES[:, None, None] * AWAY),
}
MODIFIED = ("softcap", "function")
HERE = (Backend.EINSUM, Backend.BLOCKWISE, Backend.XLA)


@pytest.mark.parametrize(
    ("named", "backend"),
    [pair for pair in itertools.product(REQUESTS, HERE) if not (pair[0] in MODIFIED and pair[1] is Backend.XLA)],
    ids=str,
)
def test_it_is_numpys_at_every_backend(named: str, backend: Backend) -> None:
    choices, arguments, change = REQUESTS[named]
    q, k, v = arrays()
    spec = AttentionSpec(backend=backend, **choices)

    @jax.jit
    def with_and_without(q: Any, k: Any, v: Any, arguments: dict[str, Any]) -> Any:
        return [attend(q, k, v, spec=spec, log_sum_exp=wanted, **arguments) for wanted in (True, False)]

    (output, attended), (without, nothing) = with_and_without(q, k, v, arguments)
    np.testing.assert_allclose(attended.log_sum_exp, log_sum(change(logits_of(q, k))), rtol=0, atol=3e-6)
    assert nothing.log_sum_exp is None
    np.testing.assert_allclose(output, without, rtol=0, atol=1e-6)


@pytest.mark.parametrize("backend", HERE, ids=str)
def test_its_gradient_is_that_of_the_logits(backend: Backend) -> None:
    """The derivative of log sum exp(s) to s_k is w_k; a query that sees no key has none."""
    q, k, v = arrays()
    mask = Mask(query_lengths=LENGTHS, key_lengths=LENGTHS)
    cotangent = np.random.default_rng(2).normal(size=(BATCH, HEADS, LENGTH))

    @jax.jit
    @functools.partial(jax.grad, argnums=(0, 1))
    def gradients(q: jax.Array, k: jax.Array, v: jax.Array, mask: Mask) -> jax.Array:
        found = attend(q, k, v, spec=AttentionSpec(backend=backend), mask=mask, log_sum_exp=True)[1].log_sum_exp
        assert found is not None
        return jnp.sum(jnp.where(jnp.isfinite(found), found, 0) * cotangent)

    d_q, d_k = gradients(q, k, v, mask)
    logits = REQUESTS["padded"][2](logits_of(q, k))
    finite = np.where(np.isfinite(log_sum(logits)), log_sum(logits), 0)
    of_logits = np.exp(logits - finite[..., None]) * cotangent[..., None] / np.sqrt(DEPTH)
    repeated = np.repeat(np.asarray(k, np.float64), HEADS // GROUPS, axis=2)
    np.testing.assert_allclose(d_q, np.einsum("bhqk,bkhd->bqhd", of_logits, repeated), rtol=0, atol=1e-5)
    of_heads = np.einsum("bhqk,bqhd->bkhd", of_logits, np.asarray(q, np.float64))
    of_groups = of_heads.reshape(BATCH, LENGTH, GROUPS, HEADS // GROUPS, DEPTH).sum(axis=3)
    np.testing.assert_allclose(d_k, of_groups, rtol=0, atol=1e-5)


@pytest.mark.parametrize("backend", HERE, ids=str)
def test_it_is_float32_at_least(backend: Backend) -> None:
    q, k, v = arrays(dtype=jnp.bfloat16)
    spec = AttentionSpec(backend=backend)
    output, attended = jax.jit(lambda *qkv: attend(*qkv, spec=spec, log_sum_exp=True))(q, k, v)
    assert attended.log_sum_exp is not None
    assert (output.dtype, attended.log_sum_exp.dtype) == (jnp.bfloat16, jnp.float32)
    # Of the rounded inputs exactly: a log-sum-exp in bfloat16 would be off by 4e-3.
    np.testing.assert_allclose(attended.log_sum_exp, log_sum(logits_of(q, k)), rtol=0, atol=3e-6)


@pytest.mark.parametrize("cap", [None, 0.5])
def test_splash_gives_it_too(cap: float | None) -> None:
    q, k, v = (x[:1, :, :1] for x in arrays(length=128))
    softcap = None if cap is None else Softcap(cap)
    spec, mask = AttentionSpec(backend=Backend.SPLASH, logit_modification=softcap), Mask(causal=True)
    found = jax.jit(lambda *qkv: attend(*qkv, spec=spec, mask=mask, log_sum_exp=True)[1].log_sum_exp)(q, k, v)
    logits = logits_of(q, k) if cap is None else cap * np.tanh(logits_of(q, k) / cap)
    expected = log_sum(np.where(np.tril(np.ones((128, 128), bool)), logits, -np.inf))
    np.testing.assert_allclose(found, expected, rtol=0, atol=3e-6)


@pytest.mark.parametrize("backend", [Backend.EINSUM, Backend.BLOCKWISE, Backend.XLA], ids=str)
def test_on_a_mesh_it_is_that_of_one_device(backend: Backend) -> None:
    """Positions are divided between two devices, and heads between two."""
    how = SequenceParallel.RING if backend is Backend.BLOCKWISE else SequenceParallel.GATHER
    sizes = {"tensor": 2, "sequence": 2}
    shape = [sizes.get(axis, 1) for axis in MESH_AXES]
    mesh = jax.make_mesh(shape, MESH_AXES, axis_types=(AxisType.Auto,) * len(shape), devices=jax.devices()[:4])
    q, k, v = arrays()

    def total(q: jax.Array, k: jax.Array, v: jax.Array, here: Placement | None) -> tuple[jax.Array, Any]:
        with contextlib.nullcontext() if here is None else use_placement(here):
            output, attended = attend(
                q, k, v, spec=AttentionSpec(backend=backend), mask=Mask(causal=True), log_sum_exp=True
            )
        assert attended.log_sum_exp is not None
        return jnp.sum(output**2) + jnp.sum(jnp.sin(attended.log_sum_exp)), attended.log_sum_exp

    found, alone = (
        jax.jit(jax.grad(functools.partial(total, here=here), has_aux=True))(q, k, v)
        for here in (Placement(mesh, RULES["sp+tp"], how), None)
    )
    np.testing.assert_allclose(found[1], log_sum(np.where(CAUSAL, logits_of(q, k), -np.inf)), rtol=0, atol=3e-6)
    np.testing.assert_allclose(found[0], alone[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("normalizer", [Normalizer.SPARSEMAX, Normalizer.ENTMAX15], ids=str)
def test_what_has_none_is_refused(normalizer: Normalizer) -> None:
    with pytest.raises(ValueError, match=f"normalizer={normalizer.value}, whose weights have no log-sum-exp"):
        attend(*jax.device_put(arrays()), spec=AttentionSpec(normalizer=normalizer), log_sum_exp=True)
