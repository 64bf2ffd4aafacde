"""Tasks over labeled texts: one task, and the heads that say what is predicted.

A head is one file: a config, a subclass of `LabeledTextHead`, and `TASK = labeled_text_task(Config, Head)`.
"""

import abc
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from transformer.attention.sites import Site
from transformer.data.batches import BatchSource, OneEpoch, fingerprint
from transformer.data.datasets.local_files import BY_CONTENT, describe_missing_headers, join_notes
from transformer.data.datasets.split_overlap import describe_overlap, normalize_text
from transformer.data.labeled_text_batches import LabeledTextBatches, WithTextsAndLabel
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.models.model import Aux
from transformer.models.task_interface import TaskInterface
from transformer.tasks.axis_labels import AxisLabels
from transformer.tasks.base_task import (
    BaseTask,
    check_batch_size,
    check_input_texts,
    describe_splits,
    make_capture_function,
    real_rows,
    refuse_decoding_options,
)
from transformer.tasks.labeled_text_config import LabeledTextConfig
from transformer.tasks.synthetic_data import synthetic_tokenizer_of_kind
from transformer.tasks.task import (
    Batch,
    EncodedInputs,
    Evaluation,
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

_CLASSES_SHOWN = 20


class EncodedSplit(NamedTuple):
    """Labeled examples and their token numbers.

    Attributes:
        examples: The examples.
        rows: The token numbers of each sequence; those of one example follow one another if it has several.
        num_truncated: How many of the examples have lost tokens.
    """

    examples: Sequence[WithTextsAndLabel]
    rows: Sequence[Sequence[int]]
    num_truncated: int = 0


@dataclasses.dataclass(frozen=True)
class LabeledTextHead[C: LabeledTextConfig](abc.ABC):
    """What a task over labeled texts predicts: how examples are encoded, the loss, the metrics and the answers.

    Attributes:
        config: The config, which names the data and the signature.
        tokenizer: The tokenizer.
        splits: The encoded splits by name; empty if only new texts are read.
        name: The name of the objective and of the evaluations.
        action: What a run does, for messages, as in "classifies".
    """

    config: C
    tokenizer: Tokenizer
    splits: Mapping[str, EncodedSplit] = dataclasses.field(default_factory=dict)

    name: ClassVar[str]
    action: ClassVar[str]

    # The data.

    @abc.abstractmethod
    def parse_text(self, text: str) -> Any:
        """Return the example without a label that a user has written as one text.

        Raises:
            UserError: If it is none.
        """

    @abc.abstractmethod
    def encode(self, examples: Sequence[Any], longest: int | None = None) -> EncodedSplit:
        """Encode examples.

        Args:
            examples: The examples, of `config.open_splits()` or of `parse_text`.
            longest: The number of tokens to which a sequence is cut; None cuts nothing.
        """

    @abc.abstractmethod
    def make_synthetic_example(self) -> WithTextsAndLabel:
        """Return an example whose sequences are of the greatest length and consist of token 0."""

    def batches(self, split: str, seed: int | None) -> LabeledTextBatches:
        """Return the batches of a split; a seed of None sorts them by length."""
        encoded = self.splits[split]
        return LabeledTextBatches(
            encoded.rows, [example.label for example in encoded.examples], **self.batch_options(seed)
        )

    def batch_options(self, seed: int | None) -> dict[str, Any]:
        """Return the options of `LabeledTextBatches`."""
        return {
            "lengths": self.config.bucket_lengths,
            "rows": self.config.batch_size,
            "seed": seed,
            "pad": self.tokenizer.pad_id or 0,
            "together": self.config.shape.num_sequences,
            "token_types": self.config.token_types(self.tokenizer),
        }

    @property
    def counted(self) -> str:
        """What is counted in the description of the data."""
        return "texts"

    def identity(self, texts: Sequence[str]) -> tuple[str, ...]:
        """Return the part of an example's texts that is equal for examples that are the same."""
        return tuple(texts)

    @property
    def data_notes(self) -> tuple[str, ...]:
        """Further lines about the data."""
        return ()

    # The model.

    @property
    def vocabularies(self) -> dict[str, int]:
        """The sizes of the model's outputs, or of labels that are neither classes nor tokens."""
        return {"classes": len(self.config.shape.classes)}

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes, or of the single output."""
        return self.config.shape.classes

    @property
    def interface(self) -> TaskInterface:
        """What the task requires of a model."""
        return TaskInterface(
            inputs=self.config.input_specs,
            vocabularies={
                "tokens": self.tokenizer.vocab_size + self.config.num_new_tokens,
                **self.vocabularies,
                **self.config.type_vocabulary,
            },
            pad_id=self.tokenizer.pad_id,
            bos_id=self.tokenizer.bos_id,
            eos_id=self.tokenizer.eos_id,
            output=self.config.signature.output,
            class_names=self.class_names,
        )

    def apply_model(
        self, view: StateView, batch: Batch, key: Key[Array, ""] | None, *, method: str = "forward"
    ) -> tuple[Float[Array, "*B _"], Aux]:
        """Run a method of the model on a batch, and capture what the view asks for."""
        inputs = {name: jnp.asarray(batch[name]) for name in self.config.input_specs}
        return view.model.apply(view.variables, inputs, method=method, train=view.train, key=key, capture=view.capture)

    # The loss and the metrics.

    denominator: ClassVar[str] = "examples"
    """The name of the count that the sums of the loss are divided by, one of `denominators`."""

    def denominators(self, batch: Batch) -> dict[str, Array]:
        """Return the number of examples, without rows that only fill up a batch."""
        return {"examples": jnp.sum(real_rows(batch)).astype(jnp.float32)}

    @abc.abstractmethod
    def loss_sums(self, outputs: Float[Array, "*B _"], batch: Batch) -> dict[str, Array]:
        """Return the sums over a batch that training reports, of which `loss` is trained on."""

    def loss(
        self, view: StateView, batch: Batch, denominators: Mapping[str, Array], key: Key[Array, ""]
    ) -> tuple[Array, LossAux]:
        """Compute the means of `loss_sums`."""
        outputs, aux = self.apply_model(view, batch, key)
        metrics = {
            name: value / denominators[self.denominator] for name, value in self.loss_sums(outputs, batch).items()
        }
        return metrics["loss"], LossAux.from_aux(aux, view.task_state, metrics)

    @abc.abstractmethod
    def evaluation_sums(
        self, outputs: Float[Array, "*B _"], batch: Batch
    ) -> tuple[dict[str, Array], dict[str, Array] | None]:
        """Return sums over a batch, and rows of its examples, from which `report` computes the metrics."""

    @abc.abstractmethod
    def report(self, split: str, sums: Mapping[str, Any], rows: Any) -> EvaluationReport:
        """Report the metrics of a split."""

    # The answers.

    @abc.abstractmethod
    def predict(self, outputs: Float[Array, "*B _"], inputs: Batch, encoded: EncodedSplit) -> list[str]:
        """Return the answer to each new text.

        Args:
            outputs: The outputs of the model, a row for each of `encoded.rows`.
            inputs: Its inputs.
            encoded: The texts.
        """

    @abc.abstractmethod
    def label_titles(self, examples: Sequence[Any]) -> list[str]:
        """Return titles of labeled examples, with their true answers."""

    def answer_titles(self, answers: Sequence[str], texts: Sequence[str], encoded: EncodedSplit) -> list[str]:
        """Return a title for each row of new texts, with its answer."""
        return self.repeat([f"{answer}: {text}" for answer, text in zip(answers, texts, strict=True)])

    def input_titles(self, texts: Sequence[str], encoded: EncodedSplit) -> list[str] | None:
        """Return a title for each row of new texts; None for their first words."""
        return self.repeat(texts)

    def repeat[T](self, values: Sequence[T]) -> list[T]:
        """Repeat the value of each example for each of its sequences."""
        return [value for value in values for _ in range(self.config.shape.num_sequences)]

    def label_tokens(self, rows: Sequence[Sequence[int]], titles: Sequence[str] | None) -> AxisLabels:
        """Return the names of the tokens."""
        return token_axis_labels(self.tokenizer, rows, titles)

    def encode_texts(self, texts: Sequence[str]) -> EncodedSplit:
        """Encode new texts.

        Raises:
            UserError: If a text is no example, or too long.
        """
        self.tokenizer.warn_of_unknown_parts(texts)
        encoded = self.encode([self.parse_text(text) for text in texts])
        self.config.check_fits(texts, encoded.rows)
        return encoded

    def make_inputs(self, rows: Sequence[Sequence[int]]) -> dict[str, np.ndarray]:
        """Return the model's inputs of sequences."""
        return pad_texts(rows, self.tokenizer, self.config.token_types(self.tokenizer))


class LabeledTextTask(BaseTask):
    """A task over labeled texts; implements transformer.tasks.task.Task.

    Args:
        head: What is predicted, with the encoded splits.
        rows_multiple: Devices that share the batch x microbatches; the batch size must be a multiple.
    """

    def __init__(self, head: LabeledTextHead[Any], rows_multiple: int = 1):
        check_batch_size(head.config.batch_size, rows_multiple)
        self.head, self.config, self.tokenizer, self.splits = head, head.config, head.tokenizer, head.splits
        self.interface = head.interface
        self.objectives = (Objective(head.name, head.loss),)
        self.evaluations = tuple(self._make_evaluation(split) for split in self.config.eval_splits)
        validation, num_sequences = self.splits[self.config.validation_split], self.config.shape.num_sequences
        count = min(self.config.num_probe_examples, len(validation.examples))
        probe_indices = np.linspace(0, len(validation.examples) - 1, count).astype(int)
        self._probe_examples = [validation.examples[number] for number in probe_indices]
        self._probe_rows = [
            validation.rows[number * num_sequences + place]
            for number in probe_indices
            for place in range(num_sequences)
        ]
        self.probe_batch = head.make_inputs(self._probe_rows)

    @property
    def data_summary(self) -> tuple[str, ...]:
        """The sizes of the splits, how files were split, missing headers, overlap, and how many examples are cut."""
        sizes = {name: len(split.examples) for name, split in self.splits.items()}
        how = self.config.held_out.describe(BY_CONTENT) if self.config.reads_own_files else ""
        texts = {
            name: [self.head.identity(list(map(normalize_text, example.texts))) for example in split.examples]
            for name, split in self.splits.items()
        }
        columns = self.config.file_columns if self.config.reads_own_files else ()
        files = (self.config.dataset, *self.config.held_out.by_split.values())
        headers = describe_missing_headers(files, columns, self.config.data_dir) if columns else ""
        classes = self.config.shape.classes if self.config.reads_own_files else ()
        class_list = f"classes {', '.join(classes[:_CLASSES_SHOWN])}" + ", ..." * (len(classes) > _CLASSES_SHOWN)
        how = join_notes((how, headers, class_list if classes else "", describe_overlap(texts, self.head.counted)))
        summary = describe_splits(self.config.dataset, sizes, self.head.counted, how)
        num_truncated = sum(split.num_truncated for split in self.splits.values())
        truncation = (
            f"{num_truncated:,} of these are cut to {self.config.max_text_length} tokens, the greatest of "
            "config.task.bucket_lengths"
        )
        return (summary, *((truncation,) if num_truncated else ()), *self.head.data_notes)

    def fingerprint(self) -> dict[str, str]:
        """Return the SHA-256 of every split's texts and labels."""
        return {
            name: fingerprint(
                item
                for example in split.examples
                for item in (
                    *example.texts,
                    example.label if isinstance(example.label, int) else str(example.label),
                )
            )
            for name, split in self.splits.items()
        }

    def training_batches(self, seed: int) -> BatchSource:
        """Return the training examples, epoch after epoch."""
        return self.head.batches("train", seed)

    def denominators(self, batch: Batch) -> dict[str, Array]:
        """Return the counts that the sums of the loss are divided by."""
        return self.head.denominators(batch)

    def _make_evaluation(self, split: str) -> Evaluation:
        """Return the evaluation of a split: of validation during training, of another at its end."""
        return Evaluation(
            name=self.head.name,
            split=split,
            batches=OneEpoch(self.head.batches(split, None)),
            step=self._evaluation_step,
            finish=functools.partial(self.head.report, split),
            at_end=split != self.config.validation_split,
            parameters=self.config.eval_parameters,
        )

    def _evaluation_step(self, view: StateView, batch: Batch, key: Key[Array, ""]) -> tuple[dict[str, Array], Any]:
        outputs, _ = self.head.apply_model(view, batch, None)
        return self.head.evaluation_sums(outputs, batch)

    def axis_labels(self, sites: Sequence[Site]) -> AxisLabels:
        """Return the tokens of the probe's sequences, and their true answers as titles."""
        titles = self.head.repeat(self.head.label_titles(self._probe_examples))
        return self.head.label_tokens(self._probe_rows, titles)

    def predict(self, view: StateView, request: PredictionRequest) -> Predictions:
        """Answer new texts, each an example as the head's `parse_text` reads it.

        Raises:
            UserError: If a target language or a decoding option is given, or a text is no example or too long.
        """
        refuse_decoding_options(request, self.head.action)
        encoded = self.head.encode_texts(request.texts)
        inputs = {name: jnp.asarray(values) for name, values in self.head.make_inputs(encoded.rows).items()}
        outputs, _ = view.model.apply(view.variables, inputs, train=False)
        answers = self.head.predict(outputs, inputs, encoded)
        labels = self.head.label_tokens(encoded.rows, self.head.answer_titles(answers, request.texts, encoded))
        return Predictions(answers, labels, make_capture_function(view, inputs))


def labeled_text_task(config_class: type[LabeledTextConfig], head_class: type[LabeledTextHead[Any]]) -> TaskSpec:
    """Return the task of a head, as its module exports it under the name TASK."""

    def build_task(config: LabeledTextConfig, directory: Path, rows_multiple: int = 1) -> LabeledTextTask:
        examples = config.open_splits()
        texts = {
            name: [config.encoded_text(text) for example in split for text in example.texts]
            for name, split in examples.items()
        }
        tokenizer = load_or_train_tokenizer(directory, config.tokenizer, config.vocab_size, texts, config.special_roles)
        head = head_class(config, tokenizer)
        splits = {name: head.encode(split, config.max_text_length) for name, split in examples.items()}
        return LabeledTextTask(dataclasses.replace(head, splits=splits), rows_multiple)

    def build_synthetic_task(config: LabeledTextConfig, rows_multiple: int = 1) -> LabeledTextTask:
        tokenizer = synthetic_tokenizer_of_kind(config.tokenizer, config.vocab_size, config.special_roles)
        head = head_class(config, tokenizer)
        row, num_rows = [0] * config.max_text_length, config.shape.num_sequences * config.batch_size
        split = EncodedSplit([head.make_synthetic_example()] * config.batch_size, [row] * num_rows)
        splits = dict.fromkeys(("train", *config.eval_splits), split)
        return LabeledTextTask(dataclasses.replace(head, splits=splits), rows_multiple)

    def make_task_interface(config: LabeledTextConfig, tokenizer: Tokenizer) -> TaskInterface:
        return head_class(config, tokenizer).interface

    def encode_inputs(
        config: LabeledTextConfig, view: StateView, tokenizer: Tokenizer, sentences: InputTexts
    ) -> EncodedInputs:
        check_input_texts(sentences)
        head = head_class(config, tokenizer)
        encoded = head.encode_texts(sentences.texts)
        labels = head.label_tokens(encoded.rows, head.input_titles(sentences.texts, encoded))
        return EncodedInputs(head.make_inputs(encoded.rows), "forward", labels)

    return TaskSpec(
        config_class,
        build_synthetic_task,
        build_task,
        InputReader(make_task_interface, encode_inputs),
        complete_config=config_class.with_classes_of_files,
    )
