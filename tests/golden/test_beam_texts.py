"""Texts and scores of the beam search with a power of the length are those recorded of transformers."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.golden.recordings import model_of, recording
from transformer.config import UserError, from_config
from transformer.decoding.beam import BeamSearch, EarlyStopping, LengthPowerBeamSearch
from transformer.decoding.constraints import Prompt
from transformer.decoding.generation import SpecialTokens, generate
from transformer.decoding.greedy import GreedySearch
from transformer.huggingface.generation_config import convert_generation_config, generation_config
from transformer.models.model import Variables
from transformer.tasks.decoding_config import DecodingConfig, DecodingDefaults
from transformer.tasks.registry import task_config

RECORDED = json.loads(Path(__file__).with_name("beam_texts.json").read_text())
SEARCHES, NEW_TOKENS = RECORDED["searches"], RECORDED["new_tokens"]
# Programs of beam search take long to compile: `make slow` takes the others.
QUICK = (("t5", 4), ("t5", 7))
CASES = [
    pytest.param(number, id=f"{search['model']}-{number % 10}")
    if (search["model"], number % 10) in QUICK
    else pytest.param(number, id=f"{search['model']}-{number % 10}", marks=pytest.mark.slow)
    for number, search in enumerate(SEARCHES)
]


def options_of(search: dict[str, Any]) -> dict[str, Any]:
    """The fields of our config, from what generation_config.json says of a search."""
    content = {"num_beams": RECORDED["num_beams"], **search["options"]}
    converted = convert_generation_config({}, content, 53, searches=True)
    assert (converted.notes, converted.num_beams) == ([], RECORDED["num_beams"])
    return converted.decoding


@pytest.mark.parametrize("number", CASES)
def test_texts_and_scores_are_those_recorded(number: int, tmp_path: Path) -> None:
    search = SEARCHES[number]
    recorded = recording(search["model"])
    model, params = model_of(search["model"], recorded, tmp_path)
    pad, start = recorded.config.get("pad_token_id") or 0, recorded.config.get("decoder_start_token_id")
    decoding = from_config(DecodingConfig, {"num_beams": RECORDED["num_beams"], **options_of(search)})
    lengths = np.array([len(prompt) for prompt in RECORDED["prompts"]], np.int32)
    prompts = np.full((len(lengths), lengths.max()), pad, np.int32)
    for row, prompt in zip(prompts, RECORDED["prompts"], strict=True):
        row[: len(prompt)] = prompt
    history, inputs = Prompt(prompts, lengths), {"tokens": jnp.asarray(prompts), "lengths": jnp.asarray(lengths)}
    if start is not None:
        inputs = {"source": jnp.asarray(prompts)}
        history = Prompt(np.full((len(lengths), 1), start, np.int32), np.ones(len(lengths), np.int32))
    tokens = SpecialTokens(pad_id=pad, other_end_ids=tuple(RECORDED["end_ids"]))

    limits, strategy = decoding.token_constraints(), decoding.strategy
    variables = Variables(jax.tree.map(jnp.asarray, params), {})
    settings: Any = {"strategy": strategy, "length": NEW_TOKENS, "tokens": tokens, "constraints": limits}
    # To compile a beam search takes longer than ten steps without.
    with jax.default_matmul_precision("highest"), jax.disable_jit():
        rollout = jax.device_get(generate(model, variables, inputs, prompt=history, **settings))
    texts = [row[:length].tolist() for row, length in zip(rollout.tokens[:, 0], rollout.lengths[:, 0], strict=True)]
    assert texts == search["texts"]
    np.testing.assert_allclose(rollout.scores[:, 0], search["scores"], rtol=1e-4, atol=1e-4)


def test_the_recorded_searches_differ_by_every_option() -> None:
    for first in range(0, len(SEARCHES), 10):
        texts = [search["texts"] for search in SEARCHES[first : first + 10]]
        assert texts[3] != texts[4], "early stopping"
        assert texts[1] != texts[3], "length penalty"
        assert texts[0] != texts[7], "repetition penalty"


@pytest.mark.parametrize("number", range(7))
def test_what_is_read_is_written_again(number: int) -> None:
    options = SEARCHES[number]["options"]
    defaults = from_config(DecodingDefaults, options_of(SEARCHES[number]))
    written = generation_config(defaults, RECORDED["num_beams"], {})
    assert written == {"num_beams": 4, "length_penalty": 1.0, "early_stopping": False} | options


def test_without_a_power_the_length_penalty_is_that_of_wu() -> None:
    assert DecodingConfig(num_beams=3, length_penalty=0.2).strategy == BeamSearch(3, 0.2)


def test_options_of_different_searches_are_not_mixed() -> None:
    own = {"num_beams": 4, "length_power": 1.0, "early_stopping": "full", "length_penalty": 0.6}
    search = DecodingConfig.with_request({}, **own).strategy
    assert search == LengthPowerBeamSearch(4, 1.0, EarlyStopping.FULL)
    assert DecodingConfig.with_request({"length_penalty": 0.2}, **own).strategy == BeamSearch(4, 0.2)
    assert DecodingConfig.with_request({"num_beams": 1}, **own).strategy == GreedySearch()
    for request, message in (
        ({"length_power": 1.0, "num_beams": 1}, "length_power=1.0 is of beam search: give num_beams as well"),
        ({"length_power": 1.0, "length_penalty": 1.0}, "are of different searches: give one of them"),
    ):
        with pytest.raises(UserError, match=message):
            DecodingConfig.with_request(request, **own)
    with pytest.raises(UserError, match="early_stopping=never is of the search with length_power"):
        DecodingConfig.with_request({"early_stopping": "never", "num_beams": 2})
    power = {"decoding": {"length_power": 1.0}}
    for setting in ({"length_penalty": 1.0}, {"coverage_penalty": 0.2}):
        with pytest.raises(UserError, match=r"decoding\.length_power=1\.0 is of another search"):
            task_config({"name": "translation", "num_beams": 4, **power, **setting})
