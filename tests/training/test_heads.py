"""Head statistics of the training batch: switched inside one compiled step, and kept in heads.jsonl."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from transformer.attention.capture import Capture
from transformer.attention.statistics import STATISTICS
from transformer.axes import Placement
from transformer.models import registry as models
from transformer.tasks.contract import Report
from transformer.training import assembly, experiment
from transformer.training import train as training
from transformer.training.mesh import ShardingConfig, make_placement
from transformer.training.sharding import shard_batch
from transformer.training.state import TrainState

RUN: dict[str, Any] = {
    "name": "heads",
    "steps": 5,
    "seed": 3,
    "log_every": 5,
    "head_statistics_every": 2,
    "eval_every": 0,
    "maps_every": 0,
    "checkpoint_every": 5,
    "task": {
        "name": "translation",
        "dataset": "phrases/train=64,validation=16,test=16",
        "vocabulary": 200,
        "lengths": (48,),
        "tokens_per_batch": 16 * 48,
        "beams": 1,
        "shown": 4,
        "probed": 3,
    },
    "model": {
        "family": "encoder_decoder",
        "encoder_layers": 1,
        "decoder_layers": 1,
        "width": 16,
        "heads": 2,
        "feed_forward": 32,
        "dropout": 0.1,  # so that the keys matter
        "max_length": 48,
    },
    "optimizer": {"learning_rate": 0.01, "warmup": 4},
}


@pytest.fixture(scope="module")
def two() -> Placement:
    """Two devices, which divide a batch as eight do."""
    return make_placement(ShardingConfig(), jax.devices()[:2])


@pytest.fixture(scope="module")
def setting(two: Placement, tmp_path_factory: pytest.TempPathFactory) -> assembly.Assembly:
    resolved = experiment.resolve({**RUN, "accumulate": 2})
    return assembly.assemble(resolved, tmp_path_factory.mktemp("data"), two)


def observed(setting: assembly.Assembly, accumulate: int, observe: bool, steps: Any = None) -> Any:
    """What one step from the same start captured, and the state behind it."""
    config = experiment.resolve({**RUN, "accumulate": accumulate, "model": {**RUN["model"], "dropout": 0.0}})
    step = steps or assembly.compile_step(config, setting)
    state = setting.initialise(jax.random.key(0))
    batch = shard_batch(setting.task.source(0)[0], setting.placement)
    return step(state, batch, observe)


def test_one_program_serves_the_steps_that_observe_and_those_that_do_not(setting: assembly.Assembly) -> None:
    step = assembly.compile_step(experiment.resolve(RUN), setting)
    state_off, off = observed(setting, 1, False, step)
    state_on, on = observed(setting, 1, True, step)
    assert step._cache_size() == 1
    assert set(on.maps) == {"encoder/self", "decoder/self", "decoder/cross"}
    for site, captured in on.maps.items():
        assert set(captured.sums) == set(STATISTICS)
        assert captured.weights is None
        assert all(np.asarray(count).min() > 0 for count in captured.counts.values())
        assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(off.maps[site]))
    # Looking changes nothing.
    jax.tree.map(np.testing.assert_array_equal, state_on.variables.params, state_off.variables.params)


def test_micro_batches_add_up_to_the_statistics_of_the_batch(setting: assembly.Assembly) -> None:
    model = setting.model
    batch = setting.task.source(0)[0]
    capture = Capture(tuple(site.name for site in model.sites), maps=False, statistics=tuple(STATISTICS.values()))
    variables = jax.device_get(setting.initialise(jax.random.key(0)).variables)
    inputs = {name: batch[name] for name in ("source", "target")}
    # Without dropout a training pass is the plain one.
    quiet = models.build(
        dataclasses.replace(experiment.resolve(RUN).model, dropout=0.0),
        setting.task.interface,
        experiment.resolve(RUN).precision,
    )
    look = jax.jit(lambda variables, inputs: quiet.apply(variables, inputs, train=False, capture=capture)[1].maps)
    expected = look(variables, inputs)
    _, metrics = observed(setting._replace(model=quiet), 2, True)
    for site, captured in metrics.maps.items():
        for name, mean in captured.means().items():
            np.testing.assert_allclose(mean, expected[site].means()[name], rtol=1e-5, atol=1e-5, err_msg=name)
            np.testing.assert_array_equal(captured.counts[name], expected[site].counts[name])


def test_a_run_keeps_the_statistics_of_every_head_of_the_steps_that_it_observed(
    two: Placement, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Evaluations would only be compiled here.
    monkeypatch.setattr(assembly, "make_placement", lambda config: two)
    monkeypatch.setattr(
        training, "compile_evaluations", lambda model, evaluations, placement: [_nothing for _ in evaluations]
    )
    training.train(experiment.resolve(RUN), tmp_path / "run")
    records = [json.loads(line) for line in (tmp_path / "run" / "heads.jsonl").read_text().splitlines()]
    assert [(record["step"], record["site"]) for record in records] == [
        (step, site) for step in (2, 4) for site in ("decoder/cross", "decoder/self", "encoder/self")
    ]
    for record in records:
        assert set(record) == {"step", "site", *STATISTICS}
        assert np.shape(record["entropy"]) == (1, 2)
        assert np.min(record["entropy"]) > 0
        assert 0 < np.min(record["largest_weight"]) <= np.max(record["largest_weight"]) <= 1


def _nothing(state: TrainState) -> Report:
    return Report({})
