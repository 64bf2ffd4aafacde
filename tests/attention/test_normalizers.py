"""Normalizers against solvers in NumPy float64 that sort nothing, their closed forms, and the draws against chance."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from transformer.attention.api import attend
from transformer.attention.attention_spec import AttentionSpec
from transformer.attention.masks import local_predictive
from transformer.attention.normalizers import (
    SAMPLING_NORMALIZERS,
    NormalizedWeights,
    Normalizer,
    Reweighting,
    entmax15,
    gaussian_reweight,
    log_sum_exp,
    normalize,
    softmax,
    sparsemax,
)

# Every test stands on arrays of this shape, so that each program compiles once.
B, H, Q, K = 2, 3, 4, 6
SPARSE = {"sparsemax": jax.jit(sparsemax), "entmax15": jax.jit(entmax15)}
BOTH = pytest.mark.parametrize("name", SPARSE)
DRAWN = pytest.mark.parametrize(
    "kind", [Normalizer.HARD, Normalizer.STRAIGHT_THROUGH], ids=["hard", "straight_through"]
)
EVERY = pytest.mark.parametrize("kind", list(Normalizer), ids=lambda kind: kind.value)


def of_excess(name: str, excess: np.ndarray) -> np.ndarray:
    """The weight of a logit that lies so far above the threshold: max(s - tau, 0), or max(s / 2 - tau, 0)^2."""
    positive = np.where(excess > 0, excess, 0)
    return positive if name == "sparsemax" else positive**2


def solved(name: str, logits_K: np.ndarray) -> np.ndarray:
    """The weights of one row: the threshold at which they sum to one, enclosed by halving an interval."""
    scores = np.asarray(logits_K, np.float64) / (1 if name == "sparsemax" else 2)
    low, high = scores.max() - 1, scores.max()
    for _ in range(200):
        middle = (low + high) / 2
        if of_excess(name, scores - middle).sum() > 1:
            low = middle
        else:
            high = middle
    return of_excess(name, scores - (low + high) / 2)


def solved_rows(name: str, logits: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """`solved` of each row over its allowed keys, zeros elsewhere."""
    weights = np.zeros(logits.shape)
    for place in np.ndindex(logits.shape[:-1]):
        if allowed[place].any():
            weights[place][allowed[place]] = solved(name, logits[place][allowed[place]])
    return weights


def random_logits(spread: float = 1.0, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(B, H, Q, K)) * spread


def random_mask() -> np.ndarray:
    """Some keys of every kind of row: of one head alone, one key, and none."""
    allowed = np.random.default_rng(1).random((B, H, Q, K)) < 0.6
    allowed[0, 0, 0] = False
    allowed[0, 0, 1] = [False, False, True, False, False, False]
    allowed[:, 1, 2] = True
    return allowed


def row(*logits: float) -> np.ndarray:
    return np.array(logits, jnp.result_type(float))[None, None, None]


@BOTH
@pytest.mark.parametrize("spread", [0.1, 1.0, 10.0])
def test_sparse_weights_are_those_of_a_solver_that_does_not_sort(name: str, spread: float) -> None:
    logits, allowed = random_logits(spread), random_mask()
    truth = solved_rows(name, logits, allowed)
    with jax.enable_x64(True):
        double = np.asarray(SPARSE[name](logits, allowed))
    single = np.asarray(SPARSE[name](logits.astype(np.float32), allowed))
    np.testing.assert_allclose(double, truth, rtol=0, atol=1e-14)
    np.testing.assert_allclose(single, truth, rtol=0, atol=1e-6 * max(1, spread))
    np.testing.assert_allclose(double.sum(-1), allowed.any(-1), rtol=0, atol=1e-14)
    # Outside the support nothing is small: it is zero.
    np.testing.assert_array_equal(double == 0, truth == 0)
    np.testing.assert_array_equal(single == 0, truth == 0)
    assert (single.dtype, double.dtype) == (np.float32, np.float64)
    assert (truth == 0).sum() > (~allowed).sum() or spread < 1


@pytest.mark.parametrize(
    ("name", "logits", "weights"),
    [
        # tau = (1 + 0.8 - 1) / 2 = 0.4, above 0.1.
        ("sparsemax", (1.0, 0.8, 0.1), (0.6, 0.4, 0)),
        # A point of the simplex is its own projection, and so it is wherever its logits are moved.
        ("sparsemax", (0.1, 0.7, 0.2), (0.1, 0.7, 0.2)),
        ("sparsemax", (1000.25, 1000.75), (0.25, 0.75)),
        # A lead of one is just enough to take all.
        ("sparsemax", (1.0, 0.0, 0.0), (1, 0, 0)),
        ("sparsemax", (3.0, 3.0, 3.0, -2.0), (1 / 3, 1 / 3, 1 / 3, 0)),
        # Of weights p = r^2 the halved logits are r and any constant.
        ("entmax15", (1.6, 1.2), (0.64, 0.36)),
        ("entmax15", (4 / 3, 2 / 3, 4 / 3), (4 / 9, 1 / 9, 4 / 9)),
        ("entmax15", (24 / 13, -0.1, 10 / 13), (144 / 169, 0, 25 / 169)),
        ("entmax15", (1001.6, 1001.2), (0.64, 0.36)),
        # Here it takes a lead of two.
        ("entmax15", (2.0, 0.0, 0.0), (1, 0, 0)),
        ("entmax15", (3.0, 3.0, -2.0, 3.0), (1 / 3, 1 / 3, 0, 1 / 3)),
    ],
)
def test_small_cases_are_as_worked_by_hand(name: str, logits: tuple, weights: tuple) -> None:
    with jax.enable_x64(True):
        found = np.asarray(SPARSE[name](row(*logits)))[0, 0, 0]
    np.testing.assert_allclose(found, weights, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(found == 0, np.array(weights) == 0)
    np.testing.assert_allclose(solved(name, np.array(logits)), weights, rtol=0, atol=1e-12)


@BOTH
@pytest.mark.parametrize("compiled", [False, True])
def test_weights_at_the_edge_of_the_support_are_never_negative(name: str, compiled: bool) -> None:
    """Rounding decides whether a key that lies at the threshold belongs to the support; its weight is 0 or above."""
    generator = np.random.default_rng(0)
    weights = np.abs(generator.normal(size=(1, 1, 20_000, K)))
    weights[..., 0] = 0
    weights /= weights.sum(-1, keepdims=True)
    logits = weights if name == "sparsemax" else 2 * np.sqrt(weights)
    logits[..., 0] += generator.normal(size=20_000) * 5e-8
    moved = jax.device_put((logits + generator.normal(size=(1, 1, 20_000, 1))).astype(np.float32))
    weigh = SPARSE[name] if compiled else {"sparsemax": sparsemax, "entmax15": entmax15}[name]
    found = np.asarray(weigh(moved))
    np.testing.assert_allclose(found.sum(-1), 1, rtol=0, atol=1e-6)
    assert found.min() >= 0


@BOTH
def test_equal_logits_have_equal_weights(name: str) -> None:
    logits = row(0.25, 1.0, 0.25, 1.0, -9.0, 0.25)
    weights = np.asarray(SPARSE[name](logits))[0, 0, 0]
    assert weights[0] == weights[2] == weights[5] < weights[1] == weights[3]
    assert weights[4] == 0
    np.testing.assert_array_equal(SPARSE[name](row(*[7.0] * 4)), np.full((1, 1, 1, 4), 0.25))


@EVERY
def test_a_single_key_has_all_the_weight(kind: Normalizer) -> None:
    def first(logits: jax.Array) -> jax.Array:
        return normalize(logits, None, kind, key=jax.random.key(0), train=True).values[0, 0, 0, 0]

    value_and_gradient = jax.jit(jax.value_and_grad(first))
    for logit in (-50.0, 0.0, 50.0):
        assert value_and_gradient(row(logit)) == (1, 0)


@BOTH
def test_the_gradient_is_that_of_central_differences(name: str) -> None:
    logits, allowed = random_logits(), random_mask()
    cotangent, step = random_logits(seed=2), 1e-5
    with jax.enable_x64(True):
        weighted = jax.grad(lambda s: jnp.sum(SPARSE[name](s, allowed) * cotangent))
        gradient = np.asarray(jax.jit(weighted)(logits))
    slopes = np.zeros(logits.shape)
    for key in range(K):
        # Rows are independent: one key of all of them moves at once.
        moves = np.zeros(logits.shape)
        moves[..., key] = step
        ahead, behind = (solved_rows(name, logits + sign * moves, allowed) for sign in (1, -1))
        slopes[..., key] = ((ahead - behind) * cotangent).sum(-1) / (2 * step)
    np.testing.assert_allclose(gradient, np.where(allowed, slopes, 0), rtol=0, atol=1e-8)
    assert not gradient[~allowed].any()


@functools.cache
def jacobian_of(name: str) -> Callable[[jax.Array], jax.Array]:
    return jax.jit(jax.jacrev(lambda logits_K: SPARSE[name](logits_K[None, None, None])[0, 0, 0]))


@BOTH
@pytest.mark.parametrize("logits", [(0.3, 0.1, -0.4, -0.2, 1.1), (0.5, 0.5, 0.2, 0.5, -3.0), (9.0, 0.0, 0.0, 1.0, 2.0)])
def test_the_jacobian_is_the_closed_form(name: str, logits: tuple) -> None:
    """diag(s) - s s' / sum(s): of sparsemax s is 1 on the support, of 1.5-entmax the root of the weight."""
    weights = solved(name, np.array(logits))
    slopes = (weights > 0).astype(float) if name == "sparsemax" else np.sqrt(weights)
    truth = np.diag(slopes) - np.outer(slopes, slopes) / slopes.sum()
    with jax.enable_x64(True):
        jacobian = jacobian_of(name)(jnp.asarray(logits))
        np.testing.assert_allclose(jacobian, truth, rtol=0, atol=1e-13)


