"""Fine-tune a model on examples of one text, of two, or of several to choose from.

Language models as GPT-1 was (Radford et al. 2018), and bidirectional models as BERT was (Devlin et al. 2019).
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key, Num

from transformer.attention.sites import Site
from transformer.config import NonNegativeFloat, UserError
from transformer.data.datasets.fine_tuning import ExampleShape, FineTuningProblem, example_shape, open_examples
from transformer.data.datasets.glue import glue_metric
from transformer.data.datasets.local_files import is_tsv_or_jsonl
from transformer.data.fine_tuning_sequence_layouts import SequenceFormat, SequenceLayout
from transformer.data.labeled_text_batches import LabeledExample, WithTextsAndLabel
from transformer.data.tokenizers.load import AnyTokenizer
from transformer.models.task_interface import (
    TEXT_CLASSIFICATION,
    TEXT_CLASSIFICATION_WITH_LANGUAGE_MODELING,
    TEXT_CLASSIFICATION_WITH_TYPES,
    Signature,
    TaskInterface,
)
from transformer.tasks.axis_labels import AxisLabels
from transformer.tasks.base_task import (
    check_input_texts,
    describe_top_classes,
    make_capture_function,
    real_rows,
    refuse_decoding_options,
)
from transformer.tasks.classification import classification_report, confusion_matrix
from transformer.tasks.fine_tuning_config import FormattedTextConfig
from transformer.tasks.labeled_text_task_base import EncodedSplit, LabeledTextTask, examples_of_splits
from transformer.tasks.losses import chunked_token_loss, class_loss
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

# The separator of an example's texts where a user writes them as one text.
TEXT_SEPARATOR = " $ "
_MARK_NAMES = ("<start>", "<delimiter>", "<extract>")


@dataclasses.dataclass(frozen=True)
class FineTuningConfig(FormattedTextConfig):
    """Examples, their tokenizer, the shapes of their batches, and the loss.

    An example becomes one or more sequences (transformer.data.fine_tuning_sequence_layouts); if one is longer than the
    largest of `bucket_lengths`, its longest text is cut.

    Attributes:
        dataset: "grammar/acceptability" (one text), "grammar/entailment" (two), "grammar/similarity" (two, in no order)
            or "grammar/choice", which are generated; "glue/SST-2" or "glue/CoLA", whose files are in `data_dir`; or
            "FILE.tsv" or "FILE.jsonl", files of your own (transformer.data.datasets.fine_tuning). `classes` are their
            labels, or the columns of the answers to choose from.
        problem: The problem that files of your own pose.
        sequence_format: The special tokens around and between texts. With all but `gpt`, two texts in no order are read
            once, as these models read them.
        auxiliary: Lambda, the weight of the auxiliary language-modeling loss; 0 for all formats but `gpt`.

    Raises:
        UserError: If a value is out of range, or `classes` or `problem` do not fit the data set.
    """

    dataset: str = "grammar/acceptability"
    problem: FineTuningProblem = FineTuningProblem.CLASSIFICATION
    sequence_format: SequenceFormat = SequenceFormat.GPT
    auxiliary: NonNegativeFloat = 0.5

    least_length: ClassVar[int] = 6  # the four special tokens of RoBERTa, and a token of each of two texts

    def _check(self) -> None:
        super()._check()
        if self.classes or not is_tsv_or_jsonl(self.dataset):
            example_shape(self.dataset, self.classes, self.problem)
        if self.auxiliary and self.sequence_format is not SequenceFormat.GPT:
            raise UserError(
                f"config.task.auxiliary={self.auxiliary:g} predicts next tokens, which config.task.sequence_format="
                f"{self.sequence_format.value} has no model for: say config.task.auxiliary=0"
            )

    @property
    def shape(self) -> ExampleShape:
        """The shape of the examples: their layout, texts and classes."""
        shape = example_shape(self.dataset, self.classes, self.problem)
        if shape.layout is SequenceLayout.UNORDERED and self.sequence_format is not SequenceFormat.GPT:
            return dataclasses.replace(shape, layout=SequenceLayout.PAIR)
        return shape

    @property
    def signature(self) -> Signature:
        """What the task requires of a model."""
        if self.auxiliary:
            return TEXT_CLASSIFICATION_WITH_LANGUAGE_MODELING
        typed = self.sequence_format.has_token_types(self.shape.num_texts)
        return TEXT_CLASSIFICATION_WITH_TYPES if typed else TEXT_CLASSIFICATION


class FineTuning(LabeledTextTask):
    """The task of fine-tuning; implements transformer.tasks.task.Task.

    It minimizes L2 + lambda L1 (Radford et al. 2018, equation 5). L2 is the mean over the examples of -log p(label), or
    of the squared error of a score; L1 is the mean of -log p(token | those before it) over the tokens of all sequences,
    except the first of each. One pass of the model yields both.
    """

    def __init__(
        self,
        config: FineTuningConfig,
        tokenizer: AnyTokenizer,
        splits: Mapping[str, EncodedSplit],
        rows_multiple: int = 1,
    ):
        types = config.token_types(tokenizer)
        super().__init__(
            config, tokenizer, splits, rows_multiple, together=config.shape.num_sequences, token_types=types
        )
        self.config, self.shape = config, config.shape
        self.interface = make_task_interface(config, tokenizer)
        self.objectives = (Objective("fine_tuning", self._loss),)
        self.evaluations = self.make_evaluations(config, "fine_tuning", self._sums, self._report)

    @property
    def data_summary(self) -> tuple[str, ...]:
        """How many examples each split has, and how many are cut."""
        what = f"examples ({self.shape.layout.value})"
        # The layout of the data set: some formats read a pair in no order once, as one in order.
        layout = example_shape(self.config.dataset, self.config.classes, self.config.problem).layout
        return self.summarize_data(self.config, what, layout.canonical_texts)

    def denominators(self, batch: Batch) -> dict[str, Array]:
        """Return the numbers of examples and of predicted tokens, without rows that only fill up a batch."""
        return {**super().denominators(batch), "tokens": jnp.sum(_predicted(batch)).astype(jnp.float32)}

    def _loss(
        self, view: StateView, batch: Batch, denominators: Mapping[str, Array], key: Key[Array, ""]
    ) -> tuple[Array, LossAux]:
        """Compute L2 + lambda L1, in nats."""
        weight = self.config.auxiliary
        hidden_BxTxE, aux = self.apply_model(view, batch, key, method="hidden" if weight else "forward")
        outputs_SBxC = aux.extras["classes"] if weight else hidden_BxTxE
        answered = self._answered(outputs_SBxC, batch)
        metrics = {name: value / denominators["examples"] for name, value in answered.items()}
        loss = metrics["loss"]
        if weight:
            sums = chunked_token_loss(
                lambda hidden: view.model.logits(view.variables, hidden),
                hidden_BxTxE,
                jnp.roll(jnp.asarray(batch["tokens"]), -1, axis=1),
                _predicted(batch),
                0.0,
            )
            metrics["language_model_loss"] = sums.cross_entropy / denominators["tokens"]
            loss = loss + weight * metrics["language_model_loss"]
        return loss, LossAux.from_aux(aux, view.task_state, metrics)

    def combine_outputs(self, outputs_SBxC: Float[Array, "SB C"]) -> Float[Array, "B _"]:
        """Combine the outputs of the sequences of an example.

        Those of an unordered pair are added, which equals the head's map of the sum of both states. Those of several
        answers become the logits of the choice.

        Args:
            outputs_SBxC: The model's outputs; the sequences of an example are a whole batch apart.

        Returns:
            The logits of classes or answers [B, A], or scores [B, 1].
        """
        count = self.shape.num_sequences
        outputs_SxBxC = outputs_SBxC.reshape(count, -1, outputs_SBxC.shape[-1])
        return (
            outputs_SxBxC[:, :, 0].T if self.shape.layout is SequenceLayout.CHOICE else jnp.sum(outputs_SxBxC, axis=0)
        )

    def _answered(self, outputs_SBxC: Float[Array, "SB C"], batch: Batch) -> dict[str, Array]:
        """Sum the loss over the examples, and count the correct ones unless labels are scores."""
        outputs_BxA, real_B = self.combine_outputs(outputs_SBxC), real_rows(batch)
        labels_B = jnp.asarray(batch["labels"])
        if self.shape.has_scores:
            return {"loss": jnp.sum(jnp.where(real_B, (outputs_BxA[:, 0] - labels_B) ** 2, 0))}
        sums = class_loss(outputs_BxA, labels_B, real_B)
        return {"loss": sums.cross_entropy, "accuracy": sums.correct}

    def _sums(self, view: StateView, batch: Batch, key: Key[Array, ""]) -> tuple[dict[str, Array], Any]:
        """Sum the loss and the confusion matrix; of scores, return the scores themselves as rows."""
        outputs_SBxC, _ = self.apply_model(view, batch, None)
        loss = self._answered(outputs_SBxC, batch)["loss"]
        sums, rows = evaluation_sums(
            self.shape, self.combine_outputs(outputs_SBxC), jnp.asarray(batch["labels"]), real_rows(batch)
        )
        return {"loss": loss, **sums}, rows

    def _report(self, split: str, sums: Mapping[str, Any], rows: Any) -> EvaluationReport:
        """Report the metrics of a split.

        Classes have loss, accuracy, Matthews correlation and, if there are two, F1. Answers to choose from have loss
        and accuracy, since the place of an answer means nothing. Scores have loss and the correlations of Pearson and
        Spearman. Data sets of GLUE have `glue` as well.
        """
        if self.shape.has_scores:
            return _correlations(sums, rows)
        return classification_report(
            sums, rows, measure=glue_metric(self.config.dataset), classes=bool(self.shape.classes)
        )

    def axis_labels(self, sites: Sequence[Site]) -> AxisLabels:
        """Return the tokens of the probe's sequences, and the true answers as titles."""
        titles = [f"{self._true(each)}: {' | '.join(each.texts)}" for each in self._shown]
        return _label_sequences(self.tokenizer, self._rows, titles)

    def _true(self, example: WithTextsAndLabel) -> str:
        if self.shape.has_scores:
            return f"{example.label:g}"
        return (self.shape.classes or example.texts[1:])[int(example.label)]

    def predict(self, view: StateView, request: PredictionRequest) -> Predictions:
        """Predict the most probable class or answer of each example with its probability, or its score.

        The texts of an example are separated by " $ ", as in "premise $ hypothesis" or "context $ one $ other".

        Raises:
            UserError: If a target language or a decoding option is given, an example has another number of texts, or it
                is too long.
        """
        refuse_decoding_options(request, "classifies")
        parts = [_split_texts(text, self.shape) for text in request.texts]
        rows = input_sequences(self.config, self.tokenizer, parts)
        self.config.check_fits([text for text in request.texts for _ in range(self.shape.num_sequences)], rows)
        batch = pad_texts(rows, self.tokenizer, self._token_types)
        inputs = {name: jnp.asarray(values) for name, values in batch.items()}
        outputs_BSxC, _ = view.model.apply(view.variables, inputs, train=False)
        count = self.shape.num_sequences
        outputs_BxA = self.combine_outputs(outputs_BSxC[np.arange(len(rows)).reshape(-1, count).T.ravel()])
        if self.shape.has_scores:
            lines = [f"{float(score):.3f}" for score in outputs_BxA[:, 0]]
        else:
            lines = [
                describe_top_classes(outputs_BxA[number][None], self.shape.classes or texts[1:])[0]
                for number, texts in enumerate(parts)
            ]
        titles = [f"{line}: {text}" for line, text in zip(lines, request.texts, strict=True) for _ in range(count)]
        return Predictions(lines, _label_sequences(self.tokenizer, rows, titles), make_capture_function(view, inputs))


