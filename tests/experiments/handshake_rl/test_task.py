"""The task of the approaching person: what is lived through, what is learned from it, and what is reported."""

import dataclasses
import functools
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.handshake_rl.environment import render
from experiments.handshake_rl.model import FAMILY, SITE, RecurrentQNetworkConfig
from experiments.handshake_rl.task import (
    TARGET_NETWORK,
    TASK,
    EpisodeBatch,
    HandshakeRL,
    HandshakeRLConfig,
    cell_regions,
)
from launch.config_files import load_config
from tests.experiments.variants import CHECKOUT, arguments_of
from tests.models.random_models import fresh_variables
from transformer.attention.capture import Capture
from transformer.attention.sites import Axis, AxisKind
from transformer.config import UserError
from transformer.layers.functional_module import Precision
from transformer.layers.grid_encoder import GridEncoderConfig
from transformer.models.model import leaves_by_path
from transformer.tasks.task import StateView
from transformer.training.config import resolve_config

KEY = jax.random.key(1)
CONFIG_FILE = CHECKOUT / "experiments" / "handshake_rl" / "configs" / "mdarqn.py"
CONFIG = HandshakeRLConfig(
    max_episode_steps=8,
    episodes_per_step=4,
    replay_batch_size=6,
    replay_capacity=6,
    num_eval_examples=5,
    num_probe_examples=3,
    discount=0.9,
)
TASK_OF_IT = TASK.build_synthetic(CONFIG, 1)


@functools.cache
def view_of() -> StateView:
    """An agent that knows nothing, and a target network that knows something else."""
    config = RecurrentQNetworkConfig(GridEncoderConfig((2,), (3,)), width=4)
    model = FAMILY.build(config, TASK_OF_IT.interface, Precision())
    variables = fresh_variables(model)
    variables = variables._replace(params=jax.tree.map(lambda leaf: 2.0 * leaf, variables.params))
    average = {path: -leaf for path, leaf in leaves_by_path(variables.params).items()}
    return StateView(model, variables, {"target": average}, {}, jnp.int32(0), train=True)


@functools.cache
def prepared() -> tuple[dict[str, Any], Any, tuple[Any, Any]]:
    """The batch of the second step, the buffer behind it, and what the loss makes of it."""
    view = view_of()

    @jax.jit
    def run(seeds: Any) -> Any:
        extra = TASK_OF_IT.init_task_state(view, jax.random.key(0))
        for step in range(2):
            now = view._replace(task_state=extra, step=jnp.int32(step))
            batch, extra = TASK_OF_IT.prepare_batch(now, {"seeds": seeds[step]}, jax.random.fold_in(KEY, step))
        values, _ = view.model.apply(view.variables, {n: batch[n] for n in TASK_OF_IT.interface.inputs}, train=True)
        mirrored = view.variables._replace(params=jax.tree.map(jnp.negative, view.variables.params))
        of_target, _ = view.model.apply(mirrored, {n: batch[n] for n in TASK_OF_IT.interface.inputs}, train=True)
        now = now._replace(task_state=extra)
        loss, aux = TASK_OF_IT._loss(now, batch, TASK_OF_IT.denominators(batch), jax.random.key(2))
        return batch, extra, (loss, aux.metrics, values, of_target)

    source = TASK_OF_IT.training_batches(3)
    return jax.device_get(run(jnp.stack([jnp.asarray(source[step]["seeds"]) for step in range(2)])))


def test_targets_are_the_target_networks_and_the_loss_is_that_of_the_equation() -> None:
    batch, _, (loss, metrics, values, of_target) = prepared()
    total = count = 0.0
    for row, length in enumerate(batch["lengths"]):
        for t in range(length):
            best = of_target[row, t + 1].astype(np.float64).max() if t + 1 < length else 0
            y = batch["rewards"][row, t] + 0.9 * best
            np.testing.assert_allclose(batch["targets"][row, t], y, atol=1e-5)
            d = abs(values[row, t, batch["chosen"][row, t]] - y)
            total, count = total + (d**2 / 2 if d <= 1 else d - 0.5), count + 1
    np.testing.assert_allclose(loss, total / count, rtol=1e-5)
    # Both networks do differ, so that one in place of the other would be seen.
    assert np.abs(values - of_target).max() > 0.05
    np.testing.assert_allclose(
        metrics["replayed_episode_reward"], batch["rewards"].sum() / CONFIG.replay_batch_size, rtol=1e-5
    )


