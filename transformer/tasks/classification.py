"""Text classification: predict the class of a text."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from transformer.attention.sites import Site
from transformer.data.datasets.glue import glue_metric
from transformer.data.datasets.local_files import is_tsv_or_jsonl
from transformer.data.datasets.text_classification import class_names, open_labeled_texts
from transformer.data.labeled_text_batches import LabeledText
from transformer.data.text_batches import SpecialTokenFrame
from transformer.data.tokenizers.load import AnyTokenizer
from transformer.models.task_interface import TEXT_CLASSIFICATION, InputSpec, TaskInterface
from transformer.tasks.axis_labels import AxisLabels
from transformer.tasks.base_task import (
    check_input_texts,
    describe_top_classes,
    make_capture_function,
    real_rows,
    refuse_decoding_options,
)
from transformer.tasks.labeled_text_task_base import EncodedSplit, LabeledTextConfig, LabeledTextTask
from transformer.tasks.losses import class_loss
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

# The special tokens of a newly trained tokenizer, which surround every text.
ROLES = ("begin", "end")


@dataclasses.dataclass(frozen=True)
class ClassificationConfig(LabeledTextConfig):
    """Labeled texts, their tokenizer, and the shapes of their batches.

    Attributes:
        dataset: "word_order" (generated sentences whose class is encoded in the order of their words;
            "word_order/max_length=6,train=512" sets its sizes), "glue/SST-2" or "glue/CoLA", whose files are in
            `data_dir`, or "FILE.tsv" or "FILE.jsonl" with the columns or fields text and label
            (transformer.data.datasets.local_files).

    Raises:
        UserError: If a value is out of range, or `classes` do not fit the data set.
    """

    def _check(self) -> None:
        super()._check()
        if self.classes or not is_tsv_or_jsonl(self.dataset):
            class_names(self.dataset, self.classes)


class Classification(LabeledTextTask):
    """The task of text classification; implements transformer.tasks.task.Task."""

    def __init__(
        self,
        config: ClassificationConfig,
        tokenizer: AnyTokenizer,
        splits: Mapping[str, EncodedSplit],
        rows_multiple: int = 1,
    ):
        super().__init__(config, tokenizer, splits, rows_multiple)
        self.config, self.classes = config, class_names(config.dataset, config.classes)
        self.interface = make_task_interface(config, tokenizer)
        self.objectives = (Objective("classification", self._loss),)
        self.evaluations = self.make_evaluations(config, "classification", self._sums, self._report)

    @property
    def data_summary(self) -> tuple[str, ...]:
        """How many texts each split has, and how many are cut."""
        return self.summarize_data(self.config, "texts")

    def _loss(
        self, view: StateView, batch: Batch, denominators: Mapping[str, Array], key: Key[Array, ""]
    ) -> tuple[Array, LossAux]:
        """Compute the mean of -log p(class) over the texts, in nats."""
        logits_BxC, aux = self.apply_model(view, batch, key)
        sums = class_loss(logits_BxC, jnp.asarray(batch["labels"]), real_rows(batch))
        metrics = {
            "loss": sums.cross_entropy / denominators["examples"],
            "accuracy": sums.correct / denominators["examples"],
        }
        return metrics["loss"], LossAux.from_aux(aux, view.task_state, metrics)

    def _sums(self, view: StateView, batch: Batch, key: Key[Array, ""]) -> tuple[dict[str, Array], None]:
        """Sum the loss, and count the texts of each class (rows) predicted as each class (columns)."""
        logits_BxC, _ = self.apply_model(view, batch, None)
        labels_B, real_B = jnp.asarray(batch["labels"]), real_rows(batch)
        nats = class_loss(logits_BxC, labels_B, real_B).cross_entropy
        return {"loss": nats, "confusion": confusion_matrix(logits_BxC, labels_B, real_B)}, None

    def _report(self, split: str, sums: Mapping[str, Any], rows: None) -> EvaluationReport:
        return classification_report(sums, rows, measure=glue_metric(self.config.dataset))

    def axis_labels(self, sites: Sequence[Site]) -> AxisLabels:
        """Return the tokens of the probe's texts, and their classes as titles."""
        return self._labels(
            self.probe_batch, [f"{self.classes[int(each.label)]}: {each.texts[0]}" for each in self._shown]
        )

    def _labels(self, batch: Batch, titles: Sequence[str]) -> AxisLabels:
        rows = [row[:length] for row, length in zip(batch["tokens"], batch["lengths"], strict=True)]
        return token_axis_labels(self.tokenizer, rows, titles)

    def predict(self, view: StateView, request: PredictionRequest) -> Predictions:
        """Predict the most probable class of each text, and its probability.

        Raises:
            UserError: If a target language or a decoding option is given, or a text is too long.
        """
        refuse_decoding_options(request, "classifies")
        rows = encode_texts(self.tokenizer, request.texts)
        self.config.check_fits(request.texts, rows)
        batch = pad_texts(rows, self.tokenizer)
        inputs = {name: jnp.asarray(values) for name, values in batch.items()}
        logits_BxC, _ = view.model.apply(view.variables, inputs, train=False)
        lines = describe_top_classes(logits_BxC, self.classes)
        titles = [f"{line}: {text}" for line, text in zip(lines, request.texts, strict=True)]
        return Predictions(lines, self._labels(batch, titles), make_capture_function(view, inputs))


