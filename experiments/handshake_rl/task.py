"""Q-learning of a robot that shakes hands with a person who approaches."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, Key

from experiments.handshake_rl.environment import (
    CELL,
    PIXELS,
    SIDE,
    Action,
    EnvironmentState,
    oracle_action,
    render,
    reset,
    step_environment,
)
from experiments.handshake_rl.q_learning import (
    ReplayBuffer,
    add_episodes,
    create_buffer,
    epsilon_greedy,
    sample_episodes,
    td_errors,
    td_targets,
)
from experiments.handshake_rl.signature import ACTION_VALUES
from transformer.attention.capture import Capture
from transformer.attention.sites import Axis, Site, sites_between
from transformer.config import BatchSize, Config, Fraction, NumDisplayedExamples, NumExamples, PositiveInt, UserError
from transformer.data.batches import BatchSource, GeneratedBatches
from transformer.data.images import unscale_pixels
from transformer.layers.sequence_lengths import real_positions
from transformer.logical_axes import with_logical_constraint
from transformer.models.task_interface import InputSpec, Modality, TaskInterface
from transformer.tasks.attention_mass import cell_of_patch, patch_centers
from transformer.tasks.axis_labels import AxisLabels
from transformer.tasks.base_task import BaseTask, check_batch_size
from transformer.tasks.sequence_generation_base import gold_alignments_from_mask
from transformer.tasks.task import Batch, Evaluation, EvaluationReport, LossAux, Objective, StateView, TaskSpec

# Seeds of episodes are below 2^31 in training, at and above it in evaluations: no run trains on those.
HELD_OUT = {"validation": 2**31, "test": 3 * 2**30, "probe": 2**32 - 2**16}
QUERY, KEY = "step", "region"
TARGET_NETWORK = "target"
"""The parameter average that is the target network."""


@dataclasses.dataclass(frozen=True)
class HandshakeRLConfig(Config, path="config.task"):
    """Q-learning from a replay buffer of whole episodes.

    In each training step the agent acts in new episodes, adds them to the buffer, and learns from a batch of it.

    Attributes:
        max_episode_steps: The most actions of an episode.
        episodes_per_step: New episodes in a training step.
        replay_batch_size: Episodes that are replayed in a training step.
        replay_capacity: Episodes that the buffer holds.
        discount: The discount factor.
        final_epsilon: The final probability of a random action; it falls from 1.
        exploration_steps: The training steps over which it falls.
        num_eval_examples: Episodes that are played greedily in an evaluation.
        num_probe_examples: Fixed episodes whose maps are stored.

    Raises:
        UserError: If a value is out of range.
    """

    max_episode_steps: PositiveInt = 14
    episodes_per_step: PositiveInt = 8
    replay_batch_size: BatchSize = 24
    replay_capacity: int = 4096
    discount: Fraction = 0.95
    final_epsilon: Fraction = 0.05
    exploration_steps: PositiveInt = 1000
    num_eval_examples: NumExamples = 500
    num_probe_examples: NumDisplayedExamples = 4

    def _check(self) -> None:
        if self.replay_capacity < self.episodes_per_step:
            raise UserError(
                f"config.task.replay_capacity={self.replay_capacity} must hold the episodes of a step, "
                f"config.task.episodes_per_step={self.episodes_per_step}"
            )


class EpisodeBatch(NamedTuple):
    """Episodes, from whose states images are rendered again.

    Attributes:
        states: The state at every step [R, T, ...].
        actions: The actions.
        rewards: The rewards.
        lengths: The number of real steps.
    """

    states: EnvironmentState
    actions: Int[Array, "R T"]
    rewards: Float[Array, "R T"]
    lengths: Int[Array, " R"]

    def inputs(self) -> dict[str, Array]:
        """Return the model's inputs."""
        rows, steps = self.actions.shape
        flat = jax.tree.map(lambda leaf: leaf.reshape(rows * steps, *leaf.shape[2:]), self.states)
        images = {name: frames.reshape(rows, steps, *frames.shape[1:]) for name, frames in render_images(flat).items()}
        before_RxT = jnp.pad(self.actions[:, :-1] + 1, ((0, 0), (1, 0)))
        return {**images, "actions": before_RxT, "lengths": self.lengths}

    def person_regions(self, regions: Axis) -> Bool[Array, "R T K"]:
        """Return which regions show the person at each step [R, T, K]; none while out of the image or after the end."""
        here_RxT = self.states.person_visible & real_positions(jnp.asarray(self.lengths), self.actions.shape[1])
        return jnp.asarray(cell_regions(regions))[self.states.person_cell] & here_RxT[..., None]


