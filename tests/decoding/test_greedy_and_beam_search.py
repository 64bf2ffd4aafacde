"""Greedy and beam search against NumPy lists of prefixes, over a table and over real models' caches."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.decoding.table_model import SPECIAL, next_token, random_table, rollout_of
from tests.oracles import decoding as oracle
from transformer.decoding.beam import BeamSearch, FinishedHypothesisRule
from transformer.decoding.generation import DecodedSequences, SpecialTokens
from transformer.decoding.greedy import GreedySearch

EXAMPLES = 3


def others(vocabulary: int) -> range:
    """The tokens that may come beside the end."""
    return range(max(SPECIAL.pad_id, SPECIAL.bos_id, SPECIAL.eos_id) + 1, vocabulary)


def is_the(rollout: DecodedSequences, expected: list[list[oracle.Hypothesis]]) -> None:
    """Hold the rollout's tokens, scores and padding against hypotheses, best first."""
    length = rollout.tokens.shape[-1]
    tokens = [
        [(*one.tokens, *[SPECIAL.pad_id] * (length - len(one.tokens))) for one in num_beams] for num_beams in expected
    ]
    np.testing.assert_array_equal(rollout.tokens, tokens)
    scores = [[one.score for one in num_beams] for num_beams in expected]
    np.testing.assert_allclose(rollout.scores, scores, rtol=0, atol=1e-4)
    np.testing.assert_array_equal(rollout.lengths, [[len(one.tokens) for one in num_beams] for num_beams in expected])


def searched(
    table: np.ndarray, length: int, num_beams: int, exponent: float, **rest: Any
) -> list[list[oracle.Hypothesis]]:
    return [
        oracle.beam_search(
            next_token(table, example),
            others=others(table.shape[-1]),
            end=SPECIAL.eos_id,
            length=length,
            exponent=exponent,
            num_beams=num_beams,
            **rest,
        )
        for example in range(len(table))
    ]


def end_is_last(rollout: DecodedSequences) -> None:
    """No padding or begin token before the end, nothing but padding behind it."""
    for tokens in rollout.tokens.reshape(-1, rollout.tokens.shape[-1]):
        ends = np.flatnonzero(tokens == SPECIAL.eos_id)
        size = ends[0] + 1 if ends.size else len(tokens)
        assert (tokens[:size] >= SPECIAL.eos_id).all()
        assert (tokens[size:] == SPECIAL.pad_id).all()


@settings(max_examples=15)
@given(st.integers(0, 2**32 - 1), st.floats(0, 2))
def test_greedy_takes_the_most_probable_token_until_the_end(seed: int, more_ends: float) -> None:
    table = random_table(seed, EXAMPLES, 8, more_ends)
    # Neither may ever be chosen, however probable.
    table[..., [SPECIAL.pad_id, SPECIAL.bos_id]] += 9
    rollout = rollout_of(table, GreedySearch(), 7)
    is_the(rollout, [[oracle.greedy(next_token(table, e), end=SPECIAL.eos_id, length=7)] for e in range(EXAMPLES)])
    end_is_last(rollout)


def test_every_end_token_ends_a_row() -> None:
    table, several = random_table(3, EXAMPLES, 8), SPECIAL._replace(other_end_ids=(4, 6))
    expected = [
        oracle.greedy(
            next_token(table, example),
            end=SPECIAL.eos_id,
            length=7,
            completes=lambda tokens: tokens[-1:] in ((4,), (6,)),
        )
        for example in range(EXAMPLES)
    ]
    assert {one.tokens[-1] for one in expected} & {4, 6}
    rollout = rollout_of(table, GreedySearch(), 7, tokens=several)
    is_the(rollout, [[one] for one in expected])
    # Beams end with each of them too.
    for tokens, length in zip(*(rollout_of(table, BeamSearch(3), 7, tokens=several))[::2], strict=True):
        for row, size in zip(tokens, length, strict=True):
            assert not np.isin(row[: size - 1], several.end_ids).any()
            assert size == 7 or row[size - 1] in several.end_ids
    ended = np.asarray(several.with_one_end(jnp.asarray(rollout.tokens)))
    np.testing.assert_array_equal(ended, np.where(np.isin(rollout.tokens, (4, 6)), SPECIAL.eos_id, rollout.tokens))
    assert SpecialTokens(pad_id=0, bos_id=4, eos_id=2, other_end_ids=(4,)).never_generated_ids == [0]


@pytest.mark.parametrize("exponent", [0.0, 0.6, -0.5])
def test_a_beam_wide_enough_finds_the_best_of_all_sequences(exponent: float) -> None:
    """Two tokens beside the end, at most four long: 15 sequences end and 16 are cut off."""
    for seed in range(5):
        table = random_table(seed, EXAMPLES, 5)
        expected = [
            oracle.enumerate_all(
                next_token(table, example), others=(3, 4), end=SPECIAL.eos_id, length=4, exponent=exponent, count=16
            )
            for example in range(EXAMPLES)
        ]
        is_the(rollout_of(table, BeamSearch(16, exponent), 4), expected)


NARROW = [(1, 0.0), (1, 0.6), (2, 0.6), (3, 0.0), (3, 1.5), (4, -0.5)]


