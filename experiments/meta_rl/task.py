"""Meta reinforcement learning: learn a bandit or a small Markov decision process while acting in it."""

import dataclasses
import enum
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from experiments.meta_rl.data import (
    MDPBatch,
    Trajectories,
    action_values,
    bayes_optimal_values,
    is_tractable,
    random_policy_value,
    run_episodes,
    sample_mdps,
)
from transformer.attention.sites import Site
from transformer.config import BatchSize, Config, NumDisplayedExamples, NumExamples, PositiveInt, Range, UserError
from transformer.data.batches import (
    PROBE_SEED,
    TEST_SEED,
    VALIDATION_SEED,
    BatchSource,
    GeneratedBatches,
    random_generator,
)
from transformer.models.task_interface import VECTOR_REGRESSION, InputSpec, Modality, TaskInterface
from transformer.tasks.axis_labels import AxisLabels
from transformer.tasks.base_task import BaseTask, check_batch_size
from transformer.tasks.task import Batch, Evaluation, EvaluationReport, LossAux, Objective, StateView, TaskSpec

_MAX_HISTORY_PULLS = 12  # pulls, whose every row of wins and losses is gone through


class Teacher(enum.Enum):
    """The policy that is imitated: bayes_optimal (of a bandit, from its history) or oracle (knows the MDP)."""

    BAYES_OPTIMAL = "bayes_optimal"
    ORACLE = "oracle"


@dataclasses.dataclass(frozen=True)
class MetaRLConfig(Config, path="config.task"):
    """Meta-learning of bandits and MDPs: each MDP is played for several episodes, in which it must be learned.

    An MDP with one state is a bandit, whose pulls are episodes of one step. Training episodes are run by
    `experiments.meta_rl.data.run_episodes`, each row with another probability of random actions; in an evaluation the
    model acts. At the end of training the mean return of the greedy policy over all bandits is computed exactly if
    there are at most 12 pulls.

    Attributes:
        num_states: The states of an MDP.
        num_actions: The actions, or arms of a bandit.
        horizon: The steps of an episode.
        num_episodes: The episodes in each MDP.
        teacher: The policy that is imitated.
        batch_size: MDPs in a batch.
        num_eval_examples: MDPs in which the model acts in an evaluation.
        num_probe_examples: MDPs whose maps are stored.

    Raises:
        UserError: If a value is out of range, or the teacher cannot be computed.
    """

    num_states: PositiveInt = 1
    num_actions: Annotated[int, Range(2)] = 5
    horizon: PositiveInt = 1
    num_episodes: PositiveInt = 10
    teacher: Teacher = Teacher.BAYES_OPTIMAL
    batch_size: BatchSize = 64
    num_eval_examples: NumExamples = 2000
    num_probe_examples: NumDisplayedExamples = 2

    def _check(self) -> None:
        if self.teacher is Teacher.BAYES_OPTIMAL:
            if self.num_states > 1:
                raise UserError(
                    f"config.task.teacher=bayes_optimal is for bandits: set num_states=1, "
                    f"or teacher=oracle for {self.num_states} states"
                )
            if not is_tractable(self.num_actions, self.num_steps):
                raise UserError(
                    f"config.task.teacher=bayes_optimal enumerates every history of {self.num_actions} arms in "
                    f"{self.num_steps} pulls, which are too many: reduce them, or set teacher=oracle"
                )

    @property
    def num_steps(self) -> int:
        """The steps of all episodes in one MDP."""
        return self.horizon * self.num_episodes

    @property
    def num_inputs(self) -> int:
        """The number of inputs of a step: the state, the last action, its reward, and whether an episode starts."""
        return self.num_states + self.num_actions + 2


class PolicyRollout(NamedTuple):
    """The steps of a model's policy in every MDP.

    Attributes:
        vectors: The model's inputs.
        actions: The actions.
        rewards: The rewards.
    """

    vectors: Float[Array, "B T I"]
    actions: Int[Array, "B T"]
    rewards: Float[Array, "B T"]


