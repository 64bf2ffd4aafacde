"""The code and the tables of docs/guides/transformer_lens.md run as they stand, on a model of 12 layers of 12 heads."""

import json
import re
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

import transformer
from tests.interpret.conftest import write_weights
from transformer.models.activations import activation_occurrences

END = "<|endoftext|>"
TEXTS = "When Anna and Paul left the house, Anna gave the key to lamp river seven cold paper"
ROW = re.compile(r"^\| `([^|]+)` \| `([^|]+)` \|$", re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a GPT-2 under the name that the page says; each word of its texts is one token."""
    parent = tmp_path_factory.mktemp("guide")
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words = {piece for piece, _ in splitter.pre_tokenize_str(TEXTS)}
    vocabulary = {word: number for number, word in enumerate([*sorted(words), END])}
    backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, END))
    backend.pre_tokenizer, backend.decoder = splitter, decoders.ByteLevel()
    backend.add_special_tokens([END])
    sizes = {"n_embd": 48, "n_layer": 12, "n_head": 12, "n_positions": 32, "n_inner": 16}
    write_weights(parent / "gpt2", {"model_type": "gpt2", "vocab_size": backend.get_vocab_size(), **sizes})
    backend.save(str(parent / "gpt2" / "tokenizer.json"))
    (parent / "gpt2" / "tokenizer_config.json").write_text(json.dumps({"bos_token": END, "eos_token": END}))
    return parent


@pytest.fixture(scope="module")
def page() -> str:
    return (Path(__file__).parents[2] / "docs" / "guides" / "transformer_lens.md").read_text()


@pytest.fixture(scope="module")
def names(page: str, folder: Path) -> dict[str, Any]:
    """The variables behind the last line of the page."""
    names: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for code in re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
            exec(code, names)
    return names


def test_every_name_of_the_page_is_an_activation_or_a_module(page: str, folder: Path) -> None:
    model = transformer.load(folder / "gpt2")
    tokens = {"tokens": jnp.zeros((1, 4), jnp.int32), "lengths": jnp.full(1, 4)}
    known = {*activation_occurrences(model.model, tokens), *(site.name for site in model.sites)}
    written = set(re.findall(r'["`](decoder/[\w/]+)["`]', page))
    assert len(written) > 20
    assert written - known == set()


@pytest.mark.slow
def test_the_code_computes_what_it_says(names: dict[str, Any]) -> None:
    model, text, difference = names["model"], names["text"], names["logit_difference"]
    intact = float(difference(names["logits"]))
    assert names["ablated"].shape == (12, 12)
    alone = names["ablate"](jnp.int32(3), jnp.int32(5))
    np.testing.assert_allclose(names["ablated"][3, 5], alone, rtol=0, atol=1e-3)
    assert np.ptp(names["ablated"]) > 0.01
    # All positions of the first layer's stream together are the clean text itself.
    edits = [names["replace"](names["STREAM"], names["cache"][names["STREAM"]], layers=0)]
    np.testing.assert_allclose(difference(model.run_with(names["corrupted"], edits)), intact, rtol=0, atol=1e-3)
    alone = names["patch"](jnp.int32(4), jnp.int32(9))
    np.testing.assert_allclose(names["patched"][4, 9], alone, rtol=0, atol=1e-3)
    np.testing.assert_allclose(names["by_layer"][-1], intact, rtol=0, atol=1e-3)
    parts = names["parts"]
    total = sum(float(np.sum(part)) for part in (parts.attention_L, parts.feed_forward_L, parts.embeddings, parts.bias))
    np.testing.assert_allclose(total, intact, rtol=0, atol=1e-3)
    assert names["attributed"].shape == names["induction"].shape == (12, 12)
    assert names["steered"].generate(text, max_new_tokens=2).startswith(text)


@pytest.mark.slow
def test_the_tables_run(page: str, names: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    rows = ROW.findall(page)
    assert len(rows) == 41
    for _, ours in rows:
        exec(f"value = {ours}", names)
        assert names["value"] is not None
