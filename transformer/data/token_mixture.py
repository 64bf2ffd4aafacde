"""Batches from token shards: windows in a random order, of one corpus or of a mixture of several, found in O(1).

No list of windows is kept: which window a row has is computed from (seed, step, row), so that a run begins at any step
at once, and each host reads its own rows.
"""

import concurrent.futures
import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from transformer.config import UserError
from transformer.data.batches import Batch, fingerprint
from transformer.data.packing import fill_rows, put_segment
from transformer.data.text_batches import SpecialTokenFrame, text_length
from transformer.data.token_shards import TokenShards, split_documents

_ROUNDS = 6
_MULTIPLIERS = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)
_READS_AT_ONCE = 32  # from a bucket
_BLOCK_ROWS = 4096  # rows in which a mixture has its sets in exact proportions
_WINDOW_ROWS = 32  # rows at most that are packed together
_WINDOW_SHARE_FREE = 64  # one position in so many of them is left free, without which ten times as many cuts are needed
_ORDER, _OFFSET, _MIXTURE = 1, 2, 3  # what a random number is for


def permute(indices: np.ndarray, size: int, key: Sequence[int]) -> np.ndarray:
    """Permute 0, ..., size - 1 at random, and return what some indices become, in O(1) each.

    A Feistel network permutes the numbers below the next power of 4, by L' = R, R' = L xor F(R, k) with a hash F; what
    falls beyond `size` is permuted again until it does not (cycle walking, Black and Rogaway 2002), at most four times
    on average.

    Args:
        indices: Indices below `size`, of any shape.
        size: The number of what is permuted.
        key: The numbers that determine the permutation.

    Returns:
        int64 indices of the same shape.
    """
    half_bits = np.uint64(max((size - 1).bit_length() + 1, 2) // 2)
    mask = (np.uint64(1) << half_bits) - np.uint64(1)
    keys = np.random.SeedSequence(tuple(key)).generate_state(_ROUNDS, np.uint64)
    permuted = np.array(indices, np.uint64)
    flat = permuted.reshape(-1)
    pending = np.arange(flat.size)
    while pending.size:
        left, right = flat[pending] >> half_bits, flat[pending] & mask
        for round_key in keys:
            mixed = (right + round_key) * _MULTIPLIERS[0]
            mixed = (mixed ^ (mixed >> np.uint64(29))) * _MULTIPLIERS[1]
            left, right = right, left ^ ((mixed >> np.uint64(32)) & mask)
        flat[pending] = (left << half_bits) | right
        pending = pending[flat[pending] >= np.uint64(size)]
    return permuted.astype(np.int64)


@dataclasses.dataclass(frozen=True)
class TokenRange:
    """The tokens `start` to `stop` - 1 of token shards."""

    shards: TokenShards
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def __getitem__(self, stretch: slice) -> np.ndarray:
        """Return the tokens of a stretch of them, which are read."""
        start, stop, _ = stretch.indices(len(self))
        return self.shards.read(self.start + start, self.start + stop)

    def documents(self, most: int) -> list[np.ndarray]:
        """Return the documents within the first `most` tokens, the first and the last of which may be cut."""
        tokens = self.shards.read(self.start, min(self.stop, self.start + most))
        return split_documents(tokens, self.shards.index.end_id)


@dataclasses.dataclass(frozen=True)
class TokenMixture:
    """A mixture of sets of tokens.

    Attributes:
        sets: The sets, all of one tokenizer.
        weights: The share of each in the rows of the batches, summing to 1.
    """

    sets: tuple[TokenRange, ...]
    weights: tuple[float, ...] = (1.0,)

    def __len__(self) -> int:
        """The number of tokens of all sets."""
        return sum(map(len, self.sets))

    def documents(self, most: int) -> list[np.ndarray]:
        """Return the documents within the first tokens of every set, about `most` tokens in all."""
        return [document for token_range in self.sets for document in token_range.documents(most // len(self.sets))]

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the sets and their weights."""
        range_parts = [
            item
            for token_range in self.sets
            for item in (token_range.shards.fingerprint, token_range.start, token_range.stop)
        ]
        return fingerprint([*range_parts, *map(str, self.weights)])


class TokenShardBatches:
    """Endless batches of windows of token shards.

    The windows of a set follow one another without overlap and hold each of its tokens once an epoch, except for fewer
    than a window's at its ends; where they begin and in which order they come is drawn from (seed, epoch). In a
    mixture, every 4,096 rows have the sets in proportion to their weights, as exactly as 4,096 rows can, in an order
    drawn from the seed. The sets have epochs of their own.

    Each batch has `tokens` and `labels` [B, T], the next tokens, and `index` [B], the number of the row in its set. If
    `packed`, the documents in a row do not attend to each other: a batch then also has `segments` (1, 2, ... along a
    row), `positions` (from 0 in each segment) and `counts` (whether the label counts; not at the end token, whose label
    is another document's), all [B, T]. A window then is as long as 16 to 32 rows but for one position in 64, and its
    documents are packed into these rows (transformer.data.packing.fill_rows), which follow one another. Documents are
    cut at the ends of windows, if they are longer than a row, and where no row has room for them.

    Args:
        mixture: The sets and their weights.
        context_length: Positions in a row.
        rows: Rows in a batch.
        seed: The seed of the order.
        packed: Whether documents are segments of their own.
        frame: Special tokens around each window, for bidirectional models, which have no labels; None for none.

    Raises:
        UserError: If a set is too short for one window, or the frame leaves no room for text.
    """

    def __init__(
        self,
        mixture: TokenMixture,
        *,
        context_length: int,
        rows: int,
        seed: int,
        packed: bool = False,
        frame: SpecialTokenFrame | None = None,
    ):
        self._width, self._frame = context_length, frame
        context_length = text_length(context_length, frame)
        self._mixture, self._context, self._seed = mixture, context_length, seed
        self._packed, self.num_rows = packed, rows
        self._threads = concurrent.futures.ThreadPoolExecutor(_READS_AT_ONCE)  # which begin at the first read
        for token_range in mixture.sets:
            if len(token_range) <= context_length:
                raise UserError(
                    f"{token_range.shards.folder} has {len(token_range)} tokens for training and a window needs "
                    f"{context_length + 1} (context_length={context_length}): give more text or a shorter context"
                )
        self._windows = [
            _choose_packed_window(len(token_range), context_length)
            if packed
            else _Window(1, context_length, len(token_range))
            for token_range in mixture.sets
        ]
        # The rows of a window may belong to two batches.
        self._packed_rows = functools.lru_cache(2 * len(mixture.sets))(self._pack_rows)
        self._block_counts = _exact_shares(mixture.weights, _BLOCK_ROWS)

    def __getitem__(self, step: int) -> Batch:
        """Return the batch of one step."""
        return self.read_rows(step, 0, self.num_rows)

    def read_rows(self, step: int, start: int, stop: int) -> Batch:
        """Return the rows `start` to `stop` - 1 of the batch of a step; nothing else is read."""
        set_of_each_row, numbers = self._locate_rows(step * self.num_rows + np.arange(start, stop, dtype=np.int64))
        columns = ["tokens", *(["labels"] if self._frame is None else [])]
        columns += ["segments", "positions"] if self._packed else []
        batch: Batch = {name: np.empty((stop - start, self._width), np.int32) for name in columns}
        index = np.empty(stop - start, np.int64)
        for which in map(int, np.unique(set_of_each_row)):
            rows = np.flatnonzero(set_of_each_row == which)
            numbers_of_windows, inside = np.divmod(numbers[rows], self._windows[which].num_rows)
            window_numbers, window_of_row = np.unique(numbers_of_windows, return_inverse=True)
            window_indices, begins = self._locate_windows(which, window_numbers)
            index[rows] = window_indices[window_of_row] * self._windows[which].num_rows + inside
            # Each answer of a bucket takes its time: they are waited for together.
            on_disk = isinstance(self._mixture.sets[which].shards.folder, Path)
            apply: Callable[..., Iterable[Batch]] = map if on_disk else self._threads.map
            read = self._packed_rows if self._packed else self._read_window
            windows = list(apply(read, [which] * len(begins), begins.tolist()))
            for row, window, place in zip(rows, window_of_row, inside, strict=True):
                for name, values in batch.items():
                    values[row] = windows[window][name][place]
        if self._packed:
            is_end = batch["tokens"] == self._mixture.sets[0].shards.index.end_id
            batch["counts"] = (batch["segments"] > 0) & ~is_end
        return batch | {"index": (index % 2**31).astype(np.int32)}

    def _read_window(self, which: int, begin: int) -> Batch:
        """Return the row of a window that is not packed."""
        stream = self._mixture.sets[which].shards.read(begin, begin + self._context + 1)
        if self._frame is None:
            return {"tokens": stream[None, :-1], "labels": stream[None, 1:]}
        return {"tokens": self._frame.wrap(stream[:-1])[None]}

    def _pack_rows(self, which: int, begin: int) -> Batch:
        """Return the rows of a packed window."""
        shards, (num_rows, size, _) = self._mixture.sets[which].shards, self._windows[which]
        stream = shards.read(begin, begin + size + 1)
        bounds = np.unique([0, *(1 + np.flatnonzero(stream[:size] == shards.index.end_id)), size])
        columns = ("tokens", "labels", "segments", "positions")
        rows: Batch = {name: np.zeros((num_rows, self._context), np.int32) for name in columns}
        for row, packed in enumerate(fill_rows(np.diff(bounds).tolist(), self._context, num_rows)):
            first = 0
            for segment, chunk in enumerate(packed, start=1):
                start, stop = (bounds[chunk.document_index] + place for place in (chunk.start, chunk.stop))
                put_segment(rows, row, first, segment, stream[start:stop], stream[start + 1 : stop + 1])
                first += chunk.size
        return rows

    def _locate_rows(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the set of each row, counted from the first step, and its number among the set's rows."""
        if len(self._windows) == 1:
            return np.zeros(len(rows), np.int64), rows
        blocks, places = np.divmod(rows, _BLOCK_ROWS)
        sets, numbers = np.empty_like(places), np.empty_like(places)
        for block in np.unique(blocks):
            slots = permute(np.arange(_BLOCK_ROWS), _BLOCK_ROWS, (_MIXTURE, self._seed, int(block)))
            sets_of_block = np.searchsorted(np.cumsum(self._block_counts), slots, side="right")
            in_block = blocks == block
            sets[in_block] = sets_of_block[places[in_block]]
            for which, count in enumerate(self._block_counts):
                before = np.cumsum(sets_of_block == which) - 1
                in_set = in_block & (sets == which)
                numbers[in_set] = block * count + before[places[in_set]]
        return sets, numbers

    def _locate_windows(self, which: int, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the windows of a set that come at these numbers in its order, and the tokens where they begin."""
        token_range, windows = self._mixture.sets[which], self._windows[which]
        epochs, places = np.divmod(numbers, windows.num_windows)
        window_indices, begins = np.empty_like(places), np.empty_like(places)
        for epoch in np.unique(epochs):
            in_epoch, key = epochs == epoch, (self._seed, which, int(epoch))
            window_indices[in_epoch] = permute(places[in_epoch], windows.num_windows, (_ORDER, *key))
            offset = permute(np.zeros(1), windows.num_left_out + 1, (_OFFSET, *key))[0]
            begins[in_epoch] = token_range.start + offset + window_indices[in_epoch] * windows.size
        return window_indices, begins


def _exact_shares(weights: Sequence[float], total: int) -> np.ndarray:
    """Divide a whole number in proportion to weights, by largest remainders; each share is at least 1."""
    ideal_shares = np.array(weights, np.float64) / sum(weights) * total
    shares = np.maximum(np.floor(ideal_shares), 1).astype(np.int64)
    while shares.sum() != total:
        # Above the total only where shares were raised to 1.
        step = 1 if shares.sum() < total else -1
        allowed = shares > 1 if step < 0 else np.ones(len(shares), bool)
        shares[np.argmax(np.where(allowed, step * (ideal_shares - shares), -np.inf))] += step
    return shares


class _Window(NamedTuple):
    """The windows of a set.

    Attributes:
        num_rows: The number of rows of a window.
        size: The number of tokens of a window.
        num_tokens: The number of tokens of the set.
    """

    num_rows: int
    size: int
    num_tokens: int

    @property
    def num_windows(self) -> int:
        """The number of windows."""
        return (self.num_tokens - 1) // self.size

    @property
    def num_left_out(self) -> int:
        """The number of tokens that no window of an epoch has."""
        return self.num_tokens - 1 - self.num_windows * self.size


def _choose_packed_window(num_tokens: int, context_length: int) -> _Window:
    """Return the packed windows that leave out the fewest tokens of a set."""
    most = min(_WINDOW_ROWS, (num_tokens - 1) // context_length)
    sizes = {rows: rows * context_length - rows * context_length // _WINDOW_SHARE_FREE for rows in range(most, 0, -1)}
    windows = [_Window(rows, size, num_tokens) for rows, size in sizes.items() if 2 * rows > most]
    return min(windows, key=lambda window: window.num_left_out)
