"""The gradient of an LSTM layer over a sequence, timed call by call.

`python -m experiments.benchmarks.programs.lstm_gradient SETTINGS`: `width`, `rows`, `length`, `warmup_steps`, `steps`
and `seed`.
"""

import time
from typing import Any

import jax
import jax.numpy as jnp

from experiments.benchmarks.programs.program_main import program_main
from transformer.layers.functional_module import FunctionalModule
from transformer.layers.recurrent import RecurrentConfig, RecurrentLayer


def measure(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the seconds of each gradient after `warmup_steps`, with respect to parameters and inputs."""
    width, shape = settings["width"], (settings["rows"], settings["length"], settings["width"])
    config = RecurrentConfig(width=width)
    layer = FunctionalModule(lambda builder: RecurrentLayer(config, width, builder=builder))
    input_key, params_key = jax.random.split(jax.random.key(settings["seed"]))
    x_BxTxI, params = jax.random.normal(input_key, shape), layer.init(params_key)

    def loss(params: Any, x_BxTxI: jax.Array) -> jax.Array:
        outputs_BxTxF, _ = layer.bind(params)(x_BxTxI)
        return jnp.square(outputs_BxTxF).mean()

    gradient, seconds = jax.jit(jax.value_and_grad(loss, argnums=(0, 1))), []
    for _ in range(settings["warmup_steps"] + settings["steps"]):
        start_seconds = time.perf_counter()
        jax.block_until_ready(gradient(params, x_BxTxI))
        seconds.append(time.perf_counter() - start_seconds)
    return {"seconds": seconds[settings["warmup_steps"] :], "first": seconds[0]}


if __name__ == "__main__":
    program_main(measure)
