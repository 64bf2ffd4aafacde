"""Time a step of beam search and a step of greedy decoding of as many rows, by a decoder of random weights.

`python -m experiments.benchmarks.programs.beam_search SETTINGS`: the sizes of decoder_training_step, where both methods
have `rows` rows, the length of the `prompt`, the number of generated `tokens`, the `num_beams` per example, and the
`repeats` after the first run, which compiles.
"""

import time
from typing import Any

import jax
from jaxtyping import Array

from experiments.benchmarks.programs.decoder_training_step import build_decoder
from experiments.benchmarks.programs.program_main import program_main
from transformer.decoding.beam import BeamSearch
from transformer.decoding.generation import DecodingStrategy, SpecialTokens, generate
from transformer.decoding.greedy import GreedySearch
from transformer.models.model import Variables, count_parameters

# So much for length that a hypothesis which has not ended may always become the best: the search runs to its end.
LENGTH_PENALTY = 3.0


def measure(settings: dict[str, Any]) -> dict[str, Any]:
    """The seconds a step of both ways, taken in turn, and the steps that they took."""
    model, task = build_decoder(settings)
    variables = jax.jit(model.init)(jax.random.key(settings["seed"]))
    prompts_RxP = task.training_batches(settings["seed"])[0]["tokens"][:, : settings["prompt"]]
    tokens = SpecialTokens(eos_id=settings["vocabulary"] - 1)
    num_beams = settings["num_beams"]

    def lengths_by(strategy: DecodingStrategy) -> Any:
        @jax.jit
        def decode(variables: Variables, prompts_BxP: Array) -> Array:
            inputs, count = {"tokens": prompts_BxP}, settings["tokens"]
            rollout = generate(model, variables, inputs, strategy=strategy, length=count, tokens=tokens)
            return rollout.lengths

        return decode

    greedy, beam = f"greedy, {settings['rows']} rows", f"{num_beams} beams, {settings['rows']} rows"
    ways = {
        greedy: (lengths_by(GreedySearch()), prompts_RxP),
        beam: (lengths_by(BeamSearch(num_beams, LENGTH_PENALTY)), prompts_RxP[: settings["rows"] // num_beams]),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    steps = {}
    for number in range(1 + settings["repeats"]):
        for name, (decode, prompts) in ways.items():
            start_seconds = time.perf_counter()
            lengths = jax.block_until_ready(decode(variables, prompts))
            if number:  # the first compiles
                seconds[name].append((time.perf_counter() - start_seconds) / settings["tokens"])
            steps[name] = int(lengths.max())
    return {"seconds": seconds, "steps": steps, "parameters": count_parameters(variables.params)}


if __name__ == "__main__":
    program_main(measure)
