"""Extractive question answering: find the answer of a question in a text (Devlin et al. 2019, sections 4.2 and 4.3)."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int, Key

from transformer.attention.sites import Site
from transformer.config import PositiveInt, UserError
from transformer.data.datasets.question_answering import check_question_dataset, is_question_file, open_questions
from transformer.data.extractive_questions import (
    ExtractiveQuestion,
    QuestionWindow,
    answer_scores,
    question_windows,
)
from transformer.data.fine_tuning_sequence_layouts import DelimiterTokens
from transformer.data.tokenizers.load import AnyTokenizer
from transformer.models.task_interface import (
    EXTRACTIVE_QUESTION_ANSWERING,
    EXTRACTIVE_QUESTION_ANSWERING_WITH_TYPES,
    Signature,
    TaskInterface,
)
from transformer.tasks.axis_labels import AxisLabels
from transformer.tasks.base_task import check_input_texts, make_capture_function, real_rows, refuse_decoding_options
from transformer.tasks.fine_tuning import TEXT_SEPARATOR
from transformer.tasks.fine_tuning_config import EncoderFineTuningConfig
from transformer.tasks.labeled_text_task_base import EncodedSplit, LabeledTextTask, examples_of_splits
from transformer.tasks.synthetic_data import synthetic_tokenizer_of_kind
from transformer.tasks.task import (
    Batch,
    EncodedInputs,
    EvaluationReport,
    InputReader,
    InputTexts,
    LossAux,
    Objective,
    PredictionRequest,
    Predictions,
    StateView,
    TaskSpec,
)
from transformer.tasks.text_data import load_or_train_tokenizer, pad_texts, token_axis_labels
from transformer.tasks.text_task_base import real_positions

# The logit of a place that cannot be an answer: exp of it is 0, and sums of it are finite.
_IMPOSSIBLE = -1e30


@dataclasses.dataclass(frozen=True)
class QuestionAnsweringConfig(EncoderFineTuningConfig):
    """Questions about texts, their tokenizer, and the shapes of their batches.

    A context that does not fit beside its question is cut into windows that overlap, each a sequence of its own.
    `batch_size` counts these.

    Attributes:
        dataset: "grammar/questions" or "grammar/unanswerable_questions", which are generated, or "FILE.json" or
            "FILE.jsonl", files of your own in the format of SQuAD (transformer.data.datasets.question_answering).
        window_stride: The number of tokens of a context between the starts of two windows, less than a window has, so
            that windows overlap.
        max_question_length: The number of tokens to which a question is cut.
        max_answer_length: The largest number of tokens in an answer.

    Raises:
        UserError: If a value is out of range, questions leave no room for a context, or windows do not overlap.
    """

    dataset: str = "grammar/questions"
    window_stride: PositiveInt = 128
    max_question_length: PositiveInt = 64
    max_answer_length: PositiveInt = 30

    def _check(self) -> None:
        super()._check()
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
        typed = self.sequence_format.has_token_types(2)
        return EXTRACTIVE_QUESTION_ANSWERING_WITH_TYPES if typed else EXTRACTIVE_QUESTION_ANSWERING


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
    of_labels_Bx2 = jnp.take_along_axis(log_probabilities_BxTx2, labels_Bx2[:, None], axis=1)[:, 0]
    correct_B = jnp.all(jnp.argmax(possible_BxTx2, axis=1) == labels_Bx2, axis=-1)
    return SpanLoss(
        jnp.sum(jnp.where(counts_B, -jnp.mean(of_labels_Bx2, axis=-1), 0)),
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


class QuestionAnswering(LabeledTextTask):
    """The task of extractive question answering; implements transformer.tasks.task.Task."""

    def __init__(
        self,
        config: QuestionAnsweringConfig,
        tokenizer: AnyTokenizer,
        windows: Mapping[str, Sequence[QuestionWindow]],
        rows_multiple: int = 1,
    ):
        splits = {name: EncodedSplit(split, [each.row for each in split]) for name, split in windows.items()}
        super().__init__(config, tokenizer, splits, rows_multiple, token_types=config.token_types(tokenizer))
        self.config, self._windows = config, windows
        # A run that has seen no question without an answer has not learned what its score means.
        self._answers_all = all(each.question.answers for each in windows["train"])
        self.interface = make_task_interface(config, tokenizer)
        self.objectives = (Objective("question_answering", self._loss),)
        self.evaluations = self.make_evaluations(config, "question_answering", self._sums, self._report)

    @property
    def data_summary(self) -> tuple[str, ...]:
        """How many windows each split has, of how many questions, and how many answers are in no window."""
        counts = [f"{split[-1].number + 1:,} {name}" for name, split in self._windows.items()]
        # A question is the same however many answers its annotators gave.
        summary = self.summarize_data(self.config, "windows", lambda texts: tuple(texts[:2]))
        summary = (*summary, f"of {', '.join(counts)} questions")
        lost = {name: _num_answers_in_no_window(split) for name, split in self._windows.items()}
        if not any(lost.values()):
            return summary
        losses = ", ".join(f"{count:,} {name}" for name, count in lost.items() if count)
        return (
            *summary,
            f"the answers of {losses} questions are in no window whole: windows that lack them count as without an "
            "answer; lower config.task.window_stride or raise the greatest of config.task.bucket_lengths",
        )

    def _loss(
        self, view: StateView, batch: Batch, denominators: Mapping[str, Array], key: Key[Array, ""]
    ) -> tuple[Array, LossAux]:
        """Compute the mean of `span_loss` over the windows."""
        logits_BxTx2, aux = self.apply_model(view, batch, key)
        sums = self._span_loss(logits_BxTx2, batch)
        metrics = {
            "loss": sums.cross_entropy / denominators["examples"],
            "accuracy": sums.correct / denominators["examples"],
        }
        return metrics["loss"], LossAux.from_aux(aux, view.task_state, metrics)

    def _span_loss(self, logits_BxTx2: Float[Array, "B T 2"], batch: Batch) -> SpanLoss:
        return span_loss(logits_BxTx2, jnp.asarray(batch["labels"]), real_positions(batch), real_rows(batch))

    def _best_spans(self, logits_BxTx2: Float[Array, "B T 2"], batch: Batch) -> BestSpans:
        tokens_BxT, lengths_B = jnp.asarray(batch["tokens"]), jnp.asarray(batch["lengths"])
        delimiters = self.config.delimiters(self.tokenizer)
        context_BxT = context_positions(tokens_BxT, lengths_B, delimiters)
        begin_B = begin_positions(lengths_B, delimiters)
        return best_spans(logits_BxTx2, context_BxT, begin_B, self.config.max_answer_length)

    def _sums(self, view: StateView, batch: Batch, key: Key[Array, ""]) -> tuple[dict[str, Array], dict[str, Array]]:
        """Sum the loss over the windows, and return the best answer of each as rows."""
        logits_BxTx2, _ = self.apply_model(view, batch, None)
        sums = {"loss": self._span_loss(logits_BxTx2, batch).cross_entropy, **self.denominators(batch)}
        return sums, {"index": jnp.asarray(batch["index"]), **self._best_spans(logits_BxTx2, batch)._asdict()}

    def _report(self, split: str, sums: Mapping[str, Any], rows: Mapping[str, np.ndarray]) -> EvaluationReport:
        """Report the loss over windows, and exact match and F1 over questions."""
        real = np.asarray(rows["index"]) >= 0
        windows = [self._windows[split][index] for index in rows["index"][real]]
        best = BestSpans(*(np.asarray(rows[name])[real] for name in BestSpans._fields))
        questions = {window.number: window.question for window in windows}
        scores = [
            answer_scores(predicted, [answer.text for answer in questions[number].answers])
            for number, predicted in self._answers(windows, best).items()
        ]
        exact, f1 = np.mean(scores, axis=0)
        loss = float(sums["loss"]) / max(float(sums["examples"]), 1)
        return EvaluationReport(
            {"loss": loss, "exact_match": float(exact), "f1": float(f1)}, note=f"{len(scores)} questions"
        )

    def _answers(self, windows: Sequence[QuestionWindow], best: BestSpans) -> dict[int, str]:
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
            number: text if self._answers_all or score >= no_answer[number] else ""
            for number, (score, text) in answers.items()
        }

    def axis_labels(self, sites: Sequence[Site]) -> AxisLabels:
        """Return the tokens of the probe's windows, and their questions with the true answer as titles."""
        titles = [
            f"{each.question.answers[0].text if each.question.answers else '(none)'}: {each.question.question}"
            for each in self._shown
        ]
        return token_axis_labels(self.tokenizer, self._rows, titles)

    def predict(self, view: StateView, request: PredictionRequest) -> Predictions:
        """Predict the answer of each question, given as "question $ context"; "(none)" where there is none.

        Raises:
            UserError: If a target language or a decoding option is given, or a text is not a question and a context.
        """
        refuse_decoding_options(request, "answers questions")
        windows = _windows_of_texts(self.config, self.tokenizer, request.texts)
        rows = [each.row for each in windows]
        inputs = {
            name: jnp.asarray(values) for name, values in pad_texts(rows, self.tokenizer, self._token_types).items()
        }
        logits_BxTx2, _ = view.model.apply(view.variables, inputs, train=False)
        best = BestSpans(*map(np.asarray, self._best_spans(logits_BxTx2, inputs)))
        lines = [answer or "(none)" for answer in self._answers(windows, best).values()]
        titles = [f"{lines[each.number]}: {each.question.question}" for each in windows]
        return Predictions(lines, token_axis_labels(self.tokenizer, rows, titles), make_capture_function(view, inputs))


