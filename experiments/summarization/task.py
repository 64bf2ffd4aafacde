"""Summarization of synthetic articles: state their facts in other words, with out-of-vocabulary names."""

import dataclasses
import enum
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key

from experiments.summarization.data import (
    KINDS,
    Article,
    ArticleGenerator,
    ExtendedVocabulary,
    gold_alignments,
    write_summary,
)
from experiments.summarization.metrics import p_gen_report, p_gen_sums, summary_report
from experiments.summarization.signature import TRANSLATION_WITH_COPYING
from transformer.attention.sites import Site, sites_between
from transformer.config import (
    BatchSize,
    Config,
    Fraction,
    NumBeams,
    NumDisplayedExamples,
    NumExamples,
    PositiveInt,
    Range,
    TupleLimits,
    UserError,
)
from transformer.data.batches import (
    PROBE_SEED,
    TEST_SEED,
    VALIDATION_SEED,
    BatchSource,
    GeneratedBatches,
    random_generator,
)
from transformer.models.task_interface import TRANSLATION, InputSpec, TaskInterface
from transformer.tasks.axis_labels import AxisLabels, GoldAlignment
from transformer.tasks.base_task import check_batch_size, make_capture_function, refuse_text_options, report_means
from transformer.tasks.decoding_config import DecodingConfig
from transformer.tasks.sequence_generation_base import (
    BEGIN,
    END,
    PAD,
    SPECIAL,
    TokenSequenceTask,
    predicted_step_mask,
    teacher_forcing_arrays,
    trim_at_end_token,
)
from transformer.tasks.task import (
    Batch,
    Evaluation,
    EvaluationReport,
    EvaluationStep,
    Objective,
    PredictionRequest,
    Predictions,
    StateView,
    TaskSpec,
)

UNKNOWN = len(SPECIAL)
_NUM_SAMPLES = 5  # summaries to read beside their references
# Further facts than an article has for which a summary has room: enough to see that it repeats itself.
_EXTRA_FACTS = 2
# The axes of a map of p_gen over the two ways to say a word, and what these are called.
_ORIGINS, _ORIGIN_NAMES = ("target", "origin"), ("written", "copied")
_WORDS = re.compile(r"[\w'-]+|[^\w\s]")


class OOVTarget(enum.Enum):
    """The target for an out-of-vocabulary word.

    copied: that word, by its number in the article (See et al. 2017, section 2.2). unknown: one token for all of them.
    """

    COPIED = "copied"
    UNKNOWN = "unknown"


NumFillers = Annotated[int, Range(0, 2**8)]
"""A number of sentences of one article that do not count."""
NumNames = Annotated[int, Range(1, 2**14)]
"""A number of names that are made one by one."""