def evaluation_sums(
    shape: ExampleShape, outputs_BxA: Float[Array, "B A"], labels_B: Num[Array, " B"], real_B: Bool[Array, " B"]
) -> tuple[dict[str, Array], Any]:
    """Return what a metric needs of a batch.

    Args:
        shape: The shape of the examples.
        outputs_BxA: The logits, or scores [B, 1].
        labels_B: The labels.
        real_B: Which rows count.

    Returns:
        Sums (the confusion matrix, or the number of examples) and rows (None, or the predicted and true scores).
    """
    if shape.has_scores:
        rows = {"predicted": outputs_BxA[:, 0], "true": labels_B, "real": real_B}
        return {"examples": jnp.sum(real_B).astype(jnp.float32)}, rows
    return {"confusion": confusion_matrix(outputs_BxA, labels_B, real_B)}, None


def _correlations(sums: Mapping[str, Any], rows: Mapping[str, np.ndarray]) -> EvaluationReport:
    real = np.asarray(rows["real"], bool)
    predicted, true = (np.asarray(rows[name], np.float64)[real] for name in ("predicted", "true"))
    scalars = {
        "loss": float(sums["loss"]) / len(predicted),
        "pearson": pearson_correlation(predicted, true),
        "spearman": spearman_correlation(predicted, true),
    }
    return EvaluationReport(scalars, note=f"{len(predicted)} examples")


