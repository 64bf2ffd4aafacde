"""Batch sources: batches by token count or generated at every step, a pure function of seed and step."""

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from transformer.config import UserError

# Seeds of held-out data. NumPy cuts numbers into words of 32 bits and drops zeros at the end, so that 2**40 + 1,
# (2**40 + 1, 0) and (1, 256) are one generator: step 256 of run 1 would train on what 2**40 + 1 draws. These are
# multiples of 2**32, whose first word is 0. A run's first word is its seed, and run 0 draws from 2**32, the words 0, 1.
VALIDATION_SEED, TEST_SEED, PROBE_SEED = 2**40, 2**41, 3 * 2**40
_WORD = 2**32
_SEED_OF_RUN_ZERO = _WORD
Batch = dict[str, np.ndarray]


def random_generator(seed: int, *numbers: int) -> np.random.Generator:
    """Return the random generator of a seed and further numbers; no held-out seed has a generator of any run.

    Args:
        seed: The seed of a run, less than 2**32, or of held-out data, such as `VALIDATION_SEED`.
        numbers: Further numbers, such as the step.

    Raises:
        ValueError: If a run of another seed may have the generator: a seed above those of runs is no multiple of 2**32,
            or too small a one.
    """
    if seed >= _WORD and (seed % _WORD or seed < VALIDATION_SEED):
        raise ValueError(
            f"seed {seed} is neither a run's, below 2**32, nor held out, a multiple of 2**32 from 2**40 on"
        )
    return np.random.default_rng((seed or _SEED_OF_RUN_ZERO, *numbers))


class BatchSource(Protocol):
    """Training batches: a pure function of the step."""

    def __getitem__(self, step: int, /) -> Batch:
        """Return the batch of a step, counted from 0."""


@runtime_checkable
class RowBatchSource(BatchSource, Protocol):
    """Training batches of which any rows can be made without the others, so that a host makes only its own."""

    @property
    def num_rows(self) -> int:
        """The number of rows of a batch."""

    def read_rows(self, step: int, start: int, stop: int) -> Batch:
        """Return the rows `start` to `stop` - 1 of the batch of a step."""


class EpochBatchSource(BatchSource, Protocol):
    """Training batches that repeat the data epoch after epoch."""

    @property
    def batches_per_epoch(self) -> int:
        """The number of batches in an epoch."""


@dataclasses.dataclass(frozen=True)
class EncodedPairs:
    """The token numbers of sentence pairs.

    Attributes:
        sources: The source of each pair, which ends with the end token.
        targets: The target of each pair, which ends with the end token.
        pad_id: The token that fills up a batch.
        bos_id: The token that the decoder reads first.
    """

    sources: Sequence[np.ndarray]
    targets: Sequence[np.ndarray]
    pad_id: int
    bos_id: int

    def __len__(self) -> int:
        return len(self.sources)

    def indices_within_length(self, longest: int) -> list[int]:
        """Return the indices of the pairs with at most `longest` tokens on each side."""
        numbered_pairs = enumerate(zip(self.sources, self.targets, strict=True))
        return [number for number, (source, target) in numbered_pairs if max(len(source), len(target)) <= longest]

    def select(self, indices: Sequence[int]) -> "EncodedPairs":
        """Return the pairs of these indices, in this order."""
        valid_indices = [i for i in indices if i < len(self)]
        sources, targets = [self.sources[i] for i in valid_indices], [self.targets[i] for i in valid_indices]
        return dataclasses.replace(self, sources=sources, targets=targets)


