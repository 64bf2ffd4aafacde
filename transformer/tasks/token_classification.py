"""Token classification: predict the class of every word, as of named entities (Devlin et al. 2019, section 5.3)."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from transformer.data.datasets.fine_tuning import ExampleShape
from transformer.data.datasets.word_labels import is_conll_file, labels_of_words, open_word_labels, word_classes
from transformer.data.fine_tuning_sequence_layouts import SequenceLayout
from transformer.data.labeled_words import (
    EncodedWords,
    LabeledWords,
    TokenLabelBatches,
    entity_spans,
    is_entity_label,
    marks_entities,
)
from transformer.models.task_interface import TOKEN_CLASSIFICATION, TOKEN_CLASSIFICATION_WITH_TYPES, Signature
from transformer.tasks.labeled_text_config import PositionTextConfig
from transformer.tasks.labeled_text_task import EncodedSplit, LabeledTextHead, labeled_text_task
from transformer.tasks.losses import TokenLoss, token_loss
from transformer.tasks.task import Batch, EvaluationReport


@dataclasses.dataclass(frozen=True)
class TokenClassificationConfig(PositionTextConfig):
    """Texts with a label for every word, their tokenizer, and the shapes of their batches.

    The first token of a word predicts the word's class; the others predict nothing, as in BERT.

    Attributes:
        dataset: "grammar/entities", generated sentences with named entities, or "FILE.conll" or "FILE.txt", files of
            your own in CoNLL format (transformer.data.datasets.word_labels), with the labels in `classes`.

    Raises:
        UserError: If a value is out of range, or `classes` do not fit the data set.
    """

    dataset: str = "grammar/entities"

    def _check(self) -> None:
        super()._check()
        if self.classes or not self.reads_own_files:
            word_classes(self.dataset, self.classes)

    @property
    def shape(self) -> ExampleShape:
        """One text, and the classes of its words."""
        return ExampleShape(SequenceLayout.SINGLE, 1, word_classes(self.dataset, self.classes))

    @property
    def signature(self) -> Signature:
        """What the task requires of a model."""
        return TOKEN_CLASSIFICATION_WITH_TYPES if self.has_token_types else TOKEN_CLASSIFICATION

    @property
    def reads_own_files(self) -> bool:
        """Whether the data are files of the user's own."""
        return is_conll_file(self.dataset)

    def read_classes(self) -> tuple[str, ...]:
        """Return the labels of the words of files of the user's own."""
        return labels_of_words(self.dataset, self.data_dir, self.held_out) if self.reads_own_files else ()

    def open_splits(self) -> dict[str, Sequence[LabeledWords]]:
        """Read the texts of the splits that are trained on and evaluated."""
        texts = open_word_labels(self.dataset, data_dir=self.data_dir, classes=self.classes, held_out=self.held_out)
        return self.select_splits(texts)