# Chooses (states, what it carries, the actions before plus 1, key) -> (actions, what it carries).
Policy = Callable[[EnvironmentState, Any, Array, Key[Array, ""]], tuple[Array, Any]]


def render_images(state: EnvironmentState) -> dict[str, Float[Array, "R Y X 1"]]:
    """Render the two images of each state, from -1 to 1."""
    return {
        name: (image.astype(jnp.float32) / 127.5 - 1)[..., None]
        for name, image in zip(("gray", "depth"), render(state), strict=True)
    }


def run_episodes(policy: Policy, carry: Any, seeds_R: Array, steps: int, key: Key[Array, ""]) -> EpisodeBatch:
    """Run a policy from the initial states of some seeds.

    Args:
        policy: Returns the actions and its next carry, given the states, its carry, the previous actions plus 1 (0 at
            the first step), and a random key.
        carry: Its first carry.
        seeds_R: The seeds.
        steps: The most steps of an episode.
        key: The random key.

    Returns:
        The episodes.
    """

    def step(loop: tuple, key: Array) -> tuple[tuple, tuple]:
        state, before_R, carry = loop
        action_R, carry = policy(state, carry, before_R, key)
        after, reward_R = step_environment(state, action_R, steps)
        return (after, action_R + 1, carry), (state, action_R, reward_R, ~state.done)

    first = (reset(seeds_R), jnp.zeros(len(seeds_R), jnp.int32), carry)
    _, episodes = jax.lax.scan(step, first, jax.random.split(key, steps))
    states, actions_RxT, rewards_RxT, real_RxT = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), episodes)
    return EpisodeBatch(states, actions_RxT, rewards_RxT, jnp.sum(real_RxT, axis=1))