class MetaRL(BaseTask):
    """Meta reinforcement learning: implements transformer.tasks.task.Task."""

    def __init__(self, config: MetaRLConfig, rows_multiple: int = 1):
        check_batch_size(config.batch_size, rows_multiple)
        self.config = config
        inputs = {
            "vectors": InputSpec(
                (config.batch_size, config.num_steps, config.num_inputs), jnp.float32, Modality.ACTIONS
            )
        }
        self.interface = TaskInterface(inputs, {"numbers": config.num_actions}, output=VECTOR_REGRESSION.output)
        self.objectives = (Objective("distillation", self._loss),)
        self.evaluations = (self._evaluation("validation", VALIDATION_SEED), self._evaluation("test", TEST_SEED))
        if config.num_states == 1 and config.num_steps <= _MAX_HISTORY_PULLS:
            self.evaluations += (self._every_history(),)
        random = random_generator(PROBE_SEED)
        self._mdps = self._sample_mdps(random, config.num_probe_examples)
        self._trajectories, _ = self._run_teacher(random, self._mdps, np.zeros(config.num_probe_examples))
        self.probe_batch = {"vectors": make_inputs(config, self._trajectories)}

    def _sample_mdps(self, random: np.random.Generator, rows: int) -> MDPBatch:
        return sample_mdps(random, rows, self.config.num_states, self.config.num_actions)

    def _run_teacher(
        self, random: np.random.Generator, mdps: MDPBatch, randomness: np.ndarray
    ) -> tuple[Trajectories, Float[np.ndarray, "B T A"]]:
        config = self.config
        bayes = config.teacher is Teacher.BAYES_OPTIMAL
        return run_episodes(random, mdps, config.horizon, config.num_episodes, randomness, bayes=bayes)

    def training_batches(self, seed: int) -> BatchSource:
        """Return an endless source of MDPs and episodes that are sampled anew at every step."""

        def draw(random: np.random.Generator) -> dict[str, np.ndarray]:
            mdps = self._sample_mdps(random, self.config.batch_size)
            trajectories, best_BxTxA = self._run_teacher(random, mdps, random.random(self.config.batch_size))
            return {"vectors": make_inputs(self.config, trajectories), "best": best_BxTxA.astype(np.float32)}

        return GeneratedBatches(draw, seed)

    def denominators(self, batch: Batch) -> dict[str, Array]:
        """Return the number of steps of all rows."""
        return {"steps": jnp.float32(np.prod(batch["best"].shape[:2]))}

    def _loss(
        self, view: StateView, batch: Batch, denominators: Mapping[str, Array], key: Key[Array, ""]
    ) -> tuple[Array, LossAux]:
        """Return the mean over steps of -sum over actions of b_a log p(a), b being uniform over the best actions.

        `optimal_action_accuracy` is how often the most probable action is one of the best.
        """
        inputs = {"vectors": jnp.asarray(batch["vectors"])}
        logits_BxTxA, aux = view.model.apply(view.variables, inputs, train=view.train, key=key, capture=view.capture)
        best_BxTxA = jnp.asarray(batch["best"])
        log_BxTxA = jax.nn.log_softmax(logits_BxTxA.astype(jnp.promote_types(logits_BxTxA.dtype, jnp.float32)))
        said_BxTx1 = jnp.argmax(log_BxTxA, axis=-1, keepdims=True)
        agrees_BxTx1 = jnp.take_along_axis(best_BxTxA, said_BxTx1, axis=-1) > 0
        metrics = {
            "loss": -jnp.sum(best_BxTxA * log_BxTxA) / denominators["steps"],
            "optimal_action_accuracy": jnp.sum(agrees_BxTx1) / denominators["steps"],
        }
        return metrics["loss"], LossAux.from_aux(aux, view.task_state, metrics)

    def _evaluation(self, split: str, seed: int) -> Evaluation:
        config, batches, mdps = self.config, [], []
        for number in range(-(-config.num_eval_examples // config.batch_size)):
            random = random_generator(seed, number)
            mdps.append(self._sample_mdps(random, config.batch_size))
            # What happens to whoever acts is drawn beforehand: all models get the same random numbers.
            uniform_samples = random.random((config.batch_size, config.num_steps, 2 + config.num_actions)).astype(
                np.float32
            )
            batches.append({**mdps[-1].batch_arrays(), "uniform_samples": uniform_samples})

        def step(view: StateView, batch: Batch, key: Key[Array, ""]) -> tuple[dict[str, Array], None]:
            def act(vectors_BxTxI: Array) -> Array:
                return view.model.apply(view.variables, {"vectors": vectors_BxTxI}, train=False)[0]

            played = {name: run_policy(config, act, batch, sampled=name == "sampled") for name in ("greedy", "sampled")}
            sums = {name: jnp.sum(trajectories.rewards) for name, trajectories in played.items()}
            return {**sums, "mdps": jnp.float32(len(batch["uniform_samples"]))}, None

        @functools.cache
        def reference_returns() -> dict[str, float]:
            """Return the mean return of reference agents: a random policy, an oracle, posterior sampling."""
            all_mdps = MDPBatch(*map(np.concatenate, zip(*mdps, strict=True)))
            knowing_B = action_values(all_mdps, config.horizon)[0, :, 0].max(axis=-1)
            random = random_generator(seed, 2**32)
            trajectories, _ = run_episodes(
                random, all_mdps, config.horizon, config.num_episodes, np.zeros(len(knowing_B))
            )
            returns = {
                "random_policy_return": config.num_episodes
                * float(random_policy_value(all_mdps, config.horizon).mean()),
                "oracle_return": config.num_episodes * float(knowing_B.mean()),
                "posterior_sampling_return": float(trajectories.rewards.sum(axis=1).mean()),
            }
            if config.teacher is Teacher.BAYES_OPTIMAL:
                returns["bayes_optimal_return"] = max(
                    bayes_optimal_values(((0, 0),) * config.num_actions, config.num_steps)
                )
            return returns

        def finish(sums: Mapping[str, Any], rows: object) -> EvaluationReport:
            model_returns = {
                f"{name}_return": float(sums[name]) / float(sums["mdps"]) for name in ("greedy", "sampled")
            }
            return EvaluationReport(
                {**model_returns, **reference_returns()}, note=f"{int(sums['mdps'])} MDPs, the sum of rewards in each"
            )

        return Evaluation("worlds", split, batches, step, finish, at_end=split == "test")

    def _every_history(self) -> Evaluation:
        config = self.config
        wins_NxT = np.array(list(itertools.product((False, True), repeat=config.num_steps)))
        padded_NxT = np.concatenate([wins_NxT, np.zeros((-len(wins_NxT) % config.batch_size, config.num_steps), bool)])
        real_N = np.arange(len(padded_NxT)) < len(wins_NxT)
        starts = range(0, len(real_N), config.batch_size)
        batches = [
            {"wins": padded_NxT[start : start + config.batch_size], "real": real_N[start : start + config.batch_size]}
            for start in starts
        ]

        def step(view: StateView, batch: Batch, key: Key[Array, ""]) -> tuple[dict[str, Array], None]:
            def act(vectors_BxTxI: Array) -> Array:
                return view.model.apply(view.variables, {"vectors": vectors_BxTxI}, train=False)[0]

            wins_BxT, real_B = jnp.asarray(batch["wins"]), jnp.asarray(batch["real"])
            probability_B = jnp.where(real_B, history_probabilities(config, act, wins_BxT), 0)
            return {"expected_greedy_return": jnp.sum(probability_B * jnp.sum(wins_BxT, axis=1))}, None

        def finish(sums: Mapping[str, Any], rows: object) -> EvaluationReport:
            return EvaluationReport({"expected_greedy_return": float(sums["expected_greedy_return"])})

        return Evaluation("every_history", "test", batches, step, finish, at_end=True)

    def axis_labels(self, sites: Sequence[Site]) -> AxisLabels:
        """Label each step with what the model reads: the state, if there are several, and the last outcome."""
        names = []
        for states, actions, rewards in zip(*map(np.ndarray.tolist, self._trajectories), strict=True):
            outcomes = zip(actions[:-1], rewards[:-1], strict=True)
            does = "action" if self.config.num_states > 1 else "arm"
            before = ["begins", *(f"{does} {action + 1} {'wins' if won else 'loses'}" for action, won in outcomes)]
            where = [f" in {state}" if self.config.num_states > 1 else "" for state in states]
            names.append(tuple(f"{at}: {what}{where[at - 1]}" for at, what in enumerate(before, 1)))
        titles = tuple(f"MDP {number + 1}" for number in range(len(names)))
        if self.config.num_states == 1:
            titles = tuple("arms " + " ".join(f"{mean:.2f}" for mean in row) for row in self._mdps.rewards[:, 0])
        return AxisLabels({"steps": tuple(names)}, titles)


def make_inputs(config: MetaRLConfig, trajectories: Trajectories) -> Float[np.ndarray, "B T I"]:
    """Encode episodes as the model's inputs.

    Args:
        config: The task's config.
        trajectories: The states, actions and rewards at every step.

    Returns:
        At each step one-hot state and last action, last reward, and 1 at the first step of an episode.
    """
    rows, length = trajectories.states.shape
    vectors = np.zeros((rows, length, config.num_inputs), np.float32)
    vectors[..., : config.num_states] = np.eye(config.num_states)[trajectories.states]
    acted = vectors[..., config.num_states : config.num_states + config.num_actions]
    acted[:, 1:] = np.eye(config.num_actions)[trajectories.actions[:, :-1]]
    vectors[:, 1:, -2] = trajectories.rewards[:, :-1]
    vectors[:, :: config.horizon, -1] = 1
    return vectors


def run_policy(config: MetaRLConfig, act: Callable[[Array], Array], batch: Batch, *, sampled: bool) -> PolicyRollout:
    """Run a model's policy in the MDPs of a batch.

    Args:
        config: The task's config.
        act: Returns the logits of the actions at every step [MDP, step, action], given the inputs [MDP, step, feature].
        batch: The MDPs, and the random numbers that decide what happens.
        sampled: Whether actions are sampled from the softmax of the logits; else the greedy action is taken.

    Returns:
        The steps.
    """
    transitions_BxSxAxS, rewards_BxSxA, uniform_BxTxN = (
        jnp.asarray(batch[name]) for name in ("transitions", "rewards", "uniform_samples")
    )
    rows, row = len(uniform_BxTxN), jnp.arange(len(uniform_BxTxN))

    def step(
        carry: tuple[Array, Array, Array, Array], at: Array
    ) -> tuple[tuple[Array, Array, Array, Array], tuple[Array, Array]]:
        vectors_BxTxI, state_B, acted_BxA, reward_B = carry
        begins = at % config.horizon == 0
        state_B = jnp.where(begins, 0, state_B)
        seen_BxI = jnp.concatenate(
            [
                jax.nn.one_hot(state_B, config.num_states, dtype=jnp.float32),
                acted_BxA,
                reward_B[:, None],
                jnp.full((rows, 1), begins, jnp.float32),
            ],
            axis=-1,
        )
        vectors_BxTxI = jax.lax.dynamic_update_index_in_dim(vectors_BxTxI, seen_BxI, at, axis=1)
        logits_BxA = jax.lax.dynamic_index_in_dim(act(vectors_BxTxI), at, axis=1, keepdims=False)
        uniform_BxN = jax.lax.dynamic_index_in_dim(uniform_BxTxN, at, axis=1, keepdims=False)
        if sampled:
            # Gumbel's trick: the largest of logits + G is a sample of their softmax.
            logits_BxA = logits_BxA - jnp.log(-jnp.log(jnp.clip(uniform_BxN[:, 2:], 1e-7, 1 - 1e-7)))
        action_B = jnp.argmax(logits_BxA, axis=-1)
        won_B = (uniform_BxN[:, 0] < rewards_BxSxA[row, state_B, action_B]).astype(jnp.float32)
        passed_BxS = uniform_BxN[:, 1:2] > jnp.cumsum(transitions_BxSxAxS[row, state_B, action_B], axis=-1)
        after_B = jnp.minimum(jnp.sum(passed_BxS, axis=-1, dtype=jnp.int32), config.num_states - 1)
        last_BxA = jax.nn.one_hot(action_B, config.num_actions, dtype=jnp.float32)
        return (vectors_BxTxI, after_B, last_BxA, won_B), (action_B, won_B)

    first = (
        jnp.zeros((rows, config.num_steps, config.num_inputs), jnp.float32),
        jnp.zeros(rows, jnp.int32),
        jnp.zeros((rows, config.num_actions), jnp.float32),
        jnp.zeros(rows, jnp.float32),
    )
    (vectors_BxTxI, *_), (actions_TxB, rewards_TxB) = jax.lax.scan(step, first, jnp.arange(config.num_steps))
    return PolicyRollout(vectors_BxTxI, actions_TxB.T, rewards_TxB.T)


def history_probabilities(
    config: MetaRLConfig, act: Callable[[Array], Array], wins_BxT: Bool[Array, "B T"]
) -> Float[Array, " B"]:
    """Return the probability of each history of wins and losses over all bandits, for the greedy policy.

    Args:
        config: The task's config.
        act: Returns the logits of the actions at every step, given the inputs.
        wins_BxT: Whether each pull of each history wins.

    Returns:
        The probabilities [history].
    """
    won_BxT = wins_BxT.astype(jnp.float32)
    rows = len(won_BxT)
    uniform_BxTxN = jnp.zeros((rows, config.num_steps, 2 + config.num_actions)).at[..., 0].set(1 - won_BxT)
    batch = {
        "transitions": jnp.ones((rows, 1, config.num_actions, 1)),
        "rewards": jnp.full((rows, 1, config.num_actions), 0.5),
        "uniform_samples": uniform_BxTxN,
    }
    pulled_BxTxA = jax.nn.one_hot(run_policy(config, act, batch, sampled=False).actions, config.num_actions)
    won_BxTxA = pulled_BxTxA * won_BxT[..., None]
    wins_BxTxA, pulls_BxTxA = (jnp.cumsum(counts, axis=1) - counts for counts in (won_BxTxA, pulled_BxTxA))
    win_BxT = jnp.sum(pulled_BxTxA * (wins_BxTxA + 1) / (pulls_BxTxA + 2), axis=-1)
    return jnp.prod(jnp.where(won_BxT > 0, win_BxT, 1 - win_BxT), axis=1)


TASK = TaskSpec(MetaRLConfig, MetaRL)
