"""Optimisers and learning-rate schedules by name."""

import dataclasses
import enum
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from transformer.config import UserError


class Algorithm(enum.Enum):
    """An update rule."""

    ADAM = "adam"
    ADAMW = "adamw"
    SGD = "sgd"


class Schedule(enum.Enum):
    """The learning rate over steps, behind a linear warm-up."""

    CONSTANT = "constant"
    INVERSE_SQUARE_ROOT = "inverse_square_root"
    LINEAR = "linear"
    COSINE = "cosine"


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """How parameters are updated.

    `learning_rate` is the peak, reached after `warmup` steps; `final` is the fraction of it that linear and cosine
    schedules end at. `clip` bounds the gradient's global norm; 0 leaves it alone. `weight_decay` (adamw) acts on
    matrices and tables, not on biases and norms.
    """

    algorithm: Algorithm = Algorithm.ADAM
    learning_rate: float = 7e-4
    schedule: Schedule = Schedule.INVERSE_SQUARE_ROOT
    warmup: int = 4000
    final: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.98
    epsilon: float = 1e-9
    weight_decay: float = 0.0
    clip: float = 0.0

    def __post_init__(self) -> None:
        if self.learning_rate <= 0:
            raise UserError(f"config.optimizer.learning_rate={self.learning_rate} must be above 0")
        if self.warmup < 0 or self.clip < 0:
            raise UserError(f"config.optimizer: warmup={self.warmup} and clip={self.clip} must be at least 0")
        if self.weight_decay and self.algorithm is not Algorithm.ADAMW:
            raise UserError(
                f"config.optimizer.weight_decay={self.weight_decay} acts with algorithm=adamw alone; "
                f"algorithm is {self.algorithm.value}"
            )


class Optimizer(NamedTuple):
    """An update rule over a dict of parameters by path, and its learning rate by step."""

    transformation: optax.GradientTransformation
    learning_rate: optax.Schedule


def learning_rate(config: OptimizerConfig, steps: int) -> optax.Schedule:
    """The learning rate of update t = 1, 2, ... (`step` counts from 0).

    Warm-up: peak t / w, the same for all. Then inverse_square_root: peak sqrt(w / t), which with
    peak = (E w)^-0.5 is equation 3 of Vaswani et al. 2017; linear and cosine: down to `final` x peak at the last
    step; constant: peak.
    """
    peak, warmup, final = config.learning_rate, max(config.warmup, 1), config.final

    def rate(step: jax.Array) -> jax.Array:
        t = jnp.asarray(step, jnp.float32) + 1
        progress = jnp.clip((t - warmup) / max(steps - warmup, 1), 0, 1)
        match config.schedule:
            case Schedule.CONSTANT:
                after = jnp.ones_like(t)
            case Schedule.INVERSE_SQUARE_ROOT:
                after = jnp.sqrt(warmup / t)
            case Schedule.LINEAR:
                after = 1 - (1 - final) * progress
            case Schedule.COSINE:
                after = final + (1 - final) * 0.5 * (1 + jnp.cos(jnp.pi * progress))
        return peak * jnp.where(t < warmup, t / warmup, after)

    return rate


def make_optimizer(config: OptimizerConfig, steps: int) -> Optimizer:
    """The optimiser of a run of `steps` updates."""
    rate = learning_rate(config, steps)
    match config.algorithm:
        case Algorithm.ADAM:
            rule = optax.adam(rate, config.beta1, config.beta2, config.epsilon)
        case Algorithm.ADAMW:
            rule = optax.adamw(
                rate,
                config.beta1,
                config.beta2,
                config.epsilon,
                weight_decay=config.weight_decay,
                mask=_decayed,
            )
        case Algorithm.SGD:
            rule = optax.sgd(rate, momentum=config.beta1 or None)
    clip = [optax.clip_by_global_norm(config.clip)] if config.clip else []
    return Optimizer(optax.chain(*clip, rule), rate)


def _decayed(params: dict[str, jax.Array]) -> dict[str, bool]:
    # By name, since a stack of biases has as many dimensions as a matrix.
    return {path: path.rsplit("/", 1)[-1] not in ("bias", "scale", "content", "position") for path in params}
