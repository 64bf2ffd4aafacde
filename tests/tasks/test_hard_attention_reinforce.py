"""REINFORCE for attention that draws: the estimate against an enumeration of all draws, and its baseline."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.tasks.hard_attention_reinforce import estimate_reinforce_loss, token_log_likelihood, update_baseline

T, K = 3, 2
COUNTS = np.array([[True, True, True], [True, True, False]])


def worth(draws: tuple[int, ...], row: int) -> np.ndarray:
    """Log p of every word: what one draw does has an effect on all words from there on."""
    told = np.cumsum(np.array(draws) + 0.5) * np.array([0.7, -0.4, 1.1])
    return -np.abs(told + row)


def test_the_expected_gradient_is_that_of_the_expected_log_likelihood() -> None:
    """Summed over all draws with their probabilities, and compared with differences of the expectation itself."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2, T, K))

    def expectation(logits: np.ndarray, entropy: float) -> float:
        p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        total = 0.0
        for row, length in enumerate(COUNTS.sum(1)):
            for draws in itertools.product(range(K), repeat=int(length)):
                probability = np.prod([p[row, t, k] for t, k in enumerate(draws)])
                padded = (*draws, *(0,) * (T - length))
                total += probability * worth(padded, row)[:length].sum()
            total -= entropy * (p[row, :length] * np.log(p[row, :length])).sum()
        return -total

    def estimate(logits: jax.Array, draws: np.ndarray, told: np.ndarray, baseline: float, entropy: float) -> jax.Array:
        log_p = jax.nn.log_softmax(logits)
        extras = {
            "attention_log_prob": jnp.take_along_axis(log_p, jnp.asarray(draws)[..., None], -1),
            "attention_entropy": -jnp.sum(jnp.exp(log_p) * log_p, -1, keepdims=True),
        }
        return estimate_reinforce_loss(told, jnp.asarray(COUNTS), extras, jnp.asarray(baseline), entropy).loss

    with jax.enable_x64(True):
        gradient = jax.jit(jax.grad(estimate))
        for baseline, entropy in ((0.0, 0.0), (-0.7, 0.2)):
            mean = np.zeros_like(logits)
            for flat in itertools.product(range(K), repeat=2 * T):
                draws = np.array(flat).reshape(2, T)
                p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
                probability = np.prod(np.take_along_axis(p, draws[..., None], -1))
                told = np.stack([worth(tuple(of_row), row) for row, of_row in enumerate(draws.tolist())])
                mean += probability * np.asarray(gradient(logits, draws, told, baseline, entropy))
            step = 1e-6
            for place in np.ndindex(*logits.shape):
                up, down = logits.copy(), logits.copy()
                up[place] += step
                down[place] -= step
                wanted = (expectation(up, entropy) - expectation(down, entropy)) / (2 * step)
                assert mean[place] == pytest.approx(wanted, abs=1e-7)


def test_the_reward_is_no_way_for_gradients() -> None:
    extras = {name: jnp.ones((2, T, 1)) for name in ("attention_log_prob", "attention_entropy")}

    def loss(likelihood: jax.Array) -> jax.Array:
        return estimate_reinforce_loss(likelihood, jnp.asarray(COUNTS), extras, jnp.float32(-1), 0.1).loss

    assert not jax.grad(loss)(jnp.full((2, T), -2.0)).any()


def test_the_baseline_follows_what_a_word_is_worth() -> None:
    counts = jnp.asarray(COUNTS)
    extras = {name: jnp.zeros((2, T, 1)) for name in ("attention_log_prob", "attention_entropy")}
    estimate = estimate_reinforce_loss(jnp.full((2, T), -2.0), counts, extras, jnp.float32(-1), 0.0)
    assert float(estimate.reward) == -10
    assert float(update_baseline(jnp.float32(-1), estimate, counts)["baseline"]) == pytest.approx(-1.1)


def test_a_labels_likelihood_is_its_softmax() -> None:
    logits = np.random.default_rng(0).normal(size=(2, 3, 5))
    labels = np.array([[0, 4, 2], [1, 1, 3]])
    told = np.log(np.exp(logits) / np.exp(logits).sum(-1, keepdims=True))
    wanted = np.take_along_axis(told, labels[..., None], -1)[..., 0]
    np.testing.assert_allclose(token_log_likelihood(jnp.asarray(logits), jnp.asarray(labels)), wanted, rtol=1e-5)
