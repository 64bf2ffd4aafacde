"""Small worlds that nobody knows when they begin: their states and actions, and what the best do who know more.

A bandit is a world of one state. All is drawn from a prior that is known: rewards are 1 with a probability that is
uniform from 0 to 1, transitions have Dirichlet(1, ..., 1) probabilities. The first state is 0.
"""

import functools
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

Arms = tuple[tuple[int, int], ...]  # of each arm how often it gave 1, and how often 0
_MOST, _LONGEST = 100_000, 64  # different records that a dynamic program goes through; of most pulls
_SAME = 1e-9  # values that differ by less are equal


class Worlds(NamedTuple):
    """Of every row the probability of each next state, and that of a reward of 1."""

    transitions: Float[np.ndarray, "B S A S"]
    rewards: Float[np.ndarray, "B S A"]

    def fed(self) -> dict[str, Float[np.ndarray, "..."]]:
        """The probabilities as parts of a batch."""
        return {name: values.astype(np.float32) for name, values in self._asdict().items()}


class Lived(NamedTuple):
    """The state at every step, what was done there and what it gave."""

    states: Int[np.ndarray, "B T"]
    actions: Int[np.ndarray, "B T"]
    rewards: Int[np.ndarray, "B T"]


def draw_worlds(random: np.random.Generator, rows: int, states: int, actions: int) -> Worlds:
    """So many worlds of the prior."""
    transitions = random.dirichlet(np.ones(states), (rows, states, actions))
    return Worlds(transitions, random.random((rows, states, actions)))


def action_values(worlds: Worlds, horizon: int) -> Float[np.ndarray, "H B S A"]:
    """Q_t(s, a) = r(s, a) + sum over s' of p(s' | s, a) max over a' of Q_(t+1)(s', a'), for who knows the world."""
    values = np.zeros((horizon + 1, *worlds.rewards.shape))
    for step in reversed(range(horizon)):
        values[step] = worlds.rewards + np.einsum("bsax,bx->bsa", worlds.transitions, values[step + 1].max(axis=-1))
    return values[:-1]


def uniform_value(worlds: Worlds, horizon: int) -> Float[np.ndarray, " B"]:
    """What an episode from state 0 gives on average who does anything alike."""
    value_BxS = np.zeros(worlds.rewards.shape[:2])
    for _ in range(horizon):
        value_BxS = (worlds.rewards + np.einsum("bsax,bx->bsa", worlds.transitions, value_BxS)).mean(axis=-1)
    return value_BxS[:, 0]


@functools.cache
def bayes_values(arms: Arms, left: int) -> tuple[float, ...]:
    """What each arm of a bandit and the best pulls behind it give on average, with so many pulls `left`, at least 1.

    Behind w wins and l losses an arm wins with probability (w + 1) / (w + l + 2), by Laplace's rule of succession:
    Q(arm) = p (1 + V(win noted)) + (1 - p) V(loss noted), V = max Q, V = 0 with nothing left. Exact, for any prior
    knowledge that is uniform.
    """
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
    return max(bayes_values(tuple(sorted(arms)), left)) if left else 0.0


def records(arms: int, pulls: int) -> int:
    """How many different records so many arms can have, in any order, within so many pulls."""
    # ways[a][n]: of multisets of a arms with n pulls in all; an arm of k pulls has one of k + 1 records.
    ways = np.zeros((arms + 1, pulls + 1), object)
    ways[0, 0] = 1
    for k in range(pulls + 1):
        for _ in range(k + 1):
            for count in range(1, arms + 1):
                ways[count, k:] += ways[count - 1, : pulls + 1 - k]
    return int(ways[arms].sum())


def can_be_solved(arms: int, pulls: int) -> bool:
    """Whether the dynamic program of such a bandit is a matter of seconds."""
    return arms <= _LONGEST and pulls <= _LONGEST and records(arms, pulls) <= _MOST


class Belief:
    """What who has lived through some steps knows of each row's world: counts beside those of the prior."""

    def __init__(self, rows: int, states: int, actions: int):
        self.next = np.ones((rows, states, actions, states))
        self.given = np.ones((rows, states, actions, 2))  # rewards of 1, and of 0

    def note(self, state: np.ndarray, action: np.ndarray, reward: np.ndarray, after: np.ndarray | None) -> None:
        """One step of every row, and where it led if that was seen."""
        row = np.arange(len(state))
        if after is not None:
            self.next[row, state, action, after] += 1
        self.given[row, state, action, 1 - reward] += 1

    def sample(self, random: np.random.Generator) -> Worlds:
        """A world as it may be, of every row."""
        parts = random.standard_gamma(self.next)
        return Worlds(parts / parts.sum(axis=-1, keepdims=True), random.beta(self.given[..., 0], self.given[..., 1]))


def optimal(values: Float[np.ndarray, "*B A"]) -> Float[np.ndarray, "*B A"]:
    """All best actions alike: each with 1 / n of n equally good ones."""
    best = values >= values.max(axis=-1, keepdims=True) - _SAME
    return best / best.sum(axis=-1, keepdims=True)


def bayes_optimal(belief: Belief, left: int) -> Float[np.ndarray, "B A"]:
    """The best arms of bandits behind what has been seen of them, with so many pulls left."""
    seen = (belief.given[:, 0] - 1).astype(int)
    return optimal(np.array([bayes_values(tuple(map(tuple, row.tolist())), left) for row in seen]))


def live(
    random: np.random.Generator,
    worlds: Worlds,
    horizon: int,
    episodes: int,
    randomness: Float[np.ndarray, " B"],
    *,
    bayes: bool = False,
) -> tuple[Lived, Float[np.ndarray, "B T A"]]:
    """Live through episodes of so many steps, and say what would have been best at each of them.

    Each row does anything alike with a probability of `randomness`, else the best of a world that it believes in. That
    is sampled from what it knows at the beginning of each episode (posterior sampling: Thompson 1933, Strens 2000),
    where best is what who knows the world would do; or, for bandits with `bayes`, what is best for who knows no more
    than was seen.
    """
    rows, states, actions = worlds.rewards.shape
    length, belief, row = horizon * episodes, Belief(rows, states, actions), np.arange(rows)
    lived = Lived(*np.zeros((3, rows, length), np.int32))
    best_BxTxA = np.zeros((rows, length, actions))
    known_HxBxSxA = action_values(worlds, horizon)
    state, believes_HxBxSxA = np.zeros(rows, int), known_HxBxSxA
    for step in range(length):
        within = step % horizon
        if within == 0:
            state = np.zeros(rows, int)
        if bayes:
            best_BxTxA[:, step] = believed = bayes_optimal(belief, length - step)
        else:
            best_BxTxA[:, step] = optimal(known_HxBxSxA[within, row, state])
            if within == 0:
                believes_HxBxSxA = action_values(belief.sample(random), horizon)
            believed = optimal(believes_HxBxSxA[within, row, state])
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