@BOTH
def test_first_and_second_derivatives_are_those_of_central_differences(name: str) -> None:
    logits, allowed = random_logits(seed=3), jnp.asarray(random_mask())
    with jax.enable_x64(True):
        function = jax.jit(lambda s: SPARSE[name](s, allowed))
        check_grads(function, (jnp.asarray(logits),), order=2, modes=["rev"], atol=1e-6, rtol=1e-6)


@functools.cache
def derived(kind: Normalizer) -> Callable[..., tuple[jax.Array, NormalizedWeights]]:
    """The compiled gradient of all that a normalizer returns, and what it returns."""

    def weighted(logits: jax.Array, allowed: jax.Array, cotangent: jax.Array) -> tuple[jax.Array, NormalizedWeights]:
        weights = normalize(logits, allowed, kind, key=jax.random.key(0), train=True)
        total = jnp.sum(weights.values * cotangent) + jnp.sum(weights.probabilities * cotangent)
        return total + (0 if weights.log_prob is None else jnp.sum(weights.log_prob)), weights

    return jax.jit(jax.grad(weighted, has_aux=True))


@EVERY
@pytest.mark.parametrize("forbidden", [np.inf, np.nan, 3e38])
def test_masked_keys_and_rows_are_exactly_zero_in_value_and_gradient(kind: Normalizer, forbidden: float) -> None:
    allowed, cotangent = random_mask(), random_logits(seed=2).astype(np.float32)
    logits = np.where(allowed, random_logits(), forbidden).astype(np.float32)
    gradient, weights = derived(kind)(logits, allowed, cotangent)
    rows = allowed.any(-1)
    for found in (weights.values, weights.probabilities, gradient):
        assert np.isfinite(found).all()
        assert not np.asarray(found)[~allowed].any()
    np.testing.assert_allclose(np.asarray(weights.values).sum(-1), rows, rtol=0, atol=1e-6)
    assert np.abs(gradient).sum() > 1
    if weights.log_prob is not None:
        assert np.isfinite(weights.log_prob).all()
        assert not np.asarray(weights.log_prob)[~rows].any()


