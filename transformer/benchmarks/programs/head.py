"""The loss of a vocabulary's logits with its gradients, whole and in chunks: `python -m ... .head SETTINGS`.

SETTINGS: `rows` of `length` vectors of `width`, `vocabulary`, how many logits exist `at_once` in chunks (0: as training
has them), `dtype`, `repeats` and `seed`. Beside times it prints the bytes that the compiled programs hold at most
beside their inputs and outputs.
"""

import functools
import time
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from transformer.benchmarks.programs.process import measured
from transformer.tasks.losses import LOGITS_AT_ONCE, hidden_token_loss


def measure(settings: dict[str, Any]) -> dict[str, Any]:
    """The seconds of both ways, taken in turn, and their memory."""
    rows, length, width, vocabulary = (settings[name] for name in ("rows", "length", "width", "vocabulary"))
    of_hidden, of_table, of_labels = jax.random.split(jax.random.key(settings["seed"]), 3)
    dtype = settings["dtype"]
    hidden_BxTxE = jax.random.normal(of_hidden, (rows, length, width), dtype)
    table_VxE = jax.random.normal(of_table, (vocabulary, width), dtype) / width**0.5
    labels_BxT = jax.random.randint(of_labels, (rows, length), 0, vocabulary)

    def loss(arrays: tuple[Array, Array], logits_at_once: int) -> Array:
        hidden_BxTxE, table_VxE = arrays
        counts = jnp.ones(labels_BxT.shape, bool)
        sums = hidden_token_loss(
            lambda x: x @ table_VxE.T, hidden_BxTxE, labels_BxT, counts, 0.0, logits_at_once=logits_at_once
        )
        return sums.smoothed / labels_BxT.size

    ways = {"whole": rows * length * vocabulary, "in chunks": settings["at_once"] or LOGITS_AT_ONCE}
    arrays = hidden_BxTxE, table_VxE
    compiled = {
        name: jax.jit(jax.value_and_grad(functools.partial(loss, logits_at_once=at_once))).lower(arrays).compile()
        for name, at_once in ways.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    losses = {}
    for number in range(1 + settings["repeats"]):
        for name, program in compiled.items():
            began = time.perf_counter()
            value, _ = jax.block_until_ready(program(arrays))
            if number:
                seconds[name].append(time.perf_counter() - began)
            losses[name] = float(value)
    about = {name: program.memory_analysis() for name, program in compiled.items()}
    held = {name: each and each.temp_size_in_bytes for name, each in about.items()}
    return {"seconds": seconds, "bytes_held": held, "losses": losses}


if __name__ == "__main__":
    measured(measure)
