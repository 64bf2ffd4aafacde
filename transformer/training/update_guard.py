"""The update guard: skip updates that are not finite or spike, and stop a run that only skips."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from transformer.config import Config, PositiveInt, UserError
from transformer.runs.exceptions import RunFailed
from transformer.training.finite_checks import is_finite
from transformer.training.state import TrainState

Numbers = Mapping[str, Array]
# Suffixes of the names of metrics that are finite if and only if the update is.
_GRADIENT, _FINITE_METRICS = "gradient_norm", ("loss", "gradient_norm", "update_norm")


@dataclasses.dataclass(frozen=True)
class UpdateGuardConfig(Config, path="config.update_guard"):
    """When an update is skipped, which leaves the training state unchanged, and when the run stops.

    An update is skipped if its loss, its gradient, the change of a parameter or the model's state is not finite; if its
    batch is all padding; or if its gradient spikes.

    Attributes:
        max_consecutive_skips: The number of consecutive skipped updates after which the run stops.
        spike_factor: A gradient spikes if its norm is more than this factor times the median of the last updates; its
            batch is skipped, as Chowdhery et al. 2022 (PaLM, section 5.1) skip batches. 0 does not check.
        spike_window: The number of updates of that median.
    """

    max_consecutive_skips: PositiveInt = 10
    spike_factor: float = 0.0
    spike_window: PositiveInt = 64

    def _check(self) -> None:
        if self.spike_factor and not self.spike_factor > 1:
            raise UserError(f"config.update_guard.spike_factor={self.spike_factor} must be above 1, or 0 for none")


def init_gradient_norms(update_guard: UpdateGuardConfig, objectives: Iterable[str]) -> dict[str, Array]:
    """Return the gradient norms of the initial training state, which `guard_update` updates.

    Args:
        update_guard: The config.
        objectives: The names of the objectives.

    Returns:
        For each objective the norms of the last updates, newest first, 0 for none yet; {} if spikes are not checked.
    """
    return (
        {name: jnp.zeros(update_guard.spike_window, jnp.float32) for name in objectives}
        if update_guard.spike_factor
        else {}
    )


def guard_update(
    update_guard: UpdateGuardConfig,
    previous_state: TrainState,
    updated_state: TrainState,
    denominators: Numbers,
    values: Numbers,
) -> tuple[TrainState, dict[str, Array]]:
    """Keep or undo an update.

    A step whose update is skipped changes nothing but the number of steps.

    Args:
        update_guard: The config.
        previous_state: The state before the update.
        updated_state: The state after it, with the averages of `previous_state`, which are updated later.
        denominators: The totals of the batch.
        values: The metrics of the step.

    Returns:
        The next state, and the metrics with `skipped_updates`: 1 if the update is skipped, else 0.
    """
    norms = {name: value for name, value in values.items() if _ends(name, (_GRADIENT,))}
    numbers = [value for name, value in values.items() if _ends(name, _FINITE_METRICS)]
    # Parameters and optimizers stay finite if these are, since a norm is a sum over all of them.
    finite = is_finite((numbers, updated_state.variables.state, updated_state.task_state))
    still = jnp.all(jnp.stack([~(norm > 0) for norm in norms.values()]))
    empty = (
        still & jnp.any(jnp.stack([total == 0 for total in denominators.values()]))
        if denominators
        else jnp.array(False)
    )
    good, recent = finite & ~empty, {}
    for name, recent_norms in previous_state.gradient_norms.items():
        norm = norms[_GRADIENT if len(previous_state.gradient_norms) == 1 else f"{name}/{_GRADIENT}"]
        good &= (norm <= update_guard.spike_factor * jnp.median(recent_norms)) | jnp.any(recent_norms == 0)
        recent[name] = jnp.roll(recent_norms, 1).at[0].set(norm.astype(recent_norms.dtype))

    def select(new: Any, old: Any) -> Any:
        return jax.tree.map(lambda new, old: jnp.where(good, new, old), new, old)

    updated_state = updated_state._replace(
        variables=select(updated_state.variables, previous_state.variables),
        optimizers=select(updated_state.optimizers, previous_state.optimizers),
        task_state=select(updated_state.task_state, previous_state.task_state),
        gradient_norms=select(recent, dict(previous_state.gradient_norms)),
    )
    # The loss of an empty batch is 0 / 0 or 0, depending on the task.
    reported_values = {
        name: jnp.where(empty & _ends(name, _FINITE_METRICS), 0, value) for name, value in values.items()
    }
    return updated_state, {**reported_values, "skipped_updates": 1 - good.astype(jnp.float32)}


def _ends(name: str, endings: tuple[str, ...]) -> bool:
    return name.endswith(endings)


class TrainingDiverged(RunFailed, FloatingPointError):
    """The updates of the consecutive steps `first` to `step` were all skipped."""

    def __init__(self, first: int, step: int, reason: str):
        what = f"step {step}" if first == step else f"steps {first} to {step}, {step - first + 1} in a row,"
        super().__init__(f"{what} made no update: {reason}")
        self.first, self.step, self.reason = first, step, reason


class ConsecutiveSkips:
    """Counts consecutive skipped updates."""

    def __init__(self, max_consecutive_skips: int):
        self._max_consecutive_skips, self._row = max_consecutive_skips, 0

    def check(self, step: int, denominators: Mapping[str, np.ndarray], values: Mapping[str, np.ndarray]) -> None:
        """Count a step.

        Args:
            step: The number of the step.
            denominators: The totals of its batch.
            values: Its metrics.

        Raises:
            TrainingDiverged: If it is the last of `max_consecutive_skips` skipped updates in a row.
        """
        self._row = self._row + 1 if values.get("skipped_updates", 0) else 0
        if self._row >= self._max_consecutive_skips:
            raise TrainingDiverged(step - self._row + 1, step, describe_skip(denominators, values))


def describe_skip(denominators: Mapping[str, np.ndarray], values: Mapping[str, np.ndarray]) -> str:
    """Describe why an update was skipped, and what helps.

    Args:
        denominators: The totals of its batch.
        values: Its metrics.
    """
    advice = (
        "lower config.optimizer.learning_rate, lengthen config.optimizer.warmup_steps or set config.optimizer.clip_norm"
    )
    for name, value in values.items():
        if _ends(name, _FINITE_METRICS) and not np.isfinite(value):
            return f"{name} is {value}; {advice}"
    for name, total in denominators.items():
        if total == 0:
            return f"the batch is all padding: it has no {name}; check the data"
    lengths = ", ".join(f"{name} is {value:.4g}" for name, value in values.items() if _ends(name, (_GRADIENT,)))
    return f"{lengths}, a spike by config.update_guard.spike_factor, or the model's state is not finite; {advice}"