def make_task_interface(config: ClassificationConfig, tokenizer: AnyTokenizer) -> TaskInterface:
    """Return what the task requires of a model: a logit for each class of the data set."""
    classes = class_names(config.dataset, config.classes)
    return TaskInterface(
        inputs={
            "tokens": InputSpec((config.batch_size, config.max_text_length)),
            "lengths": InputSpec((config.batch_size,)),
        },
        vocabularies={"tokens": tokenizer.vocab_size, "classes": len(classes)},
        pad_id=tokenizer.pad_id,
        bos_id=tokenizer.bos_id,
        eos_id=tokenizer.eos_id,
        output=TEXT_CLASSIFICATION.output,
        class_names=classes,
    )


def encode_inputs(
    config: ClassificationConfig, view: StateView, tokenizer: AnyTokenizer, sentences: InputTexts
) -> EncodedInputs:
    """Encode texts between the begin and the end token.

    Args:
        config: The task's config.
        view: The state.
        tokenizer: The tokenizer.
        sentences: The texts.

    Raises:
        UserError: If a text is empty or longer than the largest of `config.bucket_lengths`, or a target or a language
            is given.
    """
    check_input_texts(sentences)
    rows = encode_texts(tokenizer, sentences.texts)
    config.check_fits(sentences.texts, rows)
    return EncodedInputs(pad_texts(rows, tokenizer), "forward", token_axis_labels(tokenizer, rows))


def encode_texts(tokenizer: AnyTokenizer, texts: Sequence[str], longest: int | None = None) -> list[list[int]]:
    """Encode texts between the begin and the end token, as far as the tokenizer has them.

    Args:
        tokenizer: The tokenizer.
        texts: The texts.
        longest: The number of tokens to which a row is cut; None cuts nothing.

    Returns:
        The token numbers of each text.
    """
    frame = SpecialTokenFrame(tokenizer.bos_id, tokenizer.eos_id)
    room = None if longest is None else longest - frame.num_tokens
    return [frame.wrap(np.array(row[:room])).tolist() for row in tokenizer.encode(list(texts))]


def confusion_matrix(
    logits_BxC: Float[Array, "B C"], labels_B: Int[Array, " B"], real_B: Bool[Array, " B"]
) -> Float[Array, "C C"]:
    """Count the real rows of each class (rows) that are predicted as each class (columns).

    Args:
        logits_BxC: The logits.
        labels_B: The true classes.
        real_B: Which rows count.
    """
    count = logits_BxC.shape[1]
    cells_B = labels_B * count + jnp.argmax(logits_BxC, axis=-1)
    confusion = jnp.zeros(count**2, jnp.float32).at[cells_B].add(real_B.astype(jnp.float32))
    return confusion.reshape(count, count)


