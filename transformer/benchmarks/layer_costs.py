"""Time and memory of a layer of each type on this machine, forward and backward, on the same inputs."""

import itertools
import statistics
import time
from collections.abc import Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer.benchmarks.layer_types import LAYER_TYPES


class LayerCost(NamedTuple):
    """The cost of a layer type over n positions of d features: median seconds, and bytes of temporary buffers."""

    layer_type: str
    length: int
    num_features: int
    seconds: float
    temp_bytes: int


def measure_layer_costs(n: int, d: int, *, rows: int = 1, repeats: int = 5) -> list[LayerCost]:
    """Measure the cost of a gradient with respect to parameters and inputs, of every layer type in alternation."""
    x_BxTxF = jax.random.normal(jax.random.key(0), (rows, n, d))
    programs = {name: _compile_gradient(name, d, x_BxTxF) for name in LAYER_TYPES}
    seconds: dict[str, list[float]] = {name: [] for name in LAYER_TYPES}
    for repeat in range(repeats + 1):
        for name, (compiled, arguments) in programs.items():
            start_seconds = time.perf_counter()
            jax.block_until_ready(compiled(*arguments))
            if repeat:  # in the first round memory is taken from the system
                seconds[name].append(time.perf_counter() - start_seconds)
    return [
        LayerCost(name, n, d, statistics.median(seconds[name]), _temp_bytes(compiled))
        for name, (compiled, _) in programs.items()
    ]


def _temp_bytes(compiled: jax.stages.Compiled) -> int:
    memory = compiled.memory_analysis()
    if memory is None:
        raise ValueError("the backend has no memory analysis of compiled programs")
    return memory.temp_size_in_bytes


def _compile_gradient(name: str, d: int, x_BxTxF: jax.Array) -> tuple[jax.stages.Compiled, tuple]:
    module, run = LAYER_TYPES[name].make_layer(d)
    params = module.init(jax.random.key(1))
    gradient = jax.jit(jax.grad(lambda params, x: jnp.sum(run(params, x) ** 2), (0, 1)))
    return gradient.lower(params, x_BxTxF).compile(), (params, x_BxTxF)


def crossover_length(costs: Sequence[LayerCost], one: str, reference: str) -> float | None:
    """Return the length from which `one` takes longer than `reference`, by log-log interpolation.

    None if the order is the same at all measured lengths.
    """
    ratio = {
        cost.length: np.log(
            cost.seconds
            / next(
                reference_cost.seconds
                for reference_cost in costs
                if reference_cost.layer_type == reference and reference_cost.length == cost.length
            )
        )
        for cost in costs
        if cost.layer_type == one
    }
    lengths = sorted(ratio)
    for below, above in itertools.pairwise(lengths):
        if ratio[below] <= 0 < ratio[above]:
            share = ratio[below] / (ratio[below] - ratio[above])
            return float(np.exp(np.log(below) + share * np.log(above / below)))
    return None


def growth_exponent(costs: Sequence[LayerCost], kind: str, what: Literal["seconds", "temp_bytes"]) -> float:
    """Return the slope of log(time) or log(memory) against log(n), between the two largest lengths."""
    first, last = sorted((cost for cost in costs if cost.layer_type == kind), key=lambda cost: cost.length)[-2:]
    return float(np.log(getattr(last, what) / getattr(first, what)) / np.log(last.length / first.length))
