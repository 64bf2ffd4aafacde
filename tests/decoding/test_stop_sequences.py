"""Stop strings against searching the text itself, whatever tokens it is made of."""

import functools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.decoding.table_model import SPECIAL, decode, next_token, random_table, rollout_of
from tests.oracles import decoding as oracle
from transformer.config import UserError
from transformer.decoding.beam import BeamSearch, FinishedHypothesisRule
from transformer.decoding.constraints import Constraints
from transformer.decoding.greedy import GreedySearch
from transformer.decoding.sampling import Sampling
from transformer.decoding.stop_sequences import build_stop_table, cut_at_stop

# The same text can be made of these in many ways; two of them are halves of a character.
PIECES = (b"", b"", b"", b"a", b"b", b"ab", b"ba", b"aab", "é".encode(), b"\xc3", b"\xa9a")
STOPS = ("aba", "bé", "aa")
stop_strings = st.lists(st.text("abé", min_size=1, max_size=5), min_size=1, max_size=4)


def text_of(tokens: tuple[int, ...]) -> bytes:
    return b"".join(PIECES[token] for token in tokens)


def holds_a_stop(tokens: tuple[int, ...], stops: tuple[str, ...] = STOPS) -> bool:
    return any(stop.encode() in text_of(tokens) for stop in stops)


@settings(max_examples=100)
@given(stop_strings, st.lists(st.integers(0, len(PIECES) - 1), max_size=25))
def test_the_automaton_is_complete_from_the_token_that_completes_a_stop_string(
    stops: list[str], tokens: list[int]
) -> None:
    table = build_stop_table(stops, PIECES)
    state = 0
    for count, token in enumerate(tokens, start=1):
        state = table[state, token]
        assert (state == len(table) - 1) == holds_a_stop(tuple(tokens[:count]), tuple(stops))


def test_a_stop_string_has_a_state_for_every_byte() -> None:
    assert build_stop_table(["abaab"], PIECES).shape == (6, len(PIECES))
    assert build_stop_table(["é"], PIECES).shape == (3, len(PIECES))
    # Strings that begin alike share what is alike.
    assert build_stop_table(["abé", "aba"], PIECES).shape == (5, len(PIECES))


def end_of_first(text: str, stops: list[str]) -> int | None:
    return next((end for end in range(len(text) + 1) if any(text[:end].endswith(stop) for stop in stops)), None)


@settings(max_examples=100)
@given(stop_strings, st.text("abé", max_size=20))
def test_a_text_is_cut_before_the_stop_string_that_is_complete_first(stops: list[str], text: str) -> None:
    end = end_of_first(text, stops)
    kept = cut_at_stop(text, stops)
    assert kept == (text if end is None else text[: end - max(len(s) for s in stops if text[:end].endswith(s))])
    # What a token adds behind the end of the stop string changes nothing.
    assert end is None or cut_at_stop(text[:end] + "bab", stops) == kept


@functools.cache
def constraints() -> Constraints:
    return Constraints(stop_table=build_stop_table(STOPS, PIECES))


@pytest.mark.parametrize("num_beams", [pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("ending", FinishedHypothesisRule)
def test_a_beam_ends_hypotheses_at_stop_strings(num_beams: int, ending: FinishedHypothesisRule) -> None:
    by_stop = 0
    for seed in range(6):
        table = random_table(seed, 2, len(PIECES))
        rollout = rollout_of(table, BeamSearch(num_beams, 0.6, ending), 7, constraints=constraints())
        for example in range(2):
            expected = oracle.beam_search(
                next_token(table, example),
                others=range(3, len(PIECES)),
                end=SPECIAL.eos_id,
                length=7,
                exponent=0.6,
                num_beams=num_beams,
                completes=holds_a_stop,
                among_best=ending is FinishedHypothesisRule.AMONG_BEST,
            )
            sizes = rollout.lengths[example].tolist()
            found = [tuple(row[:size]) for row, size in zip(rollout.tokens[example].tolist(), sizes, strict=True)]
            assert found == [one.tokens for one in expected]
            np.testing.assert_allclose(rollout.scores[example], [one.score for one in expected], rtol=0, atol=1e-4)
            by_stop += sum(map(holds_a_stop, found))
    assert by_stop >= 3


def test_greedy_ends_at_a_stop_string() -> None:
    by_stop = 0
    for seed in range(6):
        table = random_table(seed, 3, len(PIECES))
        rollout = rollout_of(table, GreedySearch(), 9, constraints=constraints())
        for example in range(3):
            expected = oracle.greedy(next_token(table, example), end=SPECIAL.eos_id, length=9, completes=holds_a_stop)
            size = rollout.lengths[example, 0]
            assert tuple(rollout.tokens[example, 0, :size].tolist()) == expected.tokens
            assert (rollout.tokens[example, 0, size:] == SPECIAL.pad_id).all()
            assert rollout.scores[example, 0] == pytest.approx(expected.score, abs=1e-4)
            by_stop += holds_a_stop(expected.tokens)
    assert by_stop > 3


def test_samples_end_with_the_token_that_completes_a_stop_string(key: Any) -> None:
    table = random_table(0, 3, len(PIECES), more_ends=-4)
    free = rollout_of(table, Sampling(num_beams=40), 12, key=key)
    stopped = rollout_of(table, Sampling(num_beams=40), 12, key=key, constraints=constraints())
    by_stop = 0
    for one, other, size, free_size in zip(
        *(leaf.reshape(120, -1) for leaf in (free.tokens, stopped.tokens, stopped.lengths, free.lengths)), strict=True
    ):
        tokens = tuple(one.tolist())
        expected = next((n for n in range(1, free_size[0] + 1) if holds_a_stop(tokens[:n])), free_size[0])
        assert size[0] == expected
        np.testing.assert_array_equal(other[:expected], one[:expected])
        assert (other[expected:] == SPECIAL.pad_id).all()
        by_stop += holds_a_stop(tuple(other.tolist()))
    assert by_stop > 40


def test_other_stop_strings_of_the_same_size_need_no_new_program() -> None:
    table = random_table(0, 2, len(PIECES))
    rollout_of(table, GreedySearch(), 5, constraints=Constraints(stop_table=build_stop_table(["aba"], PIECES)))
    programs = decode._cache_size()
    rollout_of(table, GreedySearch(), 5, constraints=Constraints(stop_table=build_stop_table(["bab"], PIECES)))
    assert decode._cache_size() == programs


def test_what_cannot_be_a_stop_string_is_refused() -> None:
    with pytest.raises(UserError, match="at least one"):
        build_stop_table([], PIECES)
    with pytest.raises(UserError, match="empty"):
        build_stop_table(["a", ""], PIECES)
    with pytest.raises(ValueError, match="stop_table knows 11 tokens and the model 8"):
        rollout_of(random_table(0, 2, 8), GreedySearch(), 3, constraints=constraints())
