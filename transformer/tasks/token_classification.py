"""Token classification: predict the class of every word, as of named entities (Devlin et al. 2019, section 5.3)."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from transformer.attention.sites import Site
from transformer.data.datasets.word_labels import is_conll_file, open_word_labels, word_classes
from transformer.data.labeled_words import (
    EncodedWords,
    LabeledWords,
    TokenLabelBatches,
    entity_spans,
    is_entity_label,
    marks_entities,
)
from transformer.data.tokenizers.load import AnyTokenizer
from transformer.models.task_interface import (
    TOKEN_CLASSIFICATION,
    TOKEN_CLASSIFICATION_WITH_TYPES,
    Signature,
    TaskInterface,
)
from transformer.tasks.axis_labels import AxisLabels
from transformer.tasks.base_task import (
    check_input_texts,
    make_capture_function,
    refuse_decoding_options,
)
from transformer.tasks.fine_tuning_config import EncoderFineTuningConfig
from transformer.tasks.labeled_text_task_base import EncodedSplit, LabeledTextTask, examples_of_splits
from transformer.tasks.losses import TokenLoss, token_loss
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


@dataclasses.dataclass(frozen=True)
class TokenClassificationConfig(EncoderFineTuningConfig):
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
        if self.classes or not is_conll_file(self.dataset):
            word_classes(self.dataset, self.classes)

    @property
    def signature(self) -> Signature:
        """What the task requires of a model."""
        return TOKEN_CLASSIFICATION_WITH_TYPES if self.sequence_format.has_token_types(1) else TOKEN_CLASSIFICATION

    @property
    def reads_own_files(self) -> bool:
        """Whether the data are files of the user's own."""
        return is_conll_file(self.dataset)


