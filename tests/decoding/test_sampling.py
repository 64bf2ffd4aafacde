"""Sampling against NumPy: what is kept, how often it is drawn, and what a draw depends on."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tests.decoding.table_model import SPECIAL, next_token, random_table, rollout_of
from tests.oracles import decoding as oracle
from transformer.config import UserError
from transformer.decoding.greedy import GreedySearch
from transformer.decoding.sampling import Sampling

VOCABULARY = 9


def distribution(strategy: Sampling, log_probability: np.ndarray) -> np.ndarray:
    """What a strategy draws from, by token number."""
    kept, index = strategy.truncate(jnp.asarray(log_probability, jnp.float32)[None])
    found = np.zeros(len(log_probability))
    found[slice(None) if index is None else np.asarray(index[0])] = np.exp(np.asarray(kept[0], np.float64))
    return found


@settings(max_examples=60)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.3, 1.0, 2.5]),
    st.sampled_from([0, 1, 3, 40, 100]),
    st.floats(0.01, 1.0),
)
def test_what_is_kept_is_exactly_what_an_oracle_keeps(seed: int, temperature: float, top_k: int, top_p: float) -> None:
    logits = np.random.default_rng(seed).normal(size=40).astype(np.float32) * 2
    log_probability = oracle.normalized(logits, (0, 1)).astype(np.float32).astype(np.float64)
    expected = oracle.drawn_from(log_probability, temperature, top_k, top_p)
    found = distribution(Sampling(temperature, top_k, top_p), log_probability)
    np.testing.assert_array_equal(found > 0, expected > 0)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def test_the_token_that_crosses_the_nucleus_is_kept() -> None:
    log_probability = np.log([0.125, 0.5, 0.25, 0.0625, 0.0625])
    for top_p, kept in ((1e-6, 1), (0.49, 1), (0.51, 2), (0.74, 2), (0.76, 3), (0.88, 4), (0.94, 5), (1.0, 5)):
        assert np.count_nonzero(distribution(Sampling(top_p=top_p), log_probability)) == kept
    # The nucleus is of what top_k left: 0.5 of 0.75 is more than 0.6.
    assert np.count_nonzero(distribution(Sampling(top_k=2, top_p=0.6), log_probability)) == 1
    # Of equals the first.
    np.testing.assert_array_equal(distribution(Sampling(top_k=4), log_probability) > 0, [True, True, True, True, False])


@pytest.mark.parametrize(
    "strategy", [Sampling(num_beams=3000), Sampling(0.7, 4, 0.9, num_beams=3000)], ids=["whole", "sharpened_and_cut"]
)
def test_pairs_of_tokens_are_drawn_as_often_as_they_are_probable(strategy: Sampling, key: Any) -> None:
    table = random_table(5, 2, VOCABULARY, more_ends=-20)
    rollout = rollout_of(table, strategy, 2, key=key)
    for example in range(2):
        model = next_token(table, example)

        def draws(prefix: tuple[int, ...], model: Any = model) -> np.ndarray:
            return oracle.drawn_from(model(prefix), strategy.temperature, strategy.top_k, strategy.top_p)

        expected = np.array([draws(())[one] * draws((one,)) for one in range(VOCABULARY)])
        found = np.zeros_like(expected)
        np.add.at(found, tuple(rollout.tokens[example].T), 1)
        assert (expected[found > 0] > 0).all()
        likely = expected * strategy.num_beams > 5
        compared = np.append(found[likely], found[~likely].sum()), np.append(expected[likely], expected[~likely].sum())
        counts, probabilities = (one[compared[1] > 1e-9] for one in compared)
        chi_square = np.sum((counts - strategy.num_beams * probabilities) ** 2 / (strategy.num_beams * probabilities))
        assert len(counts) > 5
        assert chi_square < stats.chi2.ppf(0.999, len(counts) - 1)
        # The score is the log-probability of what was drawn.
        drawn = [np.log(draws(())[one]) + np.log(draws((one,))[two]) for one, two in rollout.tokens[example, :50]]
        np.testing.assert_allclose(rollout.scores[example, :50], drawn, rtol=0, atol=1e-4)


def test_neighboring_samples_and_examples_are_independent(key: Any) -> None:
    table = np.repeat(random_table(5, 1, VOCABULARY, more_ends=-20), 2, axis=0)
    tokens = rollout_of(table, Sampling(num_beams=3000), 2, key=key).tokens[:, :, 0]
    probability = np.exp(next_token(table, 0)(()))[3:]
    for one, other in ((tokens[0, ::2], tokens[0, 1::2]), (tokens[0], tokens[1])):
        found = np.zeros((VOCABULARY, VOCABULARY))
        np.add.at(found, (one, other), 1)
        expected = len(one) * np.outer(probability, probability)
        likely = expected > 5
        chi_square = np.sum((found[3:, 3:][likely] - expected[likely]) ** 2 / expected[likely])
        assert chi_square < stats.chi2.ppf(0.999, likely.sum())


def test_a_sample_depends_on_its_key_and_number_and_not_on_what_is_decoded_beside_it(key: Any) -> None:
    table = random_table(1, 3, VOCABULARY)
    many = rollout_of(table, Sampling(0.9, 5, 0.95, num_beams=4), 6, key=key)
    again = rollout_of(table, Sampling(0.9, 5, 0.95, num_beams=4), 6, key=jax.random.key(7))
    few = rollout_of(table[:1], Sampling(0.9, 5, 0.95, num_beams=2), 4, key=key)
    other = rollout_of(table, Sampling(0.9, 5, 0.95, num_beams=4), 6, key=jax.random.key(8))
    for one, two in zip(many, again, strict=True):
        np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(few.tokens, many.tokens[:1, :2, :4])
    assert (other.tokens != many.tokens).any()
    # The samples of an example are draws of their own.
    assert all(len(np.unique(samples, axis=0)) > 2 for samples in many.tokens)


def test_the_limit_of_low_temperature_and_one_kept_token_are_greedy(key: Any) -> None:
    table = random_table(2, 4, VOCABULARY)
    greedy = rollout_of(table, GreedySearch(), 7)
    for strategy in (Sampling(1e-37), Sampling(top_k=1, top_p=1e-6)):
        sampled = rollout_of(table, strategy, 7, key=key)
        np.testing.assert_array_equal(sampled.tokens, greedy.tokens)
        np.testing.assert_array_equal(sampled.lengths, greedy.lengths)
        np.testing.assert_allclose(sampled.scores, 0, rtol=0, atol=1e-6)
    assert (greedy.tokens == SPECIAL.eos_id).any()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 0.0),
        ("temperature", -1.0),
        ("temperature", 1e-40),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_p", float("nan")),
        ("num_beams", 0),
    ],
)
def test_what_cannot_be_sampled_from_is_refused(field: str, value: float) -> None:
    with pytest.raises(UserError, match=f"^{field}={value} must be"):
        Sampling(**{field: value})  # type: ignore[arg-type]


def test_sampling_without_a_key_is_refused() -> None:
    with pytest.raises(ValueError, match=r"key=None.*jax\.random\.key"):
        rollout_of(random_table(0, 2, VOCABULARY), Sampling(), 2)
