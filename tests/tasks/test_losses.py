"""Losses of token predictions against NumPy in float64."""

import functools
import re
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.layers import linear
from transformer.layers.linear import logits_product
from transformer.tasks import losses
from transformer.tasks.losses import TokenLoss, chunked_token_loss

token_loss = jax.jit(losses.token_loss, static_argnums=3, static_argnames="num_tokens")
BATCH, LENGTH, VOCABULARY = 3, 5, 7


def drawn(scale: float = 3.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    logits = (scale * random.normal(size=(BATCH, LENGTH, VOCABULARY))).astype(np.float32)
    labels = random.integers(0, VOCABULARY, (BATCH, LENGTH)).astype(np.int32)
    return logits, labels, np.arange(LENGTH) < np.array([5, 2, 0])[:, None]


def by_hand(
    logits: np.ndarray, labels: np.ndarray, counts: np.ndarray, smoothing: float, tokens: int = VOCABULARY
) -> tuple[float, float, int]:
    """One token after the other: the target is (1 - e) one_hot(label) + e / V, the label's own share included.

    V are the tokens that exist: a table may have more rows.
    """
    smoothed = plain = 0.0
    correct = 0
    for row, column in zip(*np.nonzero(counts), strict=True):
        z = logits[row, column].astype(np.float64)
        log_probability = z - z.max() - np.log(np.exp(z - z.max()).sum())
        target = np.where(np.arange(z.size) < min(tokens, z.size), smoothing / min(tokens, z.size), 0)
        target[labels[row, column]] += 1 - smoothing
        smoothed -= float(target @ log_probability)
        plain -= float(log_probability[labels[row, column]])
        correct += int(z.argmax() == labels[row, column])
    return smoothed, plain, correct


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])
def test_token_loss_is_numpys(smoothing: float) -> None:
    logits, labels, counts = drawn()
    found = token_loss(logits, labels, counts, smoothing)
    smoothed, plain, correct = by_hand(logits, labels, counts, smoothing)
    assert float(found.smoothed) == pytest.approx(smoothed, rel=1e-6)
    assert float(found.cross_entropy) == pytest.approx(plain, rel=1e-6)
    assert float(found.correct) == correct


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["float32", "bfloat16"])
def test_rows_of_the_table_without_a_token_have_no_share_of_the_smoothing(dtype: Any) -> None:
    logits, labels, counts = drawn()
    labels, tokens = labels % 5, 5
    rounded = logits.astype(dtype).astype(np.float32)

    @jax.jit
    @functools.partial(jax.value_and_grad, has_aux=True)
    def loss(states: jax.Array) -> tuple[jax.Array, TokenLoss]:
        sums = chunked_token_loss(lambda x: x, states, labels, counts, 0.3, num_tokens=tokens)
        return sums.smoothed, sums

    (_, found), gradient = loss(logits.astype(dtype))
    expected = by_hand(rounded, labels, counts, 0.3, tokens)
    assert [float(x) for x in found[:3]] == pytest.approx(expected, rel=2e-6)
    wide = rounded.astype(np.float64)
    probability = np.exp(wide) / np.exp(wide).sum(-1, keepdims=True)
    target = 0.3 / tokens * (np.arange(VOCABULARY) < tokens) + 0.7 * np.eye(VOCABULARY)[labels]
    tolerance = 1e-6 if dtype == jnp.float32 else 1e-2
    np.testing.assert_allclose(gradient, (probability - target) * counts[..., None], atol=tolerance)


def test_correct_counts_every_right_token_and_no_padding() -> None:
    logits, _, counts = drawn()
    labels = logits.argmax(-1).astype(np.int32)
    found = token_loss(logits, labels, counts, 0.0)
    assert float(found.correct) == counts.sum() == 7


@functools.partial(jax.jit, static_argnums=3)
def loss_of_bfloat16_states(logits: Any, labels: Any, counts: Any, label_smoothing: float) -> TokenLoss:
    """The loss with a gradient of its own, of logits that are the hidden states."""
    return chunked_token_loss(lambda x: x, logits.astype(jnp.bfloat16), labels, counts, label_smoothing)


