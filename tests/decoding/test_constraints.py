"""Repetition penalty, forbidden tokens, prompts and special tokens against NumPy, for every strategy."""

from typing import Any

import numpy as np
import pytest

from tests.decoding.table_model import SPECIAL, next_token, random_table, rollout_of
from tests.oracles import decoding as oracle
from transformer.config import UserError
from transformer.decoding.beam import BeamSearch, FinishedHypothesisRule
from transformer.decoding.constraints import Constraints, Prompt
from transformer.decoding.generation import DecodedSequences, SpecialTokens
from transformer.decoding.greedy import GreedySearch
from transformer.decoding.sampling import Sampling
from transformer.decoding.stop_sequences import build_stop_table

VOCABULARY, LENGTH, THETA, FORBIDDEN = 9, 6, 1.7, (4,)
# Of unequal lengths; what stands behind them must not count.
PROMPT = Prompt(
    np.int32([[3, 5, 3, 8], [6, 7, 7, 7], [2, 7, 5, 5], [8, 8, 3, 3]]),
    np.int32([4, 1, 3, 2]),
)
EXAMPLES = len(PROMPT.lengths)
TABLE = random_table(11, EXAMPLES, VOCABULARY)
NEVER = (SPECIAL.pad_id, SPECIAL.bos_id, *FORBIDDEN)
OTHERS = [token for token in range(3, VOCABULARY) if token not in FORBIDDEN]


def expected_of(example: int, theta: float = THETA, never: tuple[int, ...] = NEVER) -> oracle.NextToken:
    prompt = PROMPT.tokens[example, : PROMPT.lengths[example]].tolist()
    return next_token(TABLE, example, prompt=prompt, theta=theta, never=never)


def decoded(strategy: Any, theta: float = THETA, **rest: Any) -> DecodedSequences:
    constraints = Constraints(theta, FORBIDDEN)
    return rollout_of(TABLE, strategy, LENGTH, prompt=PROMPT, constraints=constraints, **rest)


def hypotheses(rollout: DecodedSequences, example: int) -> list[tuple[int, ...]]:
    pairs = zip(rollout.tokens[example].tolist(), rollout.lengths[example].tolist(), strict=True)
    return [tuple(tokens[:size]) for tokens, size in pairs]


@pytest.mark.parametrize(
    "theta", [pytest.param(1.0, marks=pytest.mark.slow), 1.7, pytest.param(0.6, marks=pytest.mark.slow)]
)
def test_greedy_behind_prompts_of_unequal_lengths(theta: float) -> None:
    rollout = decoded(GreedySearch(), theta)
    for example in range(EXAMPLES):
        expected = oracle.greedy(expected_of(example, theta), end=SPECIAL.eos_id, length=LENGTH)
        assert hypotheses(rollout, example) == [expected.tokens]
        assert rollout.scores[example, 0] == pytest.approx(expected.score, abs=1e-4)


def test_the_prompt_and_the_rollout_both_count_as_said() -> None:
    found = decoded(GreedySearch()).tokens
    assert (found != decoded(GreedySearch(), 1.0).tokens).any()
    # The fault of a penalty that does not know the prompt.
    inputs_only = rollout_of(TABLE, GreedySearch(), LENGTH, prompt=PROMPT._replace(lengths=np.int32([1, 1, 1, 1])))
    assert (found != inputs_only.tokens).any()


@pytest.mark.slow
@pytest.mark.parametrize("ending", FinishedHypothesisRule)
def test_beams_carry_what_each_hypothesis_has_said(ending: FinishedHypothesisRule) -> None:
    rollout = decoded(BeamSearch(3, 0.6, ending))
    for example in range(EXAMPLES):
        expected = oracle.beam_search(
            expected_of(example),
            others=OTHERS,
            end=SPECIAL.eos_id,
            length=LENGTH,
            exponent=0.6,
            num_beams=3,
            among_best=ending is FinishedHypothesisRule.AMONG_BEST,
        )
        assert hypotheses(rollout, example) == [one.tokens for one in expected]
        np.testing.assert_allclose(rollout.scores[example], [one.score for one in expected], rtol=0, atol=1e-4)


def test_samples_are_drawn_behind_the_penalty(key: Any) -> None:
    strategy = Sampling(0.8, 4, 0.9, num_beams=20)
    rollout = decoded(strategy, key=key)
    for example in range(EXAMPLES):
        model = expected_of(example)
        for tokens, score in zip(hypotheses(rollout, example), rollout.scores[example], strict=True):
            assert SPECIAL.eos_id not in tokens[:-1]
            draws = [oracle.drawn_from(model(tokens[:n]), 0.8, 4, 0.9)[token] for n, token in enumerate(tokens)]
            assert min(draws) > 0
            assert score == pytest.approx(np.log(draws).sum(), abs=1e-4)


@pytest.mark.parametrize("strategy", [GreedySearch(), BeamSearch(3, 0.6)], ids=["greedy", "beams"])
def test_forced_tokens_are_certain_at_both_ends_although_they_are_forbidden(strategy: Any) -> None:
    """The begin token, which nothing else would generate, and the end at the greatest length."""
    first, last = SPECIAL.bos_id, SPECIAL.eos_id
    constraints = Constraints(forbidden_ids=FORBIDDEN, forced_first_id=first, forced_last_id=last)
    rollout = rollout_of(TABLE, strategy, LENGTH, prompt=PROMPT, constraints=constraints)
    forced_ends = 0
    for example in range(EXAMPLES):
        free = expected_of(example, 1.0)

        def model(tokens: Any, free: Any = free) -> Any:
            forced = {0: first, LENGTH - 1: last}.get(len(tokens))
            return free(tokens) if forced is None else np.where(np.arange(VOCABULARY) == forced, 0.0, -np.inf)

        if isinstance(strategy, BeamSearch):
            everything = [token for token in range(VOCABULARY) if token != last]
            options: Any = {"others": everything, "exponent": 0.6, "num_beams": 3}
            expected = oracle.beam_search(model, end=last, length=LENGTH, **options)
        else:
            expected = [oracle.greedy(model, end=last, length=LENGTH)]
        assert hypotheses(rollout, example) == [one.tokens for one in expected]
        np.testing.assert_allclose(rollout.scores[example], [one.score for one in expected], rtol=0, atol=1e-4)
        assert {tokens[0] for tokens in hypotheses(rollout, example)} == {first}
        forced_ends += sum(len(tokens) == LENGTH for tokens in hypotheses(rollout, example))
    assert forced_ends