@dataclasses.dataclass(frozen=True)
class SummarizationConfig(Config, path="config.task"):
    """Summarization of synthetic articles, sampled anew at every step.

    Attributes:
        min_facts: The fewest facts of a training article.
        max_facts: The most facts of a training article.
        num_fillers: The filler sentences of an article.
        num_known_names: The names in the vocabulary.
        oov_prob: The probability that a name is out of vocabulary.
        oov_target: The targets for such names: `copied` for models that copy, `unknown` for others.
        eval_sizes: The numbers of facts of evaluated articles.
        batch_size: Articles in a batch.
        num_eval_examples: Articles of each size in the validation set and in the test set, rounded up to whole batches;
            their out-of-vocabulary names are held out.
        num_beams: The beam size; 1 decodes greedily.
        num_probe_examples: Articles whose maps are stored.

    Raises:
        UserError: If a value is out of range, or no article has so many facts or names.
    """

    min_facts: PositiveInt = 1
    max_facts: PositiveInt = 5
    num_fillers: NumFillers = 2
    num_known_names: NumNames = 100
    oov_prob: Fraction = 0.5
    oov_target: OOVTarget = OOVTarget.COPIED
    eval_sizes: Annotated[tuple[PositiveInt, ...], TupleLimits(min_length=1, distinct=True)] = (3, 5)
    batch_size: BatchSize = 32
    num_eval_examples: NumExamples = 256
    num_beams: NumBeams = 1
    num_probe_examples: NumDisplayedExamples = 4

    def _check(self) -> None:
        if self.min_facts > self.max_facts:
            raise UserError(f"config.task.min_facts={self.min_facts} and max_facts={self.max_facts} must rise")
        if self.largest_num_facts > len(KINDS):
            raise UserError(
                f"config.task.max_facts={self.max_facts} and eval_sizes={self.eval_sizes}: "
                f"an article has at most {len(KINDS)} facts, each of another kind"
            )
        names = self.article_generator.max_names(self.largest_num_facts)
        if not self.oov_prob and self.num_known_names < names:
            raise UserError(
                f"config.task.num_known_names={self.num_known_names} must be at least {names} if oov_prob=0"
            )

    @property
    def largest_num_facts(self) -> int:
        """The largest number of facts of any article."""
        return max((self.max_facts, *self.eval_sizes))

    @property
    def article_generator(self) -> ArticleGenerator:
        """The distribution of the articles."""
        return ArticleGenerator(self.num_fillers, self.num_known_names, self.oov_prob)


