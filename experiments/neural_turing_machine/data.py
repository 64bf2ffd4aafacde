"""Sequences of bits whose answer an algorithm computes: the problems of Graves et al. 2014, section 4.

Each problem is a class. Its `size` is what makes a sequence longer (vectors, items, bits); sequences that are sampled
together have one size and length. A step has the problem's `num_inputs` numbers, the bits of a vector first and then
flags and scalars, each on its own channel; while an answer is expected the inputs are zero (except in n_grams, which
predicts the next bit).
"""

import dataclasses
import enum
import math
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
from jaxtyping import Bool, Float

from transformer.config import UserError


class SequenceBatch(NamedTuple):
    """Sequences of one length.

    Attributes:
        vectors: The inputs [sequence, step, channel].
        targets: The answers [sequence, step, bit].
        answer_mask: The steps at which an answer is expected.
        step_names: The names of each sequence's steps.
        optimal_nats: The least expected loss of each sequence in nats, if the answer is random; None if it is
            determined.
    """

    vectors: Float[np.ndarray, "B T I"]
    targets: Float[np.ndarray, "B T O"]
    answer_mask: Bool[np.ndarray, " T"]
    step_names: tuple[tuple[str, ...], ...]
    optimal_nats: Float[np.ndarray, " B"] | None = None


class Algorithm(Protocol):
    """A problem: its channels, the lengths of its sequences, and how they are sampled."""

    num_bits: int

    @property
    def num_inputs(self) -> int:
        """The number of inputs of a step."""

    @property
    def num_outputs(self) -> int:
        """The number of bits of an answer's step."""

    @property
    def min_size(self) -> int:
        """The smallest size."""

    def max_steps(self, size: int) -> int:
        """Return the number of steps of the longest sequence of this size."""

    def sample(self, random: np.random.Generator, rows: int, size: int, *, hardest: bool = False) -> SequenceBatch:
        """Sample sequences of one size.

        Args:
            random: The random generator.
            rows: The number of sequences.
            size: The size.
            hardest: Whether to sample the longest sequences, if the size leaves the length open.

        Returns:
            The sequences.
        """


def format_bits(bits: np.ndarray) -> str:
    """Format a vector of bits: 0110."""
    return "".join("1" if bit > 0.5 else "0" for bit in bits)


def _random_bits(random: np.random.Generator, *shape: int) -> np.ndarray:
    return random.integers(0, 2, shape).astype(np.float32)


def _name_steps(
    targets_BxTxO: np.ndarray, step_names: list[list[str]], answer_mask_T: np.ndarray
) -> tuple[tuple[str, ...], ...]:
    """Return the names of the steps that each sequence shows, followed by the expected answers."""
    return tuple(
        (*before, *(f"say {format_bits(target)}" for target in targets[answer_mask_T]))
        for targets, before in zip(targets_BxTxO, step_names, strict=True)
    )


class _VectorProblem:
    """A problem that shows vectors of bits with `num_flags` more channels, and expects bits with `num_marks` more."""

    num_bits: int
    num_flags: ClassVar[int]
    num_marks: ClassVar[int] = 0

    @property
    def num_inputs(self) -> int:
        return self.num_bits + self.num_flags

    @property
    def num_outputs(self) -> int:
        return self.num_bits + self.num_marks


@dataclasses.dataclass(frozen=True)
class Copy(_VectorProblem):
    """Copy `size` random vectors after a delimiter (section 4.1).

    Channels: bits, delimiter.

    Attributes:
        num_bits: The bits of a vector.
    """

    num_bits: int = 8

    min_size: ClassVar[int] = 1
    num_flags: ClassVar[int] = 1

    def max_steps(self, size: int) -> int:
        return 2 * size + 1

    def sample(self, random: np.random.Generator, rows: int, size: int, *, hardest: bool = False) -> SequenceBatch:
        return self.copy_vectors(_random_bits(random, rows, size, self.num_bits))

    def copy_vectors(self, bits_BxLxO: Float[np.ndarray, "B L O"]) -> SequenceBatch:
        """Return the sequences that ask for copies of these vectors."""
        rows, size, bits = bits_BxLxO.shape
        vectors = np.zeros((rows, self.max_steps(size), self.num_inputs), np.float32)
        vectors[:, :size, :bits] = bits_BxLxO
        vectors[:, size, bits] = 1
        targets = np.zeros((rows, self.max_steps(size), bits), np.float32)
        targets[:, size + 1 :] = bits_BxLxO
        answer_mask = np.arange(self.max_steps(size)) > size
        step_names = [[*map(format_bits, sequence), "delimiter"] for sequence in bits_BxLxO]
        return SequenceBatch(vectors, targets, answer_mask, _name_steps(targets, step_names, answer_mask))