def test_the_buffer_holds_what_was_lived_through_and_repaints_it() -> None:
    batch, replay, _ = prepared()
    assert int(replay.written) == 8
    episodes: EpisodeBatch = replay.episodes
    # Eight episodes in room for six: those of the second step, and the last two of the first.
    seeds = [TASK_OF_IT.training_batches(3)[step]["seeds"] for step in range(2)]
    np.testing.assert_array_equal(episodes.states.seed[:, 0], [*seeds[1][2:], *seeds[0][2:], *seeds[1][:2]])
    gray, depth = jax.device_get(jax.jit(render)(jax.tree.map(lambda leaf: jnp.asarray(leaf[:, 2]), episodes.states)))
    inputs = jax.device_get(jax.jit(EpisodeBatch.inputs)(jax.tree.map(jnp.asarray, episodes)))
    np.testing.assert_array_equal(np.rint((inputs["gray"][:, 2, ..., 0] + 1) * 127.5), gray)
    np.testing.assert_array_equal(np.rint((inputs["depth"][:, 2, ..., 0] + 1) * 127.5), depth)
    np.testing.assert_array_equal(inputs["actions"][:, 1:], episodes.actions[:, :-1] + 1)
    assert (inputs["actions"][:, 0] == 0).all()
    assert {name: batch[name].shape for name in TASK_OF_IT.interface.inputs} == {
        name: given.shape for name, given in TASK_OF_IT.interface.inputs.items()
    }


def test_success_reward_length_and_attention_are_those_of_episodes_made_by_hand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A handshake that is refused costs something and is no success; what follows an episode's end counts nowhere."""
    (site,) = view_of().model.sites
    visible = np.array([[0, 1, 1, 1], [0, 0, 1, 1], [0, 1, 1, 0]], bool)
    cells = np.array([[0, 9, 10, 11], [0, 0, 63, 62], [0, 7, 7, 0]])
    rewards = np.float32([[-0.1, 0, 1, 0], [0, -0.1, 0, 0], [0, 0, 0, 0]])
    states: Any = SimpleNamespace(person_visible=visible, person_cell=cells)
    episodes = EpisodeBatch(states, np.zeros((3, 4), np.int32), rewards, np.int32([3, 4, 1]))
    weights = np.random.default_rng(0).random((1, 3, 1, 4, 64)).astype(np.float32)
    aux = SimpleNamespace(maps={site.name: SimpleNamespace(weights=weights)})
    model: Any = SimpleNamespace(sites=(site,), apply=lambda *given, **options: (None, aux))
    epsilons = []
    monkeypatch.setattr(
        TASK_OF_IT, "_run_policy", lambda view, seeds, epsilon, key: epsilons.append(epsilon) or episodes
    )
    monkeypatch.setattr(EpisodeBatch, "inputs", lambda self: {})
    evaluation = TASK_OF_IT.evaluations[0]
    sums, rows = evaluation.step(view_of()._replace(model=model, train=False), evaluation.batches[0], KEY)
    told = evaluation.finish(jax.device_get(sums), rows).scalars
    # Seen at the second and third step of the first episode and at the last two of the second.
    mass = np.mean([weights[0, row, 0, step, cells[row, step]] for row, step in ((0, 1), (0, 2), (1, 2), (1, 3))])
    assert epsilons == [0]
    assert told == {
        "success": pytest.approx(1 / 3),
        "episode_reward": pytest.approx(0.8 / 3),
        "episode_length": pytest.approx(8 / 3),
        "attention_mass/person": pytest.approx(mass, rel=1e-5),
        "attention_mass/person_over_uniform": pytest.approx(64 * mass, rel=1e-5),
    }


@pytest.mark.slow
def test_greedy_episodes_are_those_of_the_values_and_attention_is_the_mean_over_seen_persons() -> None:
    view = view_of()._replace(train=False)
    evaluation = TASK_OF_IT.evaluations[0]

    @jax.jit
    def run(seeds: Any) -> Any:
        lived = TASK_OF_IT._run_policy(view, seeds, 0.0, jax.random.key(0))
        values, aux = view.model.apply(view.variables, lived.inputs(), train=False, capture=Capture((SITE,)))
        return (
            lived,
            lived.states.person_visible,
            values,
            aux.maps[SITE].weights,
            evaluation.step(view, {"seeds": seeds}, KEY),
        )

    lived, here, values, weights, (sums, rows) = jax.device_get(run(jnp.asarray(evaluation.batches[0]["seeds"])))
    mass, seen = [], 0
    for row, length in enumerate(lived.lengths):
        np.testing.assert_array_equal(values[row, :length].argmax(-1), lived.actions[row, :length])
        for t in range(length):
            if here[row, t]:
                mass.append(
                    weights[0, row, 0, t, lived.states.person_row[row, t] * 8 + lived.states.person_column[row, t]]
                )
                seen += 1
    told = evaluation.finish(sums, rows).scalars
    assert seen > 5
    np.testing.assert_allclose(told["attention_mass/person"], np.mean(mass), rtol=1e-5)
    np.testing.assert_allclose(told["attention_mass/person_over_uniform"], 64 * np.mean(mass), rtol=1e-5)
    np.testing.assert_allclose(told["episode_reward"], lived.rewards.sum(1).mean(), atol=1e-6)
    np.testing.assert_allclose(told["success"], (lived.rewards > 0).any(1).mean(), atol=1e-6)
    np.testing.assert_allclose(told["episode_length"], lived.lengths.mean(), atol=1e-6)