class TokenClassification(LabeledTextTask):
    """The task of token classification; implements transformer.tasks.task.Task."""

    def __init__(
        self,
        config: TokenClassificationConfig,
        tokenizer: AnyTokenizer,
        texts: Mapping[str, Sequence[LabeledWords]],
        words: Mapping[str, Sequence[EncodedWords]],
        rows_multiple: int = 1,
    ):
        longest, end = config.max_text_length, config.delimiters(tokenizer).end_ids
        self._texts, self._words = texts, {name: [each.cut(longest, end) for each in words[name]] for name in words}
        splits = {
            name: EncodedSplit(
                texts[name],
                [each.row for each in self._words[name]],
                num_truncated=sum(len(each.row) > longest for each in words[name]),
            )
            for name in texts
        }
        super().__init__(config, tokenizer, splits, rows_multiple, token_types=config.token_types(tokenizer))
        self.config, self.classes = config, word_classes(config.dataset, config.classes)
        self.interface = make_task_interface(config, tokenizer)
        self.objectives = (Objective("token_classification", self._loss),)
        self.evaluations = self.make_evaluations(config, "token_classification", self._sums, self._report)

    @property
    def data_summary(self) -> tuple[str, ...]:
        """How many texts each split has, and how many are cut."""
        return self.summarize_data(self.config, "texts")

    def batches(self, split: str, seed: int | None) -> TokenLabelBatches:
        """Return the batches of a split, as `LabeledTextTask.batches` does, with the label of every token."""
        return TokenLabelBatches(
            self._words[split],
            [each.label for each in self._texts[split]],
            lengths=self.config.bucket_lengths,
            rows=self.config.batch_size,
            seed=seed,
            pad=self.tokenizer.pad_id or 0,
            token_types=self._token_types,
        )

    def denominators(self, batch: Batch) -> dict[str, Array]:
        """Return the numbers of texts and of words with a label, without rows that only fill up a batch."""
        return {**super().denominators(batch), "words": jnp.sum(batch["counts"]).astype(jnp.float32)}

    def _loss(
        self, view: StateView, batch: Batch, denominators: Mapping[str, Array], key: Key[Array, ""]
    ) -> tuple[Array, LossAux]:
        """Compute the mean of -log p(class) over the words, in nats."""
        logits_BxTxC, aux = self.apply_model(view, batch, key)
        sums = _token_sums(logits_BxTxC, batch)
        metrics = {
            "loss": sums.cross_entropy / denominators["words"],
            "accuracy": sums.correct / denominators["words"],
        }
        return metrics["loss"], LossAux.from_aux(aux, view.task_state, metrics)

    def _sums(self, view: StateView, batch: Batch, key: Key[Array, ""]) -> tuple[dict[str, Array], dict[str, Array]]:
        """Sum the loss, and return the most probable class of every token as rows."""
        logits_BxTxC, _ = self.apply_model(view, batch, None)
        sums = {"loss": _token_sums(logits_BxTxC, batch).cross_entropy, **self.denominators(batch)}
        predicted_BxT = jnp.argmax(logits_BxTxC, axis=-1).astype(jnp.int32)
        padding = self.config.max_text_length - predicted_BxT.shape[1]
        rows = {"index": jnp.asarray(batch["index"]), "predicted": jnp.pad(predicted_BxT, ((0, 0), (0, padding)))}
        return sums, rows

    def _report(self, split: str, sums: Mapping[str, Any], rows: Mapping[str, np.ndarray]) -> EvaluationReport:
        """Report the loss and the scores of the words of a split."""
        true, predicted = [], []
        for index, classes in zip(rows["index"], rows["predicted"], strict=True):
            if index >= 0:
                true.append([self.classes[label] for label in self._texts[split][index].label])
                predicted.append(self._word_labels(self._words[split][index], classes))
        scores = word_label_scores(true, predicted, entities=marks_entities(self.classes))
        loss = float(sums["loss"]) / max(float(sums["words"]), 1)
        return EvaluationReport({"loss": loss, **scores}, note=f"{len(true)} texts")

    def _word_labels(self, words: EncodedWords, classes: Sequence[int]) -> list[str]:
        """Return the predicted label of each word, from the class of every token; "O" for a word without a token."""
        return [self.classes[classes[place]] if place >= 0 else "O" for place in words.first_tokens]

    def axis_labels(self, sites: Sequence[Site]) -> AxisLabels:
        """Return the tokens of the probe's texts, and the texts with their true labels as titles."""
        titles = [
            bracket_labels(each.words, [self.classes[label] for label in each.label])
            for each in self._shown
            if isinstance(each, LabeledWords)
        ]
        return token_axis_labels(self.tokenizer, self._rows, titles)

    def predict(self, view: StateView, request: PredictionRequest) -> Predictions:
        """Predict the label of every word, as in "[PER jordan] met [PER austin] in [LOC paris]".

        Raises:
            UserError: If a target language or a decoding option is given, or a text is too long.
        """
        refuse_decoding_options(request, "labels words")
        words = encode_words(self.config, self.tokenizer, [text.split() for text in request.texts])
        self.config.check_fits(request.texts, [each.row for each in words])
        batch = pad_texts([each.row for each in words], self.tokenizer, self._token_types)
        inputs = {name: jnp.asarray(values) for name, values in batch.items()}
        logits_BxTxC, _ = view.model.apply(view.variables, inputs, train=False)
        classes_BxT = np.asarray(jnp.argmax(logits_BxTxC, axis=-1))
        lines = [
            bracket_labels(text.split(), self._word_labels(each, classes))
            for text, each, classes in zip(request.texts, words, classes_BxT, strict=True)
        ]
        labels = token_axis_labels(self.tokenizer, [each.row for each in words], lines)
        return Predictions(lines, labels, make_capture_function(view, inputs))


def _token_sums(logits_BxTxC: Float[Array, "B T C"], batch: Batch) -> TokenLoss:
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
        spans, found = entity_spans(one), entity_spans(other)
        correct += len(set(spans) & set(found))
        num_true += len(spans)
        num_predicted += len(found)
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