@EVERY
def test_a_bias_of_minus_infinity_hides_a_key_as_a_mask_does(kind: Normalizer) -> None:
    allowed, cotangent = random_mask(), random_logits(seed=2).astype(np.float32)
    logits = random_logits().astype(np.float32)
    masked = derived(kind)(logits, allowed, cotangent)
    biased = derived(kind)(np.where(allowed, logits, -np.inf), np.ones_like(allowed), cotangent)
    # From nothing at all a sampler has still to draw something.
    rows = allowed.any(-1) if kind in SAMPLING_NORMALIZERS else np.ones_like(allowed[..., 0])
    for ours, theirs in zip(jax.tree.leaves(biased), jax.tree.leaves(masked), strict=True):
        np.testing.assert_allclose(np.asarray(ours)[rows], np.asarray(theirs)[rows], rtol=0, atol=1e-6)


def test_entmax_lies_between_softmax_and_sparsemax() -> None:
    logits = random_logits(2.0, seed=5)
    single = jax.device_put(logits.astype(np.float32))
    supports = [np.asarray(weigh(single)) > 0 for weigh in (*SPARSE.values(), softmax)]
    sizes = [support.sum() for support in supports]
    assert supports[2].all()
    assert (supports[0] <= supports[1]).all()
    assert sizes[0] < sizes[1] < sizes[2]


