"""Extractive question answering: find the answer of a question in a text (Devlin et al. 2019, sections 4.2 and 4.3)."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from transformer.config import PositiveInt, UserError
from transformer.data.datasets.fine_tuning import ExampleShape
from transformer.data.datasets.question_answering import check_question_dataset, is_question_file, open_questions
from transformer.data.extractive_questions import (
    ExtractiveQuestion,
    QuestionWindow,
    answer_scores,
    question_windows,
)
from transformer.data.fine_tuning_sequence_layouts import DelimiterTokens, SequenceFormat, SequenceLayout
from transformer.models.task_interface import (
    EXTRACTIVE_QUESTION_ANSWERING,
    EXTRACTIVE_QUESTION_ANSWERING_WITH_TYPES,
    Signature,
)
from transformer.tasks.base_task import real_rows
from transformer.tasks.fine_tuning import TEXT_SEPARATOR
from transformer.tasks.labeled_text_config import PositionTextConfig
from transformer.tasks.labeled_text_task import EncodedSplit, LabeledTextHead, labeled_text_task
from transformer.tasks.task import Batch, EvaluationReport
from transformer.tasks.text_task_base import real_positions

# The logit of a place that cannot be an answer: exp of it is 0, and sums of it are finite.
_IMPOSSIBLE = -1e30


@dataclasses.dataclass(frozen=True)
class QuestionAnsweringConfig(PositionTextConfig):
    """Questions about texts, their tokenizer, and the shapes of their batches.

    A context that does not fit beside its question is cut into windows that overlap, each a sequence of its own.
    `batch_size` counts these.

    Attributes:
        dataset: "grammar/questions" or "grammar/unanswerable_questions", which are generated, or "FILE.json" or
            "FILE.jsonl", files of your own in the format of SQuAD (transformer.data.datasets.question_answering).
        window_stride: The number of tokens of a context between the starts of two windows, less than a window has, so
            that windows overlap.
        max_question_length: The number of tokens to which a question is cut.
        max_answer_length: The largest number of tokens in an answer, without which a bad span could be a whole window
            (Devlin et al. 2019's program: 30).

    Raises:
        UserError: If a value is out of range, questions leave no room for a context, or windows do not overlap.
    """

    dataset: str = "grammar/questions"
    window_stride: PositiveInt = 128
    max_question_length: PositiveInt = 64
    max_answer_length: PositiveInt = 30

    def _check(self) -> None:
        super()._check()
        if self.sequence_format is SequenceFormat.PLAIN:
            raise UserError(
                "config.task.sequence_format=plain puts nothing between a question and its context: say roberta for a "
                "decoder, bert, roberta or xlnet for others"
            )
        check_question_dataset(self.dataset)
        if self.classes:
            raise UserError(f"config.task.classes={self.classes} is for labels, which questions do not have: empty it")
        if self.max_question_length > self.max_text_length // 2:
            raise UserError(
                f"config.task.max_question_length={self.max_question_length} leaves too little of "
                f"{self.max_text_length} tokens, the greatest of config.task.bucket_lengths, to contexts: at most half"
            )
        # Every format has as many special tokens, whatever their numbers.
        special = DelimiterTokens.from_format(self.sequence_format, 0, 0, 0).num_special_tokens(2)
        room = self.max_text_length - self.max_question_length - special
        if self.window_stride >= room:
            raise UserError(
                f"config.task.window_stride={self.window_stride} must be below {room}, the tokens of a context beside "
                f"a question of config.task.max_question_length={self.max_question_length}: windows that do not "
                "overlap cut answers"
            )

    @property
    def reads_own_files(self) -> bool:
        """Whether the data are files of the user's own."""
        return is_question_file(self.dataset)

    @property
    def signature(self) -> Signature:
        """What the task requires of a model."""
        return EXTRACTIVE_QUESTION_ANSWERING_WITH_TYPES if self.has_token_types else EXTRACTIVE_QUESTION_ANSWERING

    @property
    def shape(self) -> ExampleShape:
        """Two texts, a question and its context, in one sequence."""
        return ExampleShape(SequenceLayout.PAIR, 2)

    def open_splits(self) -> dict[str, Sequence[ExtractiveQuestion]]:
        """Read the questions of the splits that are trained on and evaluated."""
        return self.select_splits(open_questions(self.dataset, data_dir=self.data_dir, held_out=self.held_out))


class SpanLoss(NamedTuple):
    """Sums over windows.

    Attributes:
        cross_entropy: The mean of -log p(first token) and -log p(last token), in nats.
        correct: The number of windows whose most probable first and last token are both right.
    """

    cross_entropy: Float[Array, ""]
    correct: Float[Array, ""]


def span_loss(
    logits_BxTx2: Float[Array, "B T 2"],
    labels_Bx2: Int[Array, "B 2"],
    real_BxT: Bool[Array, "B T"],
    counts_B: Bool[Array, " B"],
) -> SpanLoss:
    """Sum the loss of an answer's first and last token, each one of the tokens of its sequence.

        -(log softmax_t(x_t0)[first] + log softmax_t(x_t1)[last]) / 2        (Devlin et al. 2019, section 4.2)

    Args:
        logits_BxTx2: The logits of first and last token.
        labels_Bx2: The places of the answer's first and last token, both that of the begin token if there is no answer.
        real_BxT: Which tokens are no padding: padding is never an answer.
        counts_B: Which windows count.
    """
    possible_BxTx2 = jnp.where(real_BxT[..., None], logits_BxTx2, _IMPOSSIBLE)
    log_probabilities_BxTx2 = jax.nn.log_softmax(possible_BxTx2, axis=1)
    label_log_probabilities_Bx2 = jnp.take_along_axis(log_probabilities_BxTx2, labels_Bx2[:, None], axis=1)[:, 0]
    correct_B = jnp.all(jnp.argmax(possible_BxTx2, axis=1) == labels_Bx2, axis=-1)
    return SpanLoss(
        jnp.sum(jnp.where(counts_B, -jnp.mean(label_log_probabilities_Bx2, axis=-1), 0)),
        jnp.sum(correct_B & counts_B).astype(jnp.float32),
    )


class BestSpans(NamedTuple):
    """The best answer of each window.

    Attributes:
        first: The place of its first token.
        last: The place of its last token.
        score: The sum of their logits.
        no_answer: The sum of the logits of the begin token, the score of no answer.
    """

    first: Int[ArrayLike, " B"]
    last: Int[ArrayLike, " B"]
    score: Float[ArrayLike, " B"]
    no_answer: Float[ArrayLike, " B"]


def best_spans(
    logits_BxTx2: Float[Array, "B T 2"],
    context_BxT: Bool[Array, "B T"],
    begin_B: Int[Array, " B"],
    max_answer_length: int,
) -> BestSpans:
    """Find the answer with the greatest sum of both logits (Devlin et al. 2019, section 4.2).

    Args:
        logits_BxTx2: The logits of first and last token.
        context_BxT: Which tokens are of the context.
        begin_B: The place of the begin token.
        max_answer_length: The largest number of tokens in an answer.
    """
    possible_BxTx2 = jnp.where(context_BxT[..., None], logits_BxTx2, _IMPOSSIBLE)
    length = logits_BxTx2.shape[1]
    distance_TxT = jnp.arange(length) - jnp.arange(length)[:, None]
    ordered_TxT = (distance_TxT >= 0) & (distance_TxT < max_answer_length)
    sums_BxTxT = possible_BxTx2[:, :, None, 0] + possible_BxTx2[:, None, :, 1]
    scores_BxTT = jnp.where(ordered_TxT, sums_BxTxT, 3 * _IMPOSSIBLE).reshape(len(logits_BxTx2), -1)
    best_B = jnp.argmax(scores_BxTT, axis=-1)
    no_answer_B = jnp.take_along_axis(logits_BxTx2, begin_B[:, None, None], axis=1)[:, 0].sum(axis=-1)
    return BestSpans(best_B // length, best_B % length, jnp.max(scores_BxTT, axis=-1), no_answer_B)


def context_positions(
    tokens_BxT: Int[Array, "B T"], lengths_B: Int[Array, " B"], delimiters: DelimiterTokens
) -> Bool[Array, "B T"]:
    """Return which tokens are of the context: those of the second text, or of XLNet's first.

    Args:
        tokens_BxT: The tokens.
        lengths_B: The number of tokens of each sequence.
        delimiters: The tokens around and between texts.
    """
    places_T = jnp.arange(tokens_BxT.shape[1])
    first_end_B = jnp.argmax(tokens_BxT == delimiters.between_ids[0], axis=1)
    if delimiters.begin_is_last:
        return places_T < first_end_B[:, None]
    starts_B, ends_B = first_end_B + len(delimiters.between_ids), lengths_B - len(delimiters.end_ids)
    return (places_T >= starts_B[:, None]) & (places_T < ends_B[:, None])


def begin_positions(lengths_B: Int[Array, " B"], delimiters: DelimiterTokens) -> Int[Array, " B"]:
    """Return the place of each sequence's begin token, which stands for no answer."""
    return jnp.maximum(lengths_B - 1, 0) if delimiters.begin_is_last else jnp.zeros_like(lengths_B)


class QuestionAnsweringHead(LabeledTextHead[QuestionAnsweringConfig]):
    """The answer of a question, as a span of its context: the loss is the mean of `span_loss` over the windows."""

    name = "question_answering"
    action = "answers questions"
    counted = "windows"

    def parse_text(self, text: str) -> ExtractiveQuestion:
        """Return the question that a user has written as "question $ context".

        Raises:
            UserError: If the text is not a question and a context.
        """
        question, _, context = (part.strip() for part in text.partition(TEXT_SEPARATOR))
        if not question or not context:
            raise UserError(f"{text[:60]!r} must be 'question{TEXT_SEPARATOR}context', each with words")
        return ExtractiveQuestion(question, context, ())

    def encode(self, examples: Sequence[ExtractiveQuestion], longest: int | None = None) -> EncodedSplit:
        """Encode questions with their contexts, one question's windows after the other; none has to be cut."""
        delimiters = self.config.delimiters(self.tokenizer)
        question_ids = self.tokenizer.encode([example.question for example in examples])
        # Questions about one context share its tokens.
        contexts = list(dict.fromkeys(example.context for example in examples))
        encoded_contexts = dict(zip(contexts, self.tokenizer.encode_with_offsets(contexts), strict=True))
        windows = [
            window
            for number, (question, ids) in enumerate(zip(examples, question_ids, strict=True))
            for window in question_windows(
                question,
                number,
                ids[: self.config.max_question_length],
                encoded_contexts[question.context],
                delimiters,
                max_length=self.config.max_text_length,
                stride=self.config.window_stride,
            )
        ]
        return EncodedSplit(windows, [window.row for window in windows])

    def make_synthetic_example(self) -> QuestionWindow:
        """Return a window of the greatest length."""
        length = self.config.max_text_length
        return QuestionWindow(ExtractiveQuestion("a", "a", ()), 0, [0] * length, 1, [(0, 1)] * length, (0, 0))

    def _windows(self, split: str) -> Sequence[Any]:
        return self.splits[split].examples

    def identity(self, texts: Sequence[str]) -> tuple[str, ...]:
        """Return the question and the context: a question is the same however many answers its annotators gave."""
        return tuple(texts[:2])

    @property
    def data_notes(self) -> tuple[str, ...]:
        """How many questions the windows are of, and how many answers are in no window."""
        counts = [f"{self._windows(name)[-1].number + 1:,} {name}" for name in self.splits]
        notes = (f"of {', '.join(counts)} questions",)
        num_lost = {name: _num_answers_in_no_window(self._windows(name)) for name in self.splits}
        if not any(num_lost.values()):
            return notes
        losses = ", ".join(f"{count:,} {name}" for name, count in num_lost.items() if count)
        return (
            *notes,
            f"the answers of {losses} questions are in no window whole: windows that lack them count as without an "
            "answer; lower config.task.window_stride or raise the greatest of config.task.bucket_lengths",
        )

    @property
    def vocabularies(self) -> dict[str, int]:
        """The number of places of an answer's first and last token."""
        return {"labels": self.config.max_text_length}

    def _span_loss(self, outputs: Float[Array, "B T 2"], batch: Batch) -> SpanLoss:
        return span_loss(outputs, jnp.asarray(batch["labels"]), real_positions(batch), real_rows(batch))

    def loss_sums(self, outputs: Float[Array, "B T 2"], batch: Batch) -> dict[str, Array]:
        """Sum the loss over the windows, and count those whose first and last token are both right."""
        sums = self._span_loss(outputs, batch)
        return {"loss": sums.cross_entropy, "accuracy": sums.correct}

    def evaluation_sums(
        self, outputs: Float[Array, "B T 2"], batch: Batch
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Sum the loss over the windows, and return the best answer of each as rows."""
        sums = {"loss": self._span_loss(outputs, batch).cross_entropy, **self.denominators(batch)}
        return sums, {"index": jnp.asarray(batch["index"]), **self._best_spans(outputs, batch)._asdict()}

    def _best_spans(self, outputs: Float[Array, "B T 2"], batch: Batch) -> BestSpans:
        tokens_BxT, lengths_B = jnp.asarray(batch["tokens"]), jnp.asarray(batch["lengths"])
        delimiters = self.config.delimiters(self.tokenizer)
        context_BxT = context_positions(tokens_BxT, lengths_B, delimiters)
        begin_B = begin_positions(lengths_B, delimiters)
        return best_spans(outputs, context_BxT, begin_B, self.config.max_answer_length)

    def report(self, split: str, sums: Mapping[str, Any], rows: Mapping[str, np.ndarray]) -> EvaluationReport:
        """Report the loss over windows, and exact match and F1 over questions."""
        real = np.asarray(rows["index"]) >= 0
        windows = [self._windows(split)[index] for index in rows["index"][real]]
        best = BestSpans(*(np.asarray(rows[name])[real] for name in BestSpans._fields))
        questions = {window.number: window.question for window in windows}
        scores = [
            answer_scores(predicted, [answer.text for answer in questions[number].answers])
            for number, predicted in self.select_answers(windows, best).items()
        ]
        exact, f1 = np.mean(scores, axis=0)
        loss = float(sums["loss"]) / max(float(sums["examples"]), 1)
        return EvaluationReport(
            {"loss": loss, "exact_match": float(exact), "f1": float(f1)}, note=f"{len(scores)} questions"
        )

    @functools.cached_property
    def _always_answers(self) -> bool:
        """Whether no score of no answer counts: a run that has seen no question without one has not learned it."""
        return all(window.question.answers for window in self._windows("train"))

    def select_answers(self, windows: Sequence[QuestionWindow], best: BestSpans) -> dict[int, str]:
        """Return the answer of every question by number: the best of its windows; "" if no answer scores more.

        The score of no answer is the least of its windows (Devlin et al. 2019, section 4.3, with a threshold of 0).
        """
        answers: dict[int, tuple[float, str]] = {}
        no_answer: dict[int, float] = {}
        for window, first, last, score, null in zip(windows, *map(np.asarray, best), strict=True):
            number = window.number
            no_answer[number] = min(no_answer.get(number, np.inf), float(null))
            if number not in answers or score > answers[number][0]:
                answers[number] = float(score), window.text_of_span(int(first), int(last))
        return {
            number: text if self._always_answers or score >= no_answer[number] else ""
            for number, (score, text) in answers.items()
        }

    def predict(self, outputs: Float[Array, "B T 2"], inputs: Batch, encoded: EncodedSplit) -> list[str]:
        """Return the answer of each question; "(none)" where there is none."""
        windows: Sequence[Any] = encoded.examples
        best = BestSpans(*map(np.asarray, self._best_spans(outputs, inputs)))
        return [answer or "(none)" for answer in self.select_answers(windows, best).values()]

    def label_titles(self, examples: Sequence[QuestionWindow]) -> list[str]:
        """Return the true answer and the question of each window."""
        return [
            f"{window.question.answers[0].text if window.question.answers else '(none)'}: {window.question.question}"
            for window in examples
        ]

    def answer_titles(self, answers: Sequence[str], texts: Sequence[str], encoded: EncodedSplit) -> list[str]:
        """Return the predicted answer and the question of each window."""
        windows: Sequence[Any] = encoded.examples
        return [f"{answers[window.number]}: {window.question.question}" for window in windows]

    def input_titles(self, texts: Sequence[str], encoded: EncodedSplit) -> list[str]:
        """Return the question of each window."""
        windows: Sequence[Any] = encoded.examples
        return [window.question.question for window in windows]


def _num_answers_in_no_window(windows: Sequence[QuestionWindow]) -> int:
    """Count the questions whose answer is in none of their windows."""
    answered = {window.number for window in windows if window.holds_answer}
    return len({window.number for window in windows if window.question.answers} - answered)


TASK = labeled_text_task(QuestionAnsweringConfig, QuestionAnsweringHead)
