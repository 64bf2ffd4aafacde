"""`transformer.load`: any published folder and any run, its maps by name, and what is refused in one line."""

import json
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

import transformer
from launch import cli, convert
from transformer.config import UserError
from transformer.data.datasets.translation import SentencePair
from transformer.data.tokenizers.tokenizer import UnknownTextWarning
from transformer.huggingface import convert as huggingface_convert
from transformer.interpret.load import LoadedModel
from transformer.interpret.named_maps import AttentionMaps
from transformer.models.model import leaves_by_path
from transformer.tasks.translation_decoding import encode_pair_inputs

TEXTS = {"gpt2": ("the qu 🙂 the",), "bert": ("The [MASK] jumping!",), "t5": ("the fox", "der Fuchs")}
TOKENS = {
    "gpt2": ("the", "▁qu", "▁", "🙂⟨1/3⟩", "🙂⟨2/3⟩", "🙂⟨3/3⟩", "▁the"),
    "bert": ("[CLS]", "▁the", "[MASK]", "▁jump", "ing", "!", "[SEP]"),
    "t5": ("▁the", "▁fox", "</s>"),
}
SITES = {
    "gpt2": {"decoder/self": (7, 7)},
    "bert": {"encoder/self": (7, 7)},
    "t5": {"encoder/self": (3, 3), "decoder/self": (3, 3), "decoder/cross": (3, 3)},
}


@pytest.fixture(scope="module")
def models(folders: dict[str, Path]) -> dict[str, LoadedModel]:
    return {name: transformer.load(folder) for name, folder in folders.items()}


@pytest.fixture(scope="module")
def read(models: dict[str, LoadedModel]) -> dict[str, AttentionMaps]:
    """The maps of each model's text."""
    return {name: model.run_with_maps(*TEXTS[name]) for name, model in models.items()}


@pytest.mark.parametrize("name", TEXTS)
def test_any_family_reads_a_text_and_names_its_maps(read: dict[str, AttentionMaps], name: str) -> None:
    maps = read[name]
    assert {site: of_site.weights.shape[-2:] for site, of_site in maps.items()} == SITES[name]
    for site, of_site in maps.items():
        layer = of_site[0]
        assert layer.shape == (1, 2, *SITES[name][site])
        np.testing.assert_allclose(np.asarray(layer).sum(-1), 1, atol=1e-5)
        np.testing.assert_array_equal(of_site[of_site.site.layers[-1]].weights, of_site.weights[-1])
        # The first token of a decoder attends to itself alone; all other rows have something to choose from.
        assert np.ptp(layer.weights[..., 1:, :2], axis=-1).min() > 1e-4
    assert maps[min(maps, key=lambda site: site != "encoder/self")][0].keys == (TOKENS[name],)


def test_the_maps_are_those_of_the_published_weights(
    folders: dict[str, Path], models: dict[str, LoadedModel], read: dict[str, AttentionMaps]
) -> None:
    """Layer 0 of GPT-2 in NumPy, from the tensors of the file."""
    text = TEXTS["gpt2"][0]
    file = load_file(folders["gpt2"] / "model.safetensors")
    tensors = {name.removeprefix("transformer."): array.astype(np.float64) for name, array in file.items()}
    (ids,) = models["gpt2"].preprocessor.encode([text])
    x = tensors["wte.weight"][ids] + tensors["wpe.weight"][: len(ids)]
    normed = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    normed = normed * tensors["h.0.ln_1.weight"] + tensors["h.0.ln_1.bias"]
    query, key, _ = np.split(normed @ tensors["h.0.attn.c_attn.weight"] + tensors["h.0.attn.c_attn.bias"], 3, -1)
    split = [side.reshape(len(ids), 2, 8).transpose(1, 0, 2) for side in (query, key)]
    logits = split[0] @ split[1].transpose(0, 2, 1) / np.sqrt(8)
    logits[:, np.triu(np.ones((len(ids), len(ids)), bool), 1)] = -np.inf
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    np.testing.assert_allclose(
        read["gpt2"]["decoder/self"][0].weights[0], weights / weights.sum(-1, keepdims=True), atol=2e-5
    )


def test_a_published_model_is_stored_in_half_the_memory(
    folders: dict[str, Path], models: dict[str, LoadedModel], read: dict[str, AttentionMaps]
) -> None:
    halved = transformer.load(folders["gpt2"], dtype="bfloat16")
    for path, leaf in leaves_by_path(halved.variables.params).items():
        assert leaf.dtype == "bfloat16"
        np.testing.assert_array_equal(leaf, leaves_by_path(models["gpt2"].variables.params)[path].astype("bfloat16"))
    weights = halved.run_with_maps(*TEXTS["gpt2"])["decoder/self"].weights
    np.testing.assert_allclose(weights, read["gpt2"]["decoder/self"].weights, atol=0.02)
    with pytest.raises(UserError, match="dtype=int8 is none of float32, bfloat16, float16"):
        transformer.load(folders["gpt2"], dtype="int8")


