"""A robot learns to shake hands with a person who approaches, by Q-learning from what it sees."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from experiments.handshake_rl.q_learning import Replay, TemporalLoss, empty, errors, explore, put, sample, targets
from experiments.handshake_rl.world import CELL, PIXELS, SIDE, Action, World, act, begin, knowing, observe
from transformer.attention.capture import Capture
from transformer.attention.sites import Axis, Site, between
from transformer.config import BatchRows, Config, Examples, Looked, Positive, Share, UserError
from transformer.data.batches import GeneratedBatches, Source
from transformer.data.images import unscaled
from transformer.logical_axes import place
from transformer.models.task_interface import ACTION_VALUES, InputSpec, Modality, TaskInterface
from transformer.tasks.attention_mass import cells_of, middles_of
from transformer.tasks.contract import Batch, Evaluation, LossAux, Objective, Report, TaskSpec, View
from transformer.tasks.labels import Labels
from transformer.tasks.plain import PlainTask, check_rows
from transformer.tasks.symbol_sequences import links_to

# Seeds of worlds are below 2^31 in training, at and above it in evaluations: no run trains on those.
HELD_OUT = {"validation": 2**31, "test": 3 * 2**30, "probe": 2**32 - 2**16}
QUERY, KEY = "step", "region"


@dataclasses.dataclass(frozen=True)
class ApproachingPersonConfig(Config, path="config.task"):
    """Q-learning from a replay of whole episodes, of at most `steps` actions each.

    In each training step the agent lives through `worlds` new episodes, which it keeps in a buffer of `capacity`, and
    learns from `batch_size` of those in it. It acts at random with a probability that falls from 1 to `epsilon` over
    the first `explore` training steps. `target`: the average of the parameters that is the target network.
    `num_eval_examples` worlds are played greedily in an evaluation; in `num_probe_examples` others the maps are of
    episodes that never change.

    Raises:
        UserError: For values out of range.
    """

    steps: Positive = 14
    worlds: Positive = 8
    batch_size: BatchRows = 24
    capacity: int = 4096
    discount: Share = 0.95
    epsilon: Share = 0.05
    explore: Positive = 1000
    loss: TemporalLoss = TemporalLoss.HUBER
    target: str = "target"
    num_eval_examples: Examples = 500
    num_probe_examples: Looked = 4

    def _check(self) -> None:
        if self.capacity < self.worlds:
            raise UserError(
                f"config.task.capacity={self.capacity} must hold the episodes of a step, config.task.worlds="
                f"{self.worlds}"
            )


class Episodes(NamedTuple):
    """What was lived through: the worlds at every step [R, T, ...], what was done there, and what it gave.

    Images are painted again from the worlds, to the very pixel. The first `lengths` steps are real.
    """

    worlds: World
    actions: Int[Array, "R T"]
    rewards: Float[Array, "R T"]
    lengths: Int[Array, " R"]

    def inputs(self) -> dict[str, Array]:
        """What a model sees of them."""
        rows, steps = self.actions.shape
        flat = jax.tree.map(lambda leaf: leaf.reshape(rows * steps, *leaf.shape[2:]), self.worlds)
        images = {name: each.reshape(rows, steps, *each.shape[1:]) for name, each in images_of(flat).items()}
        before_RxT = jnp.pad(self.actions[:, :-1] + 1, ((0, 0), (1, 0)))
        return {**images, "actions": before_RxT, "lengths": self.lengths}

    def of_person(self, regions: Axis) -> Bool[Array, "R T K"]:
        """Which regions hold the person at each step; none while it is not in the image, or behind the end."""
        here_RxT = self.worlds.here & (jnp.arange(self.actions.shape[1]) < self.lengths[:, None])
        return jnp.asarray(regions_of_cells(regions))[self.worlds.place] & here_RxT[..., None]


# Chooses (worlds, what it carries, the actions before plus 1, key) -> (actions, what it carries).
Policy = Callable[[World, Any, Array, Key[Array, ""]], tuple[Array, Any]]


def images_of(world: World) -> dict[str, Float[Array, "R Y X 1"]]:
    """The two images of each world, from -1 to 1."""
    return {
        name: (image.astype(jnp.float32) / 127.5 - 1)[..., None]
        for name, image in zip(("gray", "depth"), observe(world), strict=True)
    }


def live(policy: Policy, carry: Any, seeds_R: Array, steps: int, key: Key[Array, ""]) -> Episodes:
    """The episodes of a policy in the worlds of these seeds."""

    def step(state: tuple, key: Array) -> tuple[tuple, tuple]:
        world, before_R, carry = state
        action_R, carry = policy(world, carry, before_R, key)
        after, reward_R = act(world, action_R, steps)
        return (after, action_R + 1, carry), (world, action_R, reward_R, ~world.over)

    first = (begin(seeds_R), jnp.zeros(len(seeds_R), jnp.int32), carry)
    _, lived = jax.lax.scan(step, first, jax.random.split(key, steps))
    worlds, actions_RxT, rewards_RxT, real_RxT = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), lived)
    return Episodes(worlds, actions_RxT, rewards_RxT, jnp.sum(real_RxT, axis=1))


class ApproachingPerson(PlainTask):
    """The task: implements transformer.tasks.contract.Task."""

    def __init__(self, config: ApproachingPersonConfig, rows_multiple: int = 1):
        check_rows(config.batch_size, rows_multiple)
        self.config = config
        seen = InputSpec((config.batch_size, config.steps, PIXELS, PIXELS, 1), jnp.float32, Modality.IMAGE)
        inputs = {
            "gray": seen,
            "depth": seen,
            "actions": InputSpec((config.batch_size, config.steps), jnp.int32, Modality.ACTIONS),
            "lengths": InputSpec((config.batch_size,)),
        }
        self.interface = TaskInterface(inputs, {"actions": len(Action)}, output=ACTION_VALUES.output)
        self.objectives = (Objective("q_learning", self._loss),)
        self.evaluations = tuple(
            Evaluation(
                "greedy", split, [{"worlds": _held_out(split, config.num_eval_examples)}], self._greedy, report, at_end
            )
            for split, at_end in (("validation", False), ("test", True))
        )

    def source(self, seed: int) -> Source:
        """The seeds of the worlds that are lived in at each step."""
        return GeneratedBatches(
            lambda random: {"worlds": random.integers(0, 2**31, self.config.worlds, np.uint32)}, seed
        )

    def init_extra(self, view: View, key: Key[Array, ""]) -> Replay:
        """An empty buffer."""
        seeds = jnp.zeros(self.config.worlds, jnp.uint32)
        nothing = jax.eval_shape(lambda: live(_knows, None, seeds, self.config.steps, key))
        return empty(nothing, self.config.capacity)

    def prepare(self, view: View, batch: Batch, key: Key[Array, ""]) -> tuple[Batch, Replay]:
        """Act in new worlds, keep what was lived through, draw from all that is kept, and say what values should be."""
        config = self.config
        of_acting, of_replay = jax.random.split(key)
        epsilon = 1 - (1 - config.epsilon) * jnp.minimum(view.step / config.explore, 1)
        replay = put(view.extra, self._live(view, jnp.asarray(batch["worlds"]), epsilon, of_acting))
        drawn: Episodes = sample(replay, config.batch_size, of_replay)
        drawn = jax.tree.map(lambda leaf: place(leaf, "batch", *(None,) * (leaf.ndim - 1)), drawn)
        inputs = drawn.inputs()
        values_BxTxA, _ = view.model.apply(view.averaged(config.target), inputs, train=False)
        made_BxT = targets(drawn.rewards, values_BxTxA, drawn.lengths, config.discount)
        return {**inputs, "chosen": drawn.actions, "rewards": drawn.rewards, "targets": made_BxT}, replay

    def _live(self, view: View, seeds_R: Array, epsilon: Array | float, key: Key[Array, ""]) -> Episodes:
        """Episodes of the agent: greedy but for a share of epsilon."""

        def policy(world: World, carry: Any, before_R: Array, key: Array) -> tuple[Array, Any]:
            inputs = {**images_of(world), "actions": before_R, "state": carry}
            (values_RxA, carry), _ = view.model.apply(view.variables, inputs, method="act", train=False)
            return explore(values_RxA, epsilon, key), carry

        first, _ = view.model.apply(view.variables, {"actions": seeds_R}, method="begin", train=False)
        return live(policy, first, seeds_R, self.config.steps, key)

    def totals(self, batch: Batch) -> dict[str, Array]:
        """The number of real steps, by which the loss is divided, and of episodes."""
        return {
            "steps": jnp.sum(batch["lengths"]).astype(jnp.float32),
            "episodes": jnp.float32(len(batch["lengths"])),
        }

    def _loss(
        self, view: View, batch: Batch, totals: Mapping[str, Array], key: Key[Array, ""]
    ) -> tuple[Array, LossAux]:
        """The mean over real steps; `return` is that of the episodes learned from, which epsilon had a part in."""
        inputs = {name: batch[name] for name in self.interface.inputs}
        values_BxTxA, aux = view.model.apply(view.variables, inputs, train=view.train, key=key, capture=view.capture)
        real_BxT = jnp.arange(self.config.steps) < batch["lengths"][:, None]
        wrong_BxT = jnp.where(
            real_BxT, errors(values_BxTxA, jnp.asarray(batch["chosen"]), jnp.asarray(batch["targets"])), 0
        )
        metrics = {
            "loss": jnp.sum(self.config.loss(wrong_BxT)) / totals["steps"],
            "value": jnp.sum(jnp.where(real_BxT, jnp.max(values_BxTxA, axis=-1), 0)) / totals["steps"],
            "return": jnp.sum(jnp.where(real_BxT, batch["rewards"], 0)) / totals["episodes"],
        }
        return metrics["loss"], LossAux.of(aux, view.extra, metrics)

    def _greedy(self, view: View, batch: Batch, key: Key[Array, ""]) -> tuple[dict[str, Array], None]:
        """What the greedy policy comes to, and, of a model that attends, how much of its attention is the person's."""
        lived = self._live(view, jnp.asarray(batch["worlds"]), 0.0, key)
        sums = {
            "worlds": jnp.float32(len(lived.lengths)),
            "success": jnp.sum(jnp.any(lived.rewards > 0, axis=1).astype(jnp.float32)),
            "reward": jnp.sum(lived.rewards),
            "length": jnp.sum(lived.lengths).astype(jnp.float32),
        }
        sites = between(view.model.sites, QUERY, KEY)
        if sites:
            capture = Capture(tuple(site.name for site in sites))
            _, aux = view.model.apply(view.variables, lived.inputs(), train=False, capture=capture)
            maps = [jnp.asarray(aux.maps[site.name].weights) for site in sites]
            weights_BxTxK = jnp.mean(jnp.stack(maps), axis=(0, 1, 3))
            person_BxTxK = lived.of_person(sites[0].key)
            sums["seen"] = jnp.sum(jnp.any(person_BxTxK, axis=-1)).astype(jnp.float32)
            sums["mass"] = jnp.sum(jnp.where(person_BxTxK, weights_BxTxK, 0))
            sums["uniform"] = jnp.sum(jnp.mean(person_BxTxK, axis=-1))
        return sums, None

    @cached_property
    def _shown(self) -> Episodes:
        """The probe's episodes, those of a policy that needs no model."""
        seeds, steps = jnp.asarray(_held_out("probe", self.config.num_probe_examples)), self.config.steps
        return jax.device_get(jax.jit(lambda: live(_knows, None, seeds, steps, jax.random.key(0)))())

    @cached_property
    def probe_batch(self) -> dict[str, np.ndarray]:  # type: ignore[override]
        """What a model sees of them."""
        return jax.device_get(jax.jit(Episodes.inputs)(self._shown))

    def labels(self, sites: Sequence[Site]) -> Labels:
        """What was done at each step, what was seen there, and where the person was.

        An image is gray where both streams agree: red and green are the gray stream, blue the depth.
        """
        shown = self._shown
        names, titles = [], []
        for row, length in enumerate(shown.lengths.tolist()):
            done = [Action(int(action)).name.lower() for action in shown.actions[row, :length]]
            names.append(tuple(f"{step} {action}" for step, action in enumerate(done, 1)))
            accepted = (shown.rewards[row] > 0).any()
            titles.append(f"{'a handshake' if accepted else 'no handshake'} after {length} steps")
        gray, depth = (unscaled(self.probe_batch[name][..., 0]) for name in ("gray", "depth"))
        gold = {}
        for site in between(sites, QUERY, KEY):
            # Where a cell is divided into several regions each is possible, and none must be looked at.
            gold[site.name] = links_to(shown.of_person(site.key), sure=site.key.stride >= CELL)
        images = {KEY: np.stack([gray, gray, depth], axis=-1)}
        return Labels({QUERY: tuple(names)}, tuple(titles), gold or None, images=images)


