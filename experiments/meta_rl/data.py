"""Random bandits and Markov decision processes, and their optimal and Bayes-optimal policies."""

import functools
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

Arms = tuple[tuple[int, int], ...]  # of each arm how often it gave 1, and how often 0
_MOST, _LONGEST = 100_000, 64  # different records that a dynamic program goes through; of most pulls
_SAME = 1e-9  # values that differ by less are equal


class MDPBatch(NamedTuple):
    """A batch of MDPs: transition probabilities, and the probabilities of a reward of 1."""

    transitions: Float[np.ndarray, "B S A S"]
    rewards: Float[np.ndarray, "B S A"]

    def fed(self) -> dict[str, Float[np.ndarray, "..."]]:
        """The probabilities as parts of a batch."""
        return {name: values.astype(np.float32) for name, values in self._asdict().items()}


class Trajectories(NamedTuple):
    """The state, action and reward at every step."""

    states: Int[np.ndarray, "B T"]
    actions: Int[np.ndarray, "B T"]
    rewards: Int[np.ndarray, "B T"]


def sample_mdps(random: np.random.Generator, rows: int, states: int, actions: int) -> MDPBatch:
    """Sample MDPs of the prior."""
    transitions = random.dirichlet(np.ones(states), (rows, states, actions))
    return MDPBatch(transitions, random.random((rows, states, actions)))


def action_values(worlds: MDPBatch, horizon: int) -> Float[np.ndarray, "H B S A"]:
    """Q_t(s, a) = r(s, a) + sum over s' of p(s' | s, a) max over a' of Q_(t+1)(s', a'), for a known MDP."""
    values = np.zeros((horizon + 1, *worlds.rewards.shape))
    for step in reversed(range(horizon)):
        values[step] = worlds.rewards + np.einsum("bsax,bx->bsa", worlds.transitions, values[step + 1].max(axis=-1))
    return values[:-1]


def random_policy_value(worlds: MDPBatch, horizon: int) -> Float[np.ndarray, " B"]:
    """Return the mean return of the uniform random policy from state 0."""
    value_BxS = np.zeros(worlds.rewards.shape[:2])
    for _ in range(horizon):
        value_BxS = (worlds.rewards + np.einsum("bsax,bx->bsa", worlds.transitions, value_BxS)).mean(axis=-1)
    return value_BxS[:, 0]


@functools.cache
def bayes_optimal_values(arms: Arms, left: int) -> tuple[float, ...]:
    """Return the Bayes-optimal value of each arm of a bandit with `left` pulls left."""
    values = []
    for number, (wins, losses) in enumerate(arms):
        win = (wins + 1) / (wins + losses + 2)
        won, lost = (
            _best((*arms[:number], record, *arms[number + 1 :]), left - 1)
            for record in ((wins + 1, losses), (wins, losses + 1))
        )
        values.append(win * (1 + won) + (1 - win) * lost)
    return tuple(values)


def _best(arms: Arms, left: int) -> float:
    """V: the order of arms does not matter."""
    return max(bayes_optimal_values(tuple(sorted(arms)), left)) if left else 0.0


def num_histories(arms: int, pulls: int) -> int:
    """Return the number of distinct outcome counts of so many arms within so many pulls."""
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
    return arms <= _LONGEST and pulls <= _LONGEST and num_histories(arms, pulls) <= _MOST


class Belief:
    """The posterior over each row's MDP: counts of transitions and rewards, added to those of the prior."""

    def __init__(self, rows: int, states: int, actions: int):
        self.next = np.ones((rows, states, actions, states))
        self.given = np.ones((rows, states, actions, 2))  # rewards of 1, and of 0

    def note(self, state: np.ndarray, action: np.ndarray, reward: np.ndarray, after: np.ndarray | None) -> None:
        """One step of every row, and where it led if that was seen."""
        row = np.arange(len(state))
        if after is not None:
            self.next[row, state, action, after] += 1
        self.given[row, state, action, 1 - reward] += 1

    def sample(self, random: np.random.Generator) -> MDPBatch:
        """A world as it may be, of every row."""
        parts = random.standard_gamma(self.next)
        return MDPBatch(parts / parts.sum(axis=-1, keepdims=True), random.beta(self.given[..., 0], self.given[..., 1]))


def optimal_policy(values: Float[np.ndarray, "*B A"]) -> Float[np.ndarray, "*B A"]:
    """Return the uniform distribution over the best actions."""
    best = values >= values.max(axis=-1, keepdims=True) - _SAME
    return best / best.sum(axis=-1, keepdims=True)


def bayes_optimal_policy(belief: Belief, left: int) -> Float[np.ndarray, "B A"]:
    """Return the Bayes-optimal arms given the history, with so many pulls left."""
    seen = (belief.given[:, 0] - 1).astype(int)
    return optimal_policy(np.array([bayes_optimal_values(tuple(map(tuple, row.tolist())), left) for row in seen]))


def run_episodes(
    random: np.random.Generator,
    worlds: MDPBatch,
    horizon: int,
    episodes: int,
    randomness: Float[np.ndarray, " B"],
    *,
    bayes: bool = False,
) -> tuple[Trajectories, Float[np.ndarray, "B T A"]]:
    """Run episodes, and return the trajectories with the teacher's policy at each step."""
    rows, states, actions = worlds.rewards.shape
    length, belief, row = horizon * episodes, Belief(rows, states, actions), np.arange(rows)
    lived = Trajectories(*np.zeros((3, rows, length), np.int32))
    best_BxTxA = np.zeros((rows, length, actions))
    known_HxBxSxA = action_values(worlds, horizon)
    state, believes_HxBxSxA = np.zeros(rows, int), known_HxBxSxA
    for step in range(length):
        within = step % horizon
        if within == 0:
            state = np.zeros(rows, int)
        if bayes:
            best_BxTxA[:, step] = believed = bayes_optimal_policy(belief, length - step)
        else:
            best_BxTxA[:, step] = optimal_policy(known_HxBxSxA[within, row, state])
            if within == 0:
                believes_HxBxSxA = action_values(belief.sample(random), horizon)
            believed = optimal_policy(believes_HxBxSxA[within, row, state])
        shares_BxA = np.where((random.random(rows) < randomness)[:, None], 1 / actions, believed)
        action = _choose(random, shares_BxA)
        reward = (random.random(rows) < worlds.rewards[row, state, action]).astype(int)
        after = _choose(random, worlds.transitions[row, state, action])
        # Where an episode ends nobody sees what would have come next.
        belief.note(state, action, reward, after if within + 1 < horizon else None)
        lived.states[:, step], lived.actions[:, step], lived.rewards[:, step] = state, action, reward
        state = after
    return lived, best_BxTxA


def _choose(random: np.random.Generator, shares: Float[np.ndarray, "B N"]) -> Int[np.ndarray, " B"]:
    drawn = random.random((len(shares), 1)) > np.cumsum(shares, axis=1)
    return np.minimum(drawn.sum(axis=1), shares.shape[1] - 1)
