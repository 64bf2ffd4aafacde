"""Greedy and beam texts of encoder-decoders, with forced tokens, are those recorded of transformers."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.golden.recordings import Recording, model_of
from tests.golden.weights import weights_of
from transformer.decoding.beam import BeamSearch, FinishedHypothesisRule
from transformer.decoding.generation import DecodingStrategy, SpecialTokens, generate
from transformer.decoding.greedy import GreedySearch
from transformer.huggingface.generation_config import convert_generation_config
from transformer.models.model import Variables
from transformer.tasks.decoding_config import DecodingConfig

RECORDED = json.loads(Path(__file__).with_name("forced_texts.json").read_text())
MODELS, NEW_TOKENS = RECORDED["models"], 32
# Programs of 32 steps: `make slow` takes all of them.
CASES = [
    pytest.param(name, number, id=f"{name}-{number}", marks=[] if (name, number) == ("bart", 2) else pytest.mark.slow)
    for name, recorded in MODELS.items()
    for number in range(len(recorded["options"]))
]


@pytest.mark.parametrize(("name", "number"), CASES)
def test_texts_with_forced_tokens_are_those_recorded(name: str, number: int, tmp_path: Path) -> None:
    about, options = MODELS[name], dict(MODELS[name]["options"][number])
    shapes = {key: tuple(shape) for key, shape in about["shapes"].items()}
    recorded = Recording(about, {}, weights_of(about["architecture"], shapes, about["seed"]))
    model, params = model_of(name, recorded, tmp_path)
    config = recorded.config
    tokens = SpecialTokens(config["pad_token_id"], config["decoder_start_token_id"], config["eos_token_id"])
    strategy: DecodingStrategy = GreedySearch()
    if "num_beams" in options:
        # Their length penalty is another one than ours: only without any is it the same search.
        assert options.pop("length_penalty") == 0
        strategy = BeamSearch(options["num_beams"], 0.0, FinishedHypothesisRule.AMONG_BEST)
    converted = convert_generation_config({}, options, config["vocab_size"], searches=True)
    assert converted.notes == []
    limits = DecodingConfig(max_new_tokens=NEW_TOKENS, **converted.decoding).token_constraints()
    sources = np.full((len(RECORDED["sources"]), max(map(len, RECORDED["sources"]))), config["pad_token_id"], np.int32)
    for row, source in zip(sources, RECORDED["sources"], strict=True):
        row[: len(source)] = source

    @jax.jit
    def run(params: Any) -> Any:
        inputs = {"source": jnp.asarray(sources)}
        settings: Any = {"strategy": strategy, "length": NEW_TOKENS, "tokens": tokens, "constraints": limits}
        return generate(model, Variables(params, {}), inputs, **settings)

    with jax.default_matmul_precision("highest"):
        rollout = jax.device_get(run(params))
    texts = [row[:length].tolist() for row, length in zip(rollout.tokens[:, 0], rollout.lengths[:, 0], strict=True)]
    assert texts == about["texts"][number]
    if "forced_bos_token_id" in options:
        assert {text[0] for text in texts} == {options["forced_bos_token_id"]}