def report(sums: Mapping[str, Any], rows: object = None) -> Report:
    """Success and mean reward of the worlds; `attention` is the mean weight of the person's regions while it is seen.

    `attention_times_uniform` is that weight over what even attention gives these regions.
    """
    count = sums["worlds"]
    scalars = {name: float(sums[name]) / count for name in ("success", "reward", "length")}
    if "mass" in sums:
        scalars["attention"] = float(sums["mass"]) / max(float(sums["seen"]), 1)
        scalars["attention_times_uniform"] = float(sums["mass"]) / max(float(sums["uniform"]), 1e-9)
    return Report(scalars, note=f"{int(count)} worlds, greedy")


def regions_of_cells(axis: Axis) -> Bool[np.ndarray, "cells K"]:
    """Which regions of a grid are those of each cell: a region's middle lies in the cell, or the cell's in the region.

    Raises:
        ValueError: For an axis that is no grid.
    """
    regions_K = cells_of(axis, side=SIDE, size=PIXELS)
    middles = (np.arange(SIDE) + 0.5) * CELL
    y_Y, x_X = middles_of(axis)
    row, column = (np.abs(each - middles[:, None]).argmin(axis=1) for each in (y_Y, x_X))
    region = axis.leading + len(x_X) * row[:, None] + column
    cells = np.arange(SIDE**2)[:, None]
    return (regions_K == cells) | (np.arange(len(regions_K)) == region.reshape(-1, 1))


def _knows(world: World, carry: Any, before_R: Array, key: Array) -> tuple[Array, Any]:
    return knowing(world), carry


def _held_out(split: str, count: int) -> np.ndarray:
    return (HELD_OUT[split] + np.arange(count)).astype(np.uint32)


TASK = TaskSpec(ApproachingPersonConfig, ApproachingPerson)
