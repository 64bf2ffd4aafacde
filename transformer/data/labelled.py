"""Texts that are labelled with a class, and batches of them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from transformer.data.batches import Batch, Bucket, BucketPlan


class Labelled(NamedTuple):
    """A text and the number of its class."""

    text: str
    label: int


class LabelledBatches:
    """Endless batches of at most `rows` texts of one length, epoch after epoch.

    A text goes to the shortest of `lengths` that holds it, and is padded to that. An epoch holds every text once, in an
    order drawn from (seed, epoch); without a seed, the shorter ones first. A last batch that texts do not fill has rows
    of no tokens whose `index` is -1.

    Each batch has `tokens` [B, T], `lengths` [B], `labels` [B], the classes, and `index` [B], the number of the text.

    Errors: ValueError for a text that is longer than the greatest of `lengths`.
    """

    def __init__(
        self,
        texts: Sequence[Sequence[int]],
        labels: Sequence[int],
        *,
        lengths: Sequence[int],
        rows: int,
        seed: int | None,
        pad: int = 0,
    ):
        self._texts, self._labels, self._pad = texts, np.array(labels, np.int32), pad
        sizes = np.array([len(text) for text in texts])
        if sizes.max() > max(lengths):
            raise ValueError(f"a text of {sizes.max()} tokens is longer than any of lengths={tuple(lengths)}")
        bucket_of = np.searchsorted(sorted(lengths), sizes)
        buckets = [
            Bucket(length, rows, np.flatnonzero(bucket_of == number)) for number, length in enumerate(sorted(lengths))
        ]
        self._plan = BucketPlan(buckets, seed)
        self.batches_per_epoch = self._plan.batches_per_epoch

    def __getitem__(self, step: int) -> Batch:
        """The batch of one step."""
        bucket, examples = self._plan[step]
        tokens = np.full((bucket.rows, bucket.length), self._pad, np.int32)
        lengths, labels = np.zeros((2, bucket.rows), np.int32)
        index = np.full(bucket.rows, -1, np.int32)
        index[: len(examples)], labels[: len(examples)] = examples, self._labels[examples]
        for row, example in enumerate(examples):
            text = self._texts[example]
            tokens[row, : len(text)], lengths[row] = text, len(text)
        return {"tokens": tokens, "lengths": lengths, "labels": labels, "index": index}
