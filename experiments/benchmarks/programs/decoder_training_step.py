"""Training steps of a decoder-only Transformer on random tokens, timed one by one.

`python -m experiments.benchmarks.programs.decoder_training_step SETTINGS`; beside jax, flax, optax, numpy and
jaxtyping it needs nothing but this package.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

from experiments.benchmarks.programs.program_main import program_main
from experiments.benchmarks.programs.random_tokens import RandomLanguageModeling, RandomTokenTask
from transformer.data.batches import BatchSource
from transformer.layers.functional_module import Precision
from transformer.models import registry
from transformer.models.model import Model, count_parameters
from transformer.training.initial_state import init_state
from transformer.training.learning_rate import LearningRateSchedule
from transformer.training.optimizer import (
    OptimizerAlgorithm,
    OptimizerConfig,
    hyperparameters,
    make_optimizer,
)
from transformer.training.partitioning import single_device_placement, trace_with_placement
from transformer.training.state import TrainState
from transformer.training.step import make_train_step

OPTIMIZER = OptimizerConfig(
    OptimizerAlgorithm.ADAMW,
    1e-3,
    LearningRateSchedule.CONSTANT,
    warmup_steps=0,
    beta2=0.95,
    epsilon=1e-8,
    weight_decay=0.1,
    clip_norm=1.0,
)


class CompiledTrainingStep(NamedTuple):
    """A jitted training step on random batches: `begin(key)` returns its first state."""

    begin: Callable[[jax.Array], TrainState]
    step: Any
    source: BatchSource


def build_decoder(settings: Mapping[str, Any]) -> tuple[Model, RandomLanguageModeling]:
    """Build a decoder of these sizes with the architecture of GPT-2, and its task."""
    sizes = {name: settings[name] for name in ("layers", "width", "heads", "feed_forward")}
    config = registry.model_config(
        {"family": "decoder", "activation": "gelu_tanh", "norm_placement": "pre", "positions": "learned", **sizes}
        | {"max_length": settings["context"], "dropout": 0.0}
        | settings.get("model", {})
    )
    task = RandomLanguageModeling(settings["rows"], settings["context"], settings["vocabulary"])
    return registry.build(config, task.interface, Precision(compute=settings["dtype"])), task


def compile_training_step(
    settings: Mapping[str, Any], build: Callable[..., tuple[Model, RandomTokenTask]] = build_decoder
) -> CompiledTrainingStep:
    """Build the training step of a model of these sizes on one device."""
    model, task = build(settings)
    (objective,) = task.objectives
    optimizers, hyper = (
        {objective.name: make_optimizer(OPTIMIZER, steps=1000)},
        {objective.name: hyperparameters(OPTIMIZER)},
    )
    begin = jax.jit(lambda key: init_state(model, task, optimizers, {}, hyper, key))
    step = jax.jit(
        trace_with_placement(single_device_placement(), make_train_step(model, task, optimizers, {})), donate_argnums=0
    )
    return CompiledTrainingStep(begin, step, task.training_batches(settings["seed"]))


def measure(
    settings: Mapping[str, Any], build: Callable[..., tuple[Model, RandomTokenTask]] = build_decoder
) -> dict[str, Any]:
    """Return the seconds of each step after `warmup_steps`, and of the first, which compiles."""
    begin, step, source = compile_training_step(settings, build)
    state, seconds = begin(jax.random.key(settings["seed"])), []
    for number in range(settings["warmup_steps"] + settings["steps"]):
        batch = jax.device_put(source[number])
        start_seconds = time.perf_counter()
        state, metrics = jax.block_until_ready(step(state, batch))
        seconds.append(time.perf_counter() - start_seconds)
    return {
        "seconds": seconds[settings["warmup_steps"] :],
        "first": seconds[0],
        "loss": float(metrics.values["loss"]),
        "parameters": count_parameters(state.variables.params),
    }


if __name__ == "__main__":
    program_main(measure)