@dataclasses.dataclass(frozen=True)
class Bucket:
    """One batch shape, and the examples that fit it and no shorter one.

    Attributes:
        length: Positions in a row.
        batch_size: Examples in a full batch.
        example_indices: The indices of the examples.
    """

    length: int
    batch_size: int
    """Examples in a full batch."""
    example_indices: np.ndarray

    @property
    def num_batches(self) -> int:
        """The number of batches in an epoch; the last may be partly empty."""
        return -(-len(self.example_indices) // self.batch_size)


class BucketPlan:
    """Which examples of which bucket make the batch of a step, epoch after epoch.

    An epoch has every example once.

    Args:
        buckets: The buckets.
        seed: The seed of the order, which is drawn from (seed, epoch). None keeps that of the data, bucket by bucket.
    """

    def __init__(self, buckets: Sequence[Bucket], seed: int | None):
        self._buckets, self._seed = buckets, seed
        self.batches_per_epoch = sum(bucket.num_batches for bucket in buckets)
        self._plan: tuple[int, list[tuple[Bucket, np.ndarray]]] | None = None

    def __getitem__(self, step: int) -> tuple[Bucket, np.ndarray]:
        """Return the bucket of one step, and the indices of at most `rows` of its examples."""
        epoch, position = divmod(step, self.batches_per_epoch)
        if self._plan is None or self._plan[0] != epoch:
            self._plan = (epoch, self._plan_epoch(epoch))
        return self._plan[1][position]

    def _plan_epoch(self, epoch: int) -> list[tuple[Bucket, np.ndarray]]:
        random = None if self._seed is None else np.random.default_rng((self._seed, epoch))
        plan = []
        for bucket in self._buckets:
            order = bucket.example_indices if random is None else random.permutation(bucket.example_indices)
            plan += [
                (bucket, order[start : start + bucket.batch_size]) for start in range(0, len(order), bucket.batch_size)
            ]
        return plan if random is None else [plan[i] for i in random.permutation(len(plan))]


class BucketedPairBatches:
    """Endless batches of sentence pairs of about equal numbers of positions, epoch after epoch.

    A pair goes to the shortest of `lengths` that fits both its sides; a batch has pairs of one length, padded to it. An
    epoch has every pair once. Rows that fill up the last batch, and every batch to a multiple of `rows_multiple`, are
    all padding with `index` -1, so that training does not depend on how a batch is divided. Pairs that fit no length
    are left out and counted in `left_out`.

    Each batch has `source` [B, S], `target` [B, T] (the decoder's input), `labels` [B, T] and `index` [B].

    Args:
        pairs: The sentence pairs.
        lengths: The lengths that batches are padded to.
        tokens: Positions in a batch, on each side.
        seed: The seed of the order, which is drawn from (seed, epoch). None keeps that of the data.
        rows_multiple: The number of rows of a batch is padded to a multiple of this.

    Raises:
        UserError: If no pair fits any length.
    """

    def __init__(
        self,
        pairs: EncodedPairs,
        *,
        lengths: Sequence[int],
        tokens: int,
        seed: int | None,
        rows_multiple: int = 1,
    ):
        self._pairs, self._rows_multiple = pairs, rows_multiple
        longest = np.array([max(len(s), len(t)) for s, t in zip(pairs.sources, pairs.targets, strict=True)], int)
        bucket_numbers = np.searchsorted(np.array(sorted(lengths)), longest)
        self.left_out = int(np.sum(bucket_numbers == len(lengths)))
        self.buckets = [
            Bucket(
                length,
                max(tokens // length, 1),
                np.flatnonzero(bucket_numbers == number),
            )
            for number, length in enumerate(sorted(lengths))
        ]
        self._plan = BucketPlan(self.buckets, seed)
        self.batches_per_epoch = self._plan.batches_per_epoch
        if not self.batches_per_epoch:
            raise UserError(
                f"no example fits lengths={tuple(lengths)}; the shortest has {longest.min()} tokens: give "
                "config.task.bucket_lengths a greater one"
            )

    def __getitem__(self, step: int) -> Batch:
        """Return the batch of one step."""
        return self._make_batch(*self._plan[step])

    def _make_batch(self, bucket: Bucket, examples: np.ndarray) -> Batch:
        rows = -(-bucket.batch_size // self._rows_multiple) * self._rows_multiple
        source, target, labels = np.full((3, rows, bucket.length), self._pairs.pad_id, np.int32)
        index = np.full(rows, -1, np.int32)
        index[: len(examples)] = examples
        for row, example in enumerate(examples):
            tokens = self._pairs.sources[example]
            source[row, : len(tokens)] = tokens
            tokens = self._pairs.targets[example]
            labels[row, : len(tokens)] = tokens
            target[row, 0] = self._pairs.bos_id
            target[row, 1 : len(tokens)] = tokens[:-1]
        return {"source": source, "target": target, "labels": labels, "index": index}


class OneEpoch(Sequence[Batch]):
    """The batches of one pass over the data, for evaluation."""

    def __init__(self, batches: EpochBatchSource):
        self._batches = batches

    def __len__(self) -> int:
        return self._batches.batches_per_epoch

    def __getitem__(self, step):
        if not 0 <= step < len(self):
            raise IndexError(step)
        return self._batches[step]


@dataclasses.dataclass(frozen=True)
class _StepSource:
    """The batches of steps as a Grain data source, which must be finite."""

    batches: BatchSource
    stop: int

    def __len__(self) -> int:
        return self.stop

    def __getitem__(self, step):
        return self.batches[int(step)]


def iterate_batches(batches: BatchSource, start: int, stop: int) -> Iterator[Batch]:
    """Iterate over the batches of steps start to stop - 1, which one background thread makes in advance.

    Args:
        batches: The batches.
        start: The first step.
        stop: The step after the last one.
    """
    import grain  # a machine that only measures steps may lack it

    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=4)
    return iter(grain.MapDataset.source(_StepSource(batches, stop))[start:].to_iter_dataset(options))


@dataclasses.dataclass(frozen=True)
class GeneratedBatches:
    """Batches that are generated anew at every step.

    Attributes:
        draw: A function from a random generator to a batch.
        seed: The seed; seed and step alone determine the generator.
    """

    draw: Callable[[np.random.Generator], Batch]
    seed: int

    def __getitem__(self, step: int) -> Batch:
        """Return the batch of one step, from 0."""
        return self.draw(random_generator(self.seed, step))


def first_batches(source: BatchSource, num_examples: int, batch_size: int) -> list[Batch]:
    """Return the first batches of a source, as many as have at least so many examples.

    Args:
        source: The batches.
        num_examples: The number of examples.
        batch_size: The number of examples of a batch.
    """
    return [source[step] for step in range(-(-num_examples // batch_size))]


def fingerprint(items: Iterable[str | int | np.ndarray | None]) -> str:
    """Compute the SHA-256 of a sequence of texts, numbers and arrays: of the kind, length and content of each."""
    total = hashlib.sha256()
    for item in items:
        if isinstance(item, np.ndarray):
            content = np.ascontiguousarray(item)
            total.update(f"{content.dtype}{content.shape}:".encode())
            total.update(content)
        else:
            text = repr(item).encode("utf-8", "surrogatepass")
            total.update(b"%d:" % len(text))
            total.update(text)
    return total.hexdigest()