def _num_answers_in_no_window(windows: Sequence[QuestionWindow]) -> int:
    """Count the questions whose answer is in none of their windows."""
    answered = {window.number for window in windows if window.holds_answer}
    return len({window.number for window in windows if window.question.answers} - answered)


def encode_questions(
    config: QuestionAnsweringConfig, tokenizer: AnyTokenizer, questions: Sequence[ExtractiveQuestion]
) -> list[QuestionWindow]:
    """Encode questions with their contexts, one question's windows after the other."""
    delimiters = config.delimiters(tokenizer)
    asked = tokenizer.encode([each.question for each in questions])
    # Questions about one context share its tokens.
    contexts = list(dict.fromkeys(each.context for each in questions))
    encoded = dict(zip(contexts, tokenizer.encode_with_offsets(contexts), strict=True))
    return [
        window
        for number, (question, ids) in enumerate(zip(questions, asked, strict=True))
        for window in question_windows(
            question,
            number,
            ids[: config.max_question_length],
            encoded[question.context],
            delimiters,
            max_length=config.max_text_length,
            stride=config.window_stride,
        )
    ]


def _windows_of_texts(
    config: QuestionAnsweringConfig, tokenizer: AnyTokenizer, texts: Sequence[str]
) -> list[QuestionWindow]:
    questions = []
    for text in texts:
        question, _, context = (part.strip() for part in text.partition(TEXT_SEPARATOR))
        if not question or not context:
            raise UserError(f"{text[:60]!r} must be 'question{TEXT_SEPARATOR}context', each with words")
        questions.append(ExtractiveQuestion(question, context, ()))
    return encode_questions(config, tokenizer, questions)


