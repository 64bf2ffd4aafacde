"""Windows of one long stream of tokens: random crops, each token once, or successive segments."""

import dataclasses
from collections.abc import Iterable
from typing import Protocol

import numpy as np

from transformer.config import UserError
from transformer.data.batches import Batch, Bucket, BucketPlan


def join_documents(documents: Iterable[np.ndarray], end: int | None) -> np.ndarray:
    """Concatenate the tokens of all documents.

    Args:
        documents: The documents.
        end: The end token to put after each document; None puts none.
    """
    stop = np.array([] if end is None else [end], np.int32)
    parts = [part for document in documents for part in (np.asarray(document, np.int32), stop)]
    return np.concatenate(parts) if parts else stop[:0]


@dataclasses.dataclass(frozen=True)
class SpecialTokenFrame:
    """The special tokens before and after the tokens of a window, as BERT's [CLS] and [SEP]; None for none."""

    bos_id: int | None = None
    eos_id: int | None = None

    @property
    def num_tokens(self) -> int:
        """The number of positions that they take."""
        return (self.bos_id is not None) + (self.eos_id is not None)

    def wrap(self, tokens: np.ndarray) -> np.ndarray:
        """Return the tokens of one window with those of the frame."""
        return np.array([x for x in (self.bos_id, *tokens, self.eos_id) if x is not None], np.int32)


def text_length(context_length: int, frame: SpecialTokenFrame | None) -> int:
    """Return the positions of a row that a frame leaves for text.

    Raises:
        UserError: If there are none.
    """
    length = context_length if frame is None else context_length - frame.num_tokens
    if length < 1:
        raise UserError(f"context_length={context_length} leaves no room for text beside the begin and the end token")
    return length


