"""The time of a decoder's training step by part, compared with the peak rates of the machine.

`python -m experiments.benchmarks.programs.training_step_breakdown SETTINGS`; SETTINGS are those of
decoder_training_step. Each part is compiled by itself with its gradient, and timed for all layers together. A product
of two large matrices and a copy, timed in alternation with the parts, give the machine's own rates.
"""

import functools
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from experiments.benchmarks.programs.decoder_training_step import OPTIMIZER, compile_training_step
from experiments.benchmarks.programs.program_main import program_main
from transformer.attention.masks import Mask
from transformer.layers.embedding import Embedding
from transformer.layers.feed_forward import Activation, FeedForward
from transformer.layers.functional_module import FunctionalModule
from transformer.layers.multi_head_attention import MultiHeadAttention
from transformer.layers.norm import LayerNorm
from transformer.layers.transformer_config import TransformerConfig
from transformer.tasks.losses import token_loss
from transformer.training.optimizer import hyperparameters, make_optimizer

MATRIX_SIZE, COPY_SIZE = 2048, 2**24  # of the square matrices; floats


class TimedPart(NamedTuple):
    """A function with its arguments, and how often a step runs it."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    num_executions: int


def step_parts(settings: Mapping[str, Any], key: jax.Array) -> Iterator[tuple[str, TimedPart]]:
    """Iterate over the parts of a step by name, the machine's own rates first."""
    rows, context, width, layers = (settings[name] for name in ("rows", "context", "width", "layers"))
    square = jax.random.normal(key, (MATRIX_SIZE, MATRIX_SIZE))
    yield "machine: matmul", TimedPart(jnp.matmul, (square, square), 1)
    yield "machine: copy", TimedPart(lambda x: x + 1, (jnp.zeros(COPY_SIZE),), 1)
    config = TransformerConfig(
        width=width, heads=settings["heads"], feed_forward=settings["feed_forward"], max_length=context
    )
    tokens_BxT = jax.random.randint(key, (rows, context), 0, settings["vocabulary"])
    x_BxTxE = jax.random.normal(key, (rows, context, width))

    def attention(module: MultiHeadAttention, x_BxTxE: jax.Array) -> jax.Array:
        return module(x_BxTxE, x_BxTxE, mask=Mask(causal=True))[0]

    def head(module: Embedding, x_BxTxE: jax.Array) -> jax.Array:
        every_BxT = jnp.ones((rows, context), bool)
        return token_loss(module.logits(x_BxTxE), tokens_BxT, every_BxT, 0.0).smoothed

    def embedding(module: Embedding, x_BxTxE: jax.Array) -> jax.Array:
        return module(tokens_BxT, x_BxTxE.dtype) * x_BxTxE

    feed_forward = functools.partial(FeedForward, width, config.feed_forward, activation=Activation.GELU_TANH)
    table = functools.partial(Embedding, settings["vocabulary"], width)
    for name, times, make, call in (
        ("attention", layers, lambda b: MultiHeadAttention(config, cross=False, builder=b), attention),
        ("feed-forward", layers, lambda b: feed_forward(bias=True, builder=b), lambda module, x: module(x)),
        ("norms", 2 * layers + 1, lambda b: LayerNorm(width, builder=b), lambda module, x: module(x)),
        ("embedding", 1, lambda b: table(builder=b), embedding),
        ("vocabulary head and loss", 1, lambda b: table(builder=b), head),
    ):
        yield name, _gradient_part(FunctionalModule(make), call, key, x_BxTxE, times)


def _gradient_part(
    module: FunctionalModule, call: Callable, key: jax.Array, x_BxTxE: jax.Array, times: int
) -> TimedPart:
    def scalar(params: Any, x_BxTxE: jax.Array) -> jax.Array:
        y = call(module.bind(params), x_BxTxE)
        return jnp.vdot(y, x_BxTxE) if y.ndim else y

    return TimedPart(jax.value_and_grad(scalar, argnums=(0, 1)), (module.init(key), x_BxTxE), times)


def measure(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the seconds of each part of a step, and its FLOPs and bytes as the compiler counts them."""
    key = jax.random.key(settings["seed"])
    begin, step, source = compile_training_step(settings)
    state, batch = begin(key), jax.device_put(source[0])
    # A copy: the step consumes its state.
    optimizer, params = make_optimizer(OPTIMIZER, steps=1000), jax.tree.map(jnp.copy, state.variables.params)
    hyper = hyperparameters(OPTIMIZER)
    timed_parts: dict[str, TimedPart] = {
        **dict(step_parts(settings, key)),
        "optimizer": TimedPart(
            lambda params, moments: optimizer.update(params, moments, params, 0, hyper),
            (params, optimizer.init(params)),
            1,
        ),
    }
    compiled = {name: jax.jit(part.function).lower(*part.arguments).compile() for name, part in timed_parts.items()}
    seconds: dict[str, list[float]] = {name: [] for name in [*timed_parts, "whole step"]}
    for _ in range(settings["warmup_steps"] + settings["steps"]):
        for name, part in timed_parts.items():
            start_seconds = time.perf_counter()
            jax.block_until_ready(compiled[name](*part.arguments))
            seconds[name].append(part.num_executions * (time.perf_counter() - start_seconds))
        start_seconds = time.perf_counter()
        state, _ = jax.block_until_ready(step(state, batch))
        seconds["whole step"].append(time.perf_counter() - start_seconds)
    work = {name: _program_work(compiled[name], part.num_executions) for name, part in timed_parts.items()}
    work["whole step"] = _program_work(step.lower(state, batch).compile(), 1)
    return {
        "seconds": {name: part_seconds[settings["warmup_steps"] :] for name, part_seconds in seconds.items()},
        "work": work,
    }


def _program_work(compiled: Any, times: int) -> dict[str, float]:
    counted = compiled.cost_analysis()
    return {"flops": times * counted["flops"], "bytes": times * counted["bytes accessed"]}


if __name__ == "__main__":
    program_main(measure)