def encode_words(
    config: TokenClassificationConfig, tokenizer: AnyTokenizer, texts: Sequence[Sequence[str]]
) -> list[EncodedWords]:
    """Encode texts, each a sequence of words, between the special tokens."""
    delimiters = config.delimiters(tokenizer)
    found = []
    for words, encoded in zip(texts, tokenizer.encode_with_offsets([" ".join(words) for words in texts]), strict=True):
        word_of_character = np.repeat(np.arange(len(words)), [len(word) + 1 for word in words])
        first_tokens = [-1] * len(words)
        for place, (start, stop) in enumerate(encoded.offsets, len(delimiters.start_ids)):
            if start < stop and first_tokens[word_of_character[start]] < 0:
                first_tokens[word_of_character[start]] = place
        found.append(EncodedWords(delimiters.join_texts([encoded.ids]), first_tokens))
    return found


def make_task_interface(config: TokenClassificationConfig, tokenizer: AnyTokenizer) -> TaskInterface:
    """Return what the task requires of a model: logits of classes at every position."""
    classes = word_classes(config.dataset, config.classes)
    return TaskInterface(
        inputs=config.input_specs(config.batch_size),
        vocabularies={"tokens": tokenizer.vocab_size, "classes": len(classes), **config.type_vocabulary},
        pad_id=tokenizer.pad_id,
        bos_id=tokenizer.bos_id,
        eos_id=tokenizer.eos_id,
        output=config.signature.output,
        class_names=classes,
    )


def encode_inputs(
    config: TokenClassificationConfig, view: StateView, tokenizer: AnyTokenizer, sentences: InputTexts
) -> EncodedInputs:
    """Encode texts between the special tokens.

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
    rows = [each.row for each in encode_words(config, tokenizer, [text.split() for text in sentences.texts])]
    config.check_fits(sentences.texts, rows)
    inputs = pad_texts(rows, tokenizer, config.token_types(tokenizer))
    return EncodedInputs(inputs, "forward", token_axis_labels(tokenizer, rows, sentences.texts))


def build_task(config: TokenClassificationConfig, directory: Path, rows_multiple: int = 1) -> TokenClassification:
    """Build the task over its data.

    Args:
        config: The config.
        directory: The run directory, which keeps the tokenizer.
        rows_multiple: Devices that share the batch x microbatches; the batch size must be a multiple.

    Raises:
        UserError: If data are missing, or a split has no texts.
    """
    opened = open_word_labels(
        config.dataset, data_dir=config.data_dir, classes=config.classes, held_out=config.held_out
    )
    examples = examples_of_splits(config, opened)
    texts = {name: [each.texts[0] for each in split] for name, split in examples.items()}
    tokenizer = load_or_train_tokenizer(directory, config.tokenizer, config.vocab_size, texts, config.special_roles)
    words = {name: encode_words(config, tokenizer, [each.words for each in split]) for name, split in examples.items()}
    return TokenClassification(config, tokenizer, examples, words, rows_multiple)


def build_synthetic_task(config: TokenClassificationConfig, rows_multiple: int = 1) -> TokenClassification:
    """Build the task over synthetic texts, all of the greatest length."""
    tokenizer = synthetic_tokenizer_of_kind(config.tokenizer, config.vocab_size, config.special_roles)
    text, words = LabeledWords(("a",), (0,)), EncodedWords([0] * config.max_text_length, [1])
    texts, encoded = [text] * config.batch_size, [words] * config.batch_size
    names = ("train", *config.eval_splits)
    return TokenClassification(
        config, tokenizer, dict.fromkeys(names, texts), dict.fromkeys(names, encoded), rows_multiple
    )


TASK = TaskSpec(
    TokenClassificationConfig, build_synthetic_task, build_task, InputReader(make_task_interface, encode_inputs)
)
