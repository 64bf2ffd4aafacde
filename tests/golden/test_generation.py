"""Greedy texts under constraints, and what sampling keeps of logits, are those recorded of transformers."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.golden.recordings import model_of, recording
from transformer.decoding.constraints import Constraints, Prompt
from transformer.decoding.generation import SpecialTokens, generate
from transformer.decoding.greedy import GreedySearch
from transformer.decoding.sampling import Sampling
from transformer.huggingface.generation_config import convert_generation_config
from transformer.models.model import Variables
from transformer.tasks.decoding_config import DecodingConfig

RECORDED = json.loads(Path(__file__).with_name("generation.json").read_text())
MODELS = list(dict.fromkeys(entry["model"] for entry in RECORDED["greedy"]))
NEW_TOKENS = len(RECORDED["greedy"][0]["texts"][0])


def padded_prompts() -> Prompt:
    lengths = [len(prompt) for prompt in RECORDED["prompts"]]
    tokens = np.zeros((len(lengths), max(lengths)), np.int32)
    for row, prompt in zip(tokens, RECORDED["prompts"], strict=True):
        row[: len(prompt)] = prompt
    return Prompt(tokens, np.array(lengths, np.int32))


def limits_of(options: dict[str, Any], vocabulary: int) -> tuple[Constraints, tuple[int, ...]]:
    """What a generation_config.json of these options becomes: the constraints and the end tokens."""
    read = convert_generation_config({}, options, vocabulary, searches=False)
    assert read.notes == []
    decoding = DecodingConfig(max_new_tokens=NEW_TOKENS, **read.decoding)
    return decoding.token_constraints(), decoding.end_ids


@pytest.mark.parametrize(
    "name", [name if name == "llama" else pytest.param(name, marks=pytest.mark.slow) for name in MODELS]
)
def test_greedy_texts_under_constraints_are_those_recorded(name: str, tmp_path: Path) -> None:
    recorded = recording(name)
    model, params = model_of(name, recorded, tmp_path)
    prompt = padded_prompts()
    inputs = {"tokens": jax.device_put(prompt.tokens), "lengths": jax.device_put(prompt.lengths)}
    distinct_texts = set()
    for entry in (entry for entry in RECORDED["greedy"] if entry["model"] == name):
        constraints, ends = limits_of(entry["options"], recorded.config["vocab_size"])
        tokens = SpecialTokens(pad_id=0, other_end_ids=ends) if ends else SpecialTokens()

        @jax.jit
        def run(params: Any, constraints: Constraints = constraints, tokens: SpecialTokens = tokens) -> jax.Array:
            return generate(
                model,
                Variables(params, {}),
                inputs,
                strategy=GreedySearch(),
                length=NEW_TOKENS,
                tokens=tokens,
                prompt=prompt,
                constraints=constraints,
            ).tokens[:, 0]

        with jax.default_matmul_precision("highest"):
            generated = np.asarray(run(params))
        for row, text in zip(generated, entry["texts"], strict=True):
            assert row[: len(text)].tolist() == text, (entry["options"], text)
        distinct_texts.add(str(entry["texts"]))
    # Every set of options but one that bans nothing of these texts gives texts of its own.
    assert len(distinct_texts) >= 6


@pytest.mark.parametrize("entry", RECORDED["sampling"], ids=lambda entry: "-".join(entry["options"]))
def test_sampling_keeps_the_tokens_recorded(entry: dict[str, Any]) -> None:
    logits = np.float32(RECORDED["logits"])
    strategy = Sampling(**entry["options"])
    scores, index = jax.device_get(jax.jit(lambda logits: strategy.truncate(jax.nn.log_softmax(logits)))(logits))
    index = np.broadcast_to(np.arange(logits.shape[1]), logits.shape) if index is None else index
    kept_tokens = [sorted(row[np.isfinite(row_scores)].tolist()) for row, row_scores in zip(index, scores, strict=True)]
    assert kept_tokens == entry["kept"]
    for row, row_scores, kept, recorded in zip(index, scores, entry["kept"], entry["probabilities"], strict=True):
        probabilities = dict(zip(row.tolist(), np.exp(row_scores).tolist(), strict=True))
        np.testing.assert_allclose([probabilities[token] for token in kept], recorded, rtol=0, atol=1e-5)
    np.testing.assert_allclose(np.exp(scores).sum(-1), 1, rtol=1e-5)