def make_task_interface(config: QuestionAnsweringConfig, tokenizer: AnyTokenizer) -> TaskInterface:
    """Return what the task requires of a model: at every position the logits of an answer's start and end."""
    return TaskInterface(
        inputs=config.input_specs(config.batch_size),
        vocabularies={"tokens": tokenizer.vocab_size, "labels": config.max_text_length, **config.type_vocabulary},
        pad_id=tokenizer.pad_id,
        bos_id=tokenizer.bos_id,
        eos_id=tokenizer.eos_id,
        output=config.signature.output,
    )


def encode_inputs(
    config: QuestionAnsweringConfig, view: StateView, tokenizer: AnyTokenizer, sentences: InputTexts
) -> EncodedInputs:
    """Encode questions and contexts, given as "question $ context"; of a long context several windows.

    Args:
        config: The task's config.
        view: The state.
        tokenizer: The tokenizer.
        sentences: The texts.

    Raises:
        UserError: If a text is not a question and a context, or a target or a language is given.
    """
    check_input_texts(sentences)
    windows = _windows_of_texts(config, tokenizer, sentences.texts)
    rows = [each.row for each in windows]
    labels = token_axis_labels(tokenizer, rows, [each.question.question for each in windows])
    return EncodedInputs(pad_texts(rows, tokenizer, config.token_types(tokenizer)), "forward", labels)


def build_task(config: QuestionAnsweringConfig, directory: Path, rows_multiple: int = 1) -> QuestionAnswering:
    """Build the task over its data.

    Args:
        config: The config.
        directory: The run directory, which keeps the tokenizer.
        rows_multiple: Devices that share the batch x microbatches; the batch size must be a multiple.

    Raises:
        UserError: If data are missing, or a split has no questions.
    """
    opened = open_questions(config.dataset, data_dir=config.data_dir, held_out=config.held_out)
    examples = examples_of_splits(config, opened)
    texts = {
        name: [text for each in split for text in (each.question, each.context)] for name, split in examples.items()
    }
    tokenizer = load_or_train_tokenizer(directory, config.tokenizer, config.vocab_size, texts, config.special_roles)
    windows = {name: encode_questions(config, tokenizer, split) for name, split in examples.items()}
    return QuestionAnswering(config, tokenizer, windows, rows_multiple)


def build_synthetic_task(config: QuestionAnsweringConfig, rows_multiple: int = 1) -> QuestionAnswering:
    """Build the task over synthetic windows, all of the greatest length."""
    tokenizer = synthetic_tokenizer_of_kind(config.tokenizer, config.vocab_size, config.special_roles)
    question = ExtractiveQuestion("a", "a", ())
    window = QuestionWindow(question, 0, [0] * config.max_text_length, 1, [(0, 1)] * config.max_text_length, (0, 0))
    return QuestionAnswering(
        config,
        tokenizer,
        dict.fromkeys(("train", *config.eval_splits), [window] * config.batch_size),
        rows_multiple,
    )


TASK = TaskSpec(
    QuestionAnsweringConfig, build_synthetic_task, build_task, InputReader(make_task_interface, encode_inputs)
)
