"""Random bandits and Markov decision processes, and their optimal and Bayes-optimal policies."""

import functools
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

Arms = tuple[tuple[int, int], ...]  # of each arm how often it gave 1, and how often 0
_MAX_RECORDS, _MAX_PULLS = 100_000, 64  # different records that a dynamic program goes through; of most pulls
_TIE_TOLERANCE = 1e-9  # values that differ by less are equal


class MDPBatch(NamedTuple):
    """A batch of MDPs.

    Attributes:
        transitions: The transition probabilities p(s' | s, a) [MDP, state, action, next state].
        rewards: The probabilities of a reward of 1 [MDP, state, action].
    """

    transitions: Float[np.ndarray, "B S A S"]
    rewards: Float[np.ndarray, "B S A"]

    def batch_arrays(self) -> dict[str, Float[np.ndarray, "..."]]:
        """Return the probabilities as parts of a batch."""
        return {name: values.astype(np.float32) for name, values in self._asdict().items()}


class Trajectories(NamedTuple):
    """The state, action and reward at every step."""

    states: Int[np.ndarray, "B T"]
    actions: Int[np.ndarray, "B T"]
    rewards: Int[np.ndarray, "B T"]


def sample_mdps(random: np.random.Generator, rows: int, states: int, actions: int) -> MDPBatch:
    """Sample MDPs from the prior: uniform Dirichlet transitions and uniform reward probabilities.

    Args:
        random: The random generator.
        rows: The number of MDPs.
        states: The number of states of each.
        actions: The number of actions of each.

    Returns:
        The MDPs.
    """
    transitions = random.dirichlet(np.ones(states), (rows, states, actions))
    return MDPBatch(transitions, random.random((rows, states, actions)))


def action_values(mdps: MDPBatch, horizon: int) -> Float[np.ndarray, "H B S A"]:
    """Compute Q_t(s, a) = r(s, a) + sum over s' of p(s' | s, a) max over a' of Q_(t+1)(s', a') of known MDPs.

    Args:
        mdps: The MDPs.
        horizon: The number of steps H.

    Returns:
        The values [step, MDP, state, action].
    """
    values = np.zeros((horizon + 1, *mdps.rewards.shape))
    for step in reversed(range(horizon)):
        values[step] = mdps.rewards + np.einsum("bsax,bx->bsa", mdps.transitions, values[step + 1].max(axis=-1))
    return values[:-1]


def random_policy_value(mdps: MDPBatch, horizon: int) -> Float[np.ndarray, " B"]:
    """Compute the expected return of the uniform random policy from state 0.

    Args:
        mdps: The MDPs.
        horizon: The number of steps of an episode.

    Returns:
        The expected return in each MDP.
    """
    value_BxS = np.zeros(mdps.rewards.shape[:2])
    for _ in range(horizon):
        value_BxS = (mdps.rewards + np.einsum("bsax,bx->bsa", mdps.transitions, value_BxS)).mean(axis=-1)
    return value_BxS[:, 0]


@functools.cache
def bayes_optimal_values(arms: Arms, num_pulls: int) -> tuple[float, ...]:
    """Return the Bayes-optimal value of each arm of a bandit.

    Args:
        arms: For each arm how often it gave 1, and how often 0.
        num_pulls: The number of pulls left.

    Returns:
        The expected return of pulling each arm next.
    """
    values = []
    for number, (wins, losses) in enumerate(arms):
        win_probability = (wins + 1) / (wins + losses + 2)
        win_value, loss_value = (
            _best_value((*arms[:number], record, *arms[number + 1 :]), num_pulls - 1)
            for record in ((wins + 1, losses), (wins, losses + 1))
        )
        values.append(win_probability * (1 + win_value) + (1 - win_probability) * loss_value)
    return tuple(values)


def _best_value(arms: Arms, num_pulls: int) -> float:
    """Return the Bayes-optimal value of a bandit; the order of arms does not matter."""
    return max(bayes_optimal_values(tuple(sorted(arms)), num_pulls)) if num_pulls else 0.0


def num_histories(arms: int, pulls: int) -> int:
    """Count the distinct outcomes of a bandit, disregarding the order of its arms.

    Args:
        arms: The number of arms.
        pulls: The most pulls.

    Returns:
        The number of multisets of (wins, losses) of the arms with at most so many pulls.
    """
    # ways[a][n]: of multisets of a arms with n pulls in all; an arm of k pulls has one of k + 1 records.
    ways = np.zeros((arms + 1, pulls + 1), object)
    ways[0, 0] = 1
    for k in range(pulls + 1):
        for _ in range(k + 1):
            for count in range(1, arms + 1):
                ways[count, k:] += ways[count - 1, : pulls + 1 - k]
    return int(ways[arms].sum())


