"""Windows of one long stream of tokens: random crops, each token once, and segments that follow one another."""

import dataclasses
from collections.abc import Iterable

import numpy as np

from transformer.config import UserError
from transformer.data.batches import Batch, Bucket, BucketPlan


def join_documents(documents: Iterable[np.ndarray], end: int | None) -> np.ndarray:
    """The tokens of all documents one after the other, each with the end token behind it if there is one."""
    stop = np.array([] if end is None else [end], np.int32)
    parts = [part for document in documents for part in (np.asarray(document, np.int32), stop)]
    return np.concatenate(parts) if parts else stop[:0]


@dataclasses.dataclass(frozen=True)
class SpecialTokenFrame:
    """What stands before and behind the tokens of a window that is read whole: BERT's [CLS] and [SEP]."""

    begin: int | None = None
    end: int | None = None

    @property
    def size(self) -> int:
        """The positions that it takes."""
        return (self.begin is not None) + (self.end is not None)

    def put_around(self, tokens: np.ndarray) -> np.ndarray:
        """The tokens of one window with those of the frame."""
        return np.array([x for x in (self.begin, *tokens, self.end) if x is not None], np.int32)


class WindowBatches:
    """Batches of `rows` windows, `context` positions wide, of a stream of tokens.

    With a seed, a step's windows start at places drawn from (seed, step), all equally likely (Karpathy's nanoGPT);
    `batches_per_epoch` steps read about as many tokens as the stream has. Without a seed, or with `crops` False, an
    epoch holds the stream once, in windows that do not overlap, in their order or in one drawn from (seed, epoch); the
    last may be partly filled, and rows that fill up the last batch are empty.

    Each batch has `tokens` [B, T] and `index` [B], which is where a crop starts, or a window's number, -1 for a
    row without one. Without a `frame`, `labels` [B, T] are the tokens one further, so that an epoch predicts every
    token but the stream's first; with one, the windows are for a model that reads both ways and have no labels.
    Where windows do not overlap, `lengths` [B] says how many positions are real; the others hold `pad`.

    Raises:
        UserError: For a stream too short for one crop, or a frame that leaves no room.
    """

    def __init__(
        self,
        stream: np.ndarray,
        *,
        context: int,
        rows: int,
        seed: int | None,
        frame: SpecialTokenFrame | None = None,
        crops: bool = True,
        pad: int = 0,
    ):
        self._stream, self._frame, self._pad = stream, frame, pad
        self._context, self._rows = context, rows
        self._new = context if frame is None else context - frame.size
        if self._new < 1:
            raise UserError(f"context={context} leaves no room for text beside the begin and the end token")
        self._ahead = 1 if frame is None else 0
        needed = self._ahead + (1 if seed is None else self._new)
        if len(stream) < needed:
            raise UserError(
                f"the text has {len(stream)} tokens and a window needs {needed} (context={context}): "
                "give more text or a shorter context"
            )
        self.windows = -(-(len(stream) - self._ahead) // self._new)
        self.batches_per_epoch = -(-self.windows // rows)
        self._seed = seed if crops else None  # of crops alone
        self._plan = BucketPlan([Bucket(context, rows, np.arange(self.windows))], None if crops else seed)

    def text_bytes(self, sizes: np.ndarray) -> int:
        """The bytes of text that an epoch's tokens stand for, those of the labels if it has any.

        `sizes` [V] are the bytes that each token adds to a text.
        """
        return int(sizes[self._stream[self._ahead :]].sum())

    def __getitem__(self, step: int) -> Batch:
        """The batch of one step."""
        if self._seed is not None:
            places = len(self._stream) - self._ahead - self._new + 1
            starts = np.random.default_rng((self._seed, step)).integers(0, places, self._rows)
            batch = self._fill(starts, starts)
            del batch["lengths"]
            return batch
        _, numbers = self._plan[step]
        return self._fill(numbers * self._new, numbers)

    def _fill(self, starts: np.ndarray, index: np.ndarray) -> Batch:
        shape = self._rows, self._context
        batch = {
            "tokens": np.full(shape, self._pad, np.int32),
            "lengths": np.zeros(self._rows, np.int32),
            "index": np.full(self._rows, -1, np.int32),
        }
        if self._frame is None:
            batch["labels"] = np.full(shape, self._pad, np.int32)
        batch["index"][: len(index)] = index
        last = len(self._stream) - self._ahead
        for row, start in enumerate(starts):
            stop = min(start + self._new, last)
            tokens = self._stream[start:stop]
            if self._frame is None:
                batch["labels"][row, : len(tokens)] = self._stream[start + 1 : stop + 1]
            else:
                tokens = self._frame.put_around(tokens)
            batch["tokens"][row, : len(tokens)] = tokens
            batch["lengths"][row] = len(tokens)
        return batch


class SegmentBatches:
    """Batches of `rows` segments, `context` tokens each, of a stream of tokens that is cut into as many lanes.

    Row r of a step reads lane r behind where it stood at the step before. An epoch, of `batches_per_epoch` steps, reads
    all lanes from their beginnings; where those lie is drawn from (seed, epoch), so that segments are cut elsewhere in
    every epoch.

    Each batch has `tokens` [B, T], `labels` [B, T], the tokens one further, `past` [B], how many tokens of its lane
    stand before a segment, `lane` [B], the row's number, and `index` [B], where the segment begins in the stream.

    Raises:
        UserError: For a stream too short for one segment a row.
    """

    def __init__(self, stream: np.ndarray, *, context: int, rows: int, seed: int):
        self._stream, self._context, self._rows, self._seed = stream, context, rows, seed
        self.batches_per_epoch = (len(stream) - 1) // (rows * context)
        if not self.batches_per_epoch:
            raise UserError(
                f"the text has {len(stream)} tokens, and rows={rows} of context={context} that follow one another need "
                f"{rows * context + 1}: give more text, fewer rows or a shorter context"
            )

    def __getitem__(self, step: int) -> Batch:
        """The batch of one step."""
        epoch, number = divmod(step, self.batches_per_epoch)
        lane = self.batches_per_epoch * self._context
        spare = len(self._stream) - self._rows * lane
        begin = np.random.default_rng((self._seed, epoch)).integers(spare)
        starts = begin + np.arange(self._rows) * lane + number * self._context
        places = starts[:, None] + np.arange(self._context)
        return {
            "tokens": self._stream[places].astype(np.int32),
            "labels": self._stream[places + 1].astype(np.int32),
            "past": np.full(self._rows, number * self._context, np.int32),
            "lane": np.arange(self._rows, dtype=np.int32),
            "index": starts.astype(np.int32),
        }
