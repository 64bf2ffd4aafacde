"""The contrastive loss and the metrics of retrieval, against loops over scalars in float64."""

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.text_retrieval.metrics import retrieval_metrics, symmetric_info_nce


def unit_rows(count: int, seed: int) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(count, 5))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def negative_log_share(numbers: list[float], own: int) -> float:
    return -math.log(math.exp(numbers[own]) / math.fsum(map(math.exp, numbers)))


def test_the_loss_is_the_cross_entropy_of_the_partner_in_both_directions() -> None:
    temperature = 0.05
    x, y = unit_rows(6, 0), unit_rows(6, 1)
    expected = correct = 0.0
    for own in range(6):
        for queries, keys in ((x, y), (y, x)):
            logits = [float(sum(queries[own] * key)) / temperature for key in keys]
            expected += negative_log_share(logits, own) / 2
            correct += (max(range(6), key=logits.__getitem__) == own) / 2
    with jax.enable_x64(True):
        sums = symmetric_info_nce(jnp.asarray(x), jnp.asarray(y), temperature)
        assert sums.loss.dtype == np.float64
        assert float(sums.loss) == pytest.approx(expected, rel=1e-12)
    assert float(sums.correct) == correct
    single = symmetric_info_nce(jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32), temperature)
    assert float(single.loss) == pytest.approx(expected, rel=1e-5)


def test_partners_that_are_equal_and_orthogonal_to_all_others_have_almost_no_loss() -> None:
    axes = jnp.eye(4)
    sums = symmetric_info_nce(axes, axes, 0.1)
    assert float(sums.loss) == pytest.approx(4 * math.log(1 + 3 * math.exp(-10)), rel=1e-3)
    assert float(sums.correct) == 4
    # Embeddings that are all alike guess: log N for each pair.
    alike = symmetric_info_nce(jnp.ones((4, 1)), jnp.ones((4, 1)), 0.1)
    assert float(alike.loss) == pytest.approx(4 * math.log(4), rel=1e-6)


def test_ranks_are_those_of_sorting() -> None:
    x, y = unit_rows(9, 4), unit_rows(9, 5)
    found = retrieval_metrics(x.astype(np.float32), y.astype(np.float32))
    for direction, queries, keys in (("source_to_target", x, y), ("target_to_source", y, x)):
        ranks = []
        for own, query in enumerate(queries):
            nearest_first = sorted(range(9), key=lambda number, query=query: -float(sum(query * keys[number])))
            ranks.append(nearest_first.index(own) + 1)
        assert len(set(ranks)) > 2
        assert found[f"{direction}/accuracy"] == pytest.approx(ranks.count(1) / 9)
        assert found[f"{direction}/mean_reciprocal_rank"] == pytest.approx(math.fsum(1 / rank for rank in ranks) / 9)


def test_ties_count_as_a_random_order_would() -> None:
    # The first two sources are equally close to both first targets, the third is farthest from its own.
    x = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    y = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, -1.0]])
    found = retrieval_metrics(x, y)
    assert found["source_to_target/accuracy"] == pytest.approx(float(Fraction(1, 2) * 2 / 3))
    assert found["source_to_target/mean_reciprocal_rank"] == pytest.approx((2 * 3 / 4 + 1 / 3) / 3)
    alike = retrieval_metrics(np.ones((50, 1)), np.ones((50, 1)))
    assert alike["target_to_source/accuracy"] == pytest.approx(1 / 50)
    assert alike["target_to_source/mean_reciprocal_rank"] == pytest.approx(sum(1 / rank for rank in range(1, 51)) / 50)