class WindowBatches:
    """Batches of windows of a stream of tokens.

    Crops start at random positions, all equally likely, drawn from (seed, step) (as in Karpathy's nanoGPT); an epoch
    reads about as many tokens as the stream has. Without a seed, or with `crops` False, windows do not overlap and an
    epoch has the stream once, in order or in an order drawn from (seed, epoch). The last window may be partly filled,
    and rows that fill up the last batch are empty.

    Each batch has `tokens` [B, T] and `index` [B]: where a crop starts, or a window's number, -1 for an empty row.
    Without a frame, `labels` [B, T] are the next tokens, so that an epoch predicts every token except the stream's
    first; windows with a frame are for bidirectional models and have no labels. If windows do not overlap, `lengths`
    [B] is the number of real positions; the others hold `pad`.

    Args:
        stream: The tokens.
        context_length: Positions in a row.
        rows: Rows in a batch.
        seed: The seed; None for evaluation.
        frame: Special tokens around each window; None for none.
        crops: Whether windows start at random positions, if there is a seed.
        pad: The padding token.

    Raises:
        UserError: If the stream is too short for one crop, or the frame leaves no room for text.
    """

    def __init__(
        self,
        stream: np.ndarray,
        *,
        context_length: int,
        rows: int,
        seed: int | None,
        frame: SpecialTokenFrame | None = None,
        crops: bool = True,
        pad: int = 0,
    ):
        self._stream, self._frame, self._pad = stream, frame, pad
        self._context, self._rows = context_length, rows
        self._stride = text_length(context_length, frame)
        self._label_shift = 1 if frame is None else 0
        needed = self._label_shift + (1 if seed is None else self._stride)
        if len(stream) < needed:
            raise UserError(
                f"the text has {len(stream)} tokens and a window needs {needed} (context_length={context_length}): "
                "give more text or a shorter context"
            )
        self.windows = -(-(len(stream) - self._label_shift) // self._stride)
        self.batches_per_epoch = -(-self.windows // rows)
        self._seed = seed if crops else None  # used by crops only
        self._plan = BucketPlan([Bucket(context_length, rows, np.arange(self.windows))], None if crops else seed)

    def __getitem__(self, step: int) -> Batch:
        """Return the batch of one step."""
        if self._seed is not None:
            places = len(self._stream) - self._label_shift - self._stride + 1
            starts = np.random.default_rng((self._seed, step)).integers(0, places, self._rows)
            batch = self._make_batch(starts, starts)
            del batch["lengths"]
            return batch
        _, numbers = self._plan[step]
        return self._make_batch(numbers * self._stride, numbers)

    def _make_batch(self, starts: np.ndarray, index: np.ndarray) -> Batch:
        shape = self._rows, self._context
        batch = {
            "tokens": np.full(shape, self._pad, np.int32),
            "lengths": np.zeros(self._rows, np.int32),
            "index": np.full(self._rows, -1, np.int32),
        }
        if self._frame is None:
            batch["labels"] = np.full(shape, self._pad, np.int32)
        batch["index"][: len(index)] = index
        last = len(self._stream) - self._label_shift
        for row, start in enumerate(starts):
            stop = min(start + self._stride, last)
            tokens = self._stream[start:stop]
            if self._frame is None:
                batch["labels"][row, : len(tokens)] = self._stream[start + 1 : stop + 1]
            else:
                tokens = self._frame.wrap(tokens)
            batch["tokens"][row, : len(tokens)] = tokens
            batch["lengths"][row] = len(tokens)
        return batch


class TokenStream(Protocol):
    """A stream of tokens of which any stretch can be read: an array, or token shards."""

    def __len__(self) -> int:
        """Return the number of tokens."""

    def __getitem__(self, stretch: slice, /) -> np.ndarray:
        """Return the tokens of a stretch."""


class SegmentBatches:
    """Batches of successive segments of a stream of tokens, for models with a memory.

    The stream is cut into one lane for each row. Row r of a step continues lane r where it was at the step before. An
    epoch reads all lanes from their beginnings; where these are is drawn from (seed, epoch), so that segments are cut
    elsewhere in every epoch.

    Each batch has `tokens` [B, T]; `labels` [B, T], the next tokens; `past` [B], how many tokens of its lane come
    before a segment; `lane` [B], the number of the row; and `index` [B], where the segment begins in the stream.

    Args:
        stream: The tokens.
        context_length: Tokens in a segment.
        rows: Rows in a batch.
        seed: The seed.

    Raises:
        UserError: If the stream is too short for one segment in each row.
    """

    def __init__(self, stream: TokenStream, *, context_length: int, rows: int, seed: int):
        self._stream, self._context, self.num_rows, self._seed = stream, context_length, rows, seed
        self.batches_per_epoch = (len(stream) - 1) // (rows * context_length)
        if not self.batches_per_epoch:
            raise UserError(
                f"the text has {len(stream)} tokens, and rows={rows} of context_length={context_length} that follow "
                f"one another need {rows * context_length + 1}: give more text, fewer rows or a shorter context"
            )

    def __getitem__(self, step: int) -> Batch:
        """Return the batch of one step."""
        return self.read_rows(step, 0, self.num_rows)

    def read_rows(self, step: int, start: int, stop: int) -> Batch:
        """Return the rows `start` to `stop` - 1 of the batch of a step; nothing else is read."""
        epoch, number = divmod(step, self.batches_per_epoch)
        lane = self.batches_per_epoch * self._context
        spare = len(self._stream) - self.num_rows * lane
        begin = int(np.random.default_rng((self._seed, epoch)).integers(spare))
        lanes = range(start, stop)
        starts = [begin + row * lane + number * self._context for row in lanes]
        stretches = np.stack([self._stream[first : first + self._context + 1] for first in starts]).astype(np.int32)
        return {
            "tokens": np.ascontiguousarray(stretches[:, :-1]),
            "labels": np.ascontiguousarray(stretches[:, 1:]),
            "past": np.full(len(starts), number * self._context, np.int32),
            "lane": np.array(lanes, np.int32),
            "index": (np.array(starts, np.int64) % 2**31).astype(np.int32),
        }