DRAWS = 20_000
LOGITS = np.array([0.3, -1.0, 1.2, 5.0, 0.0, -0.4])
# The likeliest key is hidden.
SEEN = np.array([True, True, True, False, True, True])


@DRAWN
def test_draws_are_as_frequent_as_the_softmax_says(kind: Normalizer) -> None:
    logits, allowed = jax.device_put(
        (np.broadcast_to(LOGITS.astype(np.float32), (1, 1, DRAWS, K)), SEEN[None, None, None])
    )
    drawn = normalize(logits, allowed, kind, key=jax.random.key(0), train=True)
    values = np.asarray(drawn.values)[0, 0]
    assert set(np.unique(values)) == {0, 1}
    np.testing.assert_array_equal(values.sum(-1), 1)
    assert not values[:, ~SEEN].any()
    probabilities = np.where(SEEN, np.exp(LOGITS), 0) / np.exp(LOGITS[SEEN]).sum()
    expected = DRAWS * probabilities[SEEN]
    chi_square = np.sum((values.sum(0)[SEEN] - expected) ** 2 / expected)
    # Four degrees of freedom: one draw of a true sampler in a thousand is beyond this.
    assert chi_square < 18.47
    assert drawn.log_prob is not None
    np.testing.assert_allclose(drawn.log_prob[0, 0], np.log(probabilities[values.argmax(-1)]), rtol=0, atol=2e-6)
    np.testing.assert_allclose(drawn.probabilities[0, 0, 0], probabilities, rtol=0, atol=1e-6)
    # Neighboring queries draw apart from each other, and another key draws anew.
    repeats = (values[1:].argmax(-1) == values[:-1].argmax(-1)).mean()
    assert repeats == pytest.approx((probabilities**2).sum(), abs=0.02)
    again = np.asarray(normalize(logits, allowed, kind, key=jax.random.key(1), train=True).values)[0, 0]
    assert (again.argmax(-1) == values.argmax(-1)).mean() == pytest.approx((probabilities**2).sum(), abs=0.02)


@DRAWN
def test_the_gradient_of_a_draws_log_probability_is_the_score_function(kind: Normalizer) -> None:
    """D log p(drawn) / d logits = one_hot(drawn) - p, what REINFORCE multiplies with the reward."""
    nothing = np.zeros((B, H, Q, K), np.float32)
    gradient, weights = derived(kind)(random_logits().astype(np.float32), random_mask(), nothing)
    np.testing.assert_allclose(gradient, weights.values - weights.probabilities, rtol=0, atol=1e-6)
    assert np.abs(gradient).max() > 0.1


@DRAWN
def test_evaluation_takes_the_likeliest_key(kind: Normalizer) -> None:
    logits, allowed = random_logits(), random_mask()
    likeliest = np.where(allowed, logits, -np.inf).argmax(-1)
    one_hot = np.where(allowed, np.arange(K) == likeliest[..., None], 0)
    for key in (None, jax.random.key(0), jax.random.key(1)):
        weights = normalize(*jax.device_put((logits.astype(np.float32), allowed)), kind, key=key, train=False)
        np.testing.assert_array_equal(weights.values, one_hot)


@DRAWN
def test_a_draw_without_a_key_is_refused(kind: Normalizer) -> None:
    with pytest.raises(TypeError, match=f"normalizer={kind.value} draws a sample in training"):
        normalize(jnp.zeros((1, 1, 1, 2)), None, kind, train=True)


@pytest.mark.parametrize("train", [False, True])
def test_straight_through_has_the_gradient_of_softmax_and_hard_has_none(train: bool) -> None:
    logits, cotangent = jax.device_put([random_logits(seed=seed).astype(np.float32) for seed in (0, 2)])
    allowed = jax.device_put(random_mask())

    def gradient(kind: Normalizer) -> np.ndarray:
        def values(logits: jax.Array) -> jax.Array:
            return normalize(logits, allowed, kind, key=jax.random.key(3), train=train).values

        return np.asarray(jax.vjp(values, logits)[1](cotangent)[0])

    np.testing.assert_allclose(gradient(Normalizer.STRAIGHT_THROUGH), gradient(Normalizer.SOFTMAX), rtol=0, atol=1e-7)
    assert np.abs(gradient(Normalizer.SOFTMAX)).max() > 0.1
    assert not gradient(Normalizer.HARD).any()


def bell(center: np.ndarray, half_width: float) -> np.ndarray:
    """exp(-(s - p_t)^2 / (2 sigma^2)) with sigma = D / 2, for every key position s."""
    distance = np.arange(K) - center[..., None]
    return np.exp(-(distance**2) / (2 * (half_width / 2) ** 2))


