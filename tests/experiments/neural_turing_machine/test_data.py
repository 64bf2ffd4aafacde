"""The problems of bits against brute force: what is shown and asked, the best prediction, the order, the answer."""

import itertools
import math

import numpy as np
import pytest

from experiments.neural_turing_machine.data import (
    AssociativeRecall,
    Copy,
    NGrams,
    PrioritySort,
    Problem,
    RepeatCopy,
    SequenceBatch,
    build_algorithm,
)
from transformer.config import UserError

EVERY = [
    (Copy(num_bits=3), 4),
    (RepeatCopy(num_bits=2, max_repeats=3), 4),
    (AssociativeRecall(num_bits=3, item_length=2), 4),
    (NGrams(context_length=2), 12),
    (PrioritySort(num_bits=3, num_sorted=4), 6),
]


def drawn(problem: object, size: int, rows: int = 5, seed: int = 0, **options: bool) -> SequenceBatch:
    return problem.sample(np.random.default_rng(seed), rows, size, **options)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("problem", "size"), EVERY, ids=lambda value: type(value).__name__)
def test_sequences_are_bits_of_one_length_with_a_name_for_every_step(problem: object, size: int) -> None:
    found = drawn(problem, size, hardest=True)
    rows, steps, inputs = found.vectors.shape
    assert (rows, steps, inputs) == (5, problem.max_steps(size), problem.num_inputs)  # type: ignore[attr-defined]
    assert found.targets.shape == (5, steps, problem.num_outputs)  # type: ignore[attr-defined]
    assert set(np.unique(found.targets)) == {0, 1}
    assert found.answer_mask.shape == (steps,)
    assert [len(names) for names in found.step_names] == [steps] * rows
    again = drawn(problem, size, hardest=True)
    np.testing.assert_array_equal(found.vectors, again.vectors)
    assert (found.vectors != drawn(problem, size, seed=1, hardest=True).vectors).any()
    if not isinstance(problem, NGrams):
        # Nothing is shown while an answer is asked for, and no bit is an answer before.
        assert not found.vectors[:, found.answer_mask].any()
        assert not found.targets[:, ~found.answer_mask].any()


def test_a_copy_is_what_was_shown_before_the_delimiter() -> None:
    found = drawn(Copy(num_bits=3), 4)
    np.testing.assert_array_equal(found.targets[:, 5:], found.vectors[:, :4, :3])
    np.testing.assert_array_equal(found.vectors[..., 3], np.tile(np.eye(9)[4], (5, 1)))
    np.testing.assert_array_equal(found.answer_mask, [False] * 5 + [True] * 4)
    assert found.step_names[0][4] == "delimiter"
    assert found.step_names[0][5] == f"say {found.step_names[0][0]}"


def test_repeats_are_as_many_as_were_asked_for_with_an_end_mark_behind() -> None:
    problem, seen = RepeatCopy(num_bits=2, max_repeats=3), set()
    for seed in range(12):
        found = drawn(problem, 2, seed=seed)
        times, rest = divmod(found.answer_mask.sum() - 1, 2)
        assert rest == 0
        seen.add(times)
        for vectors, targets in zip(found.vectors, found.targets, strict=True):
            expected = [[*vector[:2], 0] for _ in range(times) for vector in vectors[:2]]
            np.testing.assert_array_equal(targets[3:], [*expected, [0, 0, 1]])
        np.testing.assert_allclose(found.vectors[:, 2, 2:], [[1, problem.normalize_repeats(times)]] * 5, rtol=1e-6)
    assert seen == {1, 2, 3}
    shown = np.array([problem.normalize_repeats(times) for times in (1, 2, 3)])
    assert shown.mean() == pytest.approx(0)
    assert (shown**2).mean() == pytest.approx(1)