@dataclasses.dataclass(frozen=True)
class RepeatCopy(_VectorProblem):
    """Repeat `size` random vectors n times after a delimiter, then emit an end mark (section 4.2).

    n is uniform from 1 to `max_repeats`, equal for sequences that are sampled together, and `max_repeats` in the
    hardest. The input is (n - mean) / deviation of that distribution. Channels: bits, delimiter, number. Answers: bits,
    end mark.

    Attributes:
        num_bits: The bits of a vector.
        max_repeats: The most repeats.
    """

    num_bits: int = 8
    max_repeats: int = 10

    min_size: ClassVar[int] = 1
    num_flags: ClassVar[int] = 2
    num_marks: ClassVar[int] = 1

    def max_steps(self, size: int) -> int:
        return size + 1 + size * self.max_repeats + 1

    def normalize_repeats(self, times: int) -> float:
        """Return the normalized number of repeats, as the model sees it."""
        return (times - (1 + self.max_repeats) / 2) / math.sqrt(max(self.max_repeats**2 - 1, 1) / 12)

    def sample(self, random: np.random.Generator, rows: int, size: int, *, hardest: bool = False) -> SequenceBatch:
        times = self.max_repeats if hardest else int(random.integers(1, self.max_repeats + 1))
        bits_BxLxO = _random_bits(random, rows, size, self.num_bits)
        steps = size + 1 + size * times + 1
        vectors = np.zeros((rows, steps, self.num_inputs), np.float32)
        vectors[:, :size, : self.num_bits] = bits_BxLxO
        vectors[:, size, self.num_bits :] = 1, self.normalize_repeats(times)
        targets = np.zeros((rows, steps, self.num_outputs), np.float32)
        targets[:, size + 1 : -1, : self.num_bits] = np.tile(bits_BxLxO, (1, times, 1))
        targets[:, -1, self.num_bits] = 1
        answer_mask = np.arange(steps) > size
        step_names = [[*map(format_bits, sequence), f"{times} times"] for sequence in bits_BxLxO]
        return SequenceBatch(vectors, targets, answer_mask, _name_steps(targets, step_names, answer_mask))


@dataclasses.dataclass(frozen=True)
class AssociativeRecall(_VectorProblem):
    """Recall the item after a queried one, among `size` items of several vectors (section 4.3).

    The query is any item but the last. A delimiter stands before every item, another before and after the query.
    Channels: bits, item delimiter, query delimiter.

    Attributes:
        num_bits: The bits of a vector.
        item_length: The vectors of an item.
    """

    num_bits: int = 6
    item_length: int = 3

    min_size: ClassVar[int] = 2
    num_flags: ClassVar[int] = 2

    def max_steps(self, size: int) -> int:
        return size * (self.item_length + 1) + 2 * self.item_length + 2

    def sample(self, random: np.random.Generator, rows: int, size: int, *, hardest: bool = False) -> SequenceBatch:
        items_BxNxLxO = _random_bits(random, rows, size, self.item_length, self.num_bits)
        query_index_B = random.integers(0, size - 1, rows)
        query_BxLxO, answer_BxLxO = (items_BxNxLxO[np.arange(rows), query_index_B + offset] for offset in (0, 1))

        steps, num_item_steps = self.max_steps(size), size * (self.item_length + 1)
        vectors = np.zeros((rows, steps, self.num_inputs), np.float32)
        item_vectors = vectors[:, :num_item_steps].reshape(rows, size, self.item_length + 1, self.num_inputs)
        item_vectors[:, :, 0, self.num_bits] = 1
        item_vectors[:, :, 1:, : self.num_bits] = items_BxNxLxO
        vectors[:, :num_item_steps] = item_vectors.reshape(rows, num_item_steps, self.num_inputs)
        vectors[:, [num_item_steps, num_item_steps + self.item_length + 1], self.num_bits + 1] = 1
        vectors[:, num_item_steps + 1 : num_item_steps + self.item_length + 1, : self.num_bits] = query_BxLxO
        targets = np.zeros((rows, steps, self.num_bits), np.float32)
        targets[:, -self.item_length :] = answer_BxLxO
        answer_mask = np.arange(steps) >= steps - self.item_length

        step_names = [
            [
                *(name for item in items for name in ("item", *map(format_bits, item))),
                *("query", *map(format_bits, query), "answer"),
            ]
            for items, query in zip(items_BxNxLxO, query_BxLxO, strict=True)
        ]
        return SequenceBatch(vectors, targets, answer_mask, _name_steps(targets, step_names, answer_mask))


