"""The task: rows of titles and articles, the reader's report, gold alignments, and what it refuses."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from experiments.news_articles.data import TITLE_END, is_held_out
from experiments.news_articles.task import (
    CONTEXT_LENGTH,
    MAX_ARTICLE_WORDS,
    NewsArticles,
    NewsArticlesConfig,
    build_task,
)
from transformer.attention.sites import Axis, AxisKind, Site
from transformer.config import UserError
from transformer.tasks.task import PredictionRequest


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> NewsArticles:
    return build_task(NewsArticlesConfig(batch_size=8, num_eval_examples=16), tmp_path_factory.mktemp("run"))


def test_a_row_is_a_title_and_its_article(task: NewsArticles) -> None:
    batch = task.training_batches(1)[0]
    assert batch["tokens"].shape == (8, CONTEXT_LENGTH)
    for tokens, labels, length, start in zip(
        *(batch[name] for name in ("tokens", "labels", "lengths", "article_starts")), strict=True
    ):
        np.testing.assert_array_equal(tokens[1:length], labels[: length - 1])
        assert labels[length - 1] == task.tokenizer.eos_id
        title, article = task.tokenizer.decode(tokens[:length].tolist()).split(f" {TITLE_END} ")
        assert not is_held_out(title)
        assert len(title.split()) + 1 == start
        assert article.endswith(".")
        assert len(article.split()) < MAX_ARTICLE_WORDS


def test_the_reader_is_right_about_half_the_articles_if_none_has_an_error(task: NewsArticles) -> None:
    loss, writing = (each for each in task.evaluations if each.split == "test")
    true = np.concatenate([batch["labels"] for batch in loss.batches])
    starts = np.concatenate([batch["article_starts"] for batch in loss.batches])
    written = np.zeros((16, MAX_ARTICLE_WORDS), np.int32)
    for row, labels, start in zip(written, true, starts, strict=True):
        row[: CONTEXT_LENGTH - start + 1] = labels[start - 1 :][:MAX_ARTICLE_WORDS]
    report = writing.finish({}, {"tokens": written})
    assert report.scalars == {"title_facts": 1.0, "agreeing_articles": 1.0, "reader_accuracy": 0.5}
    # Four articles of the wrong titles: the reader finds them all out.
    written[:4] = written[:4][::-1]
    report = writing.finish({}, {"tokens": written})
    assert report.scalars["agreeing_articles"] == 0.75
    assert report.scalars["reader_accuracy"] == 0.625
    assert [sample["prompt"] for sample in report.samples] == [
        task.tokenizer.decode(row[: start - 1].tolist())
        for row, start in zip(loss.batches[0]["tokens"][:4], starts, strict=False)
    ]


def test_gold_alignments_link_facts_with_the_title(task: NewsArticles) -> None:
    tokens = Axis("tokens", AxisKind.TOKENS)
    labels = task.axis_labels([Site("layers/attention", tokens, tokens, ("1",), ("1",))])
    assert labels.gold_alignments is not None
    (links,) = labels.gold_alignments.values()
    for words, of_row in zip(labels.tokens["tokens"], links, strict=True):
        assert of_row
        colon = words.index(f"▁{TITLE_END}")
        for link in of_row:
            assert link.key < colon <= link.query
            assert words[link.query + 1] == words[link.key]


@pytest.mark.parametrize("text", ["", "Arden beat Arden", "something happened in Norby"])
def test_a_text_that_is_no_title_is_refused(task: NewsArticles, text: str) -> None:
    view: Any = SimpleNamespace()
    with pytest.raises(UserError, match="is no title of this news: write one as 'Arden beat Corva 3 - 1'"):
        task.predict(view, PredictionRequest([text]))


def test_the_run_keeps_its_tokenizer(task: NewsArticles, tmp_path: Path) -> None:
    config = NewsArticlesConfig(batch_size=8, num_eval_examples=16)
    first, again = build_task(config, tmp_path), build_task(config, tmp_path)
    assert (tmp_path / "tokenizer.json").exists()
    text = ["storm closes 4 schools in Norby"]
    assert first.tokenizer.encode(text) == again.tokenizer.encode(text) == task.tokenizer.encode(text)
