"""Gradient norms at initialization, layer by layer, for the arms of an ablation at several depths.

Xiong et al. 2020 (section 3.3) explain with them why post-norm needs warm-up: the gradient of the last layer's
feed-forward network is of order d sqrt(log d) in a post-norm model, whatever the depth L, and of order
d sqrt(log d / L) in a pre-norm model.
"""

import dataclasses
import functools
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from transformer.config import NonNegativeInt, UserError
from transformer.models import registry as models
from transformer.models.model import Model, Variables, leaves_by_path, replace_with_averaged
from transformer.studies.ablations.ablation import Ablation, DepthSweep, Overrides
from transformer.tasks import registry as tasks
from transformer.tasks.task import Batch, StateView, Task
from transformer.training.config import ExperimentConfig, apply_overrides, resolve_config
from transformer.training.state import derive_key

# Where a family keeps its first feed-forward matrices, [layer, width, hidden], or [layer, expert, width, hidden] of
# experts; of two stacks the decoder's is measured.
_FIRST_MATRICES = tuple(
    f"{stack}/{network}/expand/kernel"
    for stack in ("decoder", "layers")
    for network in ("feed_forward", "experts/networks")
)
DESCRIPTION = (
    "The Euclidean norm of the gradient of the training loss on the first training batch, with respect to the first "
    "matrix of each block's feed-forward network (of an encoder-decoder: the decoder's blocks), before any update; "
    "the mean over seeds, each with its own initial values and its own batch."
)

TaskOf = Callable[[Any], Task]
GradientNorm = float | None
"""None where it was not finite."""


@dataclasses.dataclass(frozen=True)
class ArmGradientNorms:
    """The gradient norms of an arm's layers at one depth: mean, minimum and maximum over seeds."""

    arm: str
    depth: NonNegativeInt
    layers: tuple[GradientNorm, ...]
    low: tuple[GradientNorm, ...]
    high: tuple[GradientNorm, ...]


@dataclasses.dataclass(frozen=True)
class LastToFirstGradientRatio:
    """The gradient norm of the last layer over that of the first, for an arm at one depth."""

    arm: str
    depth: NonNegativeInt
    last_over_first: GradientNorm


@dataclasses.dataclass(frozen=True)
class DepthExponent:
    """The exponent with which an arm's last gradient norm grows with depth."""

    arm: str
    value: GradientNorm


@dataclasses.dataclass(frozen=True)
class DepthSweepNorms:
    """The measurements of one depth sweep.

    Attributes:
        name: Its name.
        depths: The depths.
        arms: The norms by arm and depth.
        ratio: By arm and depth the last layer's norm over the first layer's; None without both.
        exponent: By arm the slope of log(last layer's norm) against log(depth); None for a single depth.
    """

    name: str
    depths: tuple[NonNegativeInt, ...]
    arms: tuple[ArmGradientNorms, ...]
    ratio: tuple[LastToFirstGradientRatio, ...]
    exponent: tuple[DepthExponent, ...]


@dataclasses.dataclass(frozen=True)
class InitialGradients:
    """The measured depth sweeps, and how they were measured."""

    stacks: tuple[DepthSweepNorms, ...]
    how: str


def check_depth_sweeps(base: Mapping[str, Any], spec: Ablation) -> None:
    """Check that the models of every depth sweep can be configured, before anything is trained.

    Raises:
        UserError: If a config is invalid, naming the sweep and the arm.
    """
    for name, stack in spec.initial_gradients.items():
        for arm, overrides in spec.arms.items():
            try:
                arm_config = apply_overrides(apply_overrides(base, stack.overrides), overrides)
                for depth in stack.depths:
                    resolve_config(apply_overrides(arm_config, dict.fromkeys(stack.depth_keys, depth)))
            except UserError as error:
                raise UserError(f"ablation.initial_gradients[{name!r}], arm {arm!r}: {error}") from None


def measure_depth_sweeps(base: Mapping[str, Any], spec: Ablation, data_dir: str | None = None) -> InitialGradients:
    """Measure the gradient norms of every depth sweep of a study.

    Args:
        base: The study's base config.
        spec: The ablation.
        data_dir: The directory of the data; by default the config's.

    Raises:
        UserError: If the overrides are invalid, or a model has no feed-forward blocks.
    """
    with tempfile.TemporaryDirectory() as folder:

        @functools.cache
        def build_task(config: Any) -> Task:
            # One for all arms and depths, so that data are read once.
            config = config if data_dir is None else dataclasses.replace(config, data_dir=data_dir)
            return tasks.build_task(config, Path(tempfile.mkdtemp(dir=folder)))

        stacks = tuple(
            _measure_stack(name, stack, apply_overrides(base, stack.overrides), spec.arms, build_task)
            for name, stack in spec.initial_gradients.items()
        )
    return InitialGradients(stacks, DESCRIPTION)


