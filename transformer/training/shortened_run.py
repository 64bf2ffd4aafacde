"""Shorten a run to a few steps that show its whole life: logs, evaluations, maps, checkpoints and its end."""

import math
from typing import Any

from transformer.config import flatten_config
from transformer.training.config import ExperimentConfig

STEPS, LOG_EVERY, EVERY = 20, 5, 10


def shortening_overrides(experiment: ExperimentConfig) -> dict[str, Any]:
    """Return the overrides that make a config a run of 20 steps; {} for a run that is no longer.

    Logs come every 5 steps, and everything else that the config does between its first and last step every 10. Warmups
    and averages keep their share of the run. Data and model are unchanged, and so are the keys of the task.

    Args:
        experiment: The resolved config.
    """
    run = experiment.run
    if run.steps <= STEPS:
        return {}
    share = STEPS / run.steps
    intervals = ("eval_every", "maps_every", "head_statistics_every", "checkpoint_every", "permanent_checkpoint_every")
    short: dict[str, Any] = {"steps": STEPS, "log_every": LOG_EVERY}
    short |= {name: EVERY for name in intervals if getattr(run, name)}
    if run.permanent_checkpoint_every and not run.checkpoint_every:
        short["permanent_checkpoint_every"] = STEPS  # the only checkpoint
    sections = {"optimizer": experiment.optimizer} | {
        f"optimizers.{name}": optimizer for name, optimizer in experiment.optimizers.items()
    }
    for name, optimizer in sections.items():
        short[f"{name}.warmup_steps"] = math.ceil(share * optimizer.warmup_steps)
    for name, average in experiment.parameter_averages.items():
        short[f"parameter_averages.{name}.start"] = math.floor(share * average.start)
        short[f"parameter_averages.{name}.every"] = math.ceil(share * average.every)
    values = flatten_config(experiment.to_config())
    return {key: value for key, value in short.items() if values[key] != value}
