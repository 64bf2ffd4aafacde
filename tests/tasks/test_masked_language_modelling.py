"""Masked language modelling: what is hidden when, and the baselines that a model must beat."""

import collections
import itertools
from typing import Any

import jax
import numpy as np
import pytest

from tests.tasks.conftest import view_of
from tests.tasks.test_language_modelling import log_probabilities
from transformer.config import UserError
from transformer.tasks.contract import View
from transformer.tasks.masked_language_modelling import Baselines, MaskedLanguageModellingConfig


def test_masks_are_drawn_anew_for_training_and_stay_for_evaluation(masked_task: Any, masked_view: View) -> None:
    batch = masked_task.source(0)[0]
    prepare = jax.jit(lambda key: masked_task.prepare(masked_view, batch, key)[0])
    first, again, other = (prepare(jax.random.key(k)) for k in (0, 0, 1))
    np.testing.assert_array_equal(first["tokens"], again["tokens"])
    assert (np.asarray(first["counts"]) != np.asarray(other["counts"])).any()
    np.testing.assert_array_equal(first["labels"], batch["tokens"])
    held = masked_task.evaluations[0].batches[0]
    sums_of = jax.jit(lambda key: masked_task._sums(masked_view, held, key)[0])
    sums = [sums_of(jax.random.key(key)) for key in (0, 1)]
    jax.tree.map(np.testing.assert_array_equal, *sums)


def test_the_loss_is_that_of_the_hidden_tokens_alone(masked_task: Any, masked_view: View) -> None:
    source = masked_task.source(0)[0]

    @jax.jit
    def run(key: jax.Array) -> tuple[Any, ...]:
        batch, _ = masked_task.prepare(masked_view, source, key)
        totals = masked_task.totals(batch)
        loss, aux = masked_task._loss(masked_view, batch, totals, key)
        logits, _ = masked_view.model.apply(masked_view.variables, {"tokens": batch["tokens"]}, train=False)
        return batch, totals, loss, aux.metrics, logits

    batch, totals, loss, metrics, logits = run(jax.random.key(0))
    rows, columns = np.nonzero(np.asarray(batch["counts"]))
    found, labels = log_probabilities(np.asarray(logits))[rows, columns], np.asarray(batch["labels"])[rows, columns]
    assert float(totals["tokens"]) == len(rows)
    assert float(loss) == pytest.approx(-found[np.arange(len(rows)), labels].mean(), rel=1e-5)
    assert float(metrics["accuracy"]) == pytest.approx((found.argmax(-1) == labels).mean())


def test_the_baselines_are_those_counted_by_hand() -> None:
    random = np.random.default_rng(0)
    documents = [random.integers(0, 7, size).astype(np.int32) ** 2 % 11 for size in (40, 1, 60)]
    baselines = Baselines.count(documents, 12)
    unigrams = collections.Counter(int(token) for document in documents for token in document)
    best = max(unigrams.values())
    assert unigrams[baselines.most_frequent] == best
    pairs = collections.Counter((int(a), int(b)) for document in documents for a, b in itertools.pairwise(document))
    for token in range(12):
        behind = {b: count for (a, b), count in pairs.items() if a == token}
        expected = max(behind.values()) if behind else None
        said = int(baselines.following_V[token])
        assert behind[said] == expected if behind else said == baselines.most_frequent
    shown = np.array([[3, 5, 11, 4]], np.int32)
    unigram, bigram = baselines.predict(jax.numpy.asarray(shown), mask=11)
    assert set(np.unique(unigram)) == {baselines.most_frequent}
    following = baselines.following_V
    np.testing.assert_array_equal(
        bigram[0], [baselines.most_frequent, following[3], following[5], baselines.most_frequent]
    )


def test_shares_that_cannot_be_are_refused() -> None:
    with pytest.raises(UserError, match=r"config\.task\.masked=1\.0"):
        MaskedLanguageModellingConfig(masked=1.0)


def test_an_encoder_without_a_head_is_refused(masked_task: Any) -> None:
    with pytest.raises(UserError, match=r"config\.model\.head=none scores no tokens"):
        view_of(masked_task, "encoder", head="none")
