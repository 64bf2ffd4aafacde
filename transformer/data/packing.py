"""Packing: several documents in one row, each a segment that does not attend to the others."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from transformer.config import UserError
from transformer.data.batches import Batch


class Chunk(NamedTuple):
    """The tokens `start` to `stop` - 1 of a document."""

    document_index: int
    start: int
    stop: int

    @property
    def size(self) -> int:
        """The number of its tokens."""
        return self.stop - self.start


def first_fit(sizes: Sequence[int], room: int) -> list[int]:
    """Assign every item to the first bin that still has room for it, else to a new one (Johnson 1973).

    It takes O(n log n), with a tree in which every node holds the largest room of any bin below it.

    Args:
        sizes: The sizes of the items.
        room: The size of a bin.

    Returns:
        The bin of every item.
    """
    leaves = 1 << max(len(sizes) - 1, 0).bit_length()
    most = [room] * (2 * leaves)
    bins = []
    for size in sizes:
        node = 1
        while node < leaves:
            node = 2 * node if most[2 * node] >= size else 2 * node + 1
        bins.append(node - leaves)
        most[node] -= size
        while node > 1:
            node //= 2
            most[node] = max(most[2 * node], most[2 * node + 1])
    return bins


def cut_documents(sizes: Sequence[int], longest: int) -> list[Chunk]:
    """Cut documents of these sizes into chunks of at most `longest` tokens, in order."""
    return [
        Chunk(number, start, min(start + longest, size))
        for number, size in enumerate(sizes)
        for start in range(0, size, longest)
    ]


def fill_rows(sizes: Sequence[int], room: int, num_rows: int) -> list[list[Chunk]]:
    """Pack documents into a number of rows, first-fit, and cut those that then fit into none.

    Args:
        sizes: The documents' numbers of tokens, at most `room` x `num_rows` in all.
        room: The number of tokens of a row.
        num_rows: The number of rows.

    Returns:
        The chunks of each row.
    """
    chunks = cut_documents(sizes, room)
    rows: list[list[Chunk]] = [[] for _ in range(num_rows)]
    overflow: list[Chunk] = []
    for chunk, row in zip(chunks, first_fit([chunk.size for chunk in chunks], room), strict=True):
        (rows[row] if row < num_rows else overflow).append(chunk)
    # The more room a row has, the fewer pieces they are cut into.
    gaps = [(room - sum(chunk.size for chunk in row), number) for number, row in enumerate(rows)]
    gaps.sort(key=lambda gap: (-gap[0], gap[1]))
    for document, start, stop in overflow:
        while start < stop:
            free, row = gaps[0]
            size = min(free, stop - start)
            rows[row].append(Chunk(document, start, start + size))
            start += size
            gaps[:1] = [(free - size, row)] if free > size else []
    return rows


def put_segment(batch: Batch, row: int, first: int, segment: int, tokens: np.ndarray, labels: np.ndarray) -> None:
    """Write a segment into a row of a packed batch.

    Args:
        batch: The batch, of which `tokens`, `labels`, `segments` and `positions` [B, T] are written.
        row: The row.
        first: The position where the segment begins.
        segment: Its number, from 1.
        tokens: Its tokens.
        labels: The labels of the first of them.
    """
    filled = slice(first, first + len(tokens))
    batch["tokens"][row, filled], batch["labels"][row, first : first + len(labels)] = tokens, labels
    batch["segments"][row, filled], batch["positions"][row, filled] = segment, np.arange(len(tokens))


class PackedBatches:
    """Endless batches whose rows hold one or more documents, epoch after epoch.

    Documents are cut into chunks of at most `context_length` tokens, and the chunks are packed into rows, first-fit. An
    epoch has every row once.

    Each batch has `tokens`, `labels`, `segments` (1, 2, ... along a row, 0 for padding), `positions` (from 0 in each
    segment) and `counts` (whether the label counts), all [B, T], and `index` [B], the row's number, -1 for a row that
    only fills up the last batch. A label is the document's next token, also where a chunk ends. After a document's last
    token it is `end`, which counts; without an end token nothing is predicted there. Documents without a token are left
    out. The attribute `padding` is the share of positions that hold no token.

    Args:
        documents: The documents' token numbers.
        context_length: Positions in a row.
        rows: Rows in a batch.
        seed: The seed of the order, which is drawn from (seed, epoch). None keeps that of the data.
        end: The end token, if there is one.
        pad: The padding token.

    Raises:
        UserError: If no document has a token.
    """

    def __init__(
        self,
        documents: Sequence[np.ndarray],
        *,
        context_length: int,
        rows: int,
        seed: int | None,
        end: int | None,
        pad: int = 0,
    ):
        self._documents, self._context, self._rows = documents, context_length, rows
        self._seed, self._end, self._pad = seed, end, pad
        chunks = cut_documents([len(document) for document in documents], context_length)
        if not chunks:
            raise UserError("the text has no tokens: give documents that are not empty")
        bins = first_fit([chunk.size for chunk in chunks], context_length)
        self._packed: list[list[Chunk]] = [[] for _ in range(max(bins) + 1)]
        for chunk, row in zip(chunks, bins, strict=True):
            self._packed[row].append(chunk)
        self.batches_per_epoch = -(-len(self._packed) // rows)
        positions = self.batches_per_epoch * rows * context_length
        self.padding = 1 - sum(chunk.size for chunk in chunks) / positions
        self._plan: tuple[int, np.ndarray] | None = None

    def __getitem__(self, step: int) -> Batch:
        """Return the batch of one step."""
        epoch, position = divmod(step, self.batches_per_epoch)
        if self._plan is None or self._plan[0] != epoch:
            self._plan = (epoch, self._order_epoch(epoch))
        return self._make_batch(self._plan[1][position * self._rows : (position + 1) * self._rows])

    def _order_epoch(self, epoch: int) -> np.ndarray:
        if self._seed is None:
            return np.arange(len(self._packed))
        return np.random.default_rng((self._seed, epoch)).permutation(len(self._packed))

    def _make_batch(self, numbers: np.ndarray) -> Batch:
        shape = self._rows, self._context
        batch: Batch = {name: np.full(shape, self._pad, np.int32) for name in ("tokens", "labels")}
        batch |= {name: np.zeros(shape, np.int32) for name in ("segments", "positions")}
        batch["counts"] = np.zeros(shape, bool)
        batch["index"] = np.full(self._rows, -1, np.int32)
        batch["index"][: len(numbers)] = numbers
        for row, number in enumerate(numbers):
            first = 0
            for segment, chunk in enumerate(self._packed[number], start=1):
                document = self._documents[chunk.document_index]
                labels = document[chunk.start + 1 : chunk.stop + 1]
                if len(labels) < chunk.size and self._end is not None:
                    labels = np.append(labels, self._end)
                put_segment(batch, row, first, segment, document[chunk.start : chunk.stop], labels)
                batch["counts"][row, first : first + len(labels)] = True
                first += chunk.size
        return batch