@pytest.mark.parametrize(
    ("token_loss", "dtype"),
    [
        *((token_loss, dtype) for dtype in (jnp.float32, jnp.bfloat16, jnp.float64)),
        (loss_of_bfloat16_states, np.float32),
    ],
)
def test_of_equal_logits_the_first_is_the_prediction(token_loss: Any, dtype: type) -> None:
    """As NumPy's argmax: a model whose logits are all equal is right where the label is token 0, not everywhere."""
    with jax.enable_x64(dtype == jnp.float64):
        labels = np.arange(8)[None]
        everywhere = np.ones((1, 8), bool)
        equal = np.zeros((1, 8, 8), dtype)
        assert float(token_loss(equal, labels, everywhere, 0.0).correct) == 1
        # Two are the largest, the tokens 2 and 5.
        two = equal.copy()
        two[..., [2, 5]] = 1
        found = [float(token_loss(two, labels, labels == label, 0.0).correct) for label in range(8)]
        assert found == [0, 0, 1, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("token_loss", [token_loss, loss_of_bfloat16_states])
def test_a_token_whose_logits_are_not_numbers_is_not_right(token_loss: Any) -> None:
    logits = np.float32([[[np.nan, np.nan, np.nan], [0.0, 1.0, np.nan], [np.nan, 2.0, 1.0]]])
    found = token_loss(logits, np.array([[0, 2, 1]]), np.ones((1, 3), bool), 0.0)
    assert float(found.correct) == 0
    assert np.isnan(float(found.cross_entropy))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_of_bfloat16_states_is_numpys(smoothing: float) -> None:
    logits, labels, counts = drawn(scale=30)
    rounded = logits.astype(jnp.bfloat16).astype(np.float32)
    found = loss_of_bfloat16_states(logits, labels, counts, smoothing)
    smoothed, plain, correct = by_hand(rounded, labels, counts, smoothing)
    assert [float(x) for x in found[:3]] == pytest.approx([smoothed, plain, correct], rel=2e-6)


def test_a_token_that_cannot_be_has_no_part_in_the_loss_of_bfloat16_states() -> None:
    logits = np.float32([[[-np.inf, 0.0, -np.inf, 0.0]]])
    found = loss_of_bfloat16_states(logits, np.array([[3]]), np.ones((1, 1), bool), 0.0)
    assert float(found.cross_entropy) == pytest.approx(np.log(2), rel=1e-6)


def test_the_gradient_is_numpys_and_zero_on_padding() -> None:
    logits, labels, counts = drawn()
    loss = lambda z: token_loss(z, labels, counts, 0.1).smoothed  # noqa: E731
    found = np.asarray(jax.jit(jax.grad(loss))(logits))
    wide = logits.astype(np.float64)
    probability = np.exp(wide) / np.exp(wide).sum(-1, keepdims=True)
    target = 0.1 / VOCABULARY + 0.9 * np.eye(VOCABULARY)[labels]
    np.testing.assert_allclose(found, (probability - target) * counts[..., None], atol=1e-6)
    assert not found[~counts].any()


def test_large_logits_do_not_overflow() -> None:
    logits, labels, counts = drawn(scale=1e4)
    found = token_loss(logits, labels, counts, 0.1)
    smoothed, plain, _ = by_hand(logits, labels, counts, 0.1)
    assert [float(found.smoothed), float(found.cross_entropy)] == pytest.approx([smoothed, plain], rel=1e-6)


def test_half_precision_logits_are_summed_in_float32() -> None:
    logits, labels, counts = drawn()
    half = logits.astype(jnp.bfloat16)
    found = token_loss(half, labels, counts, 0.1)
    assert found.smoothed.dtype == jnp.float32
    smoothed, _, _ = by_hand(np.asarray(half, np.float32), labels, counts, 0.1)
    assert float(found.smoothed) == pytest.approx(smoothed, rel=1e-5)


@pytest.mark.parametrize("at_once", [1, BATCH * VOCABULARY * 2, 10**9])
def test_the_loss_in_chunks_is_the_whole_ones_value_and_gradient(at_once: int) -> None:
    _, labels, counts = drawn()
    random = np.random.default_rng(1)
    hidden = random.normal(size=(BATCH, LENGTH, 4)).astype(np.float32)
    kernel = random.normal(size=(4, VOCABULARY)).astype(np.float32)

    def whole(hidden: jax.Array, kernel: jax.Array) -> jax.Array:
        return token_loss(hidden @ kernel, jnp.asarray(labels), jnp.asarray(counts), 0.1).smoothed

    def chunked(hidden: jax.Array, kernel: jax.Array) -> jax.Array:
        return chunked_token_loss(
            lambda part: part @ kernel,
            hidden,
            jnp.asarray(labels),
            jnp.asarray(counts),
            0.1,
            logits_at_once=at_once,
        ).smoothed

    for mine, theirs in zip(
        jax.tree.leaves(jax.jit(jax.value_and_grad(chunked, (0, 1)))(hidden, kernel)),
        jax.tree.leaves(jax.jit(jax.value_and_grad(whole, (0, 1)))(hidden, kernel)),
        strict=True,
    ):
        np.testing.assert_allclose(mine, theirs, rtol=2e-6, atol=2e-6)


def test_the_whole_logits_never_exist_in_chunks() -> None:
    labels = np.zeros((2, 64), np.int32)

    def loss(hidden: jax.Array, kernel: jax.Array) -> jax.Array:
        return chunked_token_loss(
            lambda part: part @ kernel, hidden, labels, labels == 0, 0.0, logits_at_once=2 * 8 * 4096
        ).smoothed

    shapes = (jax.ShapeDtypeStruct((2, 64, 4), jnp.float32), jax.ShapeDtypeStruct((4, 4096), jnp.float32))
    text = str(jax.make_jaxpr(jax.grad(loss, (0, 1)))(*shapes))
    assert "[2,8,4096]" in text
    assert "[2,64,4096]" not in text
    assert "[8,2,8,4096]" not in text


HEAD_ROWS, HEAD_LENGTH, HEAD_WIDTH, HEAD_VOCABULARY = 2, 9, 16, 37


def drawn_head() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Hidden states and a table that bfloat16 holds exactly, labels, and which of them count."""
    random = np.random.default_rng(2)
    hidden = random.normal(size=(HEAD_ROWS, HEAD_LENGTH, HEAD_WIDTH))
    table = random.normal(size=(HEAD_VOCABULARY, HEAD_WIDTH)) / 2
    labels = random.integers(0, HEAD_VOCABULARY, (HEAD_ROWS, HEAD_LENGTH)).astype(np.int32)
    rounded = (x.astype(jnp.bfloat16).astype(np.float32) for x in (hidden, table))
    return *rounded, labels, np.arange(HEAD_LENGTH) < np.array([9, 4])[:, None]


def head_by_hand(
    hidden: np.ndarray, table: np.ndarray, labels: np.ndarray, counts: np.ndarray, smoothing: float, weights: tuple
) -> tuple[float, np.ndarray, np.ndarray]:
    """The weighted sum of both losses of x W^T in float64, and its gradients of x and W."""
    hidden, table = hidden.astype(np.float64), table.astype(np.float64)
    logits = hidden @ table.T
    normalizer = np.log(np.exp(logits).sum(-1, keepdims=True))
    one_hot = np.eye(table.shape[0])[labels]
    loss, of_logits = 0.0, np.zeros_like(logits)
    for weight, e in zip(weights, (smoothing, 0.0), strict=True):
        target = (1 - e) * one_hot + e / table.shape[0]
        loss += weight * float((target * (normalizer - logits) * counts[..., None]).sum())
        of_logits += weight * (np.exp(logits - normalizer) - target) * counts[..., None]
    return loss, of_logits @ table, np.einsum("btv,bte->ve", of_logits, hidden)


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
@pytest.mark.parametrize("at_once", [2 * 4 * HEAD_VOCABULARY, 10**9], ids=["chunks", "whole"])
@pytest.mark.parametrize(("dtype", "smoothing"), [(jnp.bfloat16, 0.0), (jnp.bfloat16, 0.1), (jnp.float32, 0.1)])
def test_the_head_of_a_compute_type_is_numpys(
    dtype: type, smoothing: float, at_once: int, platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Value, and gradients of hidden states and table, of both losses at once; on a GPU the table is padded inside."""
    monkeypatch.setattr(linear, "target_platform", lambda: platform)
    hidden, table, labels, counts = drawn_head()
    weights = (0.25, 0.5)

    def loss(hidden: jax.Array, table: jax.Array) -> jax.Array:
        score = lambda x: logits_product(x, table.astype(dtype).T)  # noqa: E731
        sums = chunked_token_loss(
            score, hidden, jnp.asarray(labels), jnp.asarray(counts), smoothing, logits_at_once=at_once
        )
        return weights[0] * sums.smoothed + weights[1] * sums.cross_entropy

    value, (of_hidden, of_table) = jax.jit(jax.value_and_grad(loss, (0, 1)))(hidden.astype(dtype), table)
    expected, expected_hidden, expected_table = head_by_hand(hidden, table, labels, counts, smoothing, weights)
    assert value.dtype == of_table.dtype == jnp.float32
    assert float(value) == pytest.approx(expected, rel=2e-6)
    tolerance = 2e-6 if dtype == jnp.float32 else 1e-2
    for found, wanted in ((of_hidden, expected_hidden), (of_table, expected_table)):
        error = np.linalg.norm(np.asarray(found, np.float64) - wanted) / np.linalg.norm(wanted)
        assert error < tolerance


@pytest.mark.parametrize("at_once", [2 * 4 * HEAD_VOCABULARY, 10**9], ids=["chunks", "whole"])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_z_loss_is_numpys_and_so_are_its_gradients_beside_those_of_the_cross_entropy(dtype: type, at_once: int) -> None:
    hidden, table, labels, counts = drawn_head()

    def loss(hidden: jax.Array, table: jax.Array) -> tuple[jax.Array, TokenLoss]:
        score = lambda x: logits_product(x, table.astype(dtype).T)  # noqa: E731
        sums = chunked_token_loss(
            score, hidden, jnp.asarray(labels), jnp.asarray(counts), 0.1, logits_at_once=at_once, has_z_loss=True
        )
        return sums.smoothed + 0.3 * sums.squared_log_normalizer, sums

    (value, sums), gradients = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(hidden.astype(dtype), table)
    smoothed, of_hidden, of_table = head_by_hand(hidden, table, labels, counts, 0.1, (1.0, 0.0))
    wide, wide_table = hidden.astype(np.float64), table.astype(np.float64)
    logits = wide @ wide_table.T
    log_z = np.log(np.exp(logits).sum(-1, keepdims=True))
    squares = float((log_z[..., 0] ** 2)[counts].sum())
    assert float(sums.squared_log_normalizer) == pytest.approx(squares, rel=2e-6)
    assert float(sums.smoothed) == pytest.approx(smoothed, rel=2e-6)
    assert float(value) == pytest.approx(smoothed + 0.3 * squares, rel=2e-6)
    of_logits = 0.3 * 2 * log_z * np.exp(logits - log_z) * counts[..., None]
    expected = of_hidden + of_logits @ wide_table, of_table + np.einsum("btv,bte->ve", of_logits, wide)
    for found, wanted in zip(gradients, expected, strict=True):
        error = np.linalg.norm(np.asarray(found, np.float64) - wanted) / np.linalg.norm(wanted)
        assert error < (2e-6 if dtype == jnp.float32 else 1e-2)
    without = chunked_token_loss(lambda x: x, hidden, jnp.asarray(labels) % 7, jnp.asarray(counts), 0.0)
    assert without.squared_log_normalizer is None


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_of_a_head_that_stores_bfloat16_logits_float32_values_go_into_the_loss(
    platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NumPy's float64 of the rounded logits; the compiler may leave the rounding out."""
    monkeypatch.setattr(linear, "target_platform", lambda: platform)
    hidden, table, labels, counts = drawn_head()

    def loss(hidden: jax.Array, table: jax.Array) -> jax.Array:
        score = lambda x: logits_product(x, table.astype(x.dtype).T, jnp.bfloat16)  # noqa: E731
        return chunked_token_loss(score, hidden, jnp.asarray(labels), jnp.asarray(counts), 0.1).smoothed

    states = hidden.astype(jnp.bfloat16)
    value, gradients = jax.jit(jax.value_and_grad(loss, (0, 1)))(states, table)
    expected, *expected_gradients = head_by_hand(hidden, table, labels, counts, 0.1, (1.0, 0.0))
    assert value.dtype == gradients[1].dtype == jnp.float32
    assert float(value) == pytest.approx(expected, rel=1e-3)
    for found, wanted in zip(gradients, expected_gradients, strict=True):
        assert np.linalg.norm(np.asarray(found, np.float64) - wanted) < 1e-2 * np.linalg.norm(wanted)
    logits = next(each for each in products_of(jax.make_jaxpr(loss)(states, table).jaxpr))
    assert logits.outvars[0].aval.dtype == jnp.bfloat16


def products_of(jaxpr: Any) -> list[Any]:
    """Every matrix product of a program."""
    found = []
    for equation in jaxpr.eqns:
        found += [equation] if equation.primitive.name == "dot_general" else []
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            found += products_of(inner)
    return found


@pytest.mark.parametrize("at_once", [2 * 4 * HEAD_VOCABULARY, 10**9], ids=["chunks", "whole"])
def test_the_products_of_a_bfloat16_head_have_bfloat16_operands_and_sum_in_float32(at_once: int) -> None:
    """Forward and backward; no gradient is scattered into the logits, and without smoothing none has a mean."""
    hidden, table, labels, counts = drawn_head()

    def loss(hidden: jax.Array, table: jax.Array) -> jax.Array:
        score = lambda x: logits_product(x, table.astype(x.dtype).T)  # noqa: E731
        sums = chunked_token_loss(score, hidden, jnp.asarray(labels), jnp.asarray(counts), 0.0, logits_at_once=at_once)
        return sums.smoothed

    program = jax.make_jaxpr(jax.grad(loss, (0, 1)))(hidden.astype(jnp.bfloat16), table)
    products = products_of(program.jaxpr)
    assert len(products) == (4 if at_once < 10**9 else 3)
    assert {operand.aval.dtype for each in products for operand in each.invars} == {jnp.dtype(jnp.bfloat16)}
    # That of the hidden states is rounded anyway.
    assert [each.outvars[0].aval.dtype for each in products].count(jnp.float32) == len(products) - 1
    assert "scatter" not in str(program)


def test_a_sharded_vocabulary_is_reduced_where_it_is() -> None:
    """Between devices go three numbers a token and device, not the logits."""
    mesh = jax.make_mesh((8,), ("vocabulary",), axis_types=(jax.sharding.AxisType.Auto,))
    by_vocabulary = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, None, "vocabulary"))
    random = np.random.default_rng(0)
    logits, labels = random.normal(size=(2, 4, 64)), random.integers(0, 50, (2, 4))
    states = jax.device_put(logits.astype(jnp.bfloat16), by_vocabulary)

    @jax.jit
    def loss(states: jax.Array) -> TokenLoss:
        return chunked_token_loss(lambda x: x, states, labels, np.ones((2, 4), bool), 0.1, num_tokens=50)

    wanted = by_hand(np.asarray(states, np.float32), labels, np.ones((2, 4), bool), 0.1, 50)
    assert [float(x) for x in loss(states)[:3]] == pytest.approx(list(wanted), rel=2e-6)
    gathered = re.findall(r"= \(?(\w+\[[\d,]*\])\S* .*all-gather\(", loss.lower(states).compile().as_text() or "")
    assert gathered
    assert set(gathered) <= {"f32[2,4,8]", "s32[2,4,8]"}, gathered


@pytest.mark.parametrize(("platform", "whole"), [("gpu", True), ("cpu", False), ("tpu", False)])
def test_a_gpu_holds_the_logits_of_16_rows_of_gpt2_at_once(
    platform: str, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses, "target_platform", lambda: platform)
    labels = np.zeros((16, 1024), np.int32)

    def loss(hidden: jax.Array, kernel: jax.Array) -> jax.Array:
        return chunked_token_loss(lambda part: part @ kernel, hidden, labels, labels == 0, 0.0).smoothed

    shapes = (jax.ShapeDtypeStruct((16, 1024, 4), jnp.float32), jax.ShapeDtypeStruct((4, 50257), jnp.float32))
    assert ("[16,1024,50257]" in str(jax.make_jaxpr(loss)(*shapes))) is whole
