"""Training batches without the skipped ones, checked for token ids outside the vocabulary."""

import copy
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np

from transformer.config import Range, UserError
from transformer.data.batches import Batch, BatchSource
from transformer.models.task_interface import Modality, TaskInterface


class BatchRange(NamedTuple):
    """A range of consecutive batches.

    Attributes:
        first: The number of the first batch, from 0.
        length: The number of batches.
    """

    first: Annotated[int, Range(0, 2**53)]
    length: Annotated[int, Range(1, 2**53)]


def batch_number(step: int, skipped_ranges: Iterable[Sequence[int]]) -> int:
    """Return the number, from 0, of the batch of a step, counted from 0.

    Args:
        step: The step.
        skipped_ranges: The ranges (first, count) of skipped batches.
    """
    number = step
    for first, count in sorted(merge_ranges(skipped_ranges)):
        if number >= first:
            number += count
    return number


def merge_ranges(ranges: Iterable[Sequence[int]]) -> list[tuple[int, int]]:
    """Merge ranges (first, count) that overlap or touch."""
    merged: list[tuple[int, int]] = []
    for first, count in sorted((first, count) for first, count in ranges):
        if merged and first <= sum(merged[-1]):
            earlier, so_many = merged.pop()
            first, count = earlier, max(earlier + so_many, first + count) - earlier
        merged.append((first, count))
    return merged


class InvalidBatch(UserError):
    """The batch of a step holds a token id outside the vocabulary."""

    def __init__(self, step: int, reason: str):
        super().__init__(reason)
        self.step = step


class CheckedBatches:
    """The batches of a source, in order, without the skipped ones.

    Args:
        source: The source.
        interface: The task's interface, for the sizes of its vocabularies.
        skipped_ranges: The ranges (first, count) of skipped batches.

    Attributes:
        source: The source.
    """

    def __init__(self, source: BatchSource, interface: TaskInterface, skipped_ranges: Iterable[Sequence[int]] = ()):
        self.source, self._skipped_ranges = source, merge_ranges(skipped_ranges)
        self._sizes = _vocabulary_sizes(interface)

    def with_source(self, source: BatchSource) -> "CheckedBatches":
        """Return the same batches of another source, such as a part of their rows."""
        copied = copy.copy(self)
        copied.source = source
        return copied

    def __getitem__(self, step: int) -> Batch:
        """Return the batch of a step, counted from 0.

        Raises:
            InvalidBatch: If it has a token outside of its vocabulary; the message names the first.
        """
        number = batch_number(step, self._skipped_ranges)
        batch = self.source[number]
        for name, size in self._sizes.items():
            if name in batch:
                wrong = _first_bad_token(name, np.asarray(batch[name]), size)
                if wrong is not None:
                    raise InvalidBatch(step + 1, f"batch {number} (counted from 0) has {wrong}")
        return batch


def _vocabulary_sizes(interface: TaskInterface) -> dict[str, int]:
    """Return the vocabulary size of each array of token numbers, including labels."""
    vocabularies = interface.vocabularies
    texts = vocabularies.get("joint", vocabularies.get("tokens"))
    sizes = {
        name: size
        for name, input_spec in interface.inputs.items()
        if input_spec.modality is Modality.TOKENS
        and input_spec.positions is not None
        and np.issubdtype(input_spec.dtype, np.integer)
        if (size := vocabularies.get(name, texts)) is not None
    }
    labels = vocabularies.get("labels", vocabularies.get("classes", texts))
    return sizes if labels is None else {**sizes, "labels": labels}


def _first_bad_token(name: str, tokens: np.ndarray, size: int) -> str | None:
    """Describe the first token of an array that is outside of the vocabulary; None if there is none."""
    if not np.issubdtype(tokens.dtype, np.integer) or not tokens.size or (tokens.min() >= 0 and tokens.max() < size):
        return None
    where: tuple[Any, ...] = tuple(map(int, np.argwhere((tokens < 0) | (tokens >= size))[0]))
    return (
        f"{name}{list(where)} = {tokens[where]}, no token of a vocabulary of {size}, 0 to {size - 1}: look at the data "
        "and its tokenizer"
    )