def test_several_texts_are_padded_with_zeros_and_keep_their_tokens(
    models: dict[str, LoadedModel], read: dict[str, AttentionMaps]
) -> None:
    model = models["gpt2"]
    both = model.run_with_maps([*TEXTS["gpt2"], "the qu " * 5])["decoder/self"]
    assert [len(tokens) for tokens in both[0].queries] == [7, 11]
    np.testing.assert_allclose(both.weights[:, 0, :, :7, :7], read["gpt2"]["decoder/self"].weights[:, 0], atol=1e-5)
    assert not both.weights[:, 0, :, 7:].any()
    assert not both.weights[:, 0, :, :, 7:].any()


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_token_numbers_are_read_as_they_are(models: dict[str, LoadedModel], name: str) -> None:
    model, (text,) = models[name], TEXTS[name]
    vocabulary = {
        token: number for number, token in enumerate(model.tokenizer.labels(range(model.tokenizer.vocab_size)))
    }
    row = model.tokenizer.encode([text])[0] if name == "gpt2" else [vocabulary[token] for token in TOKENS[name]]
    expected = np.asarray(model(text))
    for given in (row, np.array(row), jnp.array(row), [row], np.array([row])):
        np.testing.assert_array_equal(model(given), expected)
    assert model.tokens(row) == TOKENS[name]
    # Of two rows, the shorter is padded.
    both = np.asarray(model([row, row[:3]]))
    assert both.shape == (2, *expected.shape[1:])
    np.testing.assert_allclose(both[1, :3], np.asarray(model(row[:3]))[0], atol=1e-5)


def test_tokens_that_no_text_has_are_read(models: dict[str, LoadedModel]) -> None:
    """The letters of a word that the tokenizer joins stay apart, where decoding and encoding would join them."""
    model = models["gpt2"]
    (joined,) = model.tokenizer.encode(["the"])
    (t,), (h,), (e,) = model.tokenizer.encode(["t", "h", "e"])
    assert len(joined) == 1
    assert model.tokens([t, h, e]) == ("t", "h", "e")
    repeated = np.tile([t, h, e], 2)
    assert float(model.loss(repeated)) == pytest.approx(float(np.mean(np.asarray(model.token_losses(repeated))[0, :5])))
    assert model.run_with_maps(repeated)["decoder/self"].weights.shape[-2:] == (6, 6)
    assert "tokens [" in model.show_attention(repeated, page=None).title


def test_a_model_of_two_sides_answers_itself_without_a_target(models: dict[str, LoadedModel]) -> None:
    maps = models["t5"].run_with_maps("the fox")["decoder/cross"][0]
    assert maps.keys == (TOKENS["t5"],)
    assert 1 <= len(maps.queries[0]) <= 12


def test_an_own_answer_that_is_longer_once_encoded_again_is_cut(models: dict[str, LoadedModel]) -> None:
    model = models["t5"]
    reading = encode_pair_inputs(model.view(), model.preprocessor, [SentencePair("the", "f" * 14, "")])
    assert reading.inputs["target"].shape == (1, 12)
    assert [len(reading.labels.tokens[axis][0]) for axis in ("target", "target_input")] == [12, 12]


def test_named_arrays_become_xarrays_whose_equal_tokens_stay_apart(read: dict[str, AttentionMaps]) -> None:
    layer = read["gpt2"]["decoder/self"]["1"]
    array = layer.to_xarray()
    assert array.dims == ("head", "query", "key")
    assert float(array.sel(head=1, query=6, key=0)) == layer[0, 1, 6, 0]
    assert tuple(array.key_token.values) == TOKENS["gpt2"]
    for example in (-1, 1):
        with pytest.raises(UserError, match=f"example={example} was not read"):
            layer.to_xarray(example=example)
    with pytest.raises(IndexError, match="layer='2' is not at decoder/self: it has 0, 1"):
        read["gpt2"]["decoder/self"]["2"]
    with pytest.raises(KeyError, match="no site of this model: it has decoder/self"):
        read["gpt2"]["encoder/self"]


def test_a_run_is_loaded_without_its_data(
    folders: dict[str, Path], read: dict[str, AttentionMaps], tmp_path: Path
) -> None:
    text = tmp_path / "text"
    text.mkdir()
    for split in ("train", "validation", "test"):
        (text / f"{split}.txt").write_text("the quick brown fox jumps over the lazy dog. " * 4)
    run = tmp_path / "run"
    words = [
        f"--from_pretrained={folders['gpt2']}",
        f"--workdir={run}",
        f"--dataset={text}",
        "--context_length=12",
        "--batch_size=2",
    ]
    assert cli.run(convert.COMMAND, convert.main, words) == 0
    shutil.rmtree(text)
    loaded = transformer.load(run)
    assert (loaded.name, loaded.step) == ("run", 0)
    ours = loaded.run_with_maps(*TEXTS["gpt2"])["decoder/self"].weights
    np.testing.assert_array_equal(ours, read["gpt2"]["decoder/self"].weights)
    with pytest.raises(UserError, match="no checkpoint of step 7"):
        transformer.load(run, step=7)
    # A stranger's run runs no code, and a task without sentences says so.
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "model": {"family": "lab.mine"}}))
    with pytest.raises(UserError, match=r"lab\.mine.*is code from outside"):
        transformer.load(run)
    (run / "config.json").write_text(json.dumps({**config, "task": {"name": "experiments.neural_turing_machine.task"}}))
    with pytest.raises(UserError, match=r"task, experiments\.neural_turing_machine\.task, reads no sentences"):
        transformer.load(run)