def test_one_beam_is_greedy_under_penalty_prompt_and_stop_strings() -> None:
    pieces = [b"", b"", b"", *(bytes([97 + n]) for n in range(3, VOCABULARY))]
    constraints = Constraints(THETA, FORBIDDEN, build_stop_table(["dg", "gg", "if"], pieces))
    greedy, beam = (
        rollout_of(TABLE, strategy, LENGTH, prompt=PROMPT, constraints=constraints)
        for strategy in (GreedySearch(), BeamSearch(1, 0.0, FinishedHypothesisRule.AMONG_BEST))
    )
    np.testing.assert_array_equal(beam.tokens, greedy.tokens)
    np.testing.assert_array_equal(beam.lengths, greedy.lengths)
    np.testing.assert_allclose(beam.scores, greedy.scores, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "strategy", [GreedySearch(), BeamSearch(2, 0.6), BeamSearch(1, 0.0)], ids=["greedy", "two_beams", "one_beam"]
)
def test_without_special_tokens_every_token_may_come_and_nothing_ends(strategy: Any) -> None:
    rollout = rollout_of(TABLE, strategy, LENGTH, tokens=SpecialTokens(), prompt=PROMPT)
    assert (rollout.lengths == LENGTH).all()
    for example in range(EXAMPLES):
        model = expected_of(example, 1.0, ())
        if isinstance(strategy, BeamSearch):
            expected = oracle.beam_search(
                model,
                others=range(VOCABULARY),
                end=None,
                length=LENGTH,
                exponent=strategy.length_penalty,
                num_beams=strategy.num_beams,
            )
        else:
            expected = [oracle.greedy(model, end=None, length=LENGTH)]
        assert hypotheses(rollout, example) == [one.tokens for one in expected]
        np.testing.assert_allclose(rollout.scores[example], [one.score for one in expected], rtol=0, atol=1e-4)
    assert (rollout.tokens < 3).any()


def test_logits_beyond_the_vocabulary_are_never_taken() -> None:
    """A table may have more rows than there are tokens."""
    likeliest = TABLE + np.float32(9) * (np.arange(VOCABULARY) >= 6)
    rollout = rollout_of(likeliest, GreedySearch(), LENGTH, tokens=SPECIAL._replace(vocab_size=6))
    assert rollout.tokens.max() < 6


def test_a_token_that_begins_and_ends_may_come_and_fills() -> None:
    """GPT-2's only special token."""
    both = SpecialTokens(bos_id=2, eos_id=2)
    rollout = rollout_of(TABLE, GreedySearch(), LENGTH, tokens=both, prompt=PROMPT)
    ended = 0
    for example in range(EXAMPLES):
        expected = oracle.greedy(expected_of(example, 1.0, ()), end=2, length=LENGTH)
        assert hypotheses(rollout, example) == [expected.tokens]
        assert (rollout.tokens[example, 0, len(expected.tokens) :] == 2).all()
        ended += expected.tokens[-1] == 2
    assert ended


def test_what_stands_behind_a_rollout() -> None:
    assert [
        one.fill_id
        for one in (SpecialTokens(5, 6, 7), SpecialTokens(eos_id=7), SpecialTokens(bos_id=6), SpecialTokens(5, 5, 7))
    ] == [5, 7, 0, 5]
    assert [
        one.never_generated_ids
        for one in (SpecialTokens(5, 6, 7), SpecialTokens(None, 7, 7), SpecialTokens(), SpecialTokens(7, 6, 7))
    ] == [
        [5, 6],
        [],
        [],
        [6],
    ]


def test_hypotheses_that_do_not_exist_are_empty_and_last() -> None:
    """Two tokens and no end but stop strings: all that starts with the first has ended at once."""
    table = random_table(0, 2, 3)[..., :2]
    constraints = Constraints(stop_table=build_stop_table(["a", "bb"], [b"a", b"b"]))
    rollout = rollout_of(table, BeamSearch(4, 0.0), 3, tokens=SpecialTokens(), constraints=constraints)
    for row in range(2):
        assert sorted(hypotheses(rollout, row)) == [(), (0,), (1, 0), (1, 1)]
        assert hypotheses(rollout, row)[-1] == ()
        assert np.isneginf(rollout.scores[row, -1])
        assert np.exp(rollout.scores[row, :3]).sum() == pytest.approx(1, abs=1e-5)


def test_constraints_that_cannot_be_are_refused() -> None:
    for penalty in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(UserError, match=f"repetition_penalty={penalty} must be above 0"):
            Constraints(penalty)
    with pytest.raises(UserError, match=r"forbidden and forced tokens \(-1,\) have a negative number"):
        Constraints(forbidden_ids=(-1,))
    with pytest.raises(ValueError, match="beyond the vocabulary of 9"):
        rollout_of(TABLE, GreedySearch(), 2, constraints=Constraints(forbidden_ids=(9,)))
    with pytest.raises(UserError, match="num_beams=0"):
        BeamSearch(0)
