"""Averages of parameters over training: exponential moving averages, means over the last steps, target networks."""

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from transformer.config import Config, NonNegativeInt, PositiveInt, Rate
from transformer.models.model import leaves_by_path, matches_any_pattern
from transformer.training.state import accumulation_dtype


class AverageKind(enum.Enum):
    """How an average follows the parameters."""

    EXPONENTIAL = "exponential"
    MEAN = "mean"


@dataclasses.dataclass(frozen=True)
class ParameterAverage(Config, path="average"):
    """An average of parameters, kept in the training state.

    exponential: a = decay a + (1 - decay) p after every step; with decay 0.999 a Polyak average, near 1 a target
    network. mean: the plain mean of the parameters after steps start + every, start + 2 every, ...; with start = steps
    - n every it is the mean of the last n checkpoints of a run (Vaswani et al. 2017, section 6.1) for the memory of
    one. Before its first step a mean equals the parameters.

    A skipped update (`config.update_guard`) leaves an exponential average unchanged; at a step whose update is skipped
    a mean takes its sample all the same. An average is float32 even if the parameters are narrower; it is cast to their
    type where a model reads it (transformer.models.model.replace_with_averaged).

    Attributes:
        kind: The kind of average.
        decay: The decay of an exponential average.
        start: The step after which a mean starts.
        every: Steps between two samples of a mean.
        patterns: Patterns of the paths of averaged parameters (fnmatch).
    """

    kind: AverageKind
    decay: Rate = 0.999
    start: NonNegativeInt = 0
    every: PositiveInt = 1
    patterns: tuple[str, ...] = ("*",)


def init_average(average: ParameterAverage, params: Any) -> dict[str, jax.Array]:
    """Return the average before the first step: the parameters themselves, by path."""
    return {path: jnp.array(leaf, accumulation_dtype(leaf.dtype)) for path, leaf in _covered(average, params).items()}


def update_average(
    average: ParameterAverage,
    old: Mapping[str, jax.Array],
    params: Any,
    step: jax.Array,
    updated: bool | jax.Array = True,
) -> dict[str, jax.Array]:
    """Update an average after a step.

    Args:
        average: The config of the average.
        old: The average before.
        params: The parameters after the step.
        step: The number of the step, from 1.
        updated: Whether the step updated the parameters, or was skipped.
    """
    match average.kind:
        case AverageKind.EXPONENTIAL:
            share = jnp.where(updated, jnp.float32(1 - average.decay), 0)
        case AverageKind.MEAN:
            count = jnp.maximum((step - average.start) // average.every, 1).astype(jnp.float32)
            is_due = (step > average.start) & ((step - average.start) % average.every == 0)
            share = jnp.where(step < average.start + average.every, 1, jnp.where(is_due, 1 / count, 0))
    covered = _covered(average, params)
    # In this form a share of 1 gives exactly the parameters and a share of 0 exactly the old average.
    return {path: ((1 - share) * old[path] + share * covered[path]).astype(old[path].dtype) for path in covered}


def _covered(average: ParameterAverage, params: Any) -> dict[str, jax.Array]:
    return {path: leaf for path, leaf in leaves_by_path(params).items() if matches_any_pattern(path, average.patterns)}
