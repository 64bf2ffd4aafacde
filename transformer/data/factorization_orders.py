"""Orders of factorization: which positions a permutation language model predicts, and what each may know."""

import dataclasses
import enum
from typing import NamedTuple

import numpy as np

from transformer.data.batches import Batch, EpochBatchSource

# Beside the other draws of a seed: the same numbers choose where texts begin.
_ORDERS = 4


class ContextAttention(enum.Enum):
    """What the positions that are not predicted know of each other.

    permuted: they stand at the beginning of the order, each behind those before it (Yang et al. 2019, section 2.3).
    bidirectional: each knows all of them, as in the authors' code; what is predicted is the same.
    """

    PERMUTED = "permuted"
    BIDIRECTIONAL = "bidirectional"


class FactorizationOrders(NamedTuple):
    """`order`: each position's place; `predicted`: the positions of the last places, from left to right."""

    order: np.ndarray
    predicted: np.ndarray


@dataclasses.dataclass(frozen=True)
class OrderSampler:
    """Factorization orders whose last 1 / `partial_prediction_k` positions are predicted (Yang et al. 2019, 2.3).

    With `max_span_length` above 1 the predicted positions lie in spans: the text is cut into contexts of L
    `partial_prediction_k` positions, L drawn from 1 ... `max_span_length`, and L neighbors of each are predicted
    (section 3.1, which says 5). The order among them is drawn all the same.
    """

    length: int
    partial_prediction_k: int = 6
    max_span_length: int = 1
    context_attention: ContextAttention = ContextAttention.BIDIRECTIONAL

    @property
    def count(self) -> int:
        """P, the positions that are predicted."""
        return max(self.length // self.partial_prediction_k, 1)

    def draw(self, random: np.random.Generator, rows: int) -> FactorizationOrders:
        """The orders of so many texts: every order of the predicted positions is as likely as any other."""
        luck = random.random((rows, self.length))
        if self.max_span_length > 1:
            for row in luck:
                row[self._spans(random)] += 1
        place = np.argsort(np.argsort(luck, axis=1), axis=1).astype(np.int32)
        known = self.length - self.count
        predicted = np.sort(np.argsort(luck, axis=1)[:, known:], axis=1).astype(np.int32)
        order = np.maximum(place - known + 1, 0) if self.context_attention is ContextAttention.BIDIRECTIONAL else place
        return FactorizationOrders(order, predicted)

    def _spans(self, random: np.random.Generator) -> np.ndarray:
        """The positions of spans, `count` of them; single ones fill up what the spans leave."""
        chosen = np.zeros(self.length, bool)
        begin = 0
        while begin < self.length and (left := self.count - chosen.sum()) > 0:
            span = int(random.integers(1, self.max_span_length + 1))
            first = begin + int(random.integers(span * (self.partial_prediction_k - 1) + 1))
            chosen[first : min(first + min(span, left), self.length)] = True
            begin += span * self.partial_prediction_k
        others = np.flatnonzero(~chosen)
        chosen[random.choice(others, self.count - chosen.sum(), replace=False)] = True
        return np.flatnonzero(chosen)


@dataclasses.dataclass(frozen=True)
class PermutedBatches:
    """Batches of a source with `order` and `predicted` of every row's text, drawn from (seed, step).

    Of rows that are several texts one after another, `texts`, each has an order of its own.
    """

    batches: EpochBatchSource
    permutations: OrderSampler
    seed: int
    texts: int = 1

    @property
    def batches_per_epoch(self) -> int:
        """That of the source."""
        return self.batches.batches_per_epoch

    def __getitem__(self, step: int) -> Batch:
        """The batch of one step."""
        batch = self.batches[step]
        rows = len(batch["tokens"])
        random = np.random.default_rng((self.seed, step, _ORDERS))
        order, predicted = self.permutations.draw(random, rows * self.texts)
        return {**batch, "order": order.reshape(rows, -1), "predicted": predicted.reshape(rows, -1)}
