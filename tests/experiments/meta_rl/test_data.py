"""Small unknown mdps: what the best do, by other ways of computing it; what is lived through."""

import functools
import itertools

import numpy as np
import pytest

from experiments.meta_rl.data import (
    Belief,
    MDPBatch,
    action_values,
    bayes_optimal_values,
    is_tractable,
    num_histories,
    optimal_policy,
    random_policy_value,
    run_episodes,
    sample_mdps,
)


def test_bayes_values_by_hand() -> None:
    assert bayes_optimal_values(((0, 0), (1, 0)), 1) == pytest.approx((1 / 2, 2 / 3))
    # A win makes the same arm worth 2/3, a loss leaves the other's 1/2.
    assert bayes_optimal_values(((0, 0), (0, 0)), 2) == pytest.approx((1 / 2 + 1 / 2 * 2 / 3 + 1 / 2 * 1 / 2,) * 2)
    assert max(bayes_optimal_values(((0, 0),) * 5, 10)) == pytest.approx(6.66, abs=0.005)


def test_bayes_values_are_those_of_the_best_of_all_plans() -> None:
    pulls, grid = 3, (np.arange(400) + 0.5) / 400

    @functools.cache
    def likelihood(wins: int, losses: int) -> float:
        """The probability of an order of results, by the integral over all arms that there may be."""
        return float(np.mean(grid**wins * (1 - grid) ** losses))

    def worth(plan: tuple[int, ...]) -> float:
        """Of a plan that says which arm is pulled behind each history of results, a bit each."""
        total = 0.0
        for results in itertools.product((1, 0), repeat=pulls):
            counts = [[0, 0], [0, 0]]
            at = 0
            for result in results:
                counts[plan[at]][1 - result] += 1
                at = 2 * at + 1 + result
            total += sum(results) * likelihood(*counts[0]) * likelihood(*counts[1])
        return total

    best = max(map(worth, itertools.product((0, 1), repeat=2**pulls - 1)))
    assert max(bayes_optimal_values(((0, 0), (0, 0)), pulls)) == pytest.approx(best, abs=1e-4)


def test_who_knows_the_world_is_the_best_of_all_policies() -> None:
    mdps, horizon = sample_mdps(np.random.default_rng(0), 1, 2, 2), 2
    (transitions,), (rewards,) = mdps

    def worth(policy: tuple[int, ...]) -> float:
        """Of a policy that says what to do at each step in each state."""
        at, total = np.array([1.0, 0.0]), 0.0
        for step in range(horizon):
            do = policy[2 * step : 2 * step + 2]
            total += sum(at[state] * rewards[state, do[state]] for state in range(2))
            at = sum(at[state] * transitions[state, do[state]] for state in range(2))
        return total

    every = [worth(policy) for policy in itertools.product((0, 1), repeat=2 * horizon)]
    assert action_values(mdps, horizon)[0, 0, 0].max() == pytest.approx(max(every))
    assert random_policy_value(mdps, horizon)[0] == pytest.approx(np.mean(every))


def test_records_are_counted() -> None:
    kinds = [(wins, losses) for wins in range(4) for losses in range(4)]
    every = itertools.combinations_with_replacement(kinds, 2)
    assert num_histories(2, 3) == sum(sum(map(sum, pair)) <= 3 for pair in every)
    assert is_tractable(5, 10)
    assert not is_tractable(5, 20)
    assert not is_tractable(2, 10**6)


def test_a_belief_counts_beside_the_prior() -> None:
    belief = Belief(2, 2, 3)
    belief.update(np.array([0, 1]), np.array([2, 0]), np.array([1, 0]), np.array([1, 1]))
    assert belief.reward_counts[0, 0, 2].tolist() == [2, 1]
    assert belief.reward_counts[1, 1, 0].tolist() == [1, 2]
    assert belief.next[0, 0, 2].tolist() == [1, 2]
    assert belief.next.sum() == 2 * 2 * 3 * 2 + 2
    sampled = belief.sample(np.random.default_rng(0))
    np.testing.assert_allclose(sampled.transitions.sum(axis=-1), 1)


@pytest.mark.parametrize("bayes", [False, True])
def test_what_is_lived_through_and_what_would_have_been_best(bayes: bool) -> None:
    states = 1 if bayes else 3
    mdps = sample_mdps(np.random.default_rng(1), 300, states, 2)
    lived, best = run_episodes(np.random.default_rng(2), mdps, 3, 2, np.zeros(300), bayes=bayes)
    assert lived.states.shape == (300, 6)
    assert not lived.states[:, ::3].any()
    np.testing.assert_allclose(best.sum(axis=-1), 1)
    if bayes:
        # One who acts as is best takes one of the best arms at every step; the first arms are all alike.
        assert (np.take_along_axis(best, lived.actions[..., None], axis=-1) > 0).all()
        assert (best[:, 0] == 0.5).all()
        row = int(np.argmax(lived.rewards[:, 0]))
        assert best[row, 1, lived.actions[row, 0]] == 1
    else:
        known = action_values(mdps, 3)
        row = np.arange(300)
        for step in range(6):
            np.testing.assert_array_equal(best[:, step], optimal_policy(known[step % 3, row, lived.states[:, step]]))
        # What it believes becomes better from episode to episode.
        agrees = np.take_along_axis(best, lived.actions[..., None], axis=-1)[..., 0].mean(axis=0)
        assert agrees[3:].mean() > agrees[:3].mean() > 0.5
    random_lived, _ = run_episodes(np.random.default_rng(2), mdps, 3, 2, np.ones(300), bayes=bayes)
    assert abs(random_lived.actions.mean() - 0.5) < 0.05
    assert random_lived.rewards.mean() < lived.rewards.mean()


def test_rewards_and_states_follow_their_probabilities() -> None:
    transitions = np.broadcast_to(np.array([[[0.0, 1.0]], [[1.0, 0.0]]]), (4, 2, 1, 2))
    mdps = MDPBatch(transitions, np.broadcast_to(np.array([[1.0], [0.0]]), (4, 2, 1)))
    lived, _ = run_episodes(np.random.default_rng(0), mdps, 4, 1, np.zeros(4))
    assert (lived.states == [0, 1, 0, 1]).all()
    assert (lived.rewards == [1, 0, 1, 0]).all()
