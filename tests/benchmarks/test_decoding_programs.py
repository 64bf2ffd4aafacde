"""The programs that time decoding do the work that they are said to do."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.benchmarks.catalog import BENCHMARKS
from experiments.benchmarks.programs import beam_search, greedy_decoding
from experiments.benchmarks.programs.decoder_training_step import build_decoder

TINY = {"layers": 2, "width": 8, "heads": 2, "feed_forward": 16, "context": 32, "vocabulary": 11}
TINY |= {"prompt": 3, "tokens": 9, "repeats": 2}


def settings(name: str, program: str, **changes: Any) -> dict[str, Any]:
    return {**BENCHMARKS[name].programs[program].settings, **TINY, **changes}


@pytest.mark.slow
def test_tokens_are_the_same_with_and_without_a_cache() -> None:
    found: list[Mapping[str, Any]] = [
        greedy_decoding.measure(settings("decode", "headwise", rows=2)),
        # Four widths, of which the last is cut off at the text's end.
        greedy_decoding.measure(settings("decode", "without a cache", rows=2, padded=3)),
    ]
    cached, uncached = found
    assert cached["tokens"] == uncached["tokens"]
    assert [len(row) for row in cached["tokens"]] == [9, 9]
    assert len(cached["seconds"]) == len(uncached["seconds"]) == 2
    # Tokens, positions; two layers of four maps with biases, two more and two norms; a norm.
    layer = 4 * (64 + 8) + (128 + 16) + (128 + 8) + 2 * 16
    assert cached["parameters"] == uncached["parameters"] == 11 * 8 + 32 * 8 + 2 * layer + 16


@pytest.mark.slow
def test_each_token_is_read_from_all_before_it() -> None:
    """By weights of which a token's place and past decide it: a tied head and initial ones repeat one token."""
    given = settings("decode", "without a cache", rows=2, padded=3, model={"tie_embeddings": False})
    model, task = build_decoder(given)
    draws = np.random.default_rng(2)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    variables = jax.tree.map(lambda leaf: jnp.asarray(draws.normal(0, 0.3, leaf.shape), jnp.float32), shapes)
    prompt = task.training_batches(0)[0]["tokens"][:, :3]
    text = np.asarray(prompt)
    for _ in range(9):
        logits, _ = model.apply(variables, {"tokens": text}, train=False)
        text = np.concatenate([text, np.argmax(logits[:, -1:], axis=-1)], axis=1)
    assert min(len(set(row)) for row in text[:, 3:].tolist()) > 2
    np.testing.assert_array_equal(greedy_decoding.decode_without_cache(model, given)(variables, prompt), text[:, 3:])
    np.testing.assert_array_equal(greedy_decoding.decode_with_cache(model, given)(variables, prompt), text[:, 3:])


@pytest.mark.slow
def test_both_ways_take_every_step_with_as_many_rows() -> None:
    found = beam_search.measure(settings("beam", "beam", rows=6, num_beams=3))
    greedy, num_beams = found["seconds"]
    assert (greedy, num_beams) == ("greedy, 6 rows", "3 beams, 6 rows")
    assert [len(times) for times in found["seconds"].values()] == [2, 2]
    assert found["steps"][num_beams] == 9


@pytest.mark.parametrize(("name", "first"), [("decode", "headwise"), ("beam", "beam")])
def test_ours_stands_first(name: str, first: str) -> None:
    assert next(iter(BENCHMARKS[name].programs)) == first