def test_the_item_behind_the_query_is_the_answer() -> None:
    problem, asked_for = AssociativeRecall(num_bits=8, item_length=2), set()
    for seed in range(8):
        found = drawn(problem, 4, seed=seed)
        for vectors, targets in zip(found.vectors, found.targets, strict=True):
            items, query, inside = [], [], ""
            for vector in vectors[: -problem.item_length]:
                if vector[8]:
                    inside = "item"
                    items.append([])
                elif vector[9]:
                    inside = "query"
                else:
                    (items[-1] if inside == "item" else query).append(tuple(vector[:8]))
            (place,) = [number for number, item in enumerate(items[:-1]) if item == query]
            asked_for.add(place)
            assert [tuple(target) for target in targets[found.answer_mask]] == items[place + 1]
    assert asked_for == {0, 1, 2}


def log_evidence(bits: tuple[int, ...]) -> float:
    """Log of the integral of p^n1 (1 - p)^n0 under Beta(1/2, 1/2): B(n1 + 1/2, n0 + 1/2) / B(1/2, 1/2)."""

    def log_beta(a: float, b: float) -> float:
        return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)

    return log_beta(sum(bits) + 0.5, len(bits) - sum(bits) + 0.5) - log_beta(0.5, 0.5)


def test_the_optimum_is_the_evidence_of_all_tables() -> None:
    """The best predictor's losses add up to -log of the probability of the whole sequence under the prior."""
    found = drawn(NGrams(context_length=2), 30)
    assert found.optimal_nats is not None
    for vectors, targets, optimum in zip(found.vectors, found.targets, found.optimal_nats, strict=True):
        bits = [*vectors[:, 0].astype(int), int(targets[-1, 0])]
        followers = {context: () for context in itertools.product((0, 1), repeat=2)}
        for place in range(2, len(bits)):
            followers[tuple(bits[place - 2 : place])] += (bits[place],)
        assert optimum == pytest.approx(-sum(map(log_evidence, followers.values())), rel=1e-9)
        assert len(bits) == 30
        np.testing.assert_array_equal(targets[:-1, 0], vectors[1:, 0])
    np.testing.assert_array_equal(found.answer_mask, [False] + [True] * 28)


def test_bits_follow_their_context_by_a_table_of_its_own_in_each_sequence() -> None:
    """Behind one context a sequence's ones are as often as Beta(1/2, 1/2) spreads: half of them rarer than 1 in 2."""
    found = drawn(NGrams(context_length=1), 400, rows=200)
    shares = []
    for bits in found.vectors[..., 0]:
        behind_one = bits[1:][bits[:-1] == 1]
        if len(behind_one) > 30:
            shares.append(behind_one.mean())
    # The arcsine law puts a third of its mass above 3/4; a fair coin would put nothing there.
    assert np.mean(np.array(shares) > 0.75) > 0.3


def test_the_highest_priorities_are_said_first() -> None:
    found = drawn(PrioritySort(num_bits=3, num_sorted=4), 6)
    for vectors, targets in zip(found.vectors, found.targets, strict=True):
        shown = sorted(vectors[:6].tolist(), key=lambda vector: vector[3], reverse=True)
        np.testing.assert_array_equal(targets[7:], [vector[:3] for vector in shown[:4]])
        assert np.abs(vectors[:6, 3]).max() <= 1
    assert drawn(PrioritySort(num_bits=3, num_sorted=4), 2).answer_mask.sum() == 2


def test_a_number_that_a_problem_does_not_have_is_refused() -> None:
    assert build_algorithm(Problem.COPY, {"num_bits": 3}) == Copy(3)
    with pytest.raises(
        UserError, match=r"config\.task\.item_length=3 is nothing that problem=copy has: .* it has num_bits"
    ):
        build_algorithm(Problem.COPY, {"item_length": 3})
    with pytest.raises(UserError, match=r"config\.task\.num_bits=1 is nothing that problem=n_grams has"):
        build_algorithm(Problem.N_GRAMS, {"num_bits": 1})
    with pytest.raises(UserError, match=r"config\.task\.context_length=0 must be at least 1"):
        build_algorithm(Problem.N_GRAMS, {"context_length": 0})
