"""Fine-tune a model on examples of one text, of two, or of several to choose from.

Language models as GPT-1 was (Radford et al. 2018), and bidirectional models as BERT was (Devlin et al. 2019).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Bool, Key

from transformer.config import NonNegativeFloat, UserError
from transformer.data.datasets.fine_tuning import (
    ExampleShape,
    FineTuningProblem,
    example_shape,
    file_columns,
    labels_of_examples,
    open_examples,
)
from transformer.data.fine_tuning_sequence_layouts import SequenceFormat, SequenceLayout
from transformer.data.labeled_text_batches import LabeledExample
from transformer.models.task_interface import (
    TEXT_CLASSIFICATION,
    TEXT_CLASSIFICATION_WITH_LANGUAGE_MODELING,
    TEXT_CLASSIFICATION_WITH_TYPES,
    Signature,
)
from transformer.tasks.axis_labels import AxisLabels
from transformer.tasks.classification import ExampleHead
from transformer.tasks.labeled_text_config import FormattedTextConfig
from transformer.tasks.labeled_text_task import labeled_text_task
from transformer.tasks.losses import chunked_token_loss
from transformer.tasks.task import Batch, LossAux, StateView
from transformer.tasks.text_data import token_axis_labels
from transformer.tasks.text_task_base import real_positions

# The separator of an example's texts where a user writes them as one text.
TEXT_SEPARATOR = " $ "
_NEW_TOKEN_NAMES = ("<start>", "<delimiter>", "<extract>")


@dataclasses.dataclass(frozen=True)
class FineTuningConfig(FormattedTextConfig):
    """Examples, their tokenizer, the shapes of their batches, and the loss.

    An example becomes one or more sequences (transformer.data.fine_tuning_sequence_layouts); if one is longer than the
    largest of `bucket_lengths`, its longest text is cut.

    Attributes:
        dataset: "grammar/acceptability" (one text), "grammar/entailment" (two), "grammar/similarity" (two, in no order)
            or "grammar/choice", which are generated; "glue/SST-2" or "glue/CoLA", whose files are in `data_dir`; or
            "FILE.tsv", "FILE.csv" or "FILE.jsonl", files of your own (transformer.data.datasets.fine_tuning). `classes`
            are their labels, or the columns of the answers to choose from.
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
        if self.classes or not self.reads_own_files:
            example_shape(self.dataset, self.classes, self.problem)
        if self.auxiliary and self.sequence_format is not SequenceFormat.GPT:
            raise UserError(
                f"config.task.auxiliary={self.auxiliary:g} predicts next tokens, which config.task.sequence_format="
                f"{self.sequence_format.value} has no model for: say config.task.auxiliary=0"
            )

    @property
    def dataset_shape(self) -> ExampleShape:
        """The shape of the data set's examples, in whichever format they are read."""
        return example_shape(self.dataset, self.classes, self.problem)

    @property
    def shape(self) -> ExampleShape:
        """The shape of the examples: their layout, texts and classes."""
        shape = self.dataset_shape
        if shape.layout is SequenceLayout.UNORDERED and self.sequence_format is not SequenceFormat.GPT:
            return dataclasses.replace(shape, layout=SequenceLayout.PAIR)
        return shape

    @property
    def signature(self) -> Signature:
        """What the task requires of a model."""
        if self.auxiliary:
            return TEXT_CLASSIFICATION_WITH_LANGUAGE_MODELING
        return TEXT_CLASSIFICATION_WITH_TYPES if self.has_token_types else TEXT_CLASSIFICATION

    @property
    def file_columns(self) -> tuple[str, ...]:
        """The texts and the label of the problem."""
        return file_columns(self.problem, self.classes)

    def read_classes(self) -> tuple[str, ...]:
        """Return the labels of files of the user's own, where labels are classes."""
        if not self.reads_own_files:
            return ()
        return labels_of_examples(self.dataset, self.data_dir, self.problem, self.held_out)

    def open_splits(self) -> dict[str, Sequence[LabeledExample]]:
        """Read the examples of the splits that are trained on and evaluated."""
        examples = open_examples(
            self.dataset, data_dir=self.data_dir, classes=self.classes, problem=self.problem, held_out=self.held_out
        )
        return self.select_splits(examples)