def classification_report(
    sums: Mapping[str, Any], rows: object = None, *, measure: str | None = None, classes: bool = True
) -> EvaluationReport:
    """Report the mean loss, the accuracy and the Matthews correlation; with two classes also F1 of the second.

    F1 = 2 TP / (2 TP + FP + FN), 0 if the second class neither occurs nor is predicted.

    Args:
        sums: `loss` and `confusion` [C, C].
        rows: Ignored.
        measure: The metric that is the data set's score on GLUE, reported as `glue` as well, times 100.
        classes: Whether class numbers mean something. If they are only the places of answers, loss and accuracy are
            all.
    """
    confusion = np.asarray(sums["confusion"], np.float64)
    count = confusion.sum()
    scalars = {"loss": float(sums["loss"]) / count, "accuracy": float(np.trace(confusion) / count)}
    if classes:
        scalars["matthews"] = matthews_correlation(confusion)
    if classes and len(confusion) == 2:
        found, wrong = confusion[1, 1], confusion[0, 1] + confusion[1, 0]
        scalars["f1"] = float(2 * found / max(2 * found + wrong, 1))
    if measure is not None:
        scalars["glue"] = 100 * scalars[measure]
    return EvaluationReport(
        scalars, note=f"{int(count)} texts" + ("" if measure is None else f"; glue: {measure} x 100")
    )


def matthews_correlation(confusion_CxC: Float[np.ndarray, "C C"]) -> float:
    """Compute the Matthews correlation of true and predicted classes, for any number of classes.

    (c s - sum_k t_k p_k) / sqrt((s^2 - sum_k t_k^2) (s^2 - sum_k p_k^2)) for c correct predictions of s, where class k
    is true t_k times and predicted p_k times (Gorodkin 2004); with two classes Matthews 1975.

    Args:
        confusion_CxC: The counts of each true class (rows) and predicted class (columns).

    Returns:
        The correlation, from -1 to 1; 0 if all texts are of one class or predicted as one.
    """
    right, count = np.trace(confusion_CxC), confusion_CxC.sum()
    true_C, answered_C = confusion_CxC.sum(1), confusion_CxC.sum(0)
    spread = (count**2 - true_C @ true_C) * (count**2 - answered_C @ answered_C)
    return float((right * count - true_C @ answered_C) / np.sqrt(spread)) if spread > 0 else 0.0


def build_task(config: ClassificationConfig, directory: Path, rows_multiple: int = 1) -> Classification:
    """Build the task over its data.

    Args:
        config: The config.
        directory: The run directory, which keeps the tokenizer.
        rows_multiple: Devices that share the batch x microbatches; the batch size must be a multiple.
    """
    opened = open_labeled_texts(
        config.dataset, data_dir=config.data_dir, classes=config.classes, held_out=config.held_out
    )
    labeled = {name: opened.split(name) for name in ("train", *config.eval_splits)}
    texts = {name: [each.text for each in split] for name, split in labeled.items()}
    tokenizer = load_or_train_tokenizer(directory, config.tokenizer, config.vocab_size, texts, ROLES)
    encode = functools.partial(encode_texts, tokenizer)
    splits = {name: EncodedSplit.of(labeled[name], texts[name], encode, config.max_text_length) for name in labeled}
    return Classification(config, tokenizer, splits, rows_multiple)


def build_synthetic_task(config: ClassificationConfig, rows_multiple: int = 1) -> Classification:
    """Build the task over synthetic texts that are all of the greatest length."""
    tokenizer = synthetic_tokenizer_of_kind(config.tokenizer, config.vocab_size, ROLES)
    split = EncodedSplit(
        [LabeledText("made up", 0)] * config.batch_size, [[0] * config.max_text_length] * config.batch_size
    )
    return Classification(config, tokenizer, dict.fromkeys(("train", *config.eval_splits), split), rows_multiple)


TASK = TaskSpec(ClassificationConfig, build_synthetic_task, build_task, InputReader(make_task_interface, encode_inputs))
