"""Batches from token shards: windows in a random order, of one corpus or of a mixture of several, found in O(1).

No list of windows is kept: which window a row has is computed from (seed, step, row), so that a run begins at any step
at once, and each host reads its own rows.
"""

import concurrent.futures
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from transformer.config import UserError
from transformer.data.batches import Batch, fingerprint
from transformer.data.token_shards import TokenShards, split_documents

_ROUNDS = 6
_MULTIPLIERS = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)
_READS_AT_ONCE = 32  # from a bucket
_BLOCK_ROWS = 4096  # rows in which a mixture has its sets in exact proportions
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
    half = np.uint64(max((size - 1).bit_length() + 1, 2) // 2)
    mask = (np.uint64(1) << half) - np.uint64(1)
    keys = np.random.SeedSequence(tuple(key)).generate_state(_ROUNDS, np.uint64)
    permuted = np.array(indices, np.uint64)
    flat = permuted.reshape(-1)
    pending = np.arange(flat.size)
    while pending.size:
        left, right = flat[pending] >> half, flat[pending] & mask
        for round_key in keys:
            mixed = (right + round_key) * _MULTIPLIERS[0]
            mixed = (mixed ^ (mixed >> np.uint64(29))) * _MULTIPLIERS[1]
            left, right = right, left ^ ((mixed >> np.uint64(32)) & mask)
        flat[pending] = (left << half) | right
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
        return [document for each in self.sets for document in each.documents(most // len(self.sets))]

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the sets and their weights."""
        of_sets = [item for each in self.sets for item in (each.shards.fingerprint, each.start, each.stop)]
        return fingerprint([*of_sets, *map(str, self.weights)])


class TokenShardBatches:
    """Endless batches of windows of token shards.

    The windows of a set follow one another without overlap and hold each of its tokens once an epoch, except for fewer
    than a window's at its ends; where they begin and in which order they come is drawn from (seed, epoch). In a
    mixture, every 4,096 rows have the sets in proportion to their weights, as exactly as 4,096 rows can, in an order
    drawn from the seed. The sets have epochs of their own.

    Each batch has `tokens` and `labels` [B, T], the next tokens, and `index` [B], the number of the window in its set.
    If `packed`, the documents in a row do not attend to each other: a batch then also has `segments` (1, 2, ... along a
    row), `positions` (from 0 in each segment) and `counts` (whether the label counts; not at the end token, whose label
    is another document's), all [B, T]. Documents are cut where a row ends, so that every position holds a token.

    Args:
        mixture: The sets and their weights.
        context_length: Positions in a row.
        rows: Rows in a batch.
        seed: The seed of the order.
        packed: Whether documents are segments of their own.

    Raises:
        UserError: If a set is too short for one window.
    """

    def __init__(self, mixture: TokenMixture, *, context_length: int, rows: int, seed: int, packed: bool = False):
        self._mixture, self._context, self._rows, self._seed = mixture, context_length, rows, seed
        self._packed, self.num_rows = packed, rows
        self._threads = concurrent.futures.ThreadPoolExecutor(_READS_AT_ONCE)  # which begin at the first read
        for each in mixture.sets:
            if len(each) <= context_length:
                raise UserError(
                    f"{each.shards.folder} has {len(each)} tokens for training and a window needs {context_length + 1} "
                    f"(context_length={context_length}): give more text or a shorter context"
                )
        self._windows = [(len(each) - 1) // context_length for each in mixture.sets]
        self._block_counts = _exact_shares(mixture.weights, _BLOCK_ROWS)

    def __getitem__(self, step: int) -> Batch:
        """Return the batch of one step."""
        return self.read_rows(step, 0, self._rows)

    def read_rows(self, step: int, start: int, stop: int) -> Batch:
        """Return the rows `start` to `stop` - 1 of the batch of a step; nothing else is read."""
        sets, numbers = self._sets_of_rows(step * self._rows + np.arange(start, stop, dtype=np.int64))
        stream = np.empty((stop - start, self._context + 1), np.int32)
        index = np.empty(stop - start, np.int64)
        for which in np.unique(sets):
            rows = np.flatnonzero(sets == which)
            index[rows], begins = self._windows_of_set(int(which), numbers[rows])
            shards = self._mixture.sets[which].shards
            ends = begins + self._context + 1
            # Each answer of a bucket takes its time: they are waited for together.
            apply: Callable[..., Iterable[np.ndarray]] = map if isinstance(shards.folder, Path) else self._threads.map
            windows = apply(shards.read, begins.tolist(), ends.tolist())
            for row, window in zip(rows, windows, strict=True):
                stream[row] = window
        tokens = np.ascontiguousarray(stream[:, :-1])
        batch: Batch = {"tokens": tokens, "labels": np.ascontiguousarray(stream[:, 1:])}
        if self._packed:
            batch |= _segments(tokens, self._mixture.sets[0].shards.index.end_id)
        return batch | {"index": (index % 2**31).astype(np.int32)}

    def _sets_of_rows(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the set of each row, counted from the first step, and its number among the set's rows."""
        if len(self._windows) == 1:
            return np.zeros(len(rows), np.int64), rows
        blocks, places = np.divmod(rows, _BLOCK_ROWS)
        slots = np.empty_like(places)
        for block in np.unique(blocks):
            slots[blocks == block] = permute(places[blocks == block], _BLOCK_ROWS, (_MIXTURE, self._seed, int(block)))
        ends = np.cumsum(self._block_counts)
        sets = np.searchsorted(ends, slots, side="right")
        counts = self._block_counts[sets]
        return sets, blocks * counts + slots - (ends[sets] - counts)

    def _windows_of_set(self, which: int, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the windows of a set that come at these numbers in its order, and the tokens where they begin."""
        each, windows = self._mixture.sets[which], self._windows[which]
        spare = len(each) - 1 - windows * self._context
        epochs, places = np.divmod(numbers, windows)
        chosen, begins = np.empty_like(places), np.empty_like(places)
        for epoch in np.unique(epochs):
            here, key = epochs == epoch, (self._seed, which, int(epoch))
            chosen[here] = permute(places[here], windows, (_ORDER, *key))
            offset = permute(np.zeros(1), spare + 1, (_OFFSET, *key))[0]
            begins[here] = each.start + offset + chosen[here] * self._context
        return chosen, begins


def _exact_shares(weights: Sequence[float], total: int) -> np.ndarray:
    """Divide a whole number in proportion to weights, by largest remainders; each share is at least 1."""
    wanted = np.array(weights, np.float64) / sum(weights) * total
    shares = np.maximum(np.floor(wanted), 1).astype(np.int64)
    while shares.sum() != total:
        # Above the total only where shares were raised to 1.
        step = 1 if shares.sum() < total else -1
        allowed = shares > 1 if step < 0 else np.ones(len(shares), bool)
        shares[np.argmax(np.where(allowed, step * (wanted - shares), -np.inf))] += step
    return shares


def _segments(tokens_BxT: np.ndarray, end_id: int) -> Batch:
    """Return the segments, positions and counted labels of rows in which the end token ends a document."""
    ends = tokens_BxT == end_id
    begins = np.zeros_like(ends)
    begins[:, 1:] = ends[:, :-1]
    places = np.broadcast_to(np.arange(tokens_BxT.shape[1]), tokens_BxT.shape)
    first = np.maximum.accumulate(np.where(begins, places, 0), axis=1)
    return {
        "segments": (1 + np.cumsum(begins, axis=1)).astype(np.int32),
        "positions": (places - first).astype(np.int32),
        "counts": ~ends,
    }
