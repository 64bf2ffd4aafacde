"""Logit lens, direct logit attribution and path patching of a GPT-2, against a pass in NumPy with hooks."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import transformer
from tests.oracles.hooked_decoder import Hook, numpy_pass
from tests.oracles.transformer import layer_norm
from transformer.config import UserError
from transformer.interpret import (
    direct_logit_attribution,
    logit_lens,
    path_patch,
    source_attribution,
    zero,
)
from transformer.interpret.load import LoadedModel

TEXT, CORRUPTED, TOKEN = "the quick fox", "the quack fox", " the"
LAYERS, HEADS = 2, 2


@pytest.fixture(scope="module")
def model(folders: dict[str, Path]) -> LoadedModel:
    return transformer.load(folders["gpt2"])


def encoded(model: LoadedModel, text: str) -> np.ndarray:
    return np.array(model.tokenizer.encode([text]))


def activations(model: LoadedModel, text: str, *hooks: Hook) -> dict[tuple[str, int], np.ndarray]:
    """Every array of the pass in NumPy, by name and layer, with its logits as ("logits", 0)."""
    arrays: dict[tuple[str, int], np.ndarray] = {}

    def keep(name: str, layer: int, array: np.ndarray) -> np.ndarray:
        for hook in hooks:
            array = hook(name, layer, array)
        arrays[name, layer] = array
        return array

    arrays["logits", 0] = numpy_pass(model.params, encoded(model, text), keep)
    return arrays


def unembedded(model: LoadedModel, stream: np.ndarray) -> np.ndarray:
    params = model.params
    norm = {name: np.asarray(value, np.float64) for name, value in params["norm"].items()}
    return layer_norm(norm, stream, 1e-5) @ np.asarray(params["embedding"]["table"], np.float64).T


def test_the_lens_reads_each_layer_through_the_last_norm(model: LoadedModel) -> None:
    lens = np.asarray(logit_lens(model, TEXT))
    arrays = activations(model, TEXT)
    for layer in range(LAYERS):
        expected = unembedded(model, arrays["feed_forward/residual", layer])
        np.testing.assert_allclose(lens[layer], expected, atol=1e-4)
    assert np.abs(lens[0] - lens[1]).max() > 0.1


def test_the_parts_of_a_logit_are_what_the_stream_is_made_of(model: LoadedModel) -> None:
    parts = direct_logit_attribution(model, TEXT, TOKEN)
    arrays = activations(model, TEXT)
    ((number,),) = model.tokenizer.encode([TOKEN])
    stream = arrays["feed_forward/residual", LAYERS - 1][0, -1]
    scale = np.asarray(model.params["norm"]["scale"], np.float64)
    row = np.asarray(model.params["embedding"]["table"], np.float64)[number]

    def part(own: np.ndarray) -> np.ndarray:
        """The norm is linear once its factor is that of the stream."""
        return (own - own.mean(-1, keepdims=True)) / np.sqrt(stream.var() + 1e-5) * scale @ row

    for layer in range(LAYERS):
        np.testing.assert_allclose(
            parts.heads_LxH[layer], part(arrays["self/head_contributions", layer][0, -1]), atol=1e-4
        )
        np.testing.assert_allclose(parts.attention_L[layer], part(arrays["self/output", layer][0, -1]), atol=1e-4)
        np.testing.assert_allclose(
            parts.feed_forward_L[layer], part(arrays["feed_forward/output", layer][0, -1]), atol=1e-4
        )
    total = parts.attention_L.sum() + parts.feed_forward_L.sum() + parts.embeddings + parts.bias
    np.testing.assert_allclose(total, arrays["logits", 0][0, -1, number], atol=1e-4)


def test_the_parts_of_a_head_are_its_sources(model: LoadedModel) -> None:
    parts = direct_logit_attribution(model, TEXT, TOKEN, minus=0)
    for layer, head in ((0, 1), (1, 0)):
        sources_K = source_attribution(model, TEXT, TOKEN, minus=0, layer=layer, head=head)
        np.testing.assert_allclose(sources_K.sum(), parts.heads_LxH[layer, head], atol=1e-5)
        # From the last position alone, the head would write its own value.
        pattern = activations(model, TEXT)["self/weights", layer][0, head, -1]
        assert np.abs(sources_K).argmax() in np.argsort(pattern)[-4:]


def test_a_path_carries_the_sender_to_the_receiver_alone(model: LoadedModel) -> None:
    sender = zero("decoder/self/head_outputs", layers=0, heads=1)
    receiver = zero("decoder/self/queries", layers=1, heads=0)
    found = path_patch(model, TEXT, CORRUPTED, sender, receiver)
    clean, corrupted = activations(model, TEXT), activations(model, CORRUPTED)

    def freeze(name: str, layer: int, array: np.ndarray) -> np.ndarray:
        if name in ("self/head_outputs", "feed_forward/output"):
            array = clean[name, layer].copy()
            if (name, layer) == ("self/head_outputs", 0):
                array[:, :, 1] = corrupted[name, layer][:, :, 1]
        return array

    reached = activations(model, TEXT, freeze)["self/queries", 1]

    def receive(name: str, layer: int, array: np.ndarray) -> np.ndarray:
        if (name, layer) == ("self/queries", 1):
            array = array.copy()
            array[:, :, 0] = reached[:, :, 0]
        return array

    expected = activations(model, TEXT, receive)["logits", 0]
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert np.abs(expected - clean["logits", 0]).max() > 1e-3


def test_what_cannot_be_attributed_is_refused(model: LoadedModel, folders: dict[str, Path]) -> None:
    with pytest.raises(UserError, match="is 2 tokens"):
        direct_logit_attribution(model, TEXT, "th qu")
    with pytest.raises(UserError, match="reads one text"):
        direct_logit_attribution(model, [TEXT, "the"], TOKEN)  # type: ignore[arg-type]


MISTAKES = {
    "model.top_tokens(['the', 'the quick'])": "top_tokens reads one text: call it once for each",
    "direct_logit_attribution(model, ['the', 'the quick'], 3)": "direct_logit_attribution reads one text",
    "model.generate([1, 2])": "here a text is a string",
    "model([1.5, 2.0])": "here a text is a string",
    "model([1, 999])": "token number 999 is outside of the vocabulary: 0 to ",
    "model.run_with('the', [lambda x: x])": "an edit is a value such as transformer.interpret.zero",
    "model.run_with_cache('the', lambda name: True)": "are names of activations or patterns of them",
    "model.run_with_cache('the', 'blocks.0.attn.hook_z')": "'blocks.0.attn.hook_z' is no activation of this model",
}


def test_what_users_of_another_library_type_is_refused_in_one_line(folders: dict[str, Path]) -> None:
    """In a process of its own: where types are checked, as in tests, the checker speaks first."""
    lines = [
        "import transformer",
        "from transformer.interpret import direct_logit_attribution",
        f"model = transformer.load({str(folders['gpt2'])!r})",
        f"for mistake in {list(MISTAKES)!r}:",
        "    try:",
        "        eval(mistake)",
        "    except transformer.config.UserError as error:",
        "        print(error)",
    ]
    result = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    for message, expected in zip(result.stdout.splitlines(), MISTAKES.values(), strict=True):
        assert expected in message


def test_a_pattern_leaves_out_what_is_large(model: LoadedModel) -> None:
    _, cache = model.run_with_cache(TEXT, "decoder/self/*")
    assert "decoder/self/head_contributions" not in cache
    _, cache = model.run_with_cache(TEXT, "*/head_contributions")
    assert list(cache) == ["decoder/self/head_contributions"]
    np.testing.assert_array_equal(
        model.run_with(TEXT, zero("decoder/self/output")), model.run_with(TEXT, [zero("decoder/self/output")])
    )