class FineTuningHead(ExampleHead[FineTuningConfig]):
    """One answer to an example, and the next tokens.

    The loss is L2 + lambda L1 (Radford et al. 2018, equation 5). L2 is that of `ExampleHead`; L1 is the mean of
    -log p(token | those before it) over the tokens of all sequences, except the first of each. One pass of the model
    yields both.
    """

    name = "fine_tuning"

    def parse_text(self, text: str) -> LabeledExample:
        """Return the example whose texts a user has separated by " $ ", as in "context $ one $ other".

        Raises:
            UserError: If it has another number of texts, or an empty one.
        """
        shape = self.config.shape
        texts = [part.strip() for part in text.split(TEXT_SEPARATOR)] if shape.num_texts > 1 else [text.strip()]
        if len(texts) == shape.num_texts and all(texts):
            return LabeledExample(tuple(texts), 0)
        if shape.layout is SequenceLayout.CHOICE:
            example = TEXT_SEPARATOR.join(("context", *["answer"] * (shape.num_texts - 1)))
            raise UserError(
                f"{text[:60]!r} has {len(texts)} texts with {TEXT_SEPARATOR.strip()!r} between them, but an example of "
                f"this run has {shape.num_texts}: write {example!r}"
            )
        raise UserError(f"{text[:60]!r} must be {TEXT_SEPARATOR.join(['text'] * shape.num_texts)!r}, each with words")

    @property
    def counted(self) -> str:
        """What is counted in the description of the data."""
        return f"examples ({self.config.shape.layout.value})"

    def identity(self, texts: Sequence[str]) -> tuple[str, ...]:
        """Return the texts, sorted where their order means nothing in the data set."""
        return self.config.dataset_shape.layout.canonical_texts(texts)

    @property
    def vocabularies(self) -> dict[str, int]:
        """The number of outputs of a sequence and, with an auxiliary loss, of next tokens."""
        num_tokens = self.tokenizer.vocab_size + self.config.num_new_tokens
        return super().vocabularies | ({"next tokens": num_tokens} if self.config.auxiliary else {})

    def denominators(self, batch: Batch) -> dict[str, Array]:
        """Return the numbers of examples and of predicted tokens, without rows that only fill up a batch."""
        return {**super().denominators(batch), "tokens": jnp.sum(_has_real_next_token(batch)).astype(jnp.float32)}

    def loss(
        self, view: StateView, batch: Batch, denominators: Mapping[str, Array], key: Key[Array, ""]
    ) -> tuple[Array, LossAux]:
        """Compute L2 + lambda L1, in nats."""
        weight = self.config.auxiliary
        if not weight:
            return super().loss(view, batch, denominators, key)
        hidden_BxTxE, aux = self.apply_model(view, batch, key, method="hidden")
        sums = self.loss_sums(aux.extras["classes"], batch)
        metrics = {name: value / denominators[self.denominator] for name, value in sums.items()}
        token_sums = chunked_token_loss(
            lambda hidden: view.model.logits(view.variables, hidden),
            hidden_BxTxE,
            jnp.roll(jnp.asarray(batch["tokens"]), -1, axis=1),
            _has_real_next_token(batch),
            0.0,
        )
        metrics["language_model_loss"] = token_sums.cross_entropy / denominators["tokens"]
        loss = metrics["loss"] + weight * metrics["language_model_loss"]
        return loss, LossAux.from_aux(aux, view.task_state, metrics)

    def label_tokens(self, rows: Sequence[Sequence[int]], titles: Sequence[str] | None) -> AxisLabels:
        """Return the names of all tokens, including the three after the tokenizer's."""
        vocabulary = self.tokenizer.vocab_size
        labels = token_axis_labels(
            self.tokenizer, [[number for number in row if number < vocabulary] for row in rows], titles
        )
        token_names = []
        for row, known_names in zip(rows, labels.tokens["tokens"], strict=True):
            names = iter(known_names)
            token_names.append(
                tuple(_NEW_TOKEN_NAMES[number - vocabulary] if number >= vocabulary else next(names) for number in row)
            )
        return dataclasses.replace(labels, tokens={"tokens": tuple(token_names)})


def _has_real_next_token(batch: Batch) -> Bool[Array, "SB T"]:
    """Return the positions whose next token is a real one."""
    real_SBxT = real_positions(batch)
    return jnp.pad(real_SBxT[:, 1:], ((0, 0), (0, 1)))


TASK = labeled_text_task(FineTuningConfig, FineTuningHead)
