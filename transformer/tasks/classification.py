"""Text classification: predict the class of a text."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from transformer.data.datasets.fine_tuning import ExampleShape
from transformer.data.datasets.glue import glue_metric
from transformer.data.datasets.text_classification import (
    TEXT_COLUMNS,
    class_names,
    labels_of_texts,
    open_labeled_texts,
)
from transformer.data.fine_tuning_sequence_layouts import SequenceLayout
from transformer.data.labeled_text_batches import LabeledExample, LabeledText
from transformer.models.task_interface import TEXT_CLASSIFICATION, Signature
from transformer.tasks.base_task import describe_top_classes, real_rows
from transformer.tasks.classification_metrics import classification_report, confusion_matrix, score_report
from transformer.tasks.labeled_text_config import LabeledTextConfig
from transformer.tasks.labeled_text_task import EncodedSplit, LabeledTextHead, labeled_text_task
from transformer.tasks.losses import class_loss
from transformer.tasks.task import Batch, EvaluationReport


@dataclasses.dataclass(frozen=True)
class ClassificationConfig(LabeledTextConfig):
    """Labeled texts, their tokenizer, and the shapes of their batches.

    Attributes:
        dataset: "word_order" (generated sentences whose class is encoded in the order of their words;
            "word_order/max_length=6,train=512" sets its sizes), "glue/SST-2" or "glue/CoLA", whose files are in
            `data_dir`, "FILE.tsv", "FILE.csv" or "FILE.jsonl" with the columns or fields text and label
            (transformer.data.datasets.local_files), or "FOLDER" with a folder for each label, which has a .txt file for
            each text.

    Raises:
        UserError: If a value is out of range, or `classes` do not fit the data set.
    """

    def _check(self) -> None:
        super()._check()
        if self.classes or not self.reads_own_files:
            class_names(self.dataset, self.classes)

    @property
    def shape(self) -> ExampleShape:
        """One text, and the classes of the data set."""
        return ExampleShape(SequenceLayout.SINGLE, 1, class_names(self.dataset, self.classes))

    @property
    def signature(self) -> Signature:
        """What the task requires of a model."""
        return TEXT_CLASSIFICATION

    @property
    def file_columns(self) -> tuple[str, ...]:
        """The text and its label."""
        return TEXT_COLUMNS

    def read_classes(self) -> tuple[str, ...]:
        """Return the labels of files of the user's own."""
        return labels_of_texts(self.dataset, self.data_dir, self.held_out) if self.reads_own_files else ()

    def open_splits(self) -> dict[str, Sequence[LabeledText]]:
        """Read the texts of the splits that are trained on and evaluated."""
        dataset = open_labeled_texts(self.dataset, data_dir=self.data_dir, classes=self.classes, held_out=self.held_out)
        return {name: dataset.split(name) for name in ("train", *self.eval_splits)}


