"""Head statistics of the training batch: switched inside one compiled step, and kept in heads.jsonl."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from tests.training import small_run
from transformer.attention.capture import Capture
from transformer.attention.statistics import STATISTICS
from transformer.models import registry as models
from transformer.training import build, driver
from transformer.training import config as experiment
from transformer.training.partitioning import ShardingConfig, make_placement, shard_batch
from transformer.training.step import TrainStep

RUN: dict[str, Any] = {
    "name": "heads",
    "steps": 5,
    "seed": 3,
    "log_every": 5,
    "head_statistics_every": 2,
    "eval_every": 0,
    "maps_every": 0,
    "checkpoint_every": 5,
}
MODEL = {"width": 16, "heads": 2, "feed_forward": 32, "max_length": 48, "dropout": 0.1}  # so that the keys matter
TRANSLATION = {
    "task": {
        "name": "translation",
        "dataset": "phrases/train=64,validation=16,test=16",
        "vocab_size": 200,
        "bucket_lengths": (48,),
        "tokens_per_batch": 16 * 48,
        "num_beams": 1,
        "num_decoded_examples": 4,
        "num_probe_examples": 3,
    },
    "model": {"family": "encoder_decoder", "encoder_layers": 1, "decoder_layers": 1} | MODEL,
    "optimizer": {"learning_rate": 0.01, "warmup_steps": 4},
}


def statistics_of(site: str) -> set[str]:
    """What is logged of a site: a layer's feed-forward network belongs to its self-attention."""
    of_branches = {"branch_importance"} | ({"feed_forward_importance"} if site.endswith("/self") else set())
    return {*STATISTICS, "importance", *of_branches}


class Case(NamedTuple):
    """A run's config, its sites in the order of the records, and how many devices divide its batches."""

    config: dict[str, Any]
    sites: tuple[str, ...]
    devices: int


# On one device by the programs of other runs; tests/runs/test_distributed.py compares several processes with one.
ONE_SITE = Case(small_run.CONFIG | RUN, ("decoder/self",), 1)
THREE_SITES = Case(RUN | TRANSLATION, ("decoder/cross", "decoder/self", "encoder/self"), 2)


class Trained(NamedTuple):
    """A run's directory and what it was made of."""

    case: Case
    folder: Path
    setting: build.TrainingComponents
    step: TrainStep


@pytest.fixture(
    scope="module",
    params=[ONE_SITE, pytest.param(THREE_SITES, marks=pytest.mark.slow)],
    ids=["one site", "three sites"],
)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A run, and the step that it compiled: two tests look at the one program."""
    folder = tmp_path_factory.mktemp("heads") / "run"
    kept: list[tuple[build.TrainingComponents, TrainStep]] = []

    def keeping(resolved: experiment.ExperimentConfig, setting: build.TrainingComponents) -> TrainStep:
        kept.append((setting, build.make_jitted_train_step(resolved, setting)))
        return kept[-1][1]

    with pytest.MonkeyPatch.context() as patch:
        placement = make_placement(ShardingConfig(), jax.devices()[: request.param.devices])
        patch.setattr(build, "make_placement", lambda config: placement)
        patch.setattr(driver, "make_jitted_train_step", keeping)
        # Evaluations would only be compiled here.
        patch.setattr(driver, "compile_evaluations", lambda *arguments: [])
        driver.train(experiment.resolve_config(request.param.config), folder)
    ((setting, step),) = kept
    return Trained(request.param, folder, setting, step)


def test_one_program_serves_the_steps_that_observe_and_those_that_do_not(trained: Trained) -> None:
    setting, step = trained.setting, trained.step
    batch = shard_batch(setting.task.training_batches(0)[0], setting.placement)
    (state_off, off), (state_on, on) = (
        step(setting.init_state(jax.random.key(0)), batch, observe) for observe in (False, True)
    )
    assert step._cache_size() == 1  # type: ignore[attr-defined]
    assert set(on.maps) == set(trained.case.sites)
    for site, captured in on.maps.items():
        assert set(captured.sums) == statistics_of(site)
        assert captured.weights is None
        assert all(np.asarray(count).min() > 0 for count in captured.counts.values())
        assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(off.maps[site]))
    # Looking changes nothing.
    jax.tree.map(np.testing.assert_array_equal, state_on.variables.params, state_off.variables.params)


@pytest.mark.slow
def test_microbatches_add_up_to_the_statistics_of_the_batch(trained: Trained) -> None:
    # Without dropout a training pass is the plain one.
    config = trained.case.config
    resolved = experiment.resolve_config(
        {**config, "num_microbatches": 2, "model": {**config["model"], "dropout": 0.0}}
    )
    task = trained.setting.task
    quiet = models.build(resolved.model, task.interface, resolved.precision)
    setting = trained.setting._replace(model=quiet)
    batch, state = task.training_batches(0)[0], setting.init_state(jax.random.key(0))
    variables = jax.device_get(state.variables)  # a step consumes its state
    capture = Capture(tuple(site.name for site in quiet.sites), maps=False, statistics=tuple(STATISTICS.values()))
    inputs = {name: batch[name] for name in task.interface.inputs}
    look = jax.jit(lambda variables, inputs: quiet.apply(variables, inputs, train=False, capture=capture)[1].maps)
    expected = look(variables, inputs)
    _, metrics = build.make_jitted_train_step(resolved, setting)(state, shard_batch(batch, setting.placement), True)
    assert set(metrics.maps) == set(trained.case.sites)
    for site, captured in metrics.maps.items():
        for name in expected[site].sums:
            mean = captured.means()[name]
            np.testing.assert_allclose(mean, expected[site].means()[name], rtol=1e-5, atol=1e-5, err_msg=name)
            np.testing.assert_array_equal(captured.counts[name], expected[site].counts[name])


def test_a_run_keeps_the_statistics_of_every_head_of_the_steps_that_it_observed(trained: Trained) -> None:
    records = [json.loads(line) for line in (trained.folder / "heads.jsonl").read_text().splitlines()]
    assert [(record["step"], record["site"]) for record in records] == [
        (step, site) for step in (2, 4) for site in trained.case.sites
    ]
    for record in records:
        assert set(record) == {"step", "site", *statistics_of(record["site"])}
        assert np.shape(record["importance"]) == (1, 2)
        assert np.shape(record["branch_importance"]) == (1, 1)
        assert np.min(record["importance"]) > 0
        assert np.shape(record["entropy"]) == (1, 2)
        assert np.min(record["entropy"]) > 0
        assert 0 < np.min(record["largest_weight"]) <= np.max(record["largest_weight"]) <= 1
