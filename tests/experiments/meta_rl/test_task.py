"""The task of unknown worlds: what is read at each step, its loss by hand, acting in a world, what it refuses."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.meta_rl.data import Trajectories
from experiments.meta_rl.task import MetaRL, MetaRLConfig, make_inputs, run_policy
from transformer.config import UserError, from_config
from transformer.tasks.task import StateView

SMALL: dict[str, Any] = {
    "num_states": 2,
    "num_actions": 2,
    "horizon": 2,
    "num_episodes": 2,
    "teacher": "oracle",
    "batch_size": 4,
    "num_eval_examples": 8,
}


def config_of(**changes: Any) -> MetaRLConfig:
    return from_config(MetaRLConfig, SMALL | changes)


@pytest.fixture(scope="module")
def task() -> MetaRL:
    return MetaRL(config_of())


def of_model(logits: Any) -> StateView:
    """A view of a model that gives these logits of what it reads."""
    aux = SimpleNamespace(state={}, maps={}, losses={})
    model: Any = SimpleNamespace(apply=lambda variables, inputs, **options: (logits(inputs["vectors"]), aux))
    return StateView(model, None, {}, {}, np.int32(0), False)  # type: ignore[arg-type]


def test_a_step_reads_the_state_the_action_before_its_reward_and_whether_an_episode_begins() -> None:
    lived = Trajectories(np.array([[0, 1, 0, 0]]), np.array([[1, 0, 1, 1]]), np.array([[1, 0, 1, 0]]))
    expected = [[1, 0, 0, 0, 0, 1], [0, 1, 0, 1, 1, 0], [1, 0, 1, 0, 0, 1], [1, 0, 0, 1, 1, 0]]
    assert make_inputs(config_of(), lived).tolist() == [expected]


def test_batches_are_of_seed_and_step_and_are_named_step_by_step(task: MetaRL) -> None:
    batch = task.training_batches(3)[7]
    np.testing.assert_array_equal(batch["vectors"], task.training_batches(3)[7]["vectors"])
    assert (task.training_batches(3)[8]["vectors"] != batch["vectors"]).any()
    given = task.interface.inputs["vectors"]
    assert (batch["vectors"].shape, batch["vectors"].dtype) == (given.shape, given.dtype) == ((4, 4, 6), np.float32)
    names = task.axis_labels(()).tokens["steps"]
    assert [len(row) for row in names] == [4, 4]
    assert names[0][0] == "1: begins in 0"
    bandits = MetaRL(config_of(num_states=1, teacher="bayes_optimal", num_probe_examples=1)).axis_labels(())
    assert bandits.titles[0].startswith("arms 0.")
    assert bandits.tokens["steps"][0][1].split()[3] in ("wins", "loses")


def test_a_step_is_named_by_where_it_is_and_what_came_before_and_a_bandit_by_its_arms(
    task: MetaRL, monkeypatch: pytest.MonkeyPatch
) -> None:
    lived = Trajectories(np.array([[0, 1, 0, 0]]), np.array([[1, 0, 1, 1]]), np.array([[1, 0, 1, 0]]))
    monkeypatch.setattr(task, "_trajectories", lived)
    labels = task.axis_labels(())
    steps = ("1: begins in 0", "2: action 2 wins in 1", "3: action 1 loses in 0", "4: action 2 wins in 0")
    assert (labels.tokens["steps"], labels.titles) == ((steps,), ("MDP 1",))
    bandits = MetaRL(config_of(num_states=1, teacher="bayes_optimal", num_probe_examples=2))
    pulls = np.array([[0, 1, 0, 0], [1, 1, 1, 0]]), np.array([[0, 1, 0, 1], [1, 0, 0, 1]])
    monkeypatch.setattr(bandits, "_trajectories", Trajectories(np.zeros((2, 4), int), *pulls))
    monkeypatch.setattr(bandits, "_mdps", SimpleNamespace(rewards=np.array([[[0.25, 0.5]], [[1.0, 0.125]]])))
    labels = bandits.axis_labels(())
    assert labels.titles == ("arms 0.25 0.50", "arms 1.00 0.12")
    assert labels.tokens["steps"][1] == ("1: begins", "2: arm 2 wins", "3: arm 2 loses", "4: arm 2 loses")


def test_the_loss_is_the_cross_entropy_of_what_is_best(task: MetaRL) -> None:
    batch = task.training_batches(0)[0]
    batch["best"][0, 0] = 0.5
    logits = np.random.default_rng(1).standard_normal((4, 4, 2)).astype(np.float32)
    view = of_model(lambda vectors: logits)
    loss, aux = jax.jit(lambda: task.objectives[0].loss_fn(view, batch, task.denominators(batch), None))()
    log = logits - np.log(np.exp(logits.astype(np.float64)).sum(axis=-1, keepdims=True))
    assert float(loss) == pytest.approx(-(batch["best"] * log).sum() / 16, rel=1e-5)
    right = np.take_along_axis(batch["best"], logits.argmax(axis=-1)[..., None], axis=-1) > 0
    assert float(aux.metrics["optimal_action_accuracy"]) == right.mean()


def test_acting_in_a_world_is_what_is_read_of_it_afterwards() -> None:
    config = config_of()
    random = np.random.default_rng(0)
    # Action 0 leads to state 1 and always wins in state 0; action 1 stays and never wins but in state 1.
    transitions = np.broadcast_to(np.array([[[0, 1], [1, 0]], [[0, 1], [0, 1]]], np.float32), (3, 2, 2, 2))
    rewards = np.broadcast_to(np.array([[1, 0], [0, 1]], np.float32), (3, 2, 2))
    batch = {
        "transitions": transitions,
        "rewards": rewards,
        "uniform_samples": random.random((3, 4, 4)).astype(np.float32),
    }
    plan = jnp.asarray([[0, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 1]])
    played = jax.jit(lambda: run_policy(config, lambda vectors: 9 * jax.nn.one_hot(plan, 2), batch, sampled=False))()
    states = np.array([[0, 1, 0, 0], [0, 0, 0, 1], [0, 1, 0, 1]])
    won = np.array([[1, 1, 0, 0], [0, 0, 1, 0], [1, 0, 1, 1]])
    assert played.rewards.tolist() == won.tolist()
    np.testing.assert_array_equal(played.vectors, make_inputs(config, Trajectories(states, np.asarray(plan), won)))


@pytest.mark.slow
def test_sampled_actions_have_their_probabilities() -> None:
    config = config_of(num_states=1, horizon=1, num_episodes=1, batch_size=20_000)
    rows = 20_000
    luck = np.random.default_rng(0).random((rows, 1, 4)).astype(np.float32)
    batch = {
        "transitions": np.ones((rows, 1, 2, 1)),
        "rewards": np.tile([[[0.0, 1.0]]], (rows, 1, 1)),
        "uniform_samples": luck,
    }
    logits = jnp.broadcast_to(jnp.log(jnp.asarray([0.3, 0.7])), (rows, 1, 2))
    assert float(run_policy(config, lambda vectors: logits, batch, sampled=True).rewards.mean()) == pytest.approx(
        0.7, abs=0.01
    )


def test_returns_are_sums_over_the_bandits_of_a_batch_whatever_their_number() -> None:
    """Of two arms one always wins and one never; the model slightly prefers the first."""
    config = config_of(num_states=1, horizon=1, num_episodes=3, num_eval_examples=64)
    evaluation = MetaRL(config).evaluations[0]
    # The first of every step's numbers decides what an arm gives, the last two which arm is drawn.
    luck = np.full((3, 3, 4), 0.5, np.float32)
    luck[:, 1, 2:] = (0.1, 0.9)  # draws the second arm
    batch = {
        "transitions": np.ones((3, 1, 2, 1), np.float32),
        "rewards": np.tile(np.float32([[[1, 0]]]), (3, 1, 1)),
        "uniform_samples": luck,
    }
    preferred = jnp.broadcast_to(jnp.asarray([0.1, 0.0]), (3, 3, 2))
    sums, rows = jax.jit(lambda: evaluation.step(of_model(lambda vectors: preferred), batch, None))()
    assert {name: float(value) for name, value in sums.items()} == {"greedy": 9, "sampled": 6, "mdps": 3}
    assert rows is None


def test_an_evaluation_stands_beside_chance_and_those_who_know_more(task: MetaRL) -> None:
    evaluation = task.evaluations[1]
    assert (evaluation.split, evaluation.at_end, len(evaluation.batches)) == ("test", True, 2)
    report = evaluation.finish({"greedy": 16.0, "sampled": 8.0, "mdps": 8.0}, None).scalars
    assert (report["greedy_return"], report["sampled_return"]) == (2, 1)
    assert report["random_policy_return"] < report["oracle_return"] <= 4
    assert 0 < report["posterior_sampling_return"] <= 4
    assert "bayes_optimal_return" not in report
    bandit = MetaRL(config_of(num_states=1, horizon=1, num_episodes=3, teacher="bayes_optimal")).evaluations[0]
    report = bandit.finish({"greedy": 8.0, "sampled": 8.0, "mdps": 8.0}, None).scalars
    # Of two arms and three pulls, by the plans of tests/experiments/meta_rl/test_data.py.
    assert report["bayes_optimal_return"] == pytest.approx(5 / 3)


def test_what_a_policy_gives_is_exact_over_every_row_of_wins() -> None:
    """Win stays, lose moves on, of two arms and three pulls: by hand, over the arms that a bandit may have."""
    config = config_of(num_states=1, horizon=1, num_episodes=3, teacher="bayes_optimal", batch_size=5)

    def stays(vectors: jax.Array) -> jax.Array:
        # The last arm after a win, the other one after a loss; the first arm to begin with.
        acted, won = vectors[..., 1:3], vectors[..., 3:4]
        return jnp.where(won > 0, acted, 1 - acted) + jnp.asarray([0.1, 0.0])

    (evaluation,) = MetaRL(config).evaluations[2:]
    step = jax.jit(lambda batch: evaluation.step(of_model(stays), batch, None)[0]["expected_greedy_return"])
    exact = sum(float(step(batch)) for batch in evaluation.batches)
    grid = (np.arange(200) + 0.5) / 200
    first, second = grid[:, None], grid[None, :]
    # One pull of the first; then win: the first again, loss: the second; then again so.
    then_first = first * (1 + first) + (1 - first) * second
    then_second = second * (1 + second) + (1 - second) * first
    assert exact == pytest.approx((first * (1 + then_first) + (1 - first) * then_second).mean(), abs=1e-4)
    assert len(evaluation.batches) == 2
    assert evaluation.finish({"expected_greedy_return": 1.5}, None).scalars == {"expected_greedy_return": 1.5}
    assert len(MetaRL(config_of(num_states=1, horizon=1, num_episodes=13)).evaluations) == 2


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"num_actions": 1}, "num_actions=1"),
        ({"horizon": 0}, "horizon=0"),
        ({"teacher": "bayes_optimal"}, "teacher=bayes_optimal is for bandits"),
        (
            {"teacher": "bayes_optimal", "num_states": 1, "num_actions": 5, "num_episodes": 20},
            "enumerates every history of 5 arms",
        ),
        ({"teacher": "gittins"}, "gittins"),
    ],
)
def test_unfit_values_are_refused(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        config_of(**wrong)