def is_tractable(arms: int, pulls: int) -> bool:
    """Return whether the dynamic program of a bandit takes seconds."""
    return arms <= _MAX_PULLS and pulls <= _MAX_PULLS and num_histories(arms, pulls) <= _MAX_RECORDS


class Belief:
    """The posterior over each row's MDP: counts of transitions and rewards, added to those of the prior."""

    def __init__(self, rows: int, states: int, actions: int):
        self.next = np.ones((rows, states, actions, states))
        self.reward_counts = np.ones((rows, states, actions, 2))  # rewards of 1, and of 0

    def update(self, state: np.ndarray, action: np.ndarray, reward: np.ndarray, after: np.ndarray | None) -> None:
        """Update the posterior with one step of every row.

        Args:
            state: The state of each row.
            action: The action taken.
            reward: The reward, 0 or 1.
            after: The next state; None if it was not observed.
        """
        row = np.arange(len(state))
        if after is not None:
            self.next[row, state, action, after] += 1
        self.reward_counts[row, state, action, 1 - reward] += 1

    def sample(self, random: np.random.Generator) -> MDPBatch:
        """Sample an MDP of every row from the posterior."""
        parts = random.standard_gamma(self.next)
        return MDPBatch(
            parts / parts.sum(axis=-1, keepdims=True),
            random.beta(self.reward_counts[..., 0], self.reward_counts[..., 1]),
        )


def optimal_policy(values: Float[np.ndarray, "*B A"]) -> Float[np.ndarray, "*B A"]:
    """Return the uniform distribution over the best actions."""
    best = values >= values.max(axis=-1, keepdims=True) - _TIE_TOLERANCE
    return best / best.sum(axis=-1, keepdims=True)


def bayes_optimal_policy(belief: Belief, num_pulls: int) -> Float[np.ndarray, "B A"]:
    """Return the Bayes-optimal policy over the arms of bandits.

    Args:
        belief: The posterior over each row's bandit.
        num_pulls: The number of pulls left.

    Returns:
        The probability of each arm, uniform over the best ones.
    """
    counts = (belief.reward_counts[:, 0] - 1).astype(int)
    return optimal_policy(
        np.array([bayes_optimal_values(tuple(map(tuple, row.tolist())), num_pulls) for row in counts])
    )


def run_episodes(
    random: np.random.Generator,
    mdps: MDPBatch,
    horizon: int,
    episodes: int,
    randomness: Float[np.ndarray, " B"],
    *,
    bayes: bool = False,
) -> tuple[Trajectories, Float[np.ndarray, "B T A"]]:
    """Run episodes in MDPs with Thompson sampling or, for bandits, the Bayes-optimal policy.

    Args:
        random: The random generator.
        mdps: The MDPs.
        horizon: The steps of an episode.
        episodes: The episodes in each MDP.
        randomness: The probability of a random action, for each MDP.
        bayes: Whether to act by the Bayes-optimal policy of a bandit, and return it as the teacher's.

    Returns:
        The trajectories, and the teacher's policy at each step [MDP, step, action]: optimal for the known MDP, or
        Bayes-optimal.
    """
    rows, states, actions = mdps.rewards.shape
    length, belief, row = horizon * episodes, Belief(rows, states, actions), np.arange(rows)
    trajectories = Trajectories(*np.zeros((3, rows, length), np.int32))
    best_BxTxA = np.zeros((rows, length, actions))
    known_HxBxSxA = action_values(mdps, horizon)
    state, believes_HxBxSxA = np.zeros(rows, int), known_HxBxSxA
    for step in range(length):
        episode_step = step % horizon
        if episode_step == 0:
            state = np.zeros(rows, int)
        if bayes:
            best_BxTxA[:, step] = believed = bayes_optimal_policy(belief, length - step)
        else:
            best_BxTxA[:, step] = optimal_policy(known_HxBxSxA[episode_step, row, state])
            if episode_step == 0:
                believes_HxBxSxA = action_values(belief.sample(random), horizon)
            believed = optimal_policy(believes_HxBxSxA[episode_step, row, state])
        shares_BxA = np.where((random.random(rows) < randomness)[:, None], 1 / actions, believed)
        action = _sample_index(random, shares_BxA)
        reward = (random.random(rows) < mdps.rewards[row, state, action]).astype(int)
        after = _sample_index(random, mdps.transitions[row, state, action])
        # Where an episode ends nobody sees what would have come next.
        belief.update(state, action, reward, after if episode_step + 1 < horizon else None)
        trajectories.states[:, step], trajectories.actions[:, step], trajectories.rewards[:, step] = (
            state,
            action,
            reward,
        )
        state = after
    return trajectories, best_BxTxA


def _sample_index(random: np.random.Generator, shares: Float[np.ndarray, "B N"]) -> Int[np.ndarray, " B"]:
    is_beyond = random.random((len(shares), 1)) > np.cumsum(shares, axis=1)
    return np.minimum(is_beyond.sum(axis=1), shares.shape[1] - 1)
