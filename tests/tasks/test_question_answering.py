"""Extractive question answering: spans against a search in NumPy, loss, answers over windows, refusals."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.tasks.fixed_model import view_with
from transformer.config import UserError
from transformer.tasks.question_answering import (
    BestSpans,
    QuestionAnswering,
    best_spans,
    context_positions,
    span_loss,
)
from transformer.tasks.registry import build_task, task_config
from transformer.tasks.task import PredictionRequest

SMALL = {
    "name": "question_answering",
    "dataset": "grammar/unanswerable_questions/train=12,validation=6,test=4",
    "vocab_size": 300,
    "bucket_lengths": (40,),
    "batch_size": 4,
    "max_question_length": 20,
    "window_stride": 12,
    "num_probe_examples": 2,
}


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> QuestionAnswering:
    return task_of(tmp_path_factory.mktemp("question_answering"))


def task_of(folder: Path, **values: Any) -> Any:
    return build_task(task_config({**SMALL, **values}), folder)


def test_the_best_span_is_that_of_a_search() -> None:
    random = np.random.default_rng(0)
    logits_BxTx2 = random.normal(size=(20, 9, 2)).astype(np.float32)
    starts, stops = random.integers(1, 5, 20), random.integers(5, 10, 20)
    context_BxT = (np.arange(9) >= starts[:, None]) & (np.arange(9) < stops[:, None])
    found = jax.device_get(jax.jit(best_spans, static_argnums=2)(logits_BxTx2, context_BxT, 3))
    for row in range(20):
        spans = [
            (first, last)
            for first in range(starts[row], stops[row])
            for last in range(first, min(first + 3, stops[row]))
        ]
        scores = [logits_BxTx2[row, first, 0] + logits_BxTx2[row, last, 1] for first, last in spans]
        assert (int(found.first[row]), int(found.last[row])) == spans[int(np.argmax(scores))]
        assert float(found.score[row]) == pytest.approx(max(scores))
        assert float(found.no_answer[row]) == pytest.approx(logits_BxTx2[row, 0].sum())


def test_the_loss_is_the_mean_of_both_cross_entropies_without_padding() -> None:
    random = np.random.default_rng(1)
    logits_BxTx2 = random.normal(size=(3, 6, 2)).astype(np.float32)
    labels_Bx2, lengths = np.array([[1, 2], [0, 0], [3, 3]]), np.array([6, 4, 5])
    counts_B = np.array([True, True, False])
    expected = 0.0
    for row in range(2):
        for side in range(2):
            kept = logits_BxTx2[row, : lengths[row], side].astype(np.float64)
            expected -= (kept - np.log(np.exp(kept).sum()))[labels_Bx2[row, side]] / 2
    real_BxT = np.arange(6) < lengths[:, None]
    found = jax.jit(span_loss)(logits_BxTx2, labels_Bx2, real_BxT, counts_B)
    np.testing.assert_allclose(found.cross_entropy, expected, rtol=1e-6)


@pytest.mark.parametrize(("between", "expected"), [([2], [3, 4]), ([2, 2], [4])])
def test_the_context_lies_between_separator_and_end(between: list[int], expected: list[int]) -> None:
    tokens = np.array([[1, 9, 2, 2 if len(between) == 2 else 7, 8, 2, 0]])
    found = context_positions(jnp.asarray(tokens), jnp.asarray([6]), between)
    assert np.flatnonzero(found[0]).tolist() == expected


def evaluate(task: QuestionAnswering, logits_of: Any) -> Any:
    (evaluation,) = (each for each in task.evaluations if each.split == "validation")
    step = jax.jit(lambda logits, batch: evaluation.step(view_with(lambda _: logits), batch, None))
    steps = [step(logits_of(batch), batch) for batch in evaluation.batches]
    sums = {name: sum(np.asarray(of_batch[name]) for of_batch, _ in steps) for name in steps[0][0]}
    rows = {name: np.concatenate([np.asarray(each[name]) for _, each in steps]) for name in steps[0][1]}
    return evaluation.finish(sums, rows)


def test_a_model_that_knows_every_answer_has_all_of_them_over_windows(task: QuestionAnswering) -> None:
    windows = task._windows["validation"]
    assert len(windows) > 6  # several a question

    def right(batch: Any) -> Any:
        length = batch["tokens"].shape[1]
        return 20.0 * np.stack([np.eye(length)[batch["labels"][:, side]] for side in range(2)], axis=-1)

    def silent(batch: Any) -> Any:
        return 9.0 * (np.arange(batch["tokens"].shape[1]) == 0)[None, :, None] * np.ones((len(batch["tokens"]), 1, 2))

    report = evaluate(task, right)
    assert report.note == "6 questions"
    assert {name: round(value, 6) for name, value in report.scalars.items()} == {
        "loss": 0.0,
        "exact_match": 1.0,
        "f1": 1.0,
    }
    # Who never answers is right where there is no answer.
    never = evaluate(task, silent).scalars
    questions = {window.number: window.question for window in windows}
    assert never["exact_match"] == pytest.approx(np.mean([not each.answers for each in questions.values()]))


def test_the_best_of_all_windows_is_the_answer_unless_none_scores_more(task: QuestionAnswering) -> None:
    windows = [each for each in task._windows["validation"] if each.number == 0][:2]
    place = windows[0].context_start
    texts = [window.text_of_span(place, place + 1) for window in windows]

    def answer(scores: tuple[float, float], no_answer: tuple[float, float]) -> str:
        places = np.array([place, place])
        return task._answers(windows, BestSpans(places, places + 1, np.array(scores), np.array(no_answer)))[0]

    assert answer((1.0, 3.0), (0.0, 0.0)) == texts[1]
    assert answer((3.0, 1.0), (4.0, 2.0)) == texts[0]
    assert answer((3.0, 1.0), (4.0, 3.5)) == ""


def test_a_run_whose_questions_all_have_an_answer_always_answers(tmp_path: Path) -> None:
    answering = task_of(tmp_path, dataset="grammar/questions/train=12,validation=6,test=4")
    window = answering._windows["validation"][0]
    place = np.array([window.context_start])
    best = BestSpans(place, place, np.array([0.0]), np.array([9.0]))
    assert answering._answers([window], best) == {0: window.text_of_span(place[0], place[0])}


def test_a_question_is_answered_with_words_of_its_context(task: QuestionAnswering) -> None:
    # The first token of the context, and the begin token.
    answering, silent = (
        view_with(lambda inputs: first_of(inputs["types"])),
        view_with(lambda inputs: first_of(inputs["types"] + 1)),
    )
    question = PredictionRequest(["who left $ x left"])
    assert task.predict(answering, question).lines == ["x"]
    assert task.predict(silent, question).lines == ["(none)"]
    with pytest.raises(UserError, match=r"'who left' must be 'question \$ context', each with words"):
        task.predict(answering, PredictionRequest(["who left"]))


def first_of(types_BxT: Any) -> Any:
    """Logits that name the first place whose type is not 0."""
    first_B = np.argmax(np.asarray(types_BxT) > 0, axis=1)
    return jnp.asarray(np.eye(types_BxT.shape[1])[first_B][..., None] * [9.0, 9.0])


def test_roberta_reads_no_token_types(tmp_path: Path) -> None:
    task = task_of(tmp_path, sequence_format="roberta")
    batch = task.batches("train", 0)[0]
    assert "types" not in batch
    assert "types" not in task.interface.inputs


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"sequence_format": "gpt"}, "sequence_format=gpt is for models that read from left to right: say bert or ro"),
        ({"dataset": "grammar/choice"}, "'grammar/choice' is unknown"),
        ({"classes": ("O", "B-X")}, "is for labels, which questions do not have: empty it"),
        ({"max_question_length": 21}, "max_question_length=21 leaves too little of 40 tokens"),
        ({"window_stride": 0}, "window_stride=0"),
    ],
)
def test_configs_that_cannot_be_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        task_config({**SMALL, **values})
