"""Texts labeled with a class, and batches of them."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from jaxtyping import Int

from transformer.data.batches import Batch, Bucket, BucketPlan


class LabeledText(NamedTuple):
    """A text and the number of its class."""

    text: str
    label: int

    @property
    def texts(self) -> tuple[str]:
        """The text as a tuple, like the texts of a `LabeledExample`."""
        return (self.text,)


class LabeledExample(NamedTuple):
    """Texts that belong together, and their label.

    Attributes:
        texts: The texts.
        label: The number of a class or of the correct answer, or a score.
    """

    texts: tuple[str, ...]
    label: float


class WithTextsAndLabel(Protocol):
    """An example of labeled texts, whatever its label is."""

    @property
    def texts(self) -> tuple[str, ...]:
        """Its texts."""

    @property
    def label(self) -> Any:
        """Its label."""


class TokenTypeRule(NamedTuple):
    """How the token types of a sequence follow from its tokens.

    Attributes:
        separator: The token whose first place ends the first text; the types behind it are 1.
        last: The type of the last token; None if it is that of the text before it.
    """

    separator: int
    last: int | None = None

    def types(self, tokens_BxT: Int[np.ndarray, "B T"], lengths_B: Int[np.ndarray, " B"]) -> Int[np.ndarray, "B T"]:
        """Return the token types [B, T] of sequences of these lengths; 0 at padding."""
        separators_BxT = np.cumsum(tokens_BxT == self.separator, axis=1) - (tokens_BxT == self.separator)
        places_T = np.arange(tokens_BxT.shape[1])
        types_BxT = ((separators_BxT > 0) & (places_T < lengths_B[:, None])).astype(np.int32)
        if self.last is not None:
            types_BxT[places_T == lengths_B[:, None] - 1] = self.last
        return types_BxT


class LabeledTextBatches:
    """Endless batches of labeled examples of one length, epoch after epoch.

    An example is a text, or `together` successive texts with one label. It goes to the shortest of `lengths` that fits
    all its texts, which are padded to it. An epoch has every example once. Rows that fill up the last batch have no
    tokens, and `index` -1.

    Each batch has `labels` [B], classes or scores, or [B, N] where a label is N numbers; `index` [B], the number of the
    example; and `tokens` [S B, T] and `lengths` [S B] of S texts together: the first text of every example, then the
    second of every example, and so on, so that row b of each part belongs to example b, even if a batch is split into
    microbatches. With `token_types` it also has `types` [S B, T].

    Args:
        texts: The token numbers of every text.
        labels: The label of every example.
        lengths: The lengths that batches are padded to.
        rows: Examples in a batch.
        seed: The seed of the order, which is drawn from (seed, epoch). None sorts examples by length.
        pad: The padding token.
        together: Texts in an example.
        token_types: The rule of the token types; None if there are none.

    Raises:
        ValueError: If a text is longer than the largest of `lengths`.
    """

    def __init__(
        self,
        texts: Sequence[Sequence[int]],
        labels: Sequence[float] | Sequence[tuple[int, ...]],
        *,
        lengths: Sequence[int],
        rows: int,
        seed: int | None,
        pad: int = 0,
        together: int = 1,
        token_types: TokenTypeRule | None = None,
    ):
        self._texts, self._together, self._pad, self._token_types = texts, together, pad, token_types
        self._labels = np.asarray(labels)
        self._labels = self._labels.astype(np.int32 if self._labels.dtype.kind == "i" else np.float32)
        sizes = np.array([len(text) for text in texts]).reshape(-1, together).max(axis=1)
        if sizes.max() > max(lengths):
            raise ValueError(f"a text of {sizes.max()} tokens is longer than any of lengths={tuple(lengths)}")
        bucket_numbers = np.searchsorted(sorted(lengths), sizes)
        buckets = [
            Bucket(length, rows, np.flatnonzero(bucket_numbers == number))
            for number, length in enumerate(sorted(lengths))
        ]
        self._plan = BucketPlan(buckets, seed)
        self.batches_per_epoch = self._plan.batches_per_epoch

    def __getitem__(self, step: int) -> Batch:
        """Return the batch of one step."""
        bucket, examples = self._plan[step]
        tokens = np.full((self._together * bucket.batch_size, bucket.length), self._pad, np.int32)
        lengths = np.zeros(len(tokens), np.int32)
        labels = np.zeros((bucket.batch_size, *self._labels.shape[1:]), self._labels.dtype)
        index = np.full(bucket.batch_size, -1, np.int32)
        index[: len(examples)], labels[: len(examples)] = examples, self._labels[examples]
        for place in range(self._together):
            for row, example in enumerate(examples, place * bucket.batch_size):
                text = self._texts[example * self._together + place]
                tokens[row, : len(text)], lengths[row] = text, len(text)
        batch = {"tokens": tokens, "lengths": lengths, "labels": labels, "index": index}
        if self._token_types is not None:
            batch["types"] = self._token_types.types(tokens, lengths)
        return batch
