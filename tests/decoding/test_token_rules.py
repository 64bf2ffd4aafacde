"""Rules of what may follow what, under every strategy, against hypotheses that are searched without a cache."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.decoding.table_model import next_token, random_table, rollout_of
from tests.oracles import decoding as oracle
from transformer.decoding.beam import BeamSearch, FinishedHypothesisRule
from transformer.decoding.constraints import Constraints, NoRepeatedTokens, Prompt
from transformer.decoding.generation import DecodedSequences, SpecialTokens
from transformer.decoding.greedy import GreedySearch
from transformer.decoding.sampling import Sampling

VOCABULARY, END, LENGTH = 7, 0, 8
LEAST = np.int32([3, 6, 0, 5])
TABLE = random_table(3, len(LEAST), VOCABULARY)
ENDS = SpecialTokens(eos_id=END)


def expected_of(example: int) -> oracle.NextToken:
    """The toy's log-probabilities among the tokens that may come, from the words of the rule alone."""
    free = next_token(TABLE, example, prompt=(END,), never=())

    def log_probability(prefix: tuple[int, ...]) -> np.ndarray:
        never = list(prefix) if END not in prefix else list(range(1, VOCABULARY))
        if len(prefix) < LEAST[example]:
            never.append(END)
        return oracle.normalized(free(prefix), never)

    return log_probability


# The toy begins with a begin token of its own: a prompt of the end token stands in for it.
PROMPT = Prompt(np.full((len(LEAST), 1), END, np.int32), np.ones(len(LEAST), np.int32))


def decoded(strategy: Any, **rest: Any) -> DecodedSequences:
    constraints = Constraints(rule=NoRepeatedTokens(LEAST, END))
    return rollout_of(TABLE, strategy, LENGTH, prompt=PROMPT, tokens=ENDS, constraints=constraints, **rest)


def said(rollout: DecodedSequences, example: int) -> list[tuple[int, ...]]:
    pairs = zip(rollout.tokens[example].tolist(), rollout.lengths[example].tolist(), strict=True)
    return [tuple(tokens[:size]) for tokens, size in pairs]


def keeps_the_rule(tokens: tuple[int, ...], least: int) -> bool:
    *others, last = tokens
    return last == END and len(set(others)) == len(others) >= least and END not in others


def test_greedy_decoding_takes_the_best_of_what_may_follow() -> None:
    rollout = decoded(GreedySearch())
    for example, least in enumerate(LEAST):
        expected = oracle.greedy(expected_of(example), end=END, length=LENGTH)
        assert said(rollout, example) == [expected.tokens]
        assert rollout.scores[example, 0] == pytest.approx(expected.score, abs=1e-4)
        assert keeps_the_rule(expected.tokens, least)
    free = rollout_of(TABLE, GreedySearch(), LENGTH, prompt=PROMPT, tokens=ENDS)
    assert not all(keeps_the_rule(said(free, example)[0], least) for example, least in enumerate(LEAST))


@pytest.mark.parametrize("ending", FinishedHypothesisRule)
def test_beams_carry_the_state_of_each_hypothesis(ending: FinishedHypothesisRule) -> None:
    rollout = decoded(BeamSearch(3, 0.6, ending))
    for example, least in enumerate(LEAST):
        found = oracle.beam_search(
            expected_of(example),
            others=range(1, VOCABULARY),
            end=END,
            length=LENGTH,
            exponent=0.6,
            num_beams=3,
            among_best=ending is FinishedHypothesisRule.AMONG_BEST,
        )
        real = [one for one in found if np.isfinite(one.score)]
        assert len(real) == 3
        assert said(rollout, example) == [one.tokens for one in real]
        np.testing.assert_allclose(rollout.scores[example], [one.score for one in real], rtol=0, atol=1e-4)
        assert all(keeps_the_rule(one.tokens, least) for one in real)


def test_samples_keep_to_it(key: Any) -> None:
    rollout = decoded(Sampling(2.0, num_beams=20), key=key)
    drawn = [said(rollout, example) for example in range(len(LEAST))]
    assert all(keeps_the_rule(one, least) for several, least in zip(drawn, LEAST, strict=True) for one in several)
    assert len(set(drawn[0])) > 5


class Countdown:
    """A rule of its own: tokens fall, one at a time, to the end."""

    def start(self, rows: int, vocabulary: int) -> Any:
        return jnp.full(rows, vocabulary - 1)

    def allowed_tokens(self, state: Any) -> Any:
        return jnp.arange(VOCABULARY) == state[:, None]

    def advance(self, state: Any, tokens_R: Any) -> Any:
        return jnp.maximum(tokens_R - 1, END)


jax.tree_util.register_static(Countdown)


def test_a_rule_alone_may_say_everything() -> None:
    for strategy in (GreedySearch(), BeamSearch(2)):
        rollout = rollout_of(TABLE, strategy, LENGTH, tokens=ENDS, constraints=Constraints(rule=Countdown()))
        for example in range(len(LEAST)):
            assert said(rollout, example)[0] == tuple(range(VOCABULARY - 1, -1, -1))
            assert rollout.scores[example, 0] == pytest.approx(0, abs=1e-5)