@pytest.mark.parametrize(
    ("name", "words", "says"),
    [
        ("gpt2", {"text": " "}, "text=' ' has no words to look at"),
        ("gpt2", {"text": []}, "there is no text to look at"),
        ("gpt2", {"text": "x" * 33}, r"has 33 tokens, more than the model's 32 positions: shorten it"),
        ("gpt2", {"text": "the", "target": "x"}, "target='x' is for models that translate"),
        ("bert", {"text": "the", "language": "de"}, "language='de' is for models that translate"),
        ("gpt2", {"text": [3, -1]}, "token number -1 is outside of the vocabulary: 0 to "),
        ("gpt2", {"text": [[3, 4], "the"]}, "here a text is a string"),
        ("gpt2", {"text": [3] * 33}, r"has 33 tokens, more than the model's 32 positions: shorten it"),
        ("t5", {"text": [3, 4]}, "t5 reads texts: only language models and masked ones read token numbers"),
        ("t5", {"text": "the", "language": "de"}, "this run knows one direction alone"),
        ("t5", {"text": ["the", "fox"], "target": ["der"]}, "2 texts have 1 targets"),
        ("t5", {"text": "the", "target": "f" * 14}, "more than the model's 12 positions"),
    ],
)
def test_a_text_that_does_not_fit_is_refused(models: dict[str, LoadedModel], name: str, words: dict, says: str) -> None:
    with pytest.raises(UserError, match=says) as refused:
        models[name].run_with_maps(**words)
    assert "\n" not in str(refused.value)


def test_what_is_no_model_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"gpt2 is no folder with a config.json: .*nothing is downloaded"):
        transformer.load("gpt2")
    with pytest.raises(UserError, match=r"has no config\.json"):
        transformer.load(tmp_path)
    with pytest.raises(UserError, match="step=3 is of a run's checkpoints"):
        transformer.load(folders["gpt2"], step=3)
    shutil.copytree(folders["gpt2"], tmp_path, dirs_exist_ok=True)
    for config, says in (({"model_type": "gpt_neox"}, "gpt_neox"), ({"a": 1}, "neither a run nor a published model")):
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(UserError, match=says):
            transformer.load(tmp_path)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_that_are_read_are_not_copied(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    """A large model is in memory once: what is loaded lies where it was read to."""
    trees: list[Any] = []
    read = huggingface_convert._read_params
    monkeypatch.setattr(huggingface_convert, "_read_params", lambda *given: trees.append(read(*given)) or trees[-1])
    model = transformer.load(folders["gpt2"], dtype=dtype)
    addresses = jax.tree.map(lambda leaf: leaf.ctypes.data, trees[0])
    assert jax.tree.map(lambda leaf: leaf.unsafe_buffer_pointer(), model.params) == addresses


def test_nothing_of_a_strangers_folder_is_run(folders: dict[str, Path], tmp_path: Path) -> None:
    folder, ran = tmp_path / "theirs", tmp_path / "ran"
    shutil.copytree(folders["gpt2"], folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"auto_map": {"AutoModel": "modeling.Model"}, "trust_remote_code": True}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "modeling.py").write_text(f"open({str(ran)!r}, 'w')")
    (folder / "pytorch_model.bin").write_bytes(f"cbuiltins\nopen\n(V{ran}\nVw\ntR.".encode())
    assert transformer.load(folder).run_with_maps("the")["decoder/self"].weights.shape[-2:] == (1, 1)
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError):
        transformer.load(folder)
    assert not ran.exists()


def test_importing_the_package_is_cheap_and_its_parts_come_when_asked_for(root: Path) -> None:
    program = (
        "import sys, transformer\n"
        "heavy = {'jax', 'numpy', 'flax', 'tokenizers'} & set(sys.modules)\n"
        "print(sorted(heavy), {'load', 'maps', 'training'} <= set(dir(transformer)), hasattr(transformer, 'nothing'))\n"
        "print(transformer.maps.open.__name__, transformer.tasks.__name__, 'jax' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "[] True False\nopen transformer.tasks False\n"


def test_what_is_generated_from_text_that_the_vocabulary_lacks_is_warned_of(models: dict[str, LoadedModel]) -> None:
    with pytest.warns(UnknownTextWarning, match="the vocabulary lacks '漢': the model reads <unk> there"):
        models["t5"].generate("the 漢 fox", max_new_tokens=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnknownTextWarning)
        models["t5"].generate("the fox", max_new_tokens=2)
