"""Contrastive learning of text embeddings: the embedding of a text is to be closest to that of its partner."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key

from experiments.text_retrieval.data import PAIR_EMBEDDING, SPLITS, PairData, TextPair, distinct_pairs, open_pairs
from experiments.text_retrieval.metrics import retrieval_metrics, symmetric_info_nce
from transformer.attention.sites import Site
from transformer.config import (
    BatchSize,
    Config,
    NumDisplayedExamples,
    NumExamples,
    PositiveFloat,
    PositiveInt,
    SplitName,
    UserError,
    VocabSize,
)
from transformer.data.batches import BatchSource, GeneratedBatches
from transformer.data.datasets.local_files import join_notes
from transformer.data.datasets.translation import describe_pair_headers
from transformer.data.tokenizers.load import load_tokenizer
from transformer.data.tokenizers.tokenizer import Tokenizer, has_tokenizer
from transformer.data.tokenizers.train_tokenizer import train_bpe
from transformer.models.task_interface import InputSpec, TaskInterface
from transformer.tasks.axis_labels import AxisLabels
from transformer.tasks.base_task import (
    BaseTask,
    check_batch_size,
    check_text_length,
    describe_splits,
    make_capture_function,
    refuse_decoding_options,
)
from transformer.tasks.synthetic_data import synthetic_tokenizer
from transformer.tasks.task import (
    Batch,
    Evaluation,
    EvaluationReport,
    LossAux,
    Objective,
    PredictionRequest,
    Predictions,
    StateView,
    TaskSpec,
)
from transformer.tasks.translation_data import pad_begin_end_ids

_ROLES = ("pad", "begin", "end", "unknown")


@dataclasses.dataclass(frozen=True)
class TextRetrievalConfig(Config, path="config.task"):
    """Pairs of texts, their tokenizer and batches, and the loss.

    Attributes:
        dataset: "number_words", or a data set of translations (experiments.text_retrieval.data.open_pairs).
        data_dir: The folder of the data, for data sets that are not generated.
        languages: (source, target), for data sets of translations with several; empty for their own.
        test_split: The name of the test split, for data sets of translations.
        vocab_size: The vocabulary size of the byte-pair encoding of both sides.
        max_tokens: The longest text in tokens, begin and end included; longer pairs are left out, and counted.
        batch_size: Pairs in a batch, each of which has the others as negatives.
        temperature: The temperature of the loss.
        pool_size: The number of distinct pairs that are retrieved from, in validation and in test.
        num_probe_examples: Validation pairs whose maps are stored.

    Raises:
        UserError: If a value is out of range.
    """

    dataset: str = "number_words"
    data_dir: str | None = None
    languages: tuple[str, ...] = ()
    test_split: SplitName = "test"
    vocab_size: VocabSize = 200
    max_tokens: PositiveInt = 24
    batch_size: BatchSize = 64
    temperature: PositiveFloat = 0.05
    pool_size: NumExamples = 1000
    num_probe_examples: NumDisplayedExamples = 4

    def _check(self) -> None:
        if len(self.languages) not in (0, 2):
            raise UserError(f"config.task.languages={self.languages} must be (source, target), or empty")
        if self.batch_size < 2:
            raise UserError(f"config.task.batch_size={self.batch_size} leaves a pair without negatives: say 2 or more")


class EncodedSplit:
    """The pairs of one split that are short enough, as padded tokens.

    Args:
        pairs: The pairs, whose groups stand one after the other.
        tokenizer: The tokenizer.
        max_tokens: The longest text in tokens.
        group_size: The number of pairs in a group, which is kept or left out as a whole.
    """

    def __init__(self, pairs: Sequence[TextPair], tokenizer: Tokenizer, max_tokens: int, group_size: int):
        rows = [encode_texts([pair[side] for pair in pairs], tokenizer) for side in (0, 1)]
        fits = [max(len(row) for row in pair_rows) <= max_tokens for pair_rows in zip(*rows, strict=True)]
        indices = [
            index
            for start in range(0, len(pairs), group_size)
            for index in range(start, min(start + group_size, len(pairs)))
            if all(fits[start : start + group_size])
        ]
        self.pairs, self.left_out = [pairs[index] for index in indices], len(pairs) - len(indices)
        pad, _, _ = pad_begin_end_ids(tokenizer)
        self.source, self.target = (
            pad_rows([side_rows[index] for index in indices], max_tokens, pad) for side_rows in rows
        )

    def __len__(self) -> int:
        return len(self.pairs)

    def batch(self, indices: Any) -> dict[str, np.ndarray]:
        """Return the pairs of these indices as the model's inputs."""
        return {"source": self.source[indices], "target": self.target[indices]}


