"""A run by a schedule of the user's own: recorded, replayed, and refused to those who do not trust it."""

import math
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launch import cli, evaluate
from tests.training import small_run
from tests.training.small_run import without_clock
from transformer.runs.run_directory import RunDirectory
from transformer.training import build, driver, partitioning
from transformer.training.config import changeable_keys, resolve_config
from transformer.training.replay import open_replay
from transformer.training.replay_comparison import compare_state

CODE = """
import jax.numpy as jnp

def falling(step, learning_rate):
    return learning_rate / jnp.sqrt(1.0 + step)

SCHEDULE = falling
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(build, "make_placement", lambda config: partitioning.single_device_placement())
    (tmp_path / "own_schedule").mkdir()
    (tmp_path / "own_schedule" / "falling.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "own_schedule.falling"
    for name in ("own_schedule", "own_schedule.falling"):
        sys.modules.pop(name, None)


def test_a_run_by_a_schedule_of_ones_own_is_recorded_and_replayed(
    module: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    config = {**small_run.CONFIG, "steps": 4, "optimizer": {"learning_rate": 0.01, "schedule": module}}
    config |= {
        "parameter_averages": {},
        "log_every": 1,
        "checkpoint_every": 2,
        "maps_every": 0,
        "head_statistics_every": 0,
        "eval_every": 0,
    }
    experiment = resolve_config(config)
    driver.train(experiment, run)
    assert RunDirectory(run).config()["optimizer"]["schedule"] == module
    # Nothing in it depends on the number of steps, so that the run may go on.
    assert "steps" in changeable_keys(experiment)
    rates = [record["learning_rate"] for record in without_clock(run, "train")]
    assert rates == pytest.approx([0.01 / math.sqrt(step) for step in range(1, 5)], rel=1e-6)
    with open_replay(run, trusted=[module]) as replay:
        state = replay.train_on(replay.start_before(3), 4).state
        assert compare_state(replay.read_checkpoint(4), state).num_different == 0
    assert cli.run(evaluate.COMMAND, evaluate.main, [f"--workdir={run}"]) == 2
    assert f"config.optimizer.schedule='{module}' is code from outside this library" in capsys.readouterr().err
