"""Learning-rate schedules: those of the library, and functions of the user's own by dotted path."""

import enum
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from transformer.config import UserError
from transformer.system.module_registry import import_export

Number = Float[Array, ""] | np.float32
Hyperparameters = Mapping[str, Number]

_KEY = "config.optimizer.schedule"
_EXPORT = "SCHEDULE"
_HYPERPARAMETERS = ("learning_rate", "warmup_steps", "final_lr_fraction")
_ARGUMENTS = ("step", "steps", *_HYPERPARAMETERS)


class LearningRateSchedule(enum.Enum):
    """The learning rate over steps after a linear warmup."""

    CONSTANT = "constant"
    INVERSE_SQUARE_ROOT = "inverse_square_root"
    LINEAR = "linear"
    COSINE = "cosine"


def check_schedule(schedule: LearningRateSchedule | str) -> None:
    """Check that a schedule of the user's own can be imported and called.

    Raises:
        UserError: If it is no known schedule, the module exports no function `SCHEDULE`, or the function has arguments
            that a schedule is not given.
    """
    if not isinstance(schedule, str):
        return
    argument_names = _import_schedule(schedule)[1]
    if unknown := [name for name in argument_names if name not in _ARGUMENTS]:
        raise UserError(
            f"{_KEY}={schedule!r}: its {_EXPORT} has the argument {unknown[0]}, which a schedule is not given; it may "
            f"have {', '.join(_ARGUMENTS)}"
        )
    if "step" not in argument_names:
        raise UserError(f"{_KEY}={schedule!r}: its {_EXPORT} has no argument step, the number of earlier steps")


def depends_on_steps(schedule: LearningRateSchedule | str) -> bool:
    """Whether the learning rate of a step depends on the number of all steps of the run."""
    if isinstance(schedule, str):
        return "steps" in _import_schedule(schedule)[1]
    return schedule in (LearningRateSchedule.LINEAR, LearningRateSchedule.COSINE)


def schedule_hyperparameters(schedule: LearningRateSchedule | str) -> list[str]:
    """Return the fields of the optimizer's config that a schedule reads."""
    if isinstance(schedule, str):
        return [name for name in _HYPERPARAMETERS if name in _import_schedule(schedule)[1]]
    return [*_HYPERPARAMETERS[:2], *_HYPERPARAMETERS[2:] * depends_on_steps(schedule)]


def learning_rate(
    schedule: LearningRateSchedule | str, steps: int, step: int | Int[Array, ""], hyper: Hyperparameters
) -> Float[Array, ""]:
    """Compute the learning rate of update t = step + 1.

    Warmup over w steps is linear, peak t / w. Then: inverse_square_root is peak sqrt(w / t), which with peak = (E
    w)^-0.5 is equation 3 of Vaswani et al. 2017; linear and cosine decay to `final_lr_fraction` x peak at the last
    step; constant is peak.

    Args:
        schedule: The schedule, or the module that exports one.
        steps: The number of updates of the run.
        step: The number of earlier steps.
        hyper: The numbers of `schedule_hyperparameters`, by name.

    Raises:
        UserError: If a schedule of the user's own returns anything but one number.
    """
    if isinstance(schedule, str):
        return _own_learning_rate(schedule, steps, step, hyper)
    t, warmup = jnp.asarray(step, jnp.float32) + 1, jnp.maximum(hyper["warmup_steps"], 1)
    progress = jnp.clip((t - warmup) / jnp.maximum(steps - warmup, 1), 0, 1)
    match schedule:
        case LearningRateSchedule.CONSTANT:
            after = jnp.ones_like(t)
        case LearningRateSchedule.INVERSE_SQUARE_ROOT:
            after = jnp.sqrt(warmup / t)
        case LearningRateSchedule.LINEAR:
            after = 1 - (1 - hyper["final_lr_fraction"]) * progress
        case LearningRateSchedule.COSINE:
            after = hyper["final_lr_fraction"] + (1 - hyper["final_lr_fraction"]) * 0.5 * (
                1 + jnp.cos(jnp.pi * progress)
            )
    return hyper["learning_rate"] * jnp.where(t < warmup, t / warmup, after)


def _own_learning_rate(
    schedule: str, steps: int, step: int | Int[Array, ""], hyper: Hyperparameters
) -> Float[Array, ""]:
    function, argument_names = _import_schedule(schedule)
    arguments = {"step": jnp.asarray(step), "steps": steps, **hyper}
    result = function(**{name: arguments[name] for name in argument_names})
    if jax.tree.leaves(result) != [result] or jnp.shape(result) != ():
        shape = jax.tree.map(jnp.shape, result)
        raise UserError(f"{_KEY}={schedule!r}: its {_EXPORT} must return one number; it returns {shape}")
    return jnp.asarray(result, jnp.float32)


def _import_schedule(schedule: str) -> tuple[Callable[..., Any], tuple[str, ...]]:
    """Return the function that a module exports, and the arguments that it is called with."""
    function = import_export(
        schedule,
        _EXPORT,
        _KEY,
        package=None,
        definition="a function (step, steps, learning_rate, ...)",
        known_names=lambda: [member.value for member in LearningRateSchedule],
        is_valid=callable,
    )
    # Arguments with defaults are the user's own, unless a schedule is given one of that name.
    return function, tuple(
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.name in _ARGUMENTS or parameter.default is parameter.empty
    )
