"""Training steps of a decoder-only Transformer on random tokens, timed one by one.

`python -m transformer.benchmarks.programs.decoder_step SETTINGS`; beside jax, flax, optax, numpy and jaxtyping it needs
nothing but this package.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

from transformer.benchmarks.programs.process import measured
from transformer.benchmarks.random_tokens import RandomTask, RandomTokens
from transformer.data.batches import Source
from transformer.layers.functional_module import Precision
from transformer.models import registry
from transformer.models.model import Model, count_parameters
from transformer.training.initial_state import init_state
from transformer.training.optimizer import Algorithm, OptimizerConfig, Schedule, hyperparameters, make_optimizer
from transformer.training.partitioning import one_device, traced_on
from transformer.training.state import TrainState
from transformer.training.step import make_step

OPTIMIZER = OptimizerConfig(
    Algorithm.ADAMW, 1e-3, Schedule.CONSTANT, warmup_steps=0, beta2=0.95, epsilon=1e-8, weight_decay=0.1, clip_norm=1.0
)


class Stepping(NamedTuple):
    """A compiled step of random batches: `begin(key)` is its first state."""

    begin: Callable[[jax.Array], TrainState]
    step: Any
    source: Source


def decoder_of(settings: Mapping[str, Any]) -> tuple[Model, RandomTokens]:
    """A decoder of these sizes, arranged as GPT-2, and its task."""
    sizes = {name: settings[name] for name in ("layers", "width", "heads", "feed_forward")}
    config = registry.model_config(
        {"family": "decoder", "activation": "gelu_tanh", "norm_placement": "pre", "positions": "learned", **sizes}
        | {"max_length": settings["context"], "dropout": 0.0}
        | settings.get("model", {})
    )
    task = RandomTokens(settings["rows"], settings["context"], settings["vocabulary"])
    return registry.build(config, task.interface, Precision(compute=settings["dtype"])), task


def stepping(settings: Mapping[str, Any], build: Callable[..., tuple[Model, RandomTask]] = decoder_of) -> Stepping:
    """The training step of a model of these sizes, on one device."""
    model, task = build(settings)
    (objective,) = task.objectives
    optimizers, hyper = (
        {objective.name: make_optimizer(OPTIMIZER, steps=1000)},
        {objective.name: hyperparameters(OPTIMIZER)},
    )
    begin = jax.jit(lambda key: init_state(model, task, optimizers, {}, hyper, key))
    step = jax.jit(traced_on(one_device(), make_step(model, task, optimizers, {})), donate_argnums=0)
    return Stepping(begin, step, task.source(settings["seed"]))


def measure(settings: Mapping[str, Any], build: Callable[..., tuple[Model, RandomTask]] = decoder_of) -> dict[str, Any]:
    """The seconds of each step behind `warmup` of them, and of the first, which compiles."""
    begin, step, source = stepping(settings, build)
    state, seconds = begin(jax.random.key(settings["seed"])), []
    for number in range(settings["warmup"] + settings["steps"]):
        batch = jax.device_put(source[number])
        began = time.perf_counter()
        state, metrics = jax.block_until_ready(step(state, batch))
        seconds.append(time.perf_counter() - began)
    return {
        "seconds": seconds[settings["warmup"] :],
        "first": seconds[0],
        "loss": float(metrics.values["loss"]),
        "parameters": count_parameters(state.variables.params),
    }


if __name__ == "__main__":
    measured(measure)
