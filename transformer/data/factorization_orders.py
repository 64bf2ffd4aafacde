"""Factorization orders of permutation language models: which positions are predicted, and what each may attend to."""

import dataclasses
import enum
from typing import NamedTuple

import numpy as np

from transformer.data.batches import Batch, EpochBatchSource
from transformer.data.text_batches import SegmentBatches

# Distinguishes this random stream from that of (seed, step), which chooses where texts begin.
_ORDERS = 4


class ContextAttention(enum.Enum):
    """What the positions that are not predicted attend to.

    Attributes:
        PERMUTED: They come first in the factorization order, each after those before it (Yang et al. 2019, section
            2.3).
        BIDIRECTIONAL: They all attend to each other, as in the authors' code; the predictions are the same.
    """

    PERMUTED = "permuted"
    BIDIRECTIONAL = "bidirectional"


class FactorizationOrders(NamedTuple):
    """Sampled factorization orders.

    Attributes:
        order: The rank of each position in the order, [B, T].
        predicted: The last positions of the order, from left to right, [B, P].
    """

    order: np.ndarray
    predicted: np.ndarray


@dataclasses.dataclass(frozen=True)
class OrderSampler:
    """Samples factorization orders whose last positions are predicted (Yang et al. 2019, section 2.3).

    If `max_span_length` is above 1, predicted positions lie in spans: the text is cut into contexts of L
    `partial_prediction_k` positions, with L drawn from 1 ... `max_span_length`, and L neighbors of each are predicted
    (section 3.1, with 5). Their order is random as well.

    Attributes:
        length: The number of positions T.
        partial_prediction_k: The last 1 / k of the positions are predicted.
        max_span_length: The largest length of a span.
        context_attention: What the positions that are not predicted attend to.
    """

    length: int
    partial_prediction_k: int = 6
    max_span_length: int = 1
    context_attention: ContextAttention = ContextAttention.BIDIRECTIONAL

    @property
    def num_predicted(self) -> int:
        """The number P of predicted positions."""
        return max(self.length // self.partial_prediction_k, 1)

    def draw(self, random: np.random.Generator, rows: int, part: slice = slice(None)) -> FactorizationOrders:
        """Sample the orders of `rows` texts; all orders of the predicted positions are equally likely.

        Args:
            random: The generator.
            rows: The number of texts.
            part: The texts whose orders are made, by default all. Those of a text don't depend on it.
        """
        start, stop, _ = part.indices(rows)
        priorities = random.random((rows, self.length))[start:stop]
        if self.max_span_length > 1:
            # Spans take as many random numbers as it happens: those of the texts before must be drawn.
            for _ in range(start):
                self._sample_spans(random)
            for row in priorities:
                row[self._sample_spans(random)] += 1
        rank = np.argsort(np.argsort(priorities, axis=1), axis=1).astype(np.int32)
        num_context = self.length - self.num_predicted
        predicted = np.sort(np.argsort(priorities, axis=1)[:, num_context:], axis=1).astype(np.int32)
        order = (
            np.maximum(rank - num_context + 1, 0) if self.context_attention is ContextAttention.BIDIRECTIONAL else rank
        )
        return FactorizationOrders(order, predicted)

    def _sample_spans(self, random: np.random.Generator) -> np.ndarray:
        """Return `count` positions in spans; single positions fill up what the spans leave."""
        is_predicted = np.zeros(self.length, bool)
        begin = 0
        while begin < self.length and (remaining := self.num_predicted - is_predicted.sum()) > 0:
            span = int(random.integers(1, self.max_span_length + 1))
            first = begin + int(random.integers(span * (self.partial_prediction_k - 1) + 1))
            is_predicted[first : min(first + min(span, remaining), self.length)] = True
            begin += span * self.partial_prediction_k
        unpredicted = np.flatnonzero(~is_predicted)
        is_predicted[random.choice(unpredicted, self.num_predicted - is_predicted.sum(), replace=False)] = True
        return np.flatnonzero(is_predicted)


@dataclasses.dataclass(frozen=True)
class PermutedBatches:
    """Batches of a source with `order` and `predicted` for every row, drawn from (seed, step).

    Attributes:
        batches: The source.
        permutations: The sampler.
        seed: The seed.
        num_texts: The number of texts in a row, one after another; each has an order of its own.
    """

    batches: EpochBatchSource
    permutations: OrderSampler
    seed: int
    num_texts: int = 1

    @property
    def batches_per_epoch(self) -> int:
        """The number of batches in an epoch of the source."""
        return self.batches.batches_per_epoch

    def __getitem__(self, step: int) -> Batch:
        """Return the batch of one step."""
        batch = self.batches[step]
        rows = len(batch["tokens"])
        return self._add_orders(batch, step, rows, 0, rows)

    def _add_orders(self, batch: Batch, step: int, rows: int, start: int, stop: int) -> Batch:
        """Add their orders to the rows `start` to `stop` - 1 of the batch of a step, which has `rows` rows."""
        random = np.random.default_rng((self.seed, step, _ORDERS))
        part = slice(start * self.num_texts, stop * self.num_texts)
        order, predicted = self.permutations.draw(random, rows * self.num_texts, part)
        return {**batch, "order": order.reshape(stop - start, -1), "predicted": predicted.reshape(stop - start, -1)}


@dataclasses.dataclass(frozen=True)
class PermutedSegments(PermutedBatches):
    """Batches of successive segments with factorization orders, of which a host makes only its own rows.

    Attributes:
        batches: The segments.
    """

    batches: SegmentBatches

    @property
    def num_rows(self) -> int:
        """The number of rows of a batch."""
        return self.batches.num_rows

    def read_rows(self, step: int, start: int, stop: int) -> Batch:
        """Return the rows `start` to `stop` - 1 of the batch of a step; the text of no other is read."""
        return self._add_orders(self.batches.read_rows(step, start, stop), step, self.num_rows, start, stop)