class ExampleHead[C: LabeledTextConfig](LabeledTextHead[C]):
    """One answer to an example of one or more texts: a class, one of several texts, or a score.

    The loss is the mean over the examples of -log p(label), in nats, or of the squared error of a score.
    """

    name = "classification"
    action = "classifies"

    def parse_text(self, text: str) -> LabeledExample:
        """Return the text as an example."""
        return LabeledExample((text,), 0)

    def encode(self, examples: Sequence[Any], longest: int | None = None) -> EncodedSplit:
        """Encode the sequences of every example, one example after the other."""
        shape, delimiters = self.config.shape, self.config.delimiters(self.tokenizer)
        ids = self.tokenizer.encode([self.config.encoded_text(text) for example in examples for text in example.texts])
        rows, num_truncated = [], 0
        for start in range(0, len(ids), shape.num_texts):
            sequences = shape.layout.arrange_texts(ids[start : start + shape.num_texts])
            rows += [delimiters.join_texts(texts, longest) for texts in sequences]
            num_truncated += longest is not None and any(
                sum(map(len, texts)) + delimiters.num_special_tokens(len(texts)) > longest for texts in sequences
            )
        return EncodedSplit(examples, rows, num_truncated)

    def make_synthetic_example(self) -> LabeledExample:
        """Return an example with the first label."""
        shape = self.config.shape
        return LabeledExample(("made up",) * shape.num_texts, 0.0 if shape.has_scores else 0)

    @property
    def vocabularies(self) -> dict[str, int]:
        """The number of outputs of a sequence, and of answers if each is one of several sequences."""
        shape = self.config.shape
        answers = {"labels": shape.num_sequences} if shape.layout is SequenceLayout.CHOICE else {}
        return {"classes": shape.num_outputs, **answers}

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes; a score and the logit of a choice are both a single output, with another meaning."""
        shape = self.config.shape
        return shape.classes or ("choice" if shape.layout is SequenceLayout.CHOICE else "score",)

    def combine_outputs(self, outputs_SBxC: Float[Array, "SB C"]) -> Float[Array, "B _"]:
        """Combine the outputs of the sequences of an example.

        Those of an unordered pair are added, which equals the head's map of the sum of both states. Those of several
        answers become the logits of the choice.

        Args:
            outputs_SBxC: The model's outputs; the sequences of an example are a whole batch apart.

        Returns:
            The logits of classes or answers [B, A], or scores [B, 1].
        """
        shape = self.config.shape
        if shape.num_sequences == 1:
            return outputs_SBxC
        outputs_SxBxC = outputs_SBxC.reshape(shape.num_sequences, -1, outputs_SBxC.shape[-1])
        return outputs_SxBxC[:, :, 0].T if shape.layout is SequenceLayout.CHOICE else jnp.sum(outputs_SxBxC, axis=0)

    def loss_sums(self, outputs: Float[Array, "SB C"], batch: Batch) -> dict[str, Array]:
        """Sum the loss over the examples, and count the correct ones unless labels are scores."""
        outputs_BxA, real_B = self.combine_outputs(outputs), real_rows(batch)
        labels_B = jnp.asarray(batch["labels"])
        if self.config.shape.has_scores:
            return {"loss": jnp.sum(jnp.where(real_B, (outputs_BxA[:, 0] - labels_B) ** 2, 0))}
        sums = class_loss(outputs_BxA, labels_B, real_B)
        return {"loss": sums.cross_entropy, "accuracy": sums.correct}

    def evaluation_sums(
        self, outputs: Float[Array, "SB C"], batch: Batch
    ) -> tuple[dict[str, Array], dict[str, Array] | None]:
        """Sum the loss and the confusion matrix; of scores, return the scores themselves as rows."""
        loss, outputs_BxA = self.loss_sums(outputs, batch)["loss"], self.combine_outputs(outputs)
        labels_B, real_B = jnp.asarray(batch["labels"]), real_rows(batch)
        if self.config.shape.has_scores:
            rows = {"predicted": outputs_BxA[:, 0], "true": labels_B, "real": real_B}
            return {"loss": loss, "examples": jnp.sum(real_B).astype(jnp.float32)}, rows
        return {"loss": loss, "confusion": confusion_matrix(outputs_BxA, labels_B, real_B)}, None

    def report(self, split: str, sums: Mapping[str, Any], rows: Any) -> EvaluationReport:
        """Report the metrics of a split.

        Classes have loss, accuracy, Matthews correlation and, if there are two, F1. Answers to choose from have loss
        and accuracy, since the place of an answer means nothing. Scores have loss and the correlations of Pearson and
        Spearman. Data sets of GLUE have `glue` as well.
        """
        shape = self.config.shape
        if shape.has_scores:
            return score_report(sums, rows)
        return classification_report(sums, rows, measure=glue_metric(self.config.dataset), classes=bool(shape.classes))

    def predict(self, outputs: Float[Array, "BS C"], inputs: Batch, encoded: EncodedSplit) -> list[str]:
        """Return the most probable class or answer of each example with its probability, or its score."""
        shape = self.config.shape
        order = np.arange(len(encoded.rows)).reshape(-1, shape.num_sequences).T.ravel()
        outputs_BxA = self.combine_outputs(outputs[order])
        if shape.has_scores:
            return [f"{float(score):.3f}" for score in outputs_BxA[:, 0]]
        return [
            describe_top_classes(outputs_BxA[number][None], shape.classes or example.texts[1:])[0]
            for number, example in enumerate(encoded.examples)
        ]

    def label_titles(self, examples: Sequence[Any]) -> list[str]:
        """Return the label and the texts of each example."""
        return [f"{self._label_name(example)}: {' | '.join(example.texts)}" for example in examples]

    def _label_name(self, example: LabeledExample) -> str:
        shape = self.config.shape
        if shape.has_scores:
            return f"{example.label:g}"
        return (shape.classes or example.texts[1:])[int(example.label)]


class ClassificationHead(ExampleHead[ClassificationConfig]):
    """The class of a text."""

    def input_titles(self, texts: Sequence[str], encoded: EncodedSplit) -> None:
        """Return None: texts have their first words as titles."""


TASK = labeled_text_task(ClassificationConfig, ClassificationHead)
