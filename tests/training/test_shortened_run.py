"""A shortened run goes through everything that its config has within 20 steps, with the same data and model."""

from typing import Any

import pytest

from transformer.config import flatten_config
from transformer.training.config import apply_overrides, resolve_config
from transformer.training.shortened_run import shortening_overrides

CONFIG: dict[str, Any] = {
    "name": "long",
    "steps": 1000,
    "task": {"name": "language_modeling", "dataset": "repeated"},
    "model": {"family": "decoder", "size": "gpt2"},
    "optimizer": {"warmup_steps": 100},
}
INTERVALS = ("log_every", "eval_every", "maps_every", "head_statistics_every", "checkpoint_every")


def shortened(**changes: Any) -> dict[str, Any]:
    """All values of the shortened config by dotted key."""
    config = {**CONFIG, **changes}
    experiment = resolve_config(apply_overrides(config, shortening_overrides(resolve_config(config))))
    assert shortening_overrides(experiment) == {}  # it is short
    return flatten_config(experiment.to_config())


def test_only_steps_intervals_and_warmup_change() -> None:
    before, after = flatten_config(resolve_config(CONFIG).to_config()), shortened()
    assert {key: value for key, value in after.items() if before[key] != value} == {
        "steps": 20,
        "log_every": 5,
        "eval_every": 10,
        "maps_every": 10,
        "checkpoint_every": 10,
        "optimizer.warmup_steps": 2,
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": 21, "optimizer": {"warmup_steps": 0}},
        {"steps": 30, "log_every": 30, "checkpoint_every": 30},
        {"checkpoint_every": 0, "permanent_checkpoint_every": 2000},
        {"permanent_checkpoint_every": 1000, "head_statistics_every": 20},
    ],
    ids=str,
)
def test_every_interval_is_within_the_run_and_what_is_off_stays_off(changes: dict[str, Any]) -> None:
    before, after = flatten_config(resolve_config({**CONFIG, **changes}).to_config()), shortened(**changes)
    assert after["steps"] == 20
    for name in INTERVALS:
        assert 0 <= after[name] <= after["steps"], name
        assert (after[name] == 0) == (before[name] == 0), name
    assert after["optimizer.warmup_steps"] <= after["steps"] or before["optimizer.warmup_steps"] > before["steps"]


def test_a_run_of_20_steps_stays_as_it_is() -> None:
    config = {**CONFIG, "steps": 20, "log_every": 4, "checkpoint_every": 4}
    assert shortening_overrides(resolve_config(config)) == {}


def test_averages_and_optimizers_of_objectives_keep_their_share_of_the_run() -> None:
    after = shortened(
        parameter_averages={"last": {"kind": "mean", "start": 500, "every": 100}},
        optimizers={"language_modeling": {"warmup_steps": 250}},
    )
    assert (after["parameter_averages.last.start"], after["parameter_averages.last.every"]) == (10, 2)
    assert after["optimizers.language_modeling.warmup_steps"] == 5
