"""Extractive question answering: spans against a search in NumPy, loss, answers over windows, refusals."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.tasks.fixed_model import view_with
from transformer.config import UserError
from transformer.data.fine_tuning_sequence_layouts import DelimiterTokens, SequenceFormat
from transformer.tasks.labeled_text_task import LabeledTextTask
from transformer.tasks.question_answering import (
    BestSpans,
    begin_positions,
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
def task(tmp_path_factory: pytest.TempPathFactory) -> LabeledTextTask:
    return task_of(tmp_path_factory.mktemp("question_answering"))


def task_of(folder: Path, **values: Any) -> Any:
    return build_task(task_config({**SMALL, **values}), folder)


def test_the_best_span_is_that_of_a_search() -> None:
    random = np.random.default_rng(0)
    logits_BxTx2 = random.normal(size=(20, 9, 2)).astype(np.float32)
    starts, stops = random.integers(1, 5, 20), random.integers(5, 10, 20)
    context_BxT = (np.arange(9) >= starts[:, None]) & (np.arange(9) < stops[:, None])
    begin_B = random.integers(0, 9, 20)
    found = jax.device_get(jax.jit(best_spans, static_argnums=3)(logits_BxTx2, context_BxT, begin_B, 3))
    for row in range(20):
        spans = [
            (first, last)
            for first in range(starts[row], stops[row])
            for last in range(first, min(first + 3, stops[row]))
        ]
        scores = [logits_BxTx2[row, first, 0] + logits_BxTx2[row, last, 1] for first, last in spans]
        assert (int(found.first[row]), int(found.last[row])) == spans[int(np.argmax(scores))]
        assert float(found.score[row]) == pytest.approx(max(scores))
        assert float(found.no_answer[row]) == pytest.approx(logits_BxTx2[row, begin_B[row]].sum())


def test_an_answer_is_as_long_as_is_allowed_and_no_longer() -> None:
    logits_BxTx2 = np.zeros((1, 6, 2), np.float32)
    logits_BxTx2[0, 0, 0], logits_BxTx2[0, 3, 1], logits_BxTx2[0, 2, 1] = 5, 5, 4
    context_BxT, begin_B = np.ones((1, 6), bool), np.zeros(1, int)
    for max_length, last, score in ((3, 2, 9), (4, 3, 10)):
        found = best_spans(logits_BxTx2, context_BxT, begin_B, max_length)
        assert (int(found.first[0]), int(found.last[0]), float(found.score[0])) == (0, last, score)


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


@pytest.mark.parametrize(
    ("sequence_format", "row", "expected", "begin"),
    [
        (SequenceFormat.BERT, [1, 9, 2, 7, 8, 2, 0], [3, 4], 0),
        (SequenceFormat.ROBERTA, [1, 9, 2, 2, 8, 2, 0], [4], 0),
        (SequenceFormat.XLNET, [7, 8, 2, 9, 2, 1, 0], [0, 1], 5),
    ],
)
def test_the_context_and_the_begin_token_are_found(
    sequence_format: SequenceFormat, row: list[int], expected: list[int], begin: int
) -> None:
    delimiters, lengths = DelimiterTokens.from_format(sequence_format, 10, 1, 2), jnp.asarray([6])
    found = context_positions(jnp.asarray([row]), lengths, delimiters)
    assert np.flatnonzero(found[0]).tolist() == expected
    assert begin_positions(lengths, delimiters).tolist() == [begin]


def evaluate(task: LabeledTextTask, logits_of: Any) -> Any:
    (evaluation,) = (each for each in task.evaluations if each.split == "validation")
    step = jax.jit(lambda logits, batch: evaluation.step(view_with(lambda _: logits), batch, None))
    steps = [step(logits_of(batch), batch) for batch in evaluation.batches]
    sums = {name: sum(np.asarray(of_batch[name]) for of_batch, _ in steps) for name in steps[0][0]}
    rows = {name: np.concatenate([np.asarray(each[name]) for _, each in steps]) for name in steps[0][1]}
    return evaluation.finish(sums, rows)


def test_a_model_that_knows_every_answer_has_all_of_them_over_windows(task: LabeledTextTask) -> None:
    windows = task.splits["validation"].examples
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


def test_the_best_of_all_windows_is_the_answer_unless_none_scores_more(task: LabeledTextTask) -> None:
    windows = [each for each in task.splits["validation"].examples if each.number == 0][:2]
    place = windows[0].context_start
    texts = [window.text_of_span(place, place + 1) for window in windows]

    def answer(scores: tuple[float, float], no_answer: tuple[float, float]) -> str:
        places = np.array([place, place])
        return task.head.select_answers(windows, BestSpans(places, places + 1, np.array(scores), np.array(no_answer)))[
            0
        ]

    assert answer((1.0, 3.0), (0.0, 0.0)) == texts[1]
    assert answer((3.0, 1.0), (4.0, 2.0)) == texts[0]
    assert answer((3.0, 1.0), (4.0, 3.5)) == ""


def test_a_run_whose_questions_all_have_an_answer_always_answers(tmp_path: Path) -> None:
    answering = task_of(tmp_path, dataset="grammar/questions/train=12,validation=6,test=4")
    window = answering.splits["validation"].examples[0]
    place = np.array([window.context_start])
    best = BestSpans(place, place, np.array([0.0]), np.array([9.0]))
    assert answering.head.select_answers([window], best) == {0: window.text_of_span(place[0], place[0])}


def test_a_question_is_answered_with_words_of_its_context(task: LabeledTextTask) -> None:
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


@pytest.mark.parametrize("sequence_format", ["bert", "xlnet"])
def test_answers_in_no_window_are_counted(sequence_format: str, tmp_path: Path) -> None:
    context = "".join(chr(ord("a") + number % 26) for number in range(100))

    def line(start: int, stop: int | None) -> dict[str, Any]:
        answers = {"text": [], "answer_start": []} if stop is None else {"text": [context[start:stop]]}
        return {"question": "?", "context": context, "answers": {"answer_start": [start], **answers}}

    # A question of one byte leaves room for windows of 36 that begin every 16.
    files = {
        "train": [line(0, 30), line(10, 40), line(20, 57), line(30, 51), line(0, None)],
        "validation": [line(6, 40), line(16, 52)],
        "test": [line(16, 52)],
    }
    for split, lines in files.items():
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    task = task_of(
        tmp_path,
        dataset="train.jsonl",
        validation_files="validation.jsonl",
        test_files="test.jsonl",
        data_dir=str(tmp_path),
        tokenizer="bytes",
        window_stride=16,
        sequence_format=sequence_format,
    )
    assert task.data_summary[-1] == (
        "the answers of 2 train, 1 validation questions are in no window whole: windows that lack them count as "
        "without an answer; lower config.task.window_stride or raise the greatest of config.task.bucket_lengths"
    )


def first_of(types_BxT: Any) -> Any:
    """Logits that name the first place whose type is not 0."""
    first_B = np.argmax(np.asarray(types_BxT) > 0, axis=1)
    return jnp.asarray(np.eye(types_BxT.shape[1])[first_B][..., None] * [9.0, 9.0])


def test_roberta_reads_no_token_types(tmp_path: Path) -> None:
    task = task_of(tmp_path, sequence_format="roberta")
    batch = task.head.batches("train", 0)[0]
    assert "types" not in batch
    assert "types" not in task.interface.inputs


def test_xlnet_reads_the_question_behind_its_context(tmp_path: Path) -> None:
    task = task_of(tmp_path, sequence_format="xlnet")
    batch, tokenizer = task.head.batches("train", 0)[0], task.tokenizer
    for row, index in enumerate(batch["index"]):
        window, length = task.splits["train"].examples[index], batch["lengths"][row]
        tokens, types = batch["tokens"][row, :length].tolist(), batch["types"][row].tolist()
        first = tokens.index(tokenizer.eos_id) + 1
        assert tokenizer.decode(tokens[first : length - 2]) == window.question.question
        assert tokens[-2:] == [tokenizer.eos_id, tokenizer.bos_id]
        assert types == [0] * first + [1] * (length - first - 1) + [2] + [0] * (40 - length)
        if window.label[0] == length - 1:
            assert window.label == (length - 1, length - 1)
        else:
            assert window.label[1] < first - 1
    # The first token of the context, and the begin token.
    places = {"x": lambda types: types < 3, "(none)": lambda types: types == 2}
    for answer, chosen in places.items():
        view = view_with(lambda inputs, chosen=chosen: first_of(chosen(np.asarray(inputs["types"]))))
        assert task.predict(view, PredictionRequest(["who left $ x left"])).lines == [answer]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"sequence_format": "plain"}, "sequence_format=plain puts nothing between a question and its context"),
        ({"sequence_format": "gpt"}, "sequence_format=gpt is for classes of texts: say plain for a decoder, bert"),
        ({"dataset": "grammar/choice"}, "'grammar/choice' is unknown"),
        ({"classes": ("O", "B-X")}, "is for labels, which questions do not have: empty it"),
        ({"max_question_length": 21}, "max_question_length=21 leaves too little of 40 tokens"),
        ({"window_stride": 0}, "window_stride=0"),
        # Of 40 tokens, 20 are the question's and 3 or 4 are special.
        ({"window_stride": 17}, "window_stride=17 must be below 17, the tokens of a context beside a question of "),
        ({"window_stride": 16, "sequence_format": "roberta"}, "window_stride=16 must be below 16, the tokens"),
        ({"window_stride": 17, "sequence_format": "xlnet"}, "window_stride=17 must be below 17, the tokens"),
    ],
)
def test_configs_that_cannot_be_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        task_config({**SMALL, **values})