class HandshakeRL(BaseTask):
    """Handshakes by reinforcement learning: implements transformer.tasks.task.Task."""

    def __init__(self, config: HandshakeRLConfig, rows_multiple: int = 1):
        check_batch_size(config.replay_batch_size, rows_multiple, key="replay_batch_size")
        self.config = config
        image_spec = InputSpec(
            (config.replay_batch_size, config.max_episode_steps, PIXELS, PIXELS, 1), jnp.float32, Modality.IMAGE
        )
        inputs = {
            "gray": image_spec,
            "depth": image_spec,
            "actions": InputSpec((config.replay_batch_size, config.max_episode_steps), jnp.int32, Modality.ACTIONS),
            "lengths": InputSpec((config.replay_batch_size,)),
        }
        self.interface = TaskInterface(inputs, {"actions": len(Action)}, output=ACTION_VALUES.output)
        self.objectives = (Objective("q_learning", self._loss),)
        self.evaluations = tuple(
            Evaluation(
                "greedy",
                split,
                [{"seeds": _held_out_seeds(split, config.num_eval_examples)}],
                self._greedy_sums,
                handshake_report,
                at_end,
            )
            for split, at_end in (("validation", False), ("test", True))
        )

    def training_batches(self, seed: int) -> BatchSource:
        """Return the seeds of the environments of each step."""
        return GeneratedBatches(
            lambda random: {"seeds": random.integers(0, 2**31, self.config.episodes_per_step, np.uint32)}, seed
        )

    def init_task_state(self, view: StateView, key: Key[Array, ""]) -> ReplayBuffer:
        """Return an empty replay buffer."""
        seeds = jnp.zeros(self.config.episodes_per_step, jnp.uint32)
        abstract_episodes = jax.eval_shape(
            lambda: run_episodes(_oracle_policy, None, seeds, self.config.max_episode_steps, key)
        )
        return create_buffer(abstract_episodes, self.config.replay_capacity)

    def prepare_batch(self, view: StateView, batch: Batch, key: Key[Array, ""]) -> tuple[Batch, ReplayBuffer]:
        """Act in new environments, add the episodes to the buffer, sample from it, and compute the targets."""
        config = self.config
        acting_key, replay_key = jax.random.split(key)
        epsilon = 1 - (1 - config.final_epsilon) * jnp.minimum(view.step / config.exploration_steps, 1)
        replay = add_episodes(view.task_state, self._run_policy(view, jnp.asarray(batch["seeds"]), epsilon, acting_key))
        sampled: EpisodeBatch = sample_episodes(replay, config.replay_batch_size, replay_key)
        sampled = jax.tree.map(lambda leaf: with_logical_constraint(leaf, "batch", *(None,) * (leaf.ndim - 1)), sampled)
        inputs = sampled.inputs()
        values_BxTxA, _ = view.model.apply(view.averaged(TARGET_NETWORK), inputs, train=False)
        targets_BxT = td_targets(sampled.rewards, values_BxTxA, sampled.lengths, config.discount)
        return {**inputs, "chosen": sampled.actions, "rewards": sampled.rewards, "targets": targets_BxT}, replay

    def _run_policy(self, view: StateView, seeds_R: Array, epsilon: Array | float, key: Key[Array, ""]) -> EpisodeBatch:
        """Run the epsilon-greedy policy."""

        def policy(state: EnvironmentState, carry: Any, before_R: Array, key: Array) -> tuple[Array, Any]:
            inputs = {**render_images(state), "actions": before_R, "state": carry}
            (values_RxA, carry), _ = view.model.apply(view.variables, inputs, method="act", train=False)
            return epsilon_greedy(values_RxA, epsilon, key), carry

        first, _ = view.model.apply(view.variables, {"actions": seeds_R}, method="begin", train=False)
        return run_episodes(policy, first, seeds_R, self.config.max_episode_steps, key)

    def denominators(self, batch: Batch) -> dict[str, Array]:
        """Return the number of real steps, which divides the loss, and of episodes."""
        return {
            "steps": jnp.sum(batch["lengths"]).astype(jnp.float32),
            "episodes": jnp.float32(len(batch["lengths"])),
        }

    def _loss(
        self, view: StateView, batch: Batch, denominators: Mapping[str, Array], key: Key[Array, ""]
    ) -> tuple[Array, LossAux]:
        """Return the mean Huber loss of real steps (Mnih et al. 2015); `replayed_episode_reward` has exploration."""
        inputs = {name: batch[name] for name in self.interface.inputs}
        values_BxTxA, aux = view.model.apply(view.variables, inputs, train=view.train, key=key, capture=view.capture)
        real_BxT = real_positions(jnp.asarray(batch["lengths"]), self.config.max_episode_steps)
        error_BxT = jnp.where(
            real_BxT, td_errors(values_BxTxA, jnp.asarray(batch["chosen"]), jnp.asarray(batch["targets"])), 0
        )
        metrics = {
            "loss": jnp.sum(optax.losses.huber_loss(error_BxT)) / denominators["steps"],
            "max_q_value": jnp.sum(jnp.where(real_BxT, jnp.max(values_BxTxA, axis=-1), 0)) / denominators["steps"],
            "replayed_episode_reward": jnp.sum(jnp.where(real_BxT, batch["rewards"], 0)) / denominators["episodes"],
        }
        return metrics["loss"], LossAux.from_aux(aux, view.task_state, metrics)

    def _greedy_sums(self, view: StateView, batch: Batch, key: Key[Array, ""]) -> tuple[dict[str, Array], None]:
        """Sum success, reward and length of the greedy policy, and the attention mass on the person."""
        episodes = self._run_policy(view, jnp.asarray(batch["seeds"]), 0.0, key)
        sums = {
            "episodes": jnp.float32(len(episodes.lengths)),
            "success": jnp.sum(jnp.any(episodes.rewards > 0, axis=1).astype(jnp.float32)),
            "episode_reward": jnp.sum(episodes.rewards),
            "episode_length": jnp.sum(episodes.lengths).astype(jnp.float32),
        }
        sites = sites_between(view.model.sites, QUERY, KEY)
        if sites:
            capture = Capture(tuple(site.name for site in sites))
            _, aux = view.model.apply(view.variables, episodes.inputs(), train=False, capture=capture)
            maps = [jnp.asarray(aux.maps[site.name].weights) for site in sites]
            weights_BxTxK = jnp.mean(jnp.stack(maps), axis=(0, 1, 3))
            person_BxTxK = episodes.person_regions(sites[0].key)
            sums["seen"] = jnp.sum(jnp.any(person_BxTxK, axis=-1)).astype(jnp.float32)
            sums["mass"] = jnp.sum(jnp.where(person_BxTxK, weights_BxTxK, 0))
            sums["uniform"] = jnp.sum(jnp.mean(person_BxTxK, axis=-1))
        return sums, None

    @cached_property
    def _probe_episodes(self) -> EpisodeBatch:
        """The probe's episodes, played by the oracle policy."""
        seeds, steps = (
            jnp.asarray(_held_out_seeds("probe", self.config.num_probe_examples)),
            self.config.max_episode_steps,
        )
        return jax.device_get(jax.jit(lambda: run_episodes(_oracle_policy, None, seeds, steps, jax.random.key(0)))())

    @cached_property
    def probe_batch(self) -> dict[str, np.ndarray]:  # type: ignore[override]
        """The model's inputs for the probe's episodes."""
        return jax.device_get(jax.jit(EpisodeBatch.inputs)(self._probe_episodes))

    def axis_labels(self, sites: Sequence[Site]) -> AxisLabels:
        """Label each step with its action, its image and the person's regions.

        The images show both streams: red and green are the grayscale image, blue the depth.
        """
        episodes = self._probe_episodes
        names, titles = [], []
        for row, length in enumerate(episodes.lengths.tolist()):
            actions = [Action(int(action)).name.lower() for action in episodes.actions[row, :length]]
            names.append(tuple(f"{step} {action}" for step, action in enumerate(actions, 1)))
            accepted = (episodes.rewards[row] > 0).any()
            titles.append(f"{'a handshake' if accepted else 'no handshake'} after {length} steps")
        gray, depth = (unscale_pixels(self.probe_batch[name][..., 0]) for name in ("gray", "depth"))
        gold = {}
        for site in sites_between(sites, QUERY, KEY):
            # Where a cell is divided into several regions each is possible, and none must be looked at.
            gold[site.name] = gold_alignments_from_mask(episodes.person_regions(site.key), sure=site.key.stride >= CELL)
        images = {KEY: np.stack([gray, gray, depth], axis=-1)}
        return AxisLabels({QUERY: tuple(names)}, tuple(titles), gold or None, images=images)


