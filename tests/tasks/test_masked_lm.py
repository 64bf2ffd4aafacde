"""Masked language modeling: what is hidden when, and the baselines that a model must beat."""

import collections
import itertools
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.tasks.conftest import make_task, view_of
from tests.tasks.test_language_modeling import log_probabilities
from transformer.config import UserError
from transformer.models.model import Aux
from transformer.tasks.losses import TokenLoss
from transformer.tasks.masked_lm import (
    FrequencyBaselines,
    InputFormat,
    MaskedLanguageModelingConfig,
    MaskingMode,
    PretrainingObjective,
)
from transformer.tasks.task import PredictionRequest, StateView


def test_masks_are_drawn_anew_for_training_and_stay_for_evaluation(masked_task: Any, masked_view: StateView) -> None:
    batch = masked_task.training_batches(0)[0]
    prepare = jax.jit(lambda key: masked_task.prepare_batch(masked_view, batch, key)[0])
    first, again, other = (prepare(jax.random.key(k)) for k in (0, 0, 1))
    np.testing.assert_array_equal(first["tokens"], again["tokens"])
    assert (np.asarray(first["counts"]) != np.asarray(other["counts"])).any()
    np.testing.assert_array_equal(first["labels"], batch["tokens"])
    held = masked_task.evaluations[0].batches[0]
    sums_of = jax.jit(lambda key: masked_task._sums(masked_view, held, key)[0])
    sums = [sums_of(jax.random.key(key)) for key in (0, 1)]
    jax.tree.map(np.testing.assert_array_equal, *sums)


def test_the_loss_is_that_of_the_hidden_tokens_alone(masked_task: Any, masked_view: StateView) -> None:
    source = masked_task.training_batches(0)[0]

    @jax.jit
    def run(key: jax.Array) -> tuple[Any, ...]:
        batch, _ = masked_task.prepare_batch(masked_view, source, key)
        denominators = masked_task.denominators(batch)
        loss, aux = masked_task._loss(masked_view, batch, denominators, key)
        logits, _ = masked_view.model.apply(masked_view.variables, {"tokens": batch["tokens"]}, train=False)
        return batch, denominators, loss, aux.metrics, logits

    batch, denominators, loss, metrics, logits = run(jax.random.key(0))
    rows, columns = np.nonzero(np.asarray(batch["counts"]))
    found, labels = log_probabilities(np.asarray(logits))[rows, columns], np.asarray(batch["labels"])[rows, columns]
    assert float(denominators["tokens"]) == len(rows)
    assert float(loss) == pytest.approx(-found[np.arange(len(rows)), labels].mean(), rel=1e-5)
    assert float(metrics["accuracy"]) == pytest.approx((found.argmax(-1) == labels).mean())