def _measure_stack(
    name: str, stack: DepthSweep, base: Mapping[str, Any], arms: Mapping[str, Overrides], build_task: TaskOf
) -> DepthSweepNorms:
    measured = []
    for arm, overrides in arms.items():
        arm_config = apply_overrides(base, overrides)
        for depth in stack.depths:
            config = apply_overrides(arm_config, dict.fromkeys(stack.depth_keys, depth))
            experiments = [resolve_config(apply_overrides(config, {"seed": seed})) for seed in stack.seeds]
            norms_SxL = np.array(
                compute_initial_gradient_norms(experiments, build_task(experiments[0].task)), np.float64
            )
            layers, low, high = (
                tuple(norm if math.isfinite(norm) else None for norm in norms_L.tolist())
                for norms_L in (norms_SxL.mean(axis=0), norms_SxL.min(axis=0), norms_SxL.max(axis=0))
            )
            measured.append(ArmGradientNorms(arm, depth, layers, low, high))
    return DepthSweepNorms(
        name,
        stack.depths,
        tuple(measured),
        tuple(LastToFirstGradientRatio(m.arm, m.depth, _norm_ratio(m.layers[-1], m.layers[0])) for m in measured),
        tuple(
            DepthExponent(arm, _depth_exponent({m.depth: m.layers[-1] for m in measured if m.arm == arm}))
            for arm in arms
        ),
    )


def compute_initial_gradient_norms(
    experiments: Sequence[ExperimentConfig], task: Task
) -> list[Float[np.ndarray, " L"]]:
    """Compute the norms of the first gradient of each layer, for experiments that differ in the seed alone.

    They are those of the run's own first step: its initial values, its first batch, its random keys.

    Args:
        experiments: The experiments.
        task: Their task.

    Returns:
        For each experiment the norm of each layer's gradient [layer].

    Raises:
        UserError: If the model has no feed-forward blocks, or its initial values are taken from another run.
    """
    if origin := experiments[0].initialize_from.run:
        raise UserError(f"ablation: initial_gradients are of values drawn afresh; config.initialize_from.run={origin}")
    model = models.build(experiments[0].model, task.interface, experiments[0].precision)
    paths = leaves_by_path(model.functional.shapes())
    path = next((path for path in _FIRST_MATRICES if path in paths), None)
    if path is None:
        family = models.family_name(experiments[0].model)
        raise UserError(
            f"config.model.family={family} has no feed-forward blocks, alike in all its layers, whose gradients could "
            "be measured"
        )
    # What runs a few times is not worth the optimizations of a compiler, which take longer than they save.
    cheap = {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else None
    program = jax.jit(functools.partial(_gradient_norms, model, task, path), compiler_options=cheap)
    return [np.asarray(program(jax.random.key(e.run.seed), task.training_batches(e.run.seed)[0])) for e in experiments]


def _gradient_norms(model: Model, task: Task, path: str, key: Any, batch: Batch) -> Float[Array, " L"]:
    variables = model.init(derive_key(key, 0, "init"))
    view = StateView(model, variables, {}, {}, jnp.int32(0), train=True)
    view = view._replace(task_state=task.init_task_state(view, derive_key(key, 0, "extra")))
    prepared, extra = task.prepare_batch(view, batch, derive_key(key, 0, "prepare"))
    denominators = task.denominators(prepared)

    def loss(matrices: Array) -> Array:
        params = replace_with_averaged(variables.params, {path: matrices})
        inner = view._replace(variables=Variables(params, variables.state), task_state=extra)
        losses = [o.loss_fn(inner, prepared, denominators, derive_key(key, 0, o.key_name))[0] for o in task.objectives]
        return jnp.sum(jnp.stack(losses))

    gradient = jax.grad(loss)(leaves_by_path(variables.params)[path])
    return jnp.sqrt(jnp.sum(jnp.square(gradient), axis=tuple(range(1, gradient.ndim))))


def _norm_ratio(last: float | None, first: float | None) -> float | None:
    return last / first if last is not None and first else None


def _depth_exponent(last: Mapping[int, float | None]) -> float | None:
    """Return the least-squares slope of log(norm) against log(depth); None without two depths and all their norms."""
    norms = [norm for norm in last.values() if norm]
    if len(norms) < len(last) or len(norms) < 2:
        return None
    return float(np.polyfit(np.log(list(last)), np.log(norms), 1)[0])