class TokenClassificationHead(LabeledTextHead[TokenClassificationConfig]):
    """The class of every word: the loss is the mean of -log p(class) over the words, in nats."""

    name = "token_classification"
    action = "labels words"
    denominator = "words"

    def parse_text(self, text: str) -> LabeledWords:
        """Return the words of a text."""
        return LabeledWords(tuple(text.split()), ())

    def encode(self, examples: Sequence[LabeledWords], longest: int | None = None) -> EncodedSplit:
        """Encode texts between the special tokens."""
        delimiters = self.config.delimiters(self.tokenizer)
        encoded = []
        for text, tokens in zip(
            examples, self.tokenizer.encode_with_offsets([" ".join(text.words) for text in examples]), strict=True
        ):
            word_of_character = np.repeat(np.arange(len(text.words)), [len(word) + 1 for word in text.words])
            first_tokens = [-1] * len(text.words)
            for place, (start, stop) in enumerate(tokens.offsets, len(delimiters.start_ids)):
                if start < stop and first_tokens[word_of_character[start]] < 0:
                    first_tokens[word_of_character[start]] = place
            encoded.append(EncodedWords(text, delimiters.join_texts([tokens.ids]), first_tokens))
        if longest is None:
            return EncodedSplit(encoded, [text.row for text in encoded])
        num_truncated = sum(len(text.row) > longest for text in encoded)
        encoded = [text.cut(longest, delimiters.end_ids) for text in encoded]
        return EncodedSplit(encoded, [text.row for text in encoded], num_truncated)

    def make_synthetic_example(self) -> EncodedWords:
        """Return a text of one word."""
        return EncodedWords(LabeledWords(("a",), (0,)), [0] * self.config.max_text_length, [1])

    def batches(self, split: str, seed: int | None) -> TokenLabelBatches:
        """Return the batches of a split, with the label of every token."""
        return TokenLabelBatches(self._texts(split), **self.batch_options(seed))

    def _texts(self, split: str) -> Sequence[Any]:
        return self.splits[split].examples

    def denominators(self, batch: Batch) -> dict[str, Array]:
        """Return the numbers of texts and of words with a label, without rows that only fill up a batch."""
        return {**super().denominators(batch), "words": jnp.sum(batch["counts"]).astype(jnp.float32)}

    def loss_sums(self, outputs: Float[Array, "B T C"], batch: Batch) -> dict[str, Array]:
        """Sum the loss over the words, and count the correct ones."""
        sums = _word_loss(outputs, batch)
        return {"loss": sums.cross_entropy, "accuracy": sums.correct}

    def evaluation_sums(
        self, outputs: Float[Array, "B T C"], batch: Batch
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Sum the loss, and return the most probable class of every token as rows."""
        sums = {"loss": _word_loss(outputs, batch).cross_entropy, **self.denominators(batch)}
        predicted_BxT = jnp.argmax(outputs, axis=-1).astype(jnp.int32)
        padding = self.config.max_text_length - predicted_BxT.shape[1]
        rows = {"index": jnp.asarray(batch["index"]), "predicted": jnp.pad(predicted_BxT, ((0, 0), (0, padding)))}
        return sums, rows

    def report(self, split: str, sums: Mapping[str, Any], rows: Mapping[str, np.ndarray]) -> EvaluationReport:
        """Report the loss and the scores of the words of a split."""
        true, predicted = [], []
        for index, classes in zip(rows["index"], rows["predicted"], strict=True):
            if index >= 0:
                text = self._texts(split)[index]
                true.append(self._label_names(text.label))
                predicted.append(self.word_labels(text, classes))
        scores = word_label_scores(true, predicted, entities=marks_entities(self.class_names))
        loss = float(sums["loss"]) / max(float(sums["words"]), 1)
        return EvaluationReport({"loss": loss, **scores}, note=f"{len(true)} texts")

    def word_labels(self, text: EncodedWords, classes: Sequence[int]) -> list[str]:
        """Return the predicted label of each word, from the class of every token; "O" for a word without a token."""
        names = self.class_names
        return [names[classes[place]] if place >= 0 else "O" for place in text.first_tokens]

    def _label_names(self, labels: Sequence[int]) -> list[str]:
        names = self.class_names
        return [names[label] for label in labels]

    def predict(self, outputs: Float[Array, "B T C"], inputs: Batch, encoded: EncodedSplit) -> list[str]:
        """Return each text with the label of every word, as in "[PER jordan] met [PER austin] in [LOC paris]"."""
        classes_BxT = np.asarray(jnp.argmax(outputs, axis=-1))
        texts: Sequence[Any] = encoded.examples
        return [
            bracket_labels(text.text.words, self.word_labels(text, classes))
            for text, classes in zip(texts, classes_BxT, strict=True)
        ]

    def label_titles(self, examples: Sequence[EncodedWords]) -> list[str]:
        """Return the texts with their true labels."""
        return [bracket_labels(text.text.words, self._label_names(text.label)) for text in examples]

    def answer_titles(self, answers: Sequence[str], texts: Sequence[str], encoded: EncodedSplit) -> list[str]:
        """Return the texts with their predicted labels."""
        return list(answers)


def _word_loss(logits_BxTxC: Float[Array, "B T C"], batch: Batch) -> TokenLoss:
    return token_loss(logits_BxTxC, jnp.asarray(batch["labels"]), jnp.asarray(batch["counts"]), label_smoothing=0.0)


def word_label_scores(
    true: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], *, entities: bool
) -> dict[str, float]:
    """Score the labels of words.

    `accuracy` is the fraction of correct words. Where labels mark entities, `precision`, `recall` and `f1` are those of
    whole entities over all texts: one is correct if type, first and last word are (Tjong Kim Sang and De Meulder 2003,
    section 2.4). A ratio without a denominator is 0.

    Args:
        true: The true labels of each text.
        predicted: The predicted ones.
        entities: Whether labels mark entities.
    """
    pairs = [pair for text in zip(true, predicted, strict=True) for pair in zip(*text, strict=True)]
    scores = {"accuracy": sum(one == other for one, other in pairs) / max(len(pairs), 1)}
    if not entities:
        return scores
    correct, num_true, num_predicted = 0, 0, 0
    for one, other in zip(true, predicted, strict=True):
        true_spans, predicted_spans = entity_spans(one), entity_spans(other)
        correct += len(set(true_spans) & set(predicted_spans))
        num_true += len(true_spans)
        num_predicted += len(predicted_spans)
    precision, recall = correct / max(num_predicted, 1), correct / max(num_true, 1)
    f1 = 2 * correct / max(num_true + num_predicted, 1)
    return {**scores, "precision": precision, "recall": recall, "f1": f1}


def bracket_labels(words: Sequence[str], labels: Sequence[str]) -> str:
    """Write a text with its labels: entities in brackets, as in "[PER jordan] sings"; other labels as in "sings/VBZ".

    Args:
        words: The words.
        labels: The label of each word.
    """
    if not all(map(is_entity_label, labels)):
        return " ".join(f"{word}/{label}" for word, label in zip(words, labels, strict=True))
    parts, place = [], 0
    for span in entity_spans(labels):
        parts += [*words[place : span.start], f"[{span.type} {' '.join(words[span.start : span.stop])}]"]
        place = span.stop
    return " ".join([*parts, *words[place:]])


TASK = labeled_text_task(TokenClassificationConfig, TokenClassificationHead)