class TextRetrieval(BaseTask):
    """Contrastive learning: implements transformer.tasks.task.Task.

    Args:
        config: The config.
        tokenizer: The tokenizer of both sides.
        data: The pairs.
        rows_multiple: Devices that share the batch x microbatches; the batch size must be a multiple.

    Raises:
        UserError: If the batch size is no multiple of `rows_multiple` or of the size of a group, there are fewer
            training pairs than a batch has, or fewer distinct held-out pairs than the pool.
    """

    def __init__(self, config: TextRetrievalConfig, tokenizer: Tokenizer, data: PairData, rows_multiple: int = 1):
        check_batch_size(config.batch_size, rows_multiple)
        if config.batch_size % data.group_size:
            raise UserError(
                f"config.task.batch_size={config.batch_size} must be a multiple of {data.group_size}: the pairs of "
                f"{config.dataset} come in groups of so many"
            )
        self.config, self.tokenizer, self.group_size = config, tokenizer, data.group_size
        self.splits = {
            name: EncodedSplit(pairs, tokenizer, config.max_tokens, data.group_size)
            for name, pairs in data.splits.items()
        }
        if len(self.splits["train"]) < config.batch_size:
            raise UserError(
                f"{config.dataset} has {len(self.splits['train'])} training pairs of at most "
                f"config.task.max_tokens={config.max_tokens} tokens, fewer than config.task.batch_size="
                f"{config.batch_size}"
            )
        shape = InputSpec((config.batch_size, config.max_tokens))
        self.interface = TaskInterface(
            {"source": shape, "target": shape},
            {"joint": tokenizer.vocab_size},
            *pad_begin_end_ids(tokenizer),
            output=PAIR_EMBEDDING.output,
        )
        negatives = "each pair has all others of the batch as negatives"
        self.objectives = (Objective("contrastive", self._loss, compares_rows=negatives),)
        self.pools = {split: self._sample_pool(split) for split in ("validation", "test")}
        self.evaluations = tuple(self._evaluation(split) for split in self.pools)
        self._probe_indices = self.pools["validation"][: config.num_probe_examples]
        self.probe_batch = self.splits["validation"].batch(self._probe_indices)

    @property
    def data_summary(self) -> tuple[str, ...]:
        """A line on the numbers of pairs, a table without a header, and pairs that are left out."""
        sizes = {name: len(split) for name, split in self.splits.items()}
        left_out = sum(split.left_out for split in self.splits.values())
        long = f"{left_out:,} of more than {self.config.max_tokens} tokens left out" if left_out else ""
        headers = describe_pair_headers(self.config.dataset, self.config.data_dir, self.config.languages)
        return (describe_splits(self.config.dataset, sizes, "pairs", join_notes((headers, long))),)

    def training_batches(self, seed: int) -> BatchSource:
        """Return an endless source of batches of different groups of pairs."""
        train, size = self.splits["train"], self.group_size
        count = self.config.batch_size // size

        def draw(random: np.random.Generator) -> dict[str, np.ndarray]:
            first_G = size * random.choice(len(train) // size, count, replace=False)
            return train.batch((first_G[:, None] + np.arange(size)).ravel())

        return GeneratedBatches(draw, seed)

    def _loss(
        self, view: StateView, batch: Batch, denominators: Mapping[str, Array], key: Key[Array, ""]
    ) -> tuple[Array, LossAux]:
        """Return the mean over pairs of the symmetric InfoNCE loss, in nats."""
        inputs = {input_name: jnp.asarray(batch[input_name]) for input_name in PAIR_EMBEDDING.inputs}
        x_Bx2xE, aux = view.model.apply(view.variables, inputs, train=view.train, key=key, capture=view.capture)
        sums = symmetric_info_nce(x_Bx2xE[:, 0], x_Bx2xE[:, 1], self.config.temperature)
        metrics = {
            "loss": sums.loss / denominators["examples"],
            "accuracy": sums.correct / denominators["examples"],
        }
        return metrics["loss"], LossAux.from_aux(aux, view.task_state, metrics)

    def _sample_pool(self, split: str) -> list[int]:
        """Return the pairs that are retrieved from."""
        pool = distinct_pairs(self.splits[split].pairs, self.config.pool_size)
        if len(pool) < self.config.pool_size:
            raise UserError(
                f"{self.config.dataset} has {len(pool)} distinct pairs in the split {split!r}, fewer than "
                f"config.task.pool_size={self.config.pool_size}"
            )
        return pool

    def _evaluation(self, split: str) -> Evaluation:
        pool, rows = self.pools[split], self.config.batch_size
        # The first pairs fill up the last batch; `finish` drops them.
        padded = np.resize(pool, -(-len(pool) // rows) * rows).reshape(-1, rows)
        batches = [self.splits[split].batch(indices) for indices in padded]

        def finish(sums: Any, rows: Mapping[str, np.ndarray]) -> EvaluationReport:
            x_Nx2xE = np.asarray(rows["embeddings"])[: len(pool)]
            metrics = retrieval_metrics(x_Nx2xE[:, 0], x_Nx2xE[:, 1])
            return EvaluationReport(metrics, note=f"pools of {len(pool)} texts")

        return Evaluation("retrieval", split, batches, _embedding_rows, finish, at_end=split == "test")

    def axis_labels(self, sites: Sequence[Site]) -> AxisLabels:
        """Label the tokens of both texts of the probe's pairs."""
        return self._describe([self.splits["validation"].pairs[index] for index in self._probe_indices])

    def _describe(self, pairs: Sequence[TextPair]) -> AxisLabels:
        tokens = {
            side: tuple(
                tuple(self.tokenizer.labels(ids))
                for ids in encode_texts([getattr(pair, side) for pair in pairs], self.tokenizer)
            )
            for side in ("source", "target")
        }
        return AxisLabels(tokens, tuple(f"{pair.source} → {pair.target}" for pair in pairs))

    def predict(self, view: StateView, request: PredictionRequest) -> Predictions:
        """Retrieve for each source text the closest target of the test pool, with their cosine.

        Raises:
            UserError: If a language or a decoding option is given, or a text has more than `max_tokens` tokens.
        """
        refuse_decoding_options(request, "retrieves the closest of its test texts")
        texts = list(request.texts)
        rows = encode_texts(texts, self.tokenizer)
        check_text_length(texts, rows, self.config.max_tokens)
        pool = self.splits["test"].batch(self.pools["test"])
        candidates = [self.splits["test"].pairs[index].target for index in self.pools["test"]]
        max_tokens, (pad_id, _, _) = self.config.max_tokens, pad_begin_end_ids(self.tokenizer)
        queries = pad_rows(rows, max_tokens, pad_id)
        embed = jax.jit(functools.partial(view.model.apply, train=False))
        query_QxE = np.asarray(embed(view.variables, {"source": queries, "target": queries})[0])[:, 0]
        pool_NxE = np.asarray(embed(view.variables, pool)[0])[:, 1]
        cosine_QxN = query_QxE @ pool_NxE.T
        pairs = [TextPair(text, candidates[best]) for text, best in zip(texts, cosine_QxN.argmax(axis=1), strict=True)]
        inputs = {
            side: pad_rows(encode_texts([pair[place] for pair in pairs], self.tokenizer), max_tokens, pad_id)
            for place, side in enumerate(("source", "target"))
        }
        lines = [f"{pair.target}  {cosine:.3f}" for pair, cosine in zip(pairs, cosine_QxN.max(axis=1), strict=True)]
        return Predictions(lines, self._describe(pairs), make_capture_function(view, inputs))


def _embedding_rows(view: StateView, batch: Batch, key: Key[Array, ""]) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return no sums, and the embeddings of both texts of each pair."""
    inputs = {name: jnp.asarray(batch[name]) for name in PAIR_EMBEDDING.inputs}
    return {}, {"embeddings": view.model.apply(view.variables, inputs, train=False)[0]}


def encode_texts(texts: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    """Return the tokens of each text between a begin and an end token."""
    _, bos_id, eos_id = pad_begin_end_ids(tokenizer)
    return [[bos_id, *ids, eos_id] for ids in tokenizer.encode(list(texts))]


def pad_rows(rows: Sequence[Sequence[int]], length: int, pad: int) -> Int[np.ndarray, "B T"]:
    """Pad rows of at most `length` tokens to one array."""
    padded = np.full((len(rows), length), pad, np.int32)
    for row, ids in zip(padded, rows, strict=True):
        row[: len(ids)] = ids
    return padded


def build_task(config: TextRetrievalConfig, directory: Path, rows_multiple: int = 1) -> TextRetrieval:
    """Build the task over its data.

    Args:
        config: The config.
        directory: The run directory, which keeps the tokenizer.
        rows_multiple: Devices that share the batch x microbatches; the batch size must be a multiple.
    """
    data = open_pairs(
        config.dataset,
        directory,
        data_dir=config.data_dir,
        languages=config.languages,
        test_split=config.test_split,
    )
    tokenizer: Tokenizer
    if has_tokenizer(directory):
        tokenizer = load_tokenizer(directory)
    else:
        tokenizer = train_bpe((text for pair in data.splits["train"] for text in pair), config.vocab_size)
        tokenizer.save(directory)
    return TextRetrieval(config, tokenizer, data, rows_multiple)


def build_synthetic_task(config: TextRetrievalConfig, rows_multiple: int = 1) -> TextRetrieval:
    """Build the task over texts of the greatest length, each of which is a number of its own and padding words."""
    tokenizer = synthetic_tokenizer(config.vocab_size, _ROLES)
    words = max(tokenizer.vocab_size - len(_ROLES), 1)
    texts = [
        " ".join(str((index + place * (1 + index // words)) % words) for place in range(config.max_tokens - 2))
        for index in range(max(config.batch_size, config.pool_size))
    ]
    pairs = [TextPair(text, text) for text in texts]
    return TextRetrieval(config, tokenizer, PairData({split: pairs for split in SPLITS}, 1), rows_multiple)


TASK = TaskSpec(TextRetrievalConfig, build_synthetic_task, build_task)