@pytest.mark.parametrize(
    ("num_beams", "exponent"),
    [pytest.param(*each, marks=pytest.mark.slow if number % 2 else ()) for number, each in enumerate(NARROW)],
)
def test_a_narrow_beam_is_the_search_over_lists_that_never_stops_early(num_beams: int, exponent: float) -> None:
    for seed in range(8):
        table = random_table(seed, EXAMPLES, 8, more_ends=seed % 4)
        table[..., [SPECIAL.pad_id, SPECIAL.bos_id]] += 5
        rollout = rollout_of(table, BeamSearch(num_beams, exponent), 7)
        is_the(rollout, searched(table, 7, num_beams, exponent))
        end_is_last(rollout)


@dataclasses.dataclass(frozen=True)
class NeverDone(BeamSearch):
    """Beam search to the greatest length."""

    def done(self, state: Any, step: Any) -> Any:
        return jnp.array(False)


@settings(max_examples=15)
@given(st.integers(0, 2**32 - 1), st.floats(0, 6))
def test_stopping_early_changes_nothing(seed: int, more_ends: float) -> None:
    table = random_table(seed, EXAMPLES, 7, more_ends)
    early, late = (rollout_of(table, strategy, 10) for strategy in (BeamSearch(3, 1.0), NeverDone(3, 1.0)))
    np.testing.assert_array_equal(early.tokens, late.tokens)
    np.testing.assert_array_equal(early.scores, late.scores)


def test_a_search_is_done_when_the_best_that_goes_on_cannot_beat_the_worst_that_ended() -> None:
    beam = BeamSearch(2, 1.0)
    empty = beam.start(1, 7, SPECIAL, None)
    # At length 7 the penalty is 2, so that -3 may still become -1.5.
    for worst, done in ((-1.4, True), (-1.6, False), (-np.inf, False)):
        state = empty._replace(
            log_probability=jnp.array([[-3.0, -4.0]]), ended_scores=jnp.array([[-1.0, worst]], jnp.float32)
        )
        assert bool(beam.done(state, jnp.int32(3))) is done
    # A negative penalty favors short sequences: at step 3 the next end is the fourth token.
    harsh = BeamSearch(1, -1.0)
    for worst, done in ((-4.4, True), (-4.6, False)):
        state = harsh.start(1, 7, SPECIAL, None)._replace(
            log_probability=jnp.array([[-3.0]]), ended_scores=jnp.array([[worst]], jnp.float32)
        )
        assert bool(harsh.done(state, jnp.int32(3))) is done


@dataclasses.dataclass(frozen=True)
class KeepsRows(BeamSearch):
    """The fault of a beam that leaves the cache's rows where they were."""

    def choose(self, *arguments: Any) -> Any:
        return *super().choose(*arguments)[:2], None


@dataclasses.dataclass(frozen=True)
class StopsAtOnce(BeamSearch):
    """The fault of stopping as soon as enough have ended."""

    def done(self, state: Any, step: Any) -> Any:
        return jnp.all(jnp.isfinite(state.ended_scores))


@pytest.mark.parametrize("fault", [KeepsRows, StopsAtOnce])
def test_a_planted_fault_is_found(fault: type[BeamSearch]) -> None:
    table = random_table(0, EXAMPLES, 8)
    with pytest.raises(AssertionError):
        is_the(rollout_of(table, fault(3, 1.5), 7), searched(table, 7, 3, 1.5))


def test_one_beam_is_at_least_as_good_as_greedy() -> None:
    for seed in range(5):
        table = random_table(seed, EXAMPLES, 8, more_ends=2)
        greedy, beam = rollout_of(table, GreedySearch(), 7), rollout_of(table, BeamSearch(1, 0.0), 7)
        ended = (greedy.tokens == SPECIAL.eos_id).any(-1)
        assert ended.any()
        assert (beam.scores[ended] >= greedy.scores[ended] - 1e-5).all()


@pytest.mark.parametrize("num_beams", [1, 3])
def test_a_beam_may_count_only_ends_among_its_best(num_beams: int) -> None:
    for seed in range(4):
        table = random_table(seed, EXAMPLES, 8, more_ends=seed % 3)
        rollout = rollout_of(table, BeamSearch(num_beams, 0.6, FinishedHypothesisRule.AMONG_BEST), 7)
        is_the(rollout, searched(table, 7, num_beams, 0.6, among_best=True))


def test_one_beam_that_counts_only_such_ends_is_greedy() -> None:
    for seed in range(5):
        table = random_table(seed, EXAMPLES, 8, more_ends=2)
        greedy, beam = (
            rollout_of(table, strategy, 7)
            for strategy in (GreedySearch(), BeamSearch(1, 0.0, FinishedHypothesisRule.AMONG_BEST))
        )
        np.testing.assert_array_equal(beam.tokens, greedy.tokens)
        np.testing.assert_allclose(beam.scores, greedy.scores, rtol=0, atol=1e-5)


def test_scores_fall_and_what_was_cut_off_stands_behind_what_ended() -> None:
    table = random_table(3, EXAMPLES, 8, more_ends=-7)
    rollout = rollout_of(table, BeamSearch(3, 0.6), 2)
    ended = (rollout.tokens == SPECIAL.eos_id).any(-1)
    # With two steps and three beams, one ends at the first step, and three could at the second.
    assert ended.all()
    assert (np.diff(rollout.scores) <= 0).all()
    one = rollout_of(table, BeamSearch(3, 0.6), 1)
    np.testing.assert_array_equal((one.tokens == SPECIAL.eos_id).any(-1), [[True, False, False]] * EXAMPLES)
    assert (np.diff(one.scores[:, 1:]) <= 0).all()
    is_the(one, searched(table, 1, 3, 0.6))