def pearson_correlation(one: Float[np.ndarray, " N"], other: Float[np.ndarray, " N"]) -> float:
    """Compute the Pearson correlation of two arrays; 0 if either is constant."""
    first, second = one - one.mean(), other - other.mean()
    spread = np.sqrt((first @ first) * (second @ second))
    return float(first @ second / spread) if spread > 0 else 0.0


def spearman_correlation(one: Float[np.ndarray, " N"], other: Float[np.ndarray, " N"]) -> float:
    """Compute the Spearman correlation of two arrays: the Pearson correlation of their ranks."""
    return pearson_correlation(average_ranks(one), average_ranks(other))


def average_ranks(values: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
    """Return the rank of each number, from 1; equal numbers share the mean of their ranks."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[place]


def _predicted(batch: Batch) -> Array:
    """Return the positions whose next token is a real one."""
    places_SBxT = real_positions(batch)
    return jnp.pad(places_SBxT[:, 1:], ((0, 0), (0, 1)))


def input_sequences(
    config: FineTuningConfig,
    tokenizer: AnyTokenizer,
    examples: Sequence[Sequence[str]],
    longest: int | None = None,
) -> list[list[int]]:
    """Encode the sequences of every example, one example after the other.

    Args:
        config: The config.
        tokenizer: The tokenizer.
        examples: The texts of each example.
        longest: The number of tokens to which a sequence is cut; None cuts nothing.
    """
    shape, marks = config.shape, config.delimiters(tokenizer)
    encoded = tokenizer.encode([input_text(config, text) for texts in examples for text in texts])
    of_examples = [encoded[start : start + shape.num_texts] for start in range(0, len(encoded), shape.num_texts)]
    return [marks.join_texts(texts, longest) for each in of_examples for texts in shape.layout.arrange_texts(each)]


def input_text(config: FineTuningConfig, text: str) -> str:
    """Return a text as it is encoded.

    GPT's begins with a space, so that its first word has the token that it has within other text.
    """
    return f" {text}" if config.sequence_format is SequenceFormat.GPT else text


def _split_texts(text: str, shape: ExampleShape) -> list[str]:
    """Split an example that a user has written as one text.

    Raises:
        UserError: If it has another number of texts, or an empty one.
    """
    parts = [part.strip() for part in text.split(TEXT_SEPARATOR)] if shape.num_texts > 1 else [text.strip()]
    if len(parts) == shape.num_texts and all(parts):
        return parts
    if shape.layout is SequenceLayout.CHOICE:
        example = TEXT_SEPARATOR.join(("context", *["answer"] * (shape.num_texts - 1)))
        raise UserError(
            f"{text[:60]!r} has {len(parts)} texts with {TEXT_SEPARATOR.strip()!r} between them, but an example of "
            f"this run has {shape.num_texts}: write {example!r}"
        )
    raise UserError(f"{text[:60]!r} must be {TEXT_SEPARATOR.join(['text'] * shape.num_texts)!r}, each with words")


def _label_sequences(tokenizer: AnyTokenizer, rows: Sequence[Sequence[int]], titles: Sequence[str]) -> AxisLabels:
    """Return the names of all tokens, including the three after the tokenizer's."""
    labels = token_axis_labels(tokenizer, [[number for number in row if number < tokenizer.vocab_size] for row in rows])
    named = []
    for row, texts in zip(rows, labels.tokens["tokens"], strict=True):
        names = iter(texts)
        behind = [number - tokenizer.vocab_size for number in row]
        named.append(tuple(_MARK_NAMES[number] if number >= 0 else next(names) for number in behind))
    return dataclasses.replace(labels, tokens={"tokens": tuple(named)}, titles=tuple(each[:60] for each in titles))


def make_task_interface(config: FineTuningConfig, tokenizer: AnyTokenizer) -> TaskInterface:
    """Return what the task requires of a model: class outputs and, with an auxiliary loss, the next tokens."""
    shape, vocabulary = config.shape, tokenizer.vocab_size + config.sequence_format.num_new_tokens
    # A score and the logit of a choice are both a single output, with another meaning.
    single = ("choice" if shape.layout is SequenceLayout.CHOICE else "score",)
    return TaskInterface(
        inputs=config.input_specs(shape.num_sequences * config.batch_size),
        vocabularies={"tokens": vocabulary, "classes": shape.num_outputs, **config.type_vocabulary}
        # An answer is one of several sequences, each of which has one output.
        | ({"labels": shape.num_sequences} if shape.layout is SequenceLayout.CHOICE else {})
        | ({"next tokens": vocabulary} if config.auxiliary else {}),
        pad_id=tokenizer.pad_id,
        bos_id=tokenizer.bos_id,
        eos_id=tokenizer.eos_id,
        output=config.signature.output,
        class_names=shape.classes or single,
    )


def encode_inputs(
    config: FineTuningConfig, view: StateView, tokenizer: AnyTokenizer, sentences: InputTexts
) -> EncodedInputs:
    """Encode the sequences of examples whose texts are separated by " $ ".

    Args:
        config: The task's config.
        view: The state.
        tokenizer: The tokenizer.
        sentences: The examples.

    Raises:
        UserError: If a text is empty or longer than the largest of `config.bucket_lengths`, or a target or a language
            is given.
    """
    check_input_texts(sentences)
    shape = config.shape
    rows = input_sequences(config, tokenizer, [_split_texts(text, shape) for text in sentences.texts])
    titles = [text for text in sentences.texts for _ in range(shape.num_sequences)]
    config.check_fits(titles, rows)
    inputs = pad_texts(rows, tokenizer, config.token_types(tokenizer))
    return EncodedInputs(inputs, "forward", _label_sequences(tokenizer, rows, titles))


def build_task(config: FineTuningConfig, directory: Path, rows_multiple: int = 1) -> FineTuning:
    """Build the task over its data.

    Args:
        config: The config.
        directory: The run directory, which keeps the tokenizer.
        rows_multiple: Devices that share the batch x microbatches; the batch size must be a multiple.

    Raises:
        UserError: If data are missing, or a split has no labels.
    """
    opened = open_examples(
        config.dataset,
        data_dir=config.data_dir,
        classes=config.classes,
        problem=config.problem,
        held_out=config.held_out,
    )
    examples = examples_of_splits(config, opened)
    texts = {
        name: [input_text(config, text) for each in split for text in each.texts] for name, split in examples.items()
    }
    tokenizer = load_or_train_tokenizer(directory, config.tokenizer, config.vocab_size, texts, config.special_roles)
    encode = functools.partial(input_sequences, config, tokenizer)
    splits = {
        name: EncodedSplit.of(
            split, [each.texts for each in split], encode, config.max_text_length, config.shape.num_sequences
        )
        for name, split in examples.items()
    }
    return FineTuning(config, tokenizer, splits, rows_multiple)


def build_synthetic_task(config: FineTuningConfig, rows_multiple: int = 1) -> FineTuning:
    """Build the task over synthetic examples whose sequences are all of the greatest length."""
    tokenizer = synthetic_tokenizer_of_kind(config.tokenizer, config.vocab_size, config.special_roles)
    shape = config.shape
    example = LabeledExample(("made up",) * shape.num_texts, 0.0 if shape.has_scores else 0)
    split = EncodedSplit(
        [example] * config.batch_size, [[0] * config.max_text_length] * (shape.num_sequences * config.batch_size)
    )
    return FineTuning(config, tokenizer, dict.fromkeys(("train", *config.eval_splits), split), rows_multiple)


TASK = TaskSpec(FineTuningConfig, build_synthetic_task, build_task, InputReader(make_task_interface, encode_inputs))
