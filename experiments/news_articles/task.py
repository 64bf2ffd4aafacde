"""News from a title: a language model writes articles that a reader judges (Brown et al. 2020, section 3.9.4)."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Key

from experiments.news_articles.data import (
    TITLE_END,
    NewsArticle,
    all_words,
    parse_title,
    read_article,
    sample_article,
)
from transformer.attention.sites import Site, sites_between
from transformer.config import BatchSize, Config, NumDisplayedExamples, NumExamples, UserError
from transformer.data.batches import VALIDATION_SEED, random_generator
from transformer.data.tokenizers.load import load_tokenizer
from transformer.data.tokenizers.tokenizer import Tokenizer, has_tokenizer
from transformer.data.tokenizers.train_tokenizer import train_words
from transformer.models.model import Aux
from transformer.models.task_interface import LANGUAGE_MODELING, InputSpec, TaskInterface
from transformer.tasks.axis_labels import AxisLabels, GoldAlignment
from transformer.tasks.decoding_config import DecodingConfig
from transformer.tasks.generated_task import GeneratedTask
from transformer.tasks.losses import TokenLoss, token_loss
from transformer.tasks.task import (
    Batch,
    Evaluation,
    EvaluationReport,
    PredictionRequest,
    Predictions,
    StateView,
    TaskSpec,
)
from transformer.tasks.text_data import pad_texts, token_axis_labels
from transformer.tasks.text_generation import encode_prompts, generate_continuations, predict_continuations
from transformer.tasks.text_task_base import CONTINUATION_READER, real_positions
from transformer.tasks.translation_data import pad_begin_end_ids

# No title has more than 7 words, and no article more than 48.
CONTEXT_LENGTH = 56
MAX_ARTICLE_WORDS = 48


@dataclasses.dataclass(frozen=True)
class NewsArticlesConfig(Config, path="config.task"):
    """Titles and articles that are sampled anew at every step.

    A held-out title may be asked for in validation and test, whose articles differ.

    Attributes:
        batch_size: Articles in a batch.
        num_eval_examples: Articles with held-out titles to evaluate.
        num_probe_examples: Articles with held-out titles whose maps are stored.

    Raises:
        UserError: If a value is out of range.
    """

    batch_size: BatchSize = 32
    num_eval_examples: NumExamples = 512
    num_probe_examples: NumDisplayedExamples = 4


class NewsArticles(GeneratedTask):
    """News from titles: implements transformer.tasks.task.Task.

    A row is "title : article", with an end token.
    """

    denominator = "tokens"
    further_inputs = ("lengths",)

    def __init__(self, config: NewsArticlesConfig, tokenizer: Tokenizer, rows_multiple: int = 1):
        self.tokenizer = tokenizer
        _, _, self._eos_id = pad_begin_end_ids(tokenizer)
        random = random_generator(VALIDATION_SEED, 2**32)
        self._probe_articles = [sample_article(random, held_out=True) for _ in range(config.num_probe_examples)]
        super().__init__(config, make_task_interface(config, tokenizer), "language_modeling", rows_multiple)

    def draw_batch(self, random: np.random.Generator) -> dict[str, np.ndarray]:
        """Sample articles, none of which has a held-out title."""
        return self._batch([sample_article(random, held_out=False) for _ in range(self.config.batch_size)])

    def draw_probe_examples(self) -> dict[str, np.ndarray]:
        """Return articles with held-out titles."""
        return pad_texts([row[:-1] for row in self._encode(self._probe_articles)], self.tokenizer)

    def _encode(self, articles: Sequence[NewsArticle]) -> list[list[int]]:
        texts = [f"{article.title} {TITLE_END} {article.text}" for article in articles]
        return [[*ids, self._eos_id] for ids in self.tokenizer.encode(texts)]

    def _batch(self, articles: Sequence[NewsArticle]) -> dict[str, np.ndarray]:
        """Return rows of one width: tokens, next tokens, and the number of tokens before the article."""
        shape = len(articles), CONTEXT_LENGTH
        tokens, labels = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
        rows = self._encode(articles)
        for place, row in enumerate(rows):
            tokens[place, : len(row) - 1], labels[place, : len(row) - 1] = row[:-1], row[1:]
        return {
            "tokens": tokens,
            "labels": labels,
            "lengths": np.array([len(row) - 1 for row in rows], np.int32),
            "article_starts": np.array([len(article.title.split()) + 1 for article in articles], np.int32),
        }

    def denominators(self, batch: Batch) -> dict[str, Array]:
        """Return the number of predicted tokens."""
        return {"tokens": jnp.sum(jnp.asarray(batch["lengths"])).astype(jnp.float32)}

    def _sums(
        self, view: StateView, batch: Batch, predicted_BxT: Bool[Array, "B T"], key: Key[Array, ""] | None
    ) -> tuple[TokenLoss, Aux]:
        logits_BxTxV, aux = self.apply_model(view, batch, key)
        return token_loss(logits_BxTxV, jnp.asarray(batch["labels"]), predicted_BxT, label_smoothing=0.0), aux

    def loss_sums(self, view: StateView, batch: Batch, key: Key[Array, ""] | None) -> tuple[dict[str, Array], Aux]:
        """Sum -log p(next token) and the correct tokens over titles and articles."""
        sums, aux = self._sums(view, batch, real_positions(batch), key)
        return {"loss": sums.cross_entropy, "accuracy": sums.correct}, aux

    def _held_out_batches(self, seed: int) -> list[list[NewsArticle]]:
        """Return batches of at least `num_eval_examples` articles."""
        rows = self.config.batch_size
        randoms = [random_generator(seed, number) for number in range(-(-self.config.num_eval_examples // rows))]
        return [[sample_article(random, held_out=True) for _ in range(rows)] for random in randoms]

    def make_evaluations(self, split: str, seed: int) -> tuple[Evaluation, ...]:
        """Return the evaluations of the loss of articles, and of articles written from their titles alone."""
        batches = self._held_out_batches(seed)
        articles = [article for part in batches for article in part]

        def loss_step(view: StateView, batch: Batch, key: Key[Array, ""]) -> tuple[dict[str, Array], None]:
            # The first word of an article is the label of the token before it.
            in_article_BxT = jnp.arange(CONTEXT_LENGTH)[None] >= jnp.asarray(batch["article_starts"])[:, None] - 1
            sums, _ = self._sums(view, batch, real_positions(batch) & in_article_BxT, None)
            return {"nats": sums.cross_entropy, "articles": jnp.float32(len(batch["tokens"]))}, None

        def finish_loss(sums: Mapping[str, Any], rows: object) -> EvaluationReport:
            scalars = {
                "article_loss": float(sums["nats"]) / float(sums["articles"]),
                "least_article_loss": float(np.mean([article.nats for article in articles])),
            }
            return EvaluationReport(scalars, note=f"{len(articles)} articles with held-out titles")

        decoding = DecodingConfig(max_new_tokens=MAX_ARTICLE_WORDS, temperature=1.0)

        def writing_step(view: StateView, batch: Batch, key: Any) -> tuple[dict, dict]:
            return {}, {"tokens": generate_continuations(view, self.tokenizer, batch, decoding).tokens[:, 0]}

        def finish_writing(sums: Any, rows: Mapping[str, np.ndarray]) -> EvaluationReport:
            texts = [self.tokenizer.decode(row) for row in rows["tokens"].tolist()]
            readings = [
                read_article(article.kind, article.title_facts, text)
                for article, text in zip(articles, texts, strict=True)
            ]
            agreeing = float(np.mean([reading.agrees for reading in readings]))
            scalars = {
                "title_facts": float(np.mean([reading.title_facts for reading in readings])),
                "agreeing_articles": agreeing,
                "reader_accuracy": 1 - agreeing / 2,
            }
            samples = [
                {"prompt": article.title, "output": text} for article, text in zip(articles[:4], texts, strict=False)
            ]
            return EvaluationReport(scalars, samples, note=f"{len(articles)} articles written from held-out titles")

        prompts = [self._encode_prompts([article.title for article in part]) for part in batches]
        at_end = split == "test"
        return (
            Evaluation("loss", split, [self._batch(part) for part in batches], loss_step, finish_loss, at_end=at_end),
            Evaluation("writing", split, prompts, writing_step, finish_writing, at_end=at_end),
        )

    def _encode_prompts(self, titles: Sequence[str]) -> dict[str, np.ndarray]:
        return encode_prompts(self.tokenizer, [f"{title} {TITLE_END}" for title in titles])

    def axis_labels(self, sites: Sequence[Site]) -> AxisLabels:
        """Label the words; gold alignments link what predicts a fact of the title with its place there."""
        labels = token_axis_labels(self.tokenizer, [row[:-1] for row in self._encode(self._probe_articles)])
        links = tuple(_gold_alignments(article) for article in self._probe_articles)
        return dataclasses.replace(
            labels, gold_alignments={site.name: links for site in sites_between(sites, "tokens", "tokens")}
        )

    def predict(self, view: StateView, request: PredictionRequest) -> Predictions:
        """Write an article for each title, sampled at temperature 1 unless the request says how to decode.

        Raises:
            UserError: If a language is given, or a text is no title of this news.
        """
        for text in request.texts:
            if parse_title(" ".join(text.split())) is None:
                raise UserError(
                    f"{text!r} is no title of this news: write one as 'Arden beat Corva 3 - 1', 'Lorne votes for a new "
                    "bridge', 'storm closes 4 schools in Norby' or 'Fintra hires 40 workers in Istra'"
                )
        titles = [f"{' '.join(text.split())} {TITLE_END}" for text in request.texts]
        return predict_continuations(
            view, self.tokenizer, request, titles, max_new_tokens=MAX_ARTICLE_WORDS, temperature=1.0
        )


def _gold_alignments(article: NewsArticle) -> tuple[GoldAlignment, ...]:
    """Link the position that predicts a fact of the title with the places where the title states it."""
    title = article.title.split()
    words = [*title, TITLE_END, *article.text.split()]
    facts = set(article.title_facts.values())
    return tuple(
        GoldAlignment(place - 1, key, sure=True)
        for place in range(len(title) + 1, len(words))
        for key, word in enumerate(title)
        if word == words[place] and word in facts
    )


def make_task_interface(config: NewsArticlesConfig, tokenizer: Tokenizer) -> TaskInterface:
    """Return the model interface."""
    inputs = {name: InputSpec((config.batch_size, CONTEXT_LENGTH)) for name in LANGUAGE_MODELING.inputs}
    return TaskInterface(
        inputs,
        {"tokens": tokenizer.vocab_size},
        output=LANGUAGE_MODELING.output,
        max_decoded_length=CONTEXT_LENGTH,
    )


def _word_tokenizer() -> Tokenizer:
    """Return the tokenizer with one token for every word of the news."""
    words = all_words()
    return train_words(words, len(words) + 4)


def build_task(config: NewsArticlesConfig, directory: Path, rows_multiple: int = 1) -> NewsArticles:
    """Build the task; the run directory stores its tokenizer of words."""
    if has_tokenizer(directory):
        return NewsArticles(config, load_tokenizer(directory), rows_multiple)
    tokenizer = _word_tokenizer()
    tokenizer.save(directory)
    return NewsArticles(config, tokenizer, rows_multiple)


def build_synthetic_task(config: NewsArticlesConfig, rows_multiple: int = 1) -> NewsArticles:
    """Build the task; its data are synthetic anyway."""
    return NewsArticles(config, _word_tokenizer(), rows_multiple)


TASK = TaskSpec(
    NewsArticlesConfig,
    build_synthetic_task,
    build_task,
    dataclasses.replace(CONTINUATION_READER, make_task_interface=make_task_interface),
)
