"""Time greedy decoding by a decoder of random weights, with and without a key-value cache.

`python -m experiments.benchmarks.programs.greedy_decoding SETTINGS`: the sizes of decoder_training_step with the length
of the `prompt`, the number of generated `tokens`, whether to use a `cache`, and the `repeats` after the first run,
which compiles. Without a cache every token is computed from the whole text before it, padded to the next multiple of
`padded`, with a program for each such length.
"""

import functools
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from experiments.benchmarks.programs.decoder_training_step import build_decoder
from experiments.benchmarks.programs.program_main import program_main
from transformer.decoding.generation import SpecialTokens, generate
from transformer.decoding.greedy import GreedySearch
from transformer.models.model import Model, Variables, count_parameters


def measure(settings: dict[str, Any]) -> dict[str, Any]:
    """The seconds a generated token, the prompt's share in them, and the tokens."""
    model, task = build_decoder(settings)
    variables = jax.jit(model.init)(jax.random.key(settings["seed"]))
    prompt_BxP = task.training_batches(settings["seed"])[0]["tokens"][:, : settings["prompt"]]
    decode = decode_with_cache(model, settings) if settings["cache"] else decode_without_cache(model, settings)
    seconds = []
    for _ in range(1 + settings["repeats"]):
        start_seconds = time.perf_counter()
        tokens_BxT = jax.block_until_ready(decode(variables, prompt_BxP))
        seconds.append((time.perf_counter() - start_seconds) / settings["tokens"])
    return {
        "seconds": seconds[1:],
        "first": seconds[0] * settings["tokens"],
        "tokens": np.asarray(tokens_BxT).tolist(),
        "parameters": count_parameters(variables.params),
    }


def decode_with_cache(
    model: Model, settings: Mapping[str, Any]
) -> Callable[[Variables, np.ndarray], Int[Array, "B T"]]:
    """The generated tokens, by the loop that every way of decoding uses; nothing ends it early."""

    @jax.jit
    def decode(variables: Variables, prompt_BxP: Array) -> Int[Array, "B T"]:
        inputs = {"tokens": prompt_BxP}
        count = settings["tokens"]
        return generate(model, variables, inputs, strategy=GreedySearch(), length=count, tokens=SpecialTokens()).tokens[
            :, 0
        ]

    return decode


def decode_without_cache(
    model: Model, settings: Mapping[str, Any]
) -> Callable[[Variables, np.ndarray], Int[Array, "B T"]]:
    """The same tokens, each from all before it; only the logits behind the last are computed."""

    @functools.partial(jax.jit, static_argnames="width", donate_argnames="text_BxT")
    def grow(variables: Variables, text_BxT: Array, first: int, end: int, *, width: int) -> Int[Array, "B T"]:
        def add(place: Array, text_BxT: Array) -> Array:
            # What stands behind a token is not seen by it.
            hidden_BxWxE, _ = model.apply(variables, {"tokens": text_BxT[:, :width]}, method="hidden", train=False)
            logits_BxV = model.logits(variables, hidden_BxWxE[:, place - 1])
            return text_BxT.at[:, place].set(jnp.argmax(logits_BxV, axis=-1).astype(text_BxT.dtype))

        return jax.lax.fori_loop(first, end, add, text_BxT)

    def decode(variables: Variables, prompt_BxP: np.ndarray) -> Int[Array, "B T"]:
        begin, padded = prompt_BxP.shape[1], settings["padded"]
        total = begin + settings["tokens"]
        text_BxT = jnp.pad(prompt_BxP, ((0, 0), (0, settings["tokens"])))
        place = begin
        while place < total:
            width = min(-(-place // padded) * padded, total)
            text_BxT = grow(variables, text_BxT, place, min(width + 1, total), width=width)
            place = min(width + 1, total)
        return text_BxT[:, begin:]

    return decode


if __name__ == "__main__":
    program_main(measure)