@pytest.mark.parametrize(("stride", "regions"), [(3, {0: {0}, 13: {13}}), (6, {0: {0}, 9: {0}, 63: {15}})])
def test_a_cell_lies_in_the_regions_of_any_grid(stride: int, regions: dict[int, set[int]]) -> None:
    side = 24 // stride
    cells = cell_regions(Axis("region", AxisKind.GRID, (side, side), float(stride)))
    assert cells.shape == (64, side**2)
    for cell, expected in regions.items():
        assert set(np.flatnonzero(cells[cell])) == expected


def test_the_regions_of_a_finer_grid_are_each_of_one_cell() -> None:
    cells = cell_regions(Axis("region", AxisKind.GRID, (12, 12), 2.0))
    # Middles of regions at 1, 3, 5, 7, ... pixels: of the first cell one, of the second (3 to 6 pixels) two.
    assert set(np.flatnonzero(cells[0])) == {0}
    assert set(np.flatnonzero(cells[1])) == {1, 2}
    np.testing.assert_array_equal(cells.sum(axis=0), 1)


def test_a_title_is_of_its_own_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    rewards = np.zeros((3, 8), np.float32)
    rewards[0, 1], rewards[1, 2] = -0.1, 1
    shown = TASK_OF_IT._probe_episodes._replace(rewards=rewards, lengths=np.int32([2, 3, 8]))
    monkeypatch.setitem(vars(TASK_OF_IT), "_probe_episodes", shown)
    assert TASK_OF_IT.axis_labels(()).titles == (
        "no handshake after 2 steps",
        "a handshake after 3 steps",
        "no handshake after 8 steps",
    )


def test_labels_say_what_was_done_and_where_the_person_was() -> None:
    (site,) = view_of().model.sites
    assert (site.query.kind, site.key.kind, site.key.shape) == (AxisKind.STEPS, AxisKind.GRID, (8, 8))
    labels = TASK_OF_IT.axis_labels((site,)).with_axis_names((site,))
    assert labels.images["region"].shape == (3, 8, 24, 24, 3)
    for row, links in enumerate(labels.gold_alignments[site.name]):
        assert links
        for step, cell, sure in links:
            # The person is the one thing that is both raised in the depth image and a figure in the gray one.
            pixels = labels.images["region"][row, step].reshape(8, 3, 8, 3, 3)[cell // 8, :, cell % 8]
            assert sure
            assert pixels[:2, :2, 2].min() >= 80
            assert pixels[1, :2, 0].min() >= 130
        assert labels.tokens["step"][row][0] == "1 look"
    assert any(title.startswith("a handshake after") for title in labels.titles)


@pytest.mark.parametrize("argument", arguments_of(CONFIG_FILE))
def test_a_config_keeps_the_average_that_its_task_reads(argument: str) -> None:
    experiment = resolve_config(load_config(f"{CONFIG_FILE}{argument}").to_dict())
    assert TARGET_NETWORK in experiment.parameter_averages


def test_a_run_without_the_target_network_is_told_how_to_keep_it() -> None:
    view = view_of()._replace(averages={})

    def prepare() -> Any:
        extra = TASK_OF_IT.init_task_state(view, KEY)
        return TASK_OF_IT.prepare_batch(view._replace(task_state=extra), TASK_OF_IT.training_batches(0)[0], KEY)

    says = r"'target', which this run does not keep: say config\.parameter_averages\.target=\{"
    with pytest.raises(UserError, match=says):
        jax.eval_shape(prepare)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"max_episode_steps": 0}, r"config\.task\.max_episode_steps=0 must be at least 1"),
        ({"discount": 1.5}, r"config\.task\.discount=1\.5 must be at most 1"),
        ({"replay_capacity": 3}, r"config\.task\.replay_capacity=3 must hold the episodes of a step"),
    ],
)
def test_values_out_of_range_are_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        dataclasses.replace(CONFIG, **values)


def test_a_replayed_batch_that_devices_cannot_share_is_refused_by_its_key() -> None:
    with pytest.raises(UserError, match=r"config\.task\.replay_batch_size=6 cannot be cut into 4 equal parts"):
        HandshakeRL(CONFIG, rows_multiple=4)