def handshake_report(sums: Mapping[str, Any], rows: object = None) -> EvaluationReport:
    """Report success and the mean reward and length of an episode.

    `attention_mass/person` is the mean weight on the person's regions; `attention_mass/person_over_uniform` is that
    weight divided by the weight of uniform attention.
    """
    count = sums["episodes"]
    scalars = {name: float(sums[name]) / count for name in ("success", "episode_reward", "episode_length")}
    if "mass" in sums:
        scalars["attention_mass/person"] = float(sums["mass"]) / max(float(sums["seen"]), 1)
        scalars["attention_mass/person_over_uniform"] = float(sums["mass"]) / max(float(sums["uniform"]), 1e-9)
    return EvaluationReport(scalars, note=f"{int(count)} episodes, greedy")


def cell_regions(axis: Axis) -> Bool[np.ndarray, "cells K"]:
    """Return which regions of a grid overlap each cell: the center of one lies in the other.

    Args:
        axis: The axis of regions.

    Returns:
        A mask [cell, region].

    Raises:
        ValueError: If the axis is not a grid.
    """
    regions_K = cell_of_patch(axis, side=SIDE, size=PIXELS)
    middles = (np.arange(SIDE) + 0.5) * CELL
    y_Y, x_X = patch_centers(axis)
    row, column = (np.abs(centers - middles[:, None]).argmin(axis=1) for centers in (y_Y, x_X))
    region = axis.num_leading_positions + len(x_X) * row[:, None] + column
    cells = np.arange(SIDE**2)[:, None]
    return (regions_K == cells) | (np.arange(len(regions_K)) == region.reshape(-1, 1))


def _oracle_policy(state: EnvironmentState, carry: Any, before_R: Array, key: Array) -> tuple[Array, Any]:
    return oracle_action(state), carry


def _held_out_seeds(split: str, count: int) -> np.ndarray:
    return (HELD_OUT[split] + np.arange(count)).astype(np.uint32)


TASK = TaskSpec(HandshakeRLConfig, HandshakeRL)