def test_only_real_ordinary_tokens_are_hidden_and_counted(
    masked_task: Any, masked_view: StateView, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the second row two tokens are real, in the third none is: it only fills the batch."""
    first, second = masked_task._ordinary_N[[3, 5]].tolist()
    tokens = np.full((3, 6), first, np.int32)
    tokens[0, 2] = masked_task.tokenizer.mask_id
    batch = {"tokens": tokens, "lengths": np.int32([6, 2, 0]), "index": np.int32([0, 1, -1])}
    assert np.asarray(masked_task._eligible(batch)).sum(axis=1).tolist() == [5, 2, 0]
    monkeypatch.setattr(masked_task, "token_sums", lambda *given: (TokenLoss(0.0, 3.0, 1.0), None))
    sums, _ = masked_task._middle("validation", []).step(masked_view, batch, None)
    assert {name: float(value) for name, value in sums.items()} == {
        "middle_loss": 3,
        "middle_accuracy": 1,
        "places": 2,
    }
    # The most frequent token is the first, and behind the first comes the second.
    following = np.full(masked_task.tokenizer.vocab_size, first)
    following[first] = second
    monkeypatch.setattr(masked_task, "baselines", FrequencyBaselines(first, following))
    counts = np.zeros((3, 6), bool)
    counts[0, [0, 3]] = counts[1, 1] = True
    masked = {**batch, "labels": np.where(np.arange(6) % 3 == 1, second, first), "counts": counts}
    monkeypatch.setattr(masked_task, "prepare_batch", lambda view, batch, key: (masked, {}))
    sums, _ = masked_task._sums(masked_view, batch, None)
    # The first token, and that behind a hidden one, are guessed to be the most frequent; the last is the second.
    assert (int(sums["unigram_accuracy"]), int(sums["bigram_accuracy"]), int(sums["tokens"])) == (2, 3, 3)


def test_the_baselines_are_those_counted_by_hand() -> None:
    random = np.random.default_rng(0)
    documents = [random.integers(0, 7, size).astype(np.int32) ** 2 % 11 for size in (40, 1, 60)]
    baselines = FrequencyBaselines.count(documents, 12)
    unigrams = collections.Counter(int(token) for document in documents for token in document)
    best = max(unigrams.values())
    assert unigrams[baselines.most_frequent_id] == best
    pairs = collections.Counter((int(a), int(b)) for document in documents for a, b in itertools.pairwise(document))
    for token in range(12):
        behind = {b: count for (a, b), count in pairs.items() if a == token}
        expected = max(behind.values()) if behind else None
        said = int(baselines.following_V[token])
        assert behind[said] == expected if behind else said == baselines.most_frequent_id
    shown = np.array([[3, 5, 11, 4]], np.int32)
    unigram, bigram = baselines.predict(jax.numpy.asarray(shown), mask=11)
    assert set(np.unique(unigram)) == {baselines.most_frequent_id}
    following = baselines.following_V
    np.testing.assert_array_equal(
        bigram[0], [baselines.most_frequent_id, following[3], following[5], baselines.most_frequent_id]
    )


@pytest.fixture(scope="session")
def pairs_task(text_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("pairs")
    return make_task(
        text_file,
        folder,
        "masked_lm",
        input_format="fixed_pairs",
        next_sentence=True,
        masking="static",
        context_length=64,
        tokenizer="characters",
        eval_middle_token=True,
    )


def test_static_masks_are_those_of_the_example_whatever_the_key_and_its_row(pairs_task: Any) -> None:
    view = StateView(None, None, {}, {}, 0, train=True)  # type: ignore[arg-type]
    source = pairs_task.training_batches(0)
    epoch = source.batches_per_epoch
    batch, again = source[1], source[1 + epoch]
    turned = {name: values[::-1] for name, values in again.items()}
    hide = jax.jit(lambda batch, key: pairs_task.prepare_batch(view, batch, key)[0])
    found, other = hide(batch, jax.random.key(0)), hide(turned, jax.random.key(1))
    for name in ("tokens", "labels", "counts"):
        np.testing.assert_array_equal(found[name], np.asarray(other[name])[::-1])
    counts = np.asarray(found["counts"])
    assert (counts[0] != counts[1]).any()
    special = np.isin(batch["tokens"], sorted(pairs_task.tokenizer.special_ids))
    assert not (counts & (special | (np.arange(64) >= batch["lengths"][:, None]))).any()
    eligible = batch["lengths"] - 3
    np.testing.assert_array_equal(counts.sum(1), np.round(np.float32(0.15) * eligible.astype(np.float32)))


def test_both_losses_are_means_of_their_own_and_their_sum_is_minimized(pairs_task: Any) -> None:
    random = np.random.default_rng(0)
    logits = random.normal(size=(4, 2)).astype(np.float32)
    follows = np.int32([0, 1, 1, 0])

    class Said(type(pairs_task)):  # type: ignore[misc]
        """The task before a model that says `logits`, with 30 nats and 4 right answers over its hidden tokens."""

        def token_sums(self, *arguments: Any, **options: Any) -> tuple[TokenLoss, Aux]:
            sums = TokenLoss(*map(jax.numpy.float32, (0, 30, 4)))
            return sums, Aux({}, {"next_sentence": jax.numpy.asarray(logits)}, {})

    task = object.__new__(Said)
    task.__dict__ |= pairs_task.__dict__
    batch = {"tokens": np.zeros((4, 64), np.int32), "counts": np.arange(256).reshape(4, 64) < 12, "follows": follows}
    denominators = task.denominators(batch)
    assert {name: float(total) for name, total in denominators.items()} == {"tokens": 12.0, "pairs": 4.0}
    loss, aux = task._loss(StateView(None, None, {}, {}, 0, train=True), batch, denominators, None)  # type: ignore[arg-type]
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    said = -np.log(probabilities[np.arange(4), follows]).mean()
    expected = {
        "loss": 30 / 12 + said,
        "masked_loss": 30 / 12,
        "accuracy": 4 / 12,
        "next_sentence_loss": said,
        "next_sentence_accuracy": (logits.argmax(1) == follows).mean(),
    }
    assert {name: float(value) for name, value in aux.metrics.items()} == pytest.approx(expected, rel=1e-6)
    assert float(loss) == pytest.approx(expected["loss"], rel=1e-6)


def test_the_token_in_the_middle_is_asked_of_both_kinds_of_models_by_what_each_may_see(
    pairs_task: Any, text_file: Path, tmp_path: Path
) -> None:
    given = {"context_length": 64, "tokenizer": "characters", "eval_middle_token": True, "input_format": "fixed_pairs"}
    causal = make_task(text_file, tmp_path, "masked_lm", objective="left_to_right", **given)
    evaluations = [next(each for each in task.evaluations if each.name == "middle") for task in (causal, pairs_task)]
    text = evaluations[1].batches[0]
    for name, values in text.items():
        np.testing.assert_array_equal(values, evaluations[0].batches[0][name])
    left, both = (
        {name: np.asarray(x) for name, x in task.mask_middle_tokens(text).items()} for task in (causal, pairs_task)
    )
    # Of the second text, between the two ends, the token in the middle; the later of two.
    places = [np.flatnonzero(row)[:-1] for row in text["types"] == 1]
    middles = [each[len(each) // 2] for each in places]
    assert len(set(middles)) > 1
    rows = np.arange(len(middles))
    # From the left: the very text; behind having read all before the middle it must say the token there.
    assert np.argwhere(left["counts"]).tolist() == [[row, middle - 1] for row, middle in enumerate(middles)]
    np.testing.assert_array_equal(left["labels"][left["counts"]], text["tokens"][rows, middles])
    np.testing.assert_array_equal(left["tokens"], text["tokens"])
    # From both sides: all is shown but this one token.
    assert np.argwhere(both["counts"]).tolist() == [[row, middle] for row, middle in enumerate(middles)]
    assert (both["tokens"][both["counts"]] == pairs_task.tokenizer.mask_id).all()
    np.testing.assert_array_equal(both["labels"], text["tokens"])
    np.testing.assert_array_equal(both["tokens"][~both["counts"]], text["tokens"][~both["counts"]])


def test_of_a_window_the_token_in_its_own_middle_is_asked(text_file: Path, tmp_path: Path) -> None:
    given = {"context_length": 64, "tokenizer": "characters", "eval_middle_token": True}
    task = make_task(text_file, tmp_path, "masked_lm", **given)
    evaluation = next(each for each in task.evaluations if each.name == "middle")
    text = evaluation.batches[0]
    assert (text["lengths"] == 64).all()
    counts = np.asarray(task.mask_middle_tokens(text)["counts"])
    assert np.argwhere(counts)[:, 1].tolist() == [32] * len(counts)


@pytest.mark.parametrize("objective", ["masked", "left_to_right"])
def test_of_a_window_of_one_token_nothing_is_asked(objective: str, text_file: Path, tmp_path: Path) -> None:
    task = make_task(text_file, tmp_path, "masked_lm", objective=objective, tokenizer="characters")
    first = int(task._ordinary_N[0])
    tokens = np.int32([[first, 0, 0, 0], [first, first + 1, 0, 0], [first, first + 1, first + 2, first + 3]])
    asked = task.mask_middle_tokens({"tokens": tokens, "lengths": np.int32([1, 2, 4])})
    # No token stands before the only one, from which to predict it.
    places = [[1, 0], [2, 1]] if objective == "left_to_right" else [[1, 1], [2, 2]]
    assert np.argwhere(asked["counts"]).tolist() == places
    np.testing.assert_array_equal(np.asarray(asked["labels"])[np.asarray(asked["counts"])], [first + 1, first + 2])


def test_from_the_left_every_next_token_is_predicted_and_nothing_hidden(text_file: Path, tmp_path: Path) -> None:
    given = {"context_length": 64, "tokenizer": "characters", "input_format": "pairs"}
    task = make_task(text_file, tmp_path, "masked_lm", objective="left_to_right", **given)
    view = StateView(None, None, {}, {}, 0, train=True)  # type: ignore[arg-type]
    source = task.training_batches(0)[3]
    batch, _ = task.prepare_batch(view, source, jax.random.key(0))
    np.testing.assert_array_equal(batch["tokens"], source["tokens"])
    for row, length in enumerate(source["lengths"]):
        expected = source["tokens"][row, 1:length]
        assert np.asarray(batch["labels"])[row][np.asarray(batch["counts"])[row]].tolist() == expected.tolist()
        assert np.flatnonzero(np.asarray(batch["counts"])[row]).tolist() == list(range(length - 1))
    assert float(task.denominators(batch)["tokens"]) == sum(source["lengths"] - 1)
    with pytest.raises(UserError, match="reads from the left"):
        task.predict(view, PredictionRequest(["a<mask>"], decoding={}))


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"next_sentence": True}, r"config\.task\.input_format=crops: say pairs"),
        ({"masking": MaskingMode.STATIC}, "crops never come again"),
        ({"masking": MaskingMode.STATIC, "input_format": InputFormat.PAIRS}, "pairs never come again"),
        (
            {"objective": PretrainingObjective.LEFT_TO_RIGHT, "whole_word_masking": True},
            "config.task.objective=left_to_right hides nothing",
        ),
    ],
)
def test_options_that_need_other_examples_are_refused(values: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        MaskedLanguageModelingConfig(**values)


def test_a_model_that_lacks_what_pairs_need_is_refused(pairs_task: Any) -> None:
    with pytest.raises(
        UserError, match=r"config\.model\.head=masked does not output .* say config\.model\.head=pretrain"
    ):
        view_of(pairs_task, "encoder")
    with pytest.raises(UserError, match=r"config\.model\.num_token_types=1 cannot tell texts apart"):
        view_of(pairs_task, "encoder", head="pretraining", num_token_types=1)


def test_shares_that_cannot_be_are_refused() -> None:
    with pytest.raises(UserError, match=r"config\.task\.masked_lm_prob=1\.0"):
        MaskedLanguageModelingConfig(masked_lm_prob=1.0)


def test_an_encoder_without_a_head_is_refused(masked_task: Any) -> None:
    with pytest.raises(
        UserError,
        match=r'config\.model\.head=none does not output "masked tokens", which the task needs: say .*head=masked$',
    ):
        view_of(masked_task, "encoder", head="none")
