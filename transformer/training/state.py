"""The training state: the carry of the train step, and the content of a checkpoint."""

import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from transformer.models.model import Variables

PyTree = Any

# Prefixes of the paths of a state's leaves in a checkpoint: parameters, the model's state, averages by name, and the
# numbers of the optimizers, which every state of a training has.
PARAMS, STATE, AVERAGES, HYPERPARAMETERS = "variables/params/", "variables/state/", "averages/", "hyperparameters/"


class TrainState(NamedTuple):
    """The training state.

    Attributes:
        step: The number of steps made, skipped updates included.
        key: The run's PRNG key, from which all others are derived.
        variables: The model's parameters and state.
        optimizers: The optimizer states by objective.
        averages: The averaged parameters by the name of the average and their path.
        task_state: The task's own state.
        hyperparameters: The numbers of the optimizers by objective, such as the learning rate. They are arguments of
            the compiled program.
        gradient_norms: The gradient norms of the last updates by objective, if spikes are guarded against.
    """

    step: Int[Array, ""]
    key: Key[Array, ""]
    variables: Variables
    optimizers: Mapping[str, PyTree]
    averages: Mapping[str, Mapping[str, Array]]
    task_state: PyTree
    hyperparameters: Mapping[str, Mapping[str, Float[Array, ""]]]
    gradient_norms: Mapping[str, Float[Array, " N"]] = {}

    def without_optimizers(self) -> "TrainState":
        """Return the state without its optimizers: the argument of compiled evaluations and probes."""
        return self._replace(optimizers={}, hyperparameters={}, gradient_norms={})


def accumulation_dtype(dtype: Any) -> Any:
    """Return the type of sums over steps and microbatches: at least float32, so that small addends count."""
    return jnp.promote_types(dtype, jnp.float32)


def cast_to_accumulation_dtype(tree: PyTree) -> PyTree:
    """Cast the arrays of a tree to their accumulation type."""
    return jax.tree.map(lambda leaf: leaf.astype(accumulation_dtype(leaf.dtype)), tree)


def derive_key(key: Key[Array, ""], step: int | Int[Array, ""], name: str) -> Key[Array, ""]:
    """Derive the PRNG key of a purpose at a step from the run's key, the only key that is saved.

    Args:
        key: The run's key.
        step: The number of the step.
        name: The purpose, such as "init" or the key name of an objective.
    """
    return jax.random.fold_in(jax.random.fold_in(key, step), zlib.crc32(name.encode()))
