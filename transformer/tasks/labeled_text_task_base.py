"""The base class of tasks over labeled texts, with their config, splits, batches and evaluations."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from transformer.config import BatchSize, Config, NumDisplayedExamples, SplitName, UserError, VocabSize
from transformer.data.batches import BatchSource, OneEpoch, fingerprint
from transformer.data.datasets.local_files import BY_CONTENT, HeldOutFiles, is_tsv_or_jsonl, join_notes
from transformer.data.datasets.split_overlap import describe_overlap, normalize_text
from transformer.data.labeled_text_batches import LabeledTextBatches, TokenTypeRule, WithTextsAndLabel
from transformer.data.tokenizers.load import AnyTokenizer
from transformer.models.model import Aux
from transformer.models.task_interface import TaskInterface
from transformer.tasks.base_task import BaseTask, check_batch_size, describe_splits, real_rows
from transformer.tasks.task import Batch, Evaluation, EvaluationReport, EvaluationStep, StateView
from transformer.tasks.text_data import TokenizerKind, pad_texts


@dataclasses.dataclass(frozen=True)
class LabeledTextConfig(Config, path="config.task"):
    """Labeled texts, their tokenizer, and the shapes of their batches.

    Attributes:
        dataset: The data set (see the task's own config).
        data_dir: The folder of the data, for data sets that are not generated.
        classes: The names of the classes, for files of your own.
        validation_files: The files of the validation split, for files of your own. Empty cuts the split from `dataset`.
        test_files: The same for the test split.
        tokenizer: The kind of tokenizer.
        vocab_size: The vocabulary size of a trained BPE.
        bucket_lengths: The lengths in tokens, special tokens included, that batches are padded to. A text longer than
            the largest is cut, and counted.
        batch_size: Examples in a batch.
        validation_split: The name of the split that is evaluated during training.
        test_split: The name of the split that is evaluated at the end; empty for data sets without a labeled test
            split.
        num_probe_examples: The number of validation examples, evenly spaced, whose maps are stored.
        eval_parameters: Which parameters are evaluated: "raw", or the name of an average.

    Raises:
        UserError: If a value is out of range.
    """

    dataset: str = "word_order"
    data_dir: str | None = None
    classes: tuple[str, ...] = ()
    validation_files: str = ""
    test_files: str = ""
    tokenizer: TokenizerKind = TokenizerKind.BPE
    vocab_size: VocabSize = 8192
    bucket_lengths: tuple[int, ...] = (16, 32, 64)
    batch_size: BatchSize = 32
    validation_split: SplitName = "validation"
    test_split: str = "test"
    num_probe_examples: NumDisplayedExamples = 4
    eval_parameters: str = "raw"

    least_length: ClassVar[int] = 3
    """The length of the shortest text in tokens, special tokens included."""

    def _check(self) -> None:
        if not self.bucket_lengths or min(self.bucket_lengths) < self.least_length:
            raise UserError(
                f"config.task.bucket_lengths={self.bucket_lengths} must name lengths of at least {self.least_length} "
                "tokens"
            )

    @property
    def reads_own_files(self) -> bool:
        """Whether the data are files of the user's own, which may have to be cut into splits."""
        return is_tsv_or_jsonl(self.dataset)

    @property
    def held_out(self) -> HeldOutFiles:
        """The files of splits that have files of their own."""
        return HeldOutFiles(self.validation_files, self.test_files)

    @property
    def max_text_length(self) -> int:
        """The largest length of a text in tokens, special tokens included."""
        return max(self.bucket_lengths)

    @property
    def eval_splits(self) -> tuple[str, ...]:
        """The splits that are evaluated."""
        return (self.validation_split, *((self.test_split,) if self.test_split else ()))

    def check_fits(self, texts: Sequence[str], rows: Sequence[Sized]) -> None:
        """Refuse new texts that would have to be cut, since an answer is to a whole text.

        Args:
            texts: The texts, for the message.
            rows: Their tokens.

        Raises:
            UserError: If a text has more tokens than the largest of `bucket_lengths`.
        """
        for text, row in zip(texts, rows, strict=True):
            if len(row) > self.max_text_length:
                raise UserError(
                    f"{text[:40]!r} has {len(row)} tokens, more than {self.max_text_length}, the greatest of "
                    "config.task.bucket_lengths: shorten it"
                )


class EncodedSplit(NamedTuple):
    """Labeled texts and their token numbers.

    Attributes:
        texts: The labeled texts or examples.
        rows: The token numbers of each text; those of one example follow one another if it has several.
        num_truncated: How many of the examples have lost tokens.
    """

    texts: Sequence[WithTextsAndLabel]
    rows: Sequence[Sequence[int]]
    num_truncated: int = 0

    @classmethod
    def of[T](
        cls,
        texts: Sequence[WithTextsAndLabel],
        given: Sequence[T],
        encode: Callable[[Sequence[T], int | None], list[list[int]]],
        longest: int,
        together: int = 1,
    ) -> "EncodedSplit":
        """Encode labeled texts, and cut those that are too long.

        Args:
            texts: The labeled texts or examples.
            given: What `encode` reads of each.
            encode: A function (given, longest) to the token numbers; `longest` None cuts nothing.
            longest: The largest number of tokens in a row.
            together: Rows of an example.
        """
        rows = encode(given, None)
        wide = sorted({number // together for number, row in enumerate(rows) if len(row) > longest})
        for place, row in enumerate(encode([given[number] for number in wide], longest)):
            rows[wide[place // together] * together + place % together] = row
        return cls(texts, rows, len(wide))


class LabeledTextTask(BaseTask):
    """The base class of tasks over labeled texts: their batches and evaluations.

    Args:
        config: The config.
        tokenizer: The tokenizer.
        splits: The encoded splits by name.
        rows_multiple: Devices that share the batch x microbatches; the batch size must be a multiple.
        together: Rows of tokens of an example.
        token_types: The rule of the token types of a row; None if there are none.
    """

    interface: TaskInterface

    def __init__(
        self,
        config: LabeledTextConfig,
        tokenizer: AnyTokenizer,
        splits: Mapping[str, EncodedSplit],
        rows_multiple: int,
        together: int = 1,
        token_types: TokenTypeRule | None = None,
    ):
        check_batch_size(config.batch_size, rows_multiple)
        self.tokenizer, self.splits, self.together, self._token_types = tokenizer, splits, together, token_types
        self._lengths, self._batch_rows = config.bucket_lengths, config.batch_size
        held_out = splits[config.validation_split]
        count = min(config.num_probe_examples, len(held_out.texts))
        shown = np.linspace(0, len(held_out.texts) - 1, count).astype(int)
        self._shown = [held_out.texts[number] for number in shown for _ in range(together)]
        self._rows = [held_out.rows[number * together + place] for number in shown for place in range(together)]
        self.probe_batch = pad_texts(self._rows, tokenizer, token_types)

    def batches(self, split: str, seed: int | None) -> LabeledTextBatches:
        """Return the batches of a split.

        Args:
            split: The name of the split.
            seed: The seed of their order; None sorts them by length.
        """
        return LabeledTextBatches(
            self.splits[split].rows,
            [each.label for each in self.splits[split].texts],
            lengths=self._lengths,
            rows=self._batch_rows,
            seed=seed,
            pad=self.tokenizer.pad_id or 0,
            together=self.together,
            token_types=self._token_types,
        )

    def fingerprint(self) -> dict[str, str]:
        """Return the SHA-256 of every split's texts and labels."""
        return {
            name: fingerprint(item for each in split.texts for item in (*each.texts, _said(each.label)))
            for name, split in self.splits.items()
        }

    def summarize_data(
        self, config: LabeledTextConfig, what: str, identify: Callable[[Sequence[str]], tuple[str, ...]] = tuple
    ) -> tuple[str, ...]:
        """Describe the data: split sizes, how files were split, overlap between splits, and how many examples are cut.

        Args:
            config: The config.
            what: What is counted, as in "texts".
            identify: A function of an example's normalized texts that is equal for examples that are the same.
        """
        sizes = {name: len(split.texts) for name, split in self.splits.items()}
        how = config.held_out.describe(BY_CONTENT) if config.reads_own_files else ""
        texts = {
            name: [identify(list(map(normalize_text, each.texts))) for each in split.texts]
            for name, split in self.splits.items()
        }
        how = join_notes((how, describe_overlap(texts, what)))
        summary = describe_splits(config.dataset, sizes, what, how)
        cut = sum(split.num_truncated for split in self.splits.values())
        lost = (
            f"{cut:,} of these are cut to {config.max_text_length} tokens, the greatest of config.task.bucket_lengths"
        )
        return (summary, lost) if cut else (summary,)

    def training_batches(self, seed: int) -> BatchSource:
        """Return the training examples, epoch after epoch."""
        return self.batches("train", seed)

    def apply_model(
        self, view: StateView, batch: Batch, key: Key[Array, ""] | None, *, method: str = "forward"
    ) -> tuple[Float[Array, "*B _"], Aux]:
        """Run a method of the model on a batch, and capture what the view asks for.

        Args:
            view: The state.
            batch: The batch.
            key: Random key for dropout in training.
            method: The method of the model.
        """
        inputs = {name: jnp.asarray(batch[name]) for name in self.interface.inputs}
        return view.model.apply(view.variables, inputs, method=method, train=view.train, key=key, capture=view.capture)

    def denominators(self, batch: Batch) -> dict[str, Array]:
        """Return the number of examples, without rows that only fill up a batch."""
        return {"examples": jnp.sum(real_rows(batch)).astype(jnp.float32)}

    def make_evaluations(
        self,
        config: LabeledTextConfig,
        name: str,
        step: EvaluationStep,
        finish: Callable[[str, Any, Any], EvaluationReport],
    ) -> tuple[Evaluation, ...]:
        """Return the evaluation of every split: of validation during training, of the others at its end.

        Args:
            config: The config.
            name: The name of the evaluation.
            step: The function of a batch to sums and rows.
            finish: The function of a split's name and of its sums and rows to the report.
        """
        return tuple(
            Evaluation(
                name=name,
                split=split,
                batches=OneEpoch(self.batches(split, None)),
                step=step,
                finish=functools.partial(finish, split),
                at_end=split != config.validation_split,
                parameters=config.eval_parameters,
            )
            for split in config.eval_splits
        )


def examples_of_splits[T](config: LabeledTextConfig, opened: Mapping[str, Sequence[T]]) -> dict[str, Sequence[T]]:
    """Return the examples of the splits that are trained on and evaluated.

    Args:
        config: The config.
        opened: The examples of every split that the data have.

    Raises:
        UserError: If a split is missing.
    """
    for name in ("train", *config.eval_splits):
        if name not in opened:
            raise UserError(f"{config.dataset} has no labeled split {name!r}: it has {', '.join(opened)}")
    return {name: opened[name] for name in ("train", *config.eval_splits)}


def _said(label: Any) -> str | int:
    """Return a label as it is fingerprinted."""
    return label if isinstance(label, int) else str(label)