def test_the_gaussian_is_luongs() -> None:
    center, half_width = np.random.default_rng(4).uniform(0, K - 1, size=(B, H, Q)), 3.0
    powers = np.exp(random_logits())
    probabilities = (powers / powers.sum(-1, keepdims=True)).astype(np.float32)

    @jax.jit
    @functools.partial(jax.grad, argnums=1, has_aux=True)
    def reweighted(probabilities: jax.Array, center: jax.Array) -> tuple[jax.Array, NormalizedWeights]:
        found = gaussian_reweight(NormalizedWeights(probabilities, probabilities), center, half_width)
        return jnp.sum(found.values), found

    of_center, found = reweighted(probabilities, center.astype(np.float32))
    np.testing.assert_allclose(found.values, probabilities * bell(center, half_width), rtol=0, atol=1e-6)
    np.testing.assert_array_equal(found.probabilities, probabilities)
    # The gradient reaches the predicted position: d factor / d p_t = factor (s - p_t) / sigma^2.
    slope = bell(center, half_width) * (np.arange(K) - center[..., None]) / (half_width / 2) ** 2
    np.testing.assert_allclose(of_center, (probabilities * slope).sum(-1), rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", [Normalizer.SOFTMAX, Normalizer.SPARSEMAX], ids=lambda kind: kind.value)
def test_local_attention_weighs_its_window_by_the_gaussian(kind: Normalizer) -> None:
    """Align within [p_t - D, p_t + D], then multiply, without normalizing anew (Luong et al. 2015, equation 10)."""
    generator, half_width = np.random.default_rng(5), 2
    q, k = (generator.normal(size=(B, length, H, 4)).astype(np.float32) for length in (Q, K))
    center = generator.uniform(0, K - 1, size=(B, H, Q))
    v = np.broadcast_to(np.eye(K, dtype=np.float32)[:, None], (B, K, H, K))
    spec = AttentionSpec(normalizer=kind, reweighting=Reweighting.GAUSSIAN)
    mask = local_predictive(jax.device_put(center.astype(np.float32)), half_width)
    found = jax.jit(lambda q, k, v, mask: attend(q, k, v, spec=spec, mask=mask)[0])(q, k, v, mask)
    logits = np.einsum("bqhd,bkhd->bhqk", q.astype(np.float64), k.astype(np.float64)) / 2
    allowed = np.abs(np.arange(K) - center[..., None]) <= half_width
    aligned = np.where(allowed, np.exp(logits), 0)
    aligned = aligned / aligned.sum(-1, keepdims=True)
    if kind is Normalizer.SPARSEMAX:
        aligned = solved_rows("sparsemax", logits, allowed)
    np.testing.assert_allclose(np.moveaxis(found, 1, 2), aligned * bell(center, half_width), rtol=0, atol=2e-6)


@pytest.mark.parametrize("center", [0.0, 1e4, -1e4])
def test_log_sum_exp_is_numpys_and_minus_infinity_without_keys(center: float) -> None:
    # Logits of float32, so that both sides begin with the same numbers; one is minus infinity itself.
    logits = (random_logits(3.0) + center).astype(np.float32).astype(np.float64)
    logits[1, 1, 2, 0] = -np.inf
    allowed = random_mask()
    truth = np.logaddexp.reduce(np.where(allowed, logits, -np.inf), axis=-1)
    np.testing.assert_array_equal(truth == -np.inf, ~allowed.any(-1))
    single = log_sum_exp(*jax.device_put((logits.astype(np.float32), allowed)))
    np.testing.assert_allclose(single, truth, rtol=1e-6, atol=1e-6)
    with jax.enable_x64(True):
        double = log_sum_exp(*jax.device_put((logits, allowed)))
        np.testing.assert_allclose(double, truth, rtol=1e-14, atol=1e-14)
    assert (single.dtype, double.dtype) == (np.float32, np.float64)


def test_the_gradient_of_log_sum_exp_is_the_softmax() -> None:
    logits, allowed = jax.device_put((random_logits().astype(np.float32), random_mask()))

    def total(logits: jax.Array) -> jax.Array:
        found = log_sum_exp(logits, allowed)
        return jnp.sum(jnp.where(jnp.isfinite(found), found, 0))

    gradient = np.asarray(jax.jit(jax.grad(total))(logits))
    np.testing.assert_allclose(gradient, softmax(logits, allowed), rtol=0, atol=1e-6)
    assert not gradient[~random_mask()].any()