@dataclasses.dataclass(frozen=True)
class NGrams:
    """Predict the next of `size` bits, each sampled from a distribution given the bits before it (section 4.4).

    Each sequence has its own table: the probability of a one after each of the 2^context contexts, sampled from
    Beta(1/2, 1/2); its first `context_length` bits are fair. The Bayes-optimal prediction after a context that was
    followed n1 times by a one and n0 times by a zero is (n1 + 1/2) / (n1 + n0 + 1) (equation 10; Krichevsky and
    Trofimov 1981): its loss is `optimal_nats`. The bit is the only channel; the first prediction is that after the
    first whole context.

    Attributes:
        context_length: The bits that determine the next one's distribution.
    """

    context_length: int = 5

    num_bits: ClassVar[int] = 1
    num_inputs: ClassVar[int] = 1
    num_outputs: ClassVar[int] = 1

    @property
    def min_size(self) -> int:
        return self.context_length + 1

    def max_steps(self, size: int) -> int:
        return size - 1

    def sample(self, random: np.random.Generator, rows: int, size: int, *, hardest: bool = False) -> SequenceBatch:
        table_BxC = random.beta(0.5, 0.5, (rows, 2**self.context_length))
        bits_BxT = np.zeros((rows, size), np.int64)
        seen_BxCx2 = np.zeros((rows, 2**self.context_length, 2))
        optimum_B, row = np.zeros(rows), np.arange(rows)
        for step in range(size):
            if step < self.context_length:
                bits_BxT[:, step] = random.integers(0, 2, rows)
                continue
            context_B = bits_BxT[:, step - self.context_length : step] @ (1 << np.arange(self.context_length))
            bit_B = (random.random(rows) < table_BxC[row, context_B]).astype(np.int64)
            so_far_Bx2 = seen_BxCx2[row, context_B]
            optimum_B -= np.log((so_far_Bx2[row, bit_B] + 0.5) / (so_far_Bx2.sum(axis=1) + 1))
            seen_BxCx2[row, context_B, bit_B] += 1
            bits_BxT[:, step] = bit_B
        vectors = bits_BxT.astype(np.float32)[..., None]
        names = tuple(tuple(map(str, row)) for row in bits_BxT[:, :-1])
        answer_mask = np.arange(size - 1) >= self.context_length - 1
        return SequenceBatch(vectors[:, :-1], vectors[:, 1:], answer_mask, names, optimum_B)


@dataclasses.dataclass(frozen=True)
class PrioritySort(_VectorProblem):
    """Sort random vectors by priority: of `size` vectors, emit those with the highest priorities, in descending order.

    Section 4.5: the paper shows 20 vectors and asks for 16. Priorities are uniform from -1 to 1. Channels: bits,
    priority, delimiter.

    Attributes:
        num_bits: The bits of a vector.
        num_sorted: The vectors to emit; all if fewer are shown.
    """

    num_bits: int = 8
    num_sorted: int = 16

    min_size: ClassVar[int] = 1
    num_flags: ClassVar[int] = 2

    def max_steps(self, size: int) -> int:
        return size + 1 + min(self.num_sorted, size)

    def sample(self, random: np.random.Generator, rows: int, size: int, *, hardest: bool = False) -> SequenceBatch:
        bits_BxNxO = _random_bits(random, rows, size, self.num_bits)
        priority_BxN = random.uniform(-1, 1, (rows, size)).astype(np.float32)
        order_BxN = np.argsort(-priority_BxN, axis=1)[:, : self.num_sorted]

        vectors = np.zeros((rows, self.max_steps(size), self.num_inputs), np.float32)
        vectors[:, :size, : self.num_bits] = bits_BxNxO
        vectors[:, :size, self.num_bits] = priority_BxN
        vectors[:, size, self.num_bits + 1] = 1
        targets = np.zeros((rows, self.max_steps(size), self.num_bits), np.float32)
        targets[:, size + 1 :] = np.take_along_axis(bits_BxNxO, order_BxN[..., None], axis=1)
        answer_mask = np.arange(self.max_steps(size)) > size
        step_names = [
            [
                *(f"{format_bits(vector)} at {at:+.2f}" for vector, at in zip(sequence, priority, strict=True)),
                "delimiter",
            ]
            for sequence, priority in zip(bits_BxNxO, priority_BxN, strict=True)
        ]
        return SequenceBatch(vectors, targets, answer_mask, _name_steps(targets, step_names, answer_mask))


class Problem(enum.Enum):
    """The problems by name; see their classes."""

    COPY = "copy"
    REPEAT_COPY = "repeat_copy"
    ASSOCIATIVE_RECALL = "associative_recall"
    N_GRAMS = "n_grams"
    PRIORITY_SORT = "priority_sort"


PROBLEMS: dict[Problem, type] = {
    Problem.COPY: Copy,
    Problem.REPEAT_COPY: RepeatCopy,
    Problem.ASSOCIATIVE_RECALL: AssociativeRecall,
    Problem.N_GRAMS: NGrams,
    Problem.PRIORITY_SORT: PrioritySort,
}


def build_algorithm(problem: Problem, numbers: dict[str, int]) -> Algorithm:
    """Build a problem.

    Args:
        problem: The problem.
        numbers: Fields of its class; the others are the paper's.

    Returns:
        The problem.

    Raises:
        UserError: If the problem has no such field, or a number is below 1.
    """
    cls = PROBLEMS[problem]
    own = [field.name for field in dataclasses.fields(cls)]
    for name, number in numbers.items():
        if name not in own:
            raise UserError(
                f"config.task.{name}={number} is nothing that problem={problem.value} has: leave it out; it has "
                f"{' and '.join(own)}"
            )
        if number < 1:
            raise UserError(f"config.task.{name}={number} must be at least 1")
    return cls(**numbers)
