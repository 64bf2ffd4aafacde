"""Q-learning from a replay buffer of episodes: targets, errors, exploration."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key


def td_targets(
    rewards_BxT: Float[Array, "B T"],
    values_BxTxA: Float[Array, "B T A"],
    lengths_B: Int[Array, " B"],
    discount: float,
) -> Float[Array, "B T"]:
    """Compute y_t = r_t + discount max_a Q(o_{t+1}, a), and r_t alone at the last step of an episode.

    Mnih et al. 2015, equation 2, over sequences as in Hausknecht and Stone 2015.

    Args:
        rewards_BxT: The rewards.
        values_BxTxA: The target network's action values.
        lengths_B: The number of real steps of each episode.
        discount: The discount factor.

    Returns:
        The targets [episode, step], 0 at padding.
    """
    step_1xT = jnp.arange(rewards_BxT.shape[1])[None]
    best_BxT = jnp.pad(jnp.max(values_BxTxA, axis=-1)[:, 1:], ((0, 0), (0, 1)))
    goes_on_BxT = step_1xT + 1 < lengths_B[:, None]
    made_BxT = rewards_BxT + discount * jnp.where(goes_on_BxT, best_BxT, 0)
    return jnp.where(step_1xT < lengths_B[:, None], made_BxT, 0)


def td_errors(
    values_BxTxA: Float[Array, "B T A"], chosen_BxT: Int[Array, "B T"], targets_BxT: Float[Array, "B T"]
) -> Float[Array, "B T"]:
    """Compute Q(o_t, a_t) - y_t for the actions that were taken.

    Args:
        values_BxTxA: The action values.
        chosen_BxT: The actions.
        targets_BxT: The targets.

    Returns:
        The errors [episode, step].
    """
    return jnp.take_along_axis(values_BxTxA, chosen_BxT[..., None], axis=-1)[..., 0] - targets_BxT


def epsilon_greedy(
    values_BxA: Float[Array, "B A"], epsilon: Float[Array, ""] | float, key: Key[Array, ""]
) -> Int[Array, " B"]:
    """Return the action of the largest value or, with probability epsilon, a random one.

    Args:
        values_BxA: The action values.
        epsilon: The probability of a random action.
        key: The random key.

    Returns:
        The action of each row.
    """
    rows, count = values_BxA.shape
    explore_key, action_key = jax.random.split(key)
    random_action_B = jax.random.randint(action_key, (rows,), 0, count)
    explores_B: Bool[Array, " B"] = jax.random.uniform(explore_key, (rows,)) < epsilon
    return jnp.where(explores_B, random_action_B, jnp.argmax(values_BxA, axis=-1)).astype(jnp.int32)


PyTree = Any


class ReplayBuffer(NamedTuple):
    """A ring buffer of episodes.

    Attributes:
        episodes: A tree of arrays [capacity, ...].
        written: The number of episodes added so far.
    """

    episodes: PyTree
    written: Int[Array, ""]


def create_buffer(episodes: PyTree, capacity: int) -> ReplayBuffer:
    """Create an empty replay buffer.

    Args:
        episodes: Episodes whose shapes [rows, ...] and types it is to store.
        capacity: The most episodes.

    Returns:
        The buffer.
    """
    return ReplayBuffer(
        jax.tree.map(lambda leaf: jnp.zeros((capacity, *leaf.shape[1:]), leaf.dtype), episodes), jnp.int32(0)
    )


def add_episodes(replay: ReplayBuffer, episodes: PyTree) -> ReplayBuffer:
    """Add episodes to a buffer, replacing the oldest: episode n is stored at n modulo the capacity.

    Args:
        replay: The buffer.
        episodes: A tree of arrays [rows, ...].

    Returns:
        The new buffer.
    """
    rows, capacity = (len(jax.tree.leaves(tree)[0]) for tree in (episodes, replay.episodes))
    slots = (replay.written + jnp.arange(rows)) % capacity
    stored_episodes = jax.tree.map(lambda old, new: old.at[slots].set(new), replay.episodes, episodes)
    return ReplayBuffer(stored_episodes, replay.written + rows)


def sample_episodes(replay: ReplayBuffer, rows: int, key: Key[Array, ""]) -> PyTree:
    """Sample episodes uniformly, with replacement.

    Args:
        replay: The buffer, which has at least one episode.
        rows: The number of episodes.
        key: The random key.

    Returns:
        A tree of arrays [rows, ...].
    """
    capacity = len(jax.tree.leaves(replay.episodes)[0])
    indices = jax.random.randint(key, (rows,), 0, jnp.minimum(replay.written, capacity))
    return jax.tree.map(lambda leaf: leaf[indices], replay.episodes)
