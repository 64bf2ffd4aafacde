"""Zero, one and few shots: rows, their log-probabilities and the reports by hand."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.data.test_cloze_questions import FREQUENT, sentences
from transformer.config import UserError
from transformer.data.cloze_questions import ClozeQuestion, WordFrequencies
from transformer.data.tokenizers.train_tokenizer import byte_tokenizer
from transformer.tasks.cloze_evaluation import (
    PASSAGE_SEPARATOR,
    ClozeEvaluation,
    cloze_report,
    last_words_report,
    score_labels_by_row,
)
from transformer.tasks.language_modeling import LanguageModeling, LanguageModelingConfig, build_synthetic_task
from transformer.tasks.task import StateView
from transformer.tasks.text_data import EncodedText

TOKENIZER, NAMES = byte_tokenizer(), ("tokens", "lengths")


def documents(*texts: str) -> list[np.ndarray]:
    return [np.array(numbers, np.int32) for numbers in TOKENIZER.encode(texts)]


TRAIN, HELD_OUT = documents(FREQUENT, sentences(60, 0)), documents(sentences(60, 1))


def of_model(score: Any) -> StateView:
    """A view of a model whose hidden states are its tokens, one-hot, and whose logits are `score` of them."""

    def apply(variables: Any, inputs: Any, **options: Any) -> Any:
        return np.eye(256, dtype=np.float32)[np.asarray(inputs["tokens"])], None

    model: Any = SimpleNamespace(apply=apply, logits=lambda variables, hidden: score(hidden))
    return StateView(model, None, {}, {}, np.int32(0), False)  # type: ignore[arg-type]


def test_a_rows_log_probability_is_that_of_its_tokens() -> None:
    table = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)
    logs = table - np.log(np.exp(table).sum(axis=1, keepdims=True))
    cloze = ClozeEvaluation(TOKENIZER, num_questions=1, shots=(0,), context_length=12, rows=3)
    (batch,) = cloze._batches([cloze._row("ab ", "cde."), cloze._row("ab ", "cde", only=True)])
    _, found = score_labels_by_row(of_model(lambda hidden: hidden @ table), batch, None)
    for row, text, first in ((0, "ab cde.", 1), (1, "ab cde", 3)):
        steps = [(ord(text[place - 1]), ord(text[place])) for place in range(first, len(text))]
        assert float(found["nats"][row]) == pytest.approx(-sum(logs[step] for step in steps), rel=1e-5)
        assert int(found["wrong"][row]) == sum(int(logs[last].argmax() != new) for last, new in steps)
    assert float(found["nats"][2]) == 0


def test_a_model_that_knows_the_answers_is_always_right() -> None:
    """The rows of every shot are in the order of questions and candidates; what stands before them is completed."""
    cloze = ClozeEvaluation(TOKENIZER, num_questions=7, shots=(0, 2), context_length=1800, rows=8)
    gaps, last = cloze.evaluations(TRAIN, HELD_OUT, "validation", "raw")
    assert [(each.name, each.split, each.at_end) for each in (gaps, last)] == [
        ("cloze", "validation", True),
        ("last_words", "validation", True),
    ]
    pairs = ((row, length) for batch in gaps.batches for row, length in zip(*map(batch.get, NAMES), strict=True))
    rows = [row[: length + 1] for row, length in pairs]
    texts = [TOKENIZER.decode(row.tolist()) for row in rows[: 2 * 7 * 10]]
    shown, asked = sentences(60, 0), sentences(60, 1)
    right = np.array([text.split(PASSAGE_SEPARATOR)[-1].rstrip(".\0") in asked for text in texts]).reshape(2, 7, 10)
    assert (right.sum(axis=-1) >= 1).all()
    for text in texts[70:]:
        *examples, _ = text.split(PASSAGE_SEPARATOR)
        assert len(examples) == 2
        assert all(example in shown for example in examples)
    nats = np.where(right, 1.0, 2.0).reshape(-1)
    report = gaps.finish({}, {"nats": np.concatenate([nats, np.zeros(4)])})
    assert report.scalars["cloze_accuracy_0"] == report.scalars["cloze_accuracy_2"] == 1
    assert report.scalars["cloze_frequency_here"] < 0.7
    assert len(last.batches) == -(-2 * 7 // 8)


def test_reports_by_hand() -> None:
    asked = [ClozeQuestion("b a b c ", "", ("a", "b"), "a"), ClozeQuestion("c d d ", "", ("c", "d"), "d")]
    words = WordFrequencies({"a": 5, "b": 1, "c": 7, "d": 1}, frozenset())
    nats = np.array([[[1.0, 2], [3, 1]], [[1.0, 0.5], [3, 1]]])
    scalars = cloze_report(asked, words, (0, 1), {"nats": nats}).scalars
    expected = {"accuracy_0": 1, "accuracy_1": 0.5, "frequency_here": 0.5, "frequency_in_training": 0.5}
    assert scalars == {f"cloze_{name}": value for name, value in expected.items()}
    told = {"nats": np.array([[[1.0], [3.0]]]), "wrong": np.array([[[0.0], [2.0]]])}
    scalars = last_words_report(asked, words, (4,), told).scalars
    assert scalars["last_words_accuracy_4"] == 0.5
    assert scalars["last_words_perplexity_4"] == pytest.approx(np.exp(2))


def test_what_makes_no_question_is_refused() -> None:
    with pytest.raises(UserError, match=r"no question can be made within 6\d tokens.*config\.task\.shots"):
        ClozeEvaluation(TOKENIZER, num_questions=3, shots=(0, 1), context_length=128, rows=2).evaluations(
            TRAIN, HELD_OUT, "validation", "raw"
        )


@pytest.mark.parametrize(
    "wrong", [{"num_cloze_questions": -1}, {"shots": ()}, {"shots": (1, 1)}, {"shots": (-1,)}, {"shots": (0, 1)}]
)
def test_unfit_values_are_refused(wrong: dict) -> None:
    with pytest.raises(UserError, match=rf"config\.task\.{next(iter(wrong))}"):
        LanguageModelingConfig(**wrong)


def test_a_language_model_is_asked_where_its_config_says_so() -> None:
    config = LanguageModelingConfig(num_cloze_questions=3, context_length=800, batch_size=4, num_probe_examples=1)
    splits = {"train": TRAIN, "validation": HELD_OUT, "test": HELD_OUT}
    task = LanguageModeling(config, EncodedText(TOKENIZER, splits))
    assert [each.name for each in task.evaluations if each.split == "validation"] == ["loss", "cloze", "last_words"]
    assert {batch["tokens"].shape for each in task.evaluations[2:] for batch in each.batches} == {(4, 800)}
    # Made-up text has no words.
    assert {each.name for each in build_synthetic_task(config).evaluations} == {"loss"}