class Summarization(TokenSequenceTask):
    """Summarization: implements transformer.tasks.task.Task."""

    def __init__(self, config: SummarizationConfig, rows_multiple: int = 1):
        check_batch_size(config.batch_size, rows_multiple)
        self.config, self.article_generator = config, config.article_generator
        copies = config.oov_target is OOVTarget.COPIED
        self.lexicon = ExtendedVocabulary((*SPECIAL, "<unknown>", *self.article_generator.vocabulary), UNKNOWN, copies)
        self.longest, self.beyond = (
            self.article_generator.max_article_length(config.largest_num_facts),
            self.article_generator.max_names(config.largest_num_facts),
        )
        words = len(self.lexicon.words)
        vocabularies = {"source": words, "joint": words + self.beyond} if copies else {"joint": words}
        asks = TRANSLATION_WITH_COPYING if copies else TRANSLATION
        shapes = {"source": self.longest, "copied": self.longest, "target": self._max_steps(config.largest_num_facts)}
        inputs = {name: InputSpec((config.batch_size, size)) for name, size in shapes.items() if name in asks.inputs}
        self.condition_inputs = tuple(name for name in inputs if name != "target")
        decoded = self._max_steps(config.largest_num_facts + _EXTRA_FACTS)
        self.interface = TaskInterface(
            inputs, vocabularies, PAD, BEGIN, END, output=asks.output, max_decoded_length=decoded
        )
        self.objectives = (Objective("summaries", self.loss),)
        self.evaluations = (*self._evaluations("validation", VALIDATION_SEED), *self._evaluations("test", TEST_SEED))
        random = random_generator(PROBE_SEED)
        self._probe_articles = [
            self.article_generator.sample(random, config.max_facts, unseen=True)
            for _ in range(config.num_probe_examples)
        ]
        self.probe_batch = self.model_inputs(self._batch(self._probe_articles, config.max_facts))

    @property
    def data_summary(self) -> tuple[str, ...]:
        """A line on the numbers of articles and of words."""
        num_held_out = -(-self.config.num_eval_examples // self.config.batch_size) * self.config.batch_size
        counts = ", ".join(map(str, self.config.eval_sizes))
        return (
            f"data articles of at most {self.longest} words: drawn anew at every step, for each of {counts} facts "
            f"{num_held_out:,} validation and {num_held_out:,} test, a vocabulary of {len(self.lexicon.words)}",
        )

    def training_batches(self, seed: int) -> BatchSource:
        """Return an endless source of articles that are sampled anew at every step."""

        def draw(random: np.random.Generator) -> dict[str, np.ndarray]:
            counts = random.integers(self.config.min_facts, self.config.max_facts + 1, self.config.batch_size)
            return self._batch(
                [self.article_generator.sample(random, facts, unseen=False) for facts in counts], self.config.max_facts
            )

        return GeneratedBatches(draw, seed)

    def axis_labels(self, sites: Sequence[Site]) -> AxisLabels:
        """Label the words of the probe's articles and summaries, with gold alignments of each name."""
        articles = [article.words for article in self._probe_articles]
        gold = tuple(
            tuple(GoldAlignment(*pair, True) for pair in gold_alignments(article)) for article in self._probe_articles
        )
        return self._describe(articles, [write_summary(article.facts) for article in self._probe_articles], sites, gold)

    def predict(self, view: StateView, request: PredictionRequest) -> Predictions:
        """Summarize each text, whose words may be copied.

        Raises:
            UserError: If a language, samples, stop strings or a coverage penalty is given, too many words are asked
                for, or a text is empty or larger than the articles of the run.
        """
        refuse_text_options(request, "summarizes articles")
        steps = self._max_steps(self.config.largest_num_facts + _EXTRA_FACTS)
        decoding = DecodingConfig.with_request(
            request.decoding, max_new_tokens=steps, num_beams=self.config.num_beams, length_penalty=0.0
        )
        if decoding.max_new_tokens > steps:
            raise UserError(
                f"--max_new_tokens={decoding.max_new_tokens}: a summary has at most {steps} words with its end"
            )
        texts = [self._split_words(text) for text in request.texts]
        encoded = self.lexicon.encode_articles(texts, self.longest, PAD)
        summaries = self._decode_lines(self.decode_tokens(view, encoded, decoding), texts)
        inputs = self.model_inputs({**encoded, **self._encode_summaries(summaries, texts, decoding.max_new_tokens + 1)})
        return Predictions(
            [" ".join(words) for words in summaries],
            self._describe(texts, summaries, view.model.sites),
            make_capture_function(view, inputs),
        )

    def _split_words(self, text: str) -> tuple[str, ...]:
        """Split a text into words as articles have them."""
        word_ids = self.lexicon.word_ids
        words = [
            word if word in word_ids or word.lower() not in word_ids else word.lower() for word in _WORDS.findall(text)
        ]
        beyond = self.lexicon.oov_words(words)
        if not words:
            raise UserError(f"--text={text!r} has no words to summarize: give an article")
        if len(words) > self.longest:
            raise UserError(f"{text[:40]!r}... has {len(words)} words, and this run's articles at most {self.longest}")
        if len(beyond) > self.beyond:
            raise UserError(
                f"{text[:40]!r}... has {len(beyond)} words that the vocabulary lacks, and this run's articles at most "
                f"{self.beyond}: {', '.join(beyond)}"
            )
        return tuple(words)

    def _max_steps(self, facts: int) -> int:
        """Return the number of words of the longest summary of so many facts, with its end."""
        return self.article_generator.max_summary_length(facts) + 1

    def _batch(self, articles: Sequence[Article], facts: int) -> dict[str, np.ndarray]:
        """Encode articles of at most so many facts, and their summaries."""
        texts, summaries = (
            [article.words for article in articles],
            [write_summary(article.facts) for article in articles],
        )
        encoded = self.lexicon.encode_articles(texts, self.article_generator.max_article_length(facts), PAD)
        return {**encoded, **self._encode_summaries(summaries, texts, self._max_steps(facts))}

    def _encode_summaries(
        self, summaries: Sequence[Sequence[str]], texts: Sequence[Sequence[str]], steps: int
    ) -> dict[str, Int[np.ndarray, "B T"]]:
        """Encode summaries as `target` and `labels`."""
        return teacher_forcing_arrays(
            [self.lexicon.encode_words(words, text) for words, text in zip(summaries, texts, strict=True)], steps
        )

    def _decode_lines(self, rows: Int[np.ndarray, "B T"], texts: Sequence[Sequence[str]]) -> list[list[str]]:
        """Decode the words of each row up to its end."""
        return [self.lexicon.decode_words(trim_at_end_token(row), text) for row, text in zip(rows, texts, strict=True)]

    def _p_gen_sums(self, view: StateView, batch: Batch, key: Key[Array, ""]) -> tuple[dict[str, Array], None]:
        _, aux, _ = self.score_target(view, batch, {"tokens": jnp.float32(1)}, key)
        copied_BxT = jnp.asarray(batch["labels"]) >= len(self.lexicon.words)
        return p_gen_sums(aux.extras["p_gen"], copied_BxT, predicted_step_mask(batch)), None

    def _evaluations(self, split: str, seed: int) -> tuple[Evaluation, ...]:
        """Return the evaluations of the loss on articles with held-out names, and of summaries by number of facts."""
        config, at_end = self.config, split == "test"
        count = -(-config.num_eval_examples // config.batch_size)

        def articles(facts: Sequence[int], number: int) -> list[Article]:
            random = random_generator(seed, *facts, number)
            return [
                self.article_generator.sample(random, int(random.choice(facts)), unseen=True)
                for _ in range(config.batch_size)
            ]

        usual = range(config.min_facts, config.max_facts + 1)
        batches = [self._batch(articles(usual, number), config.max_facts) for number in range(count)]
        evaluations = [
            Evaluation("loss", split, batches, self.loss_sums, report_means, at_end),
            Evaluation("copying", split, batches, self._p_gen_sums, p_gen_report, at_end, required_axes=_ORIGINS),
        ]
        for facts in config.eval_sizes:
            article_batches = [articles((facts,), number) for number in range(count)]
            finish = self._finish_summaries(
                [article for article_batch in article_batches for article in article_batch], f"/{facts}"
            )
            batches = [self._batch(article_batch, facts) for article_batch in article_batches]
            decoding = DecodingConfig(
                max_new_tokens=self._max_steps(facts + _EXTRA_FACTS), num_beams=config.num_beams, length_penalty=0.0
            )
            evaluations.append(
                Evaluation(f"summaries of {facts}", split, batches, self._decoding_step(decoding), finish, at_end)
            )
        return tuple(evaluations)

    def _decoding_step(self, decoding: DecodingConfig) -> EvaluationStep:
        """Return the evaluation step that decodes summaries."""

        def step(view: StateView, batch: Batch, key: Key[Array, ""]) -> tuple[dict, dict]:
            return {}, {"tokens": self.decode(view, batch, decoding)}

        return step

    def _finish_summaries(self, articles: Sequence[Article], suffix: str) -> Any:
        texts = [article.words for article in articles]

        def finish(sums: Any, rows: Mapping[str, np.ndarray]) -> EvaluationReport:
            outputs = self._decode_lines(rows["tokens"], texts)
            return summary_report(
                outputs, articles, self.article_generator.names, num_samples=_NUM_SAMPLES, suffix=suffix
            )

        return finish

    def _describe(
        self,
        texts: Sequence[Sequence[str]],
        summaries: Sequence[Sequence[str]],
        sites: Sequence[Site],
        gold_links: tuple[tuple[GoldAlignment, ...], ...] | None = None,
    ) -> AxisLabels:
        """Label the words of articles and of their summaries."""
        tokens = {
            "source": tuple(map(tuple, texts)),
            "target": tuple((*words, SPECIAL[END]) for words in summaries),
            "origin": (_ORIGIN_NAMES,) * len(texts),
        }
        gold = (
            {} if gold_links is None else {site.name: gold_links for site in sites_between(sites, "target", "source")}
        )
        return AxisLabels(tokens, tuple(map(" ".join, summaries)), gold or None)


TASK = TaskSpec(SummarizationConfig, Summarization)
