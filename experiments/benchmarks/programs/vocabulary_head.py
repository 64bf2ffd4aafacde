"""Time the loss of vocabulary logits with its gradients, whole and in chunks.

`python -m experiments.benchmarks.programs.vocabulary_head SETTINGS`: `rows` of `length` vectors of `width`,
`vocabulary`, the number of logits in a chunk `at_once` (0: as in training), `dtype`, `repeats` and `seed`. It also
prints the bytes of temporary buffers of the compiled programs.
"""

import functools
import time
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from experiments.benchmarks.programs.program_main import program_main
from transformer.tasks.losses import LOGITS_AT_ONCE, chunked_token_loss


def measure(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the seconds of both methods, measured in alternation, and their memory."""
    rows, length, width, vocabulary = (settings[name] for name in ("rows", "length", "width", "vocabulary"))
    hidden_key, table_key, labels_key = jax.random.split(jax.random.key(settings["seed"]), 3)
    dtype = settings["dtype"]
    hidden_BxTxE = jax.random.normal(hidden_key, (rows, length, width), dtype)
    table_VxE = jax.random.normal(table_key, (vocabulary, width), dtype) / width**0.5
    labels_BxT = jax.random.randint(labels_key, (rows, length), 0, vocabulary)

    def loss(arrays: tuple[Array, Array], logits_at_once: int) -> Array:
        hidden_BxTxE, table_VxE = arrays
        counts = jnp.ones(labels_BxT.shape, bool)
        sums = chunked_token_loss(
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
            start_seconds = time.perf_counter()
            value, _ = jax.block_until_ready(program(arrays))
            if number:
                seconds[name].append(time.perf_counter() - start_seconds)
            losses[name] = float(value)
    memory_by_method = {name: program.memory_analysis() for name, program in compiled.items()}
    temp_bytes = {name: memory and memory.temp_size_in_bytes for name, memory in memory_by_method.items()}
    return {"seconds": seconds, "bytes_held": temp_bytes, "losses": losses}


if __name__ == "__main__":
    program_main(measure)
