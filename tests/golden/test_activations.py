"""The activations of loaded folders are those that transformers' modules read and return.

The modules compute in float64, but for the norms of Llama and T5, and the record is float32. In float64 ours differ
from it by 3.4e-6 at most. In float32, in which a folder is loaded, ours have rounding of their own: 1.1e-5 in GPT-2's
residual stream, whose largest value is 15.
"""

import dataclasses
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

import transformer
from tests.golden.recordings import Recording
from tests.golden.weights import weights_of
from transformer.huggingface.convert import open_model_folder
from transformer.interpret.activation_cache import ActivationCache
from transformer.interpret.load import LoadedModel
from transformer.layers.functional_module import Precision
from transformer.models.registry import build

FILE = Path(__file__).with_name("activations.npz")


def pre_norm(stack: str, block: str, attention: str, norm: str, feed_forward_norm: str) -> dict[str, str]:
    """The module whose input or output is an activation, of what GPT-2 and Llama write alike."""
    return {
        f"{stack}/residual": f"{block}/input",
        f"{stack}/self/input": f"{block}.{norm}/output",
        f"{stack}/self/head_outputs": f"{block}.{attention}/input",
        f"{stack}/self/output": f"{block}.{attention}/output",
        f"{stack}/self/residual": f"{block}.{feed_forward_norm}/input",
        f"{stack}/feed_forward/input": f"{block}.{feed_forward_norm}/output",
        f"{stack}/feed_forward/residual": f"{block}/output",
    }


def t5_stack(stack: str, sublayers: Mapping[str, str]) -> dict[str, str]:
    """The same of a stack of T5, whose sub-layers are modules."""
    modules = {f"{stack}/token_embeddings": f"{stack}.embed_tokens/output"}
    modules |= {
        f"{stack}/residual": f"{stack}.block.*.layer.0/input",
        f"{stack}/states": f"{stack}.final_layer_norm/output",
    }
    for number, (name, module) in enumerate(sublayers.items()):
        layer = f"{stack}.block.*.layer.{number}"
        path, ours = f"{layer}.{module}", f"{stack}/{name}"
        modules |= {f"{ours}/input": f"{layer}.layer_norm/output", f"{ours}/residual": f"{layer}/output"}
        if name == "feed_forward":
            modules |= {f"{ours}/before_activation": f"{path}.wi/output", f"{ours}/hidden": f"{path}.wo/input"}
            modules |= {f"{ours}/output": f"{path}.wo/output"}
        else:
            modules |= {f"{ours}/queries": f"{path}.q/output", f"{ours}/keys": f"{path}.k/output"}
            modules |= {f"{ours}/values": f"{path}.v/output", f"{ours}/head_outputs": f"{path}.o/input"}
            modules |= {f"{ours}/output": f"{path}.o/output"}
    return modules


LLAMA, BERT = "model.layers.*", "bert.encoder.layer.*"
SELF_LLAMA, SELF_BERT = f"{LLAMA}.self_attn", f"{BERT}.attention.self"
MODULES: Mapping[str, Mapping[str, str]] = {
    "gpt2": {
        "decoder/token_embeddings": "transformer.wte/output",
        "decoder/position_embeddings": "transformer.wpe/output",
        **pre_norm("decoder", "transformer.h.*", "attn.c_proj", "ln_1", "ln_2"),
        # The thirds of one array: queries, keys and values.
        "decoder/self/queries": "transformer.h.*.attn.c_attn/output:0",
        "decoder/self/keys": "transformer.h.*.attn.c_attn/output:1",
        "decoder/self/values": "transformer.h.*.attn.c_attn/output:2",
        "decoder/feed_forward/before_activation": "transformer.h.*.mlp.c_fc/output",
        "decoder/feed_forward/hidden": "transformer.h.*.mlp.c_proj/input",
        "decoder/feed_forward/output": "transformer.h.*.mlp.c_proj/output",
        "decoder/states": "transformer.ln_f/output",
    },
    "llama": {
        "decoder/token_embeddings": "model.embed_tokens/output",
        **pre_norm("decoder", LLAMA, "self_attn.o_proj", "input_layernorm", "post_attention_layernorm"),
        "decoder/self/queries": f"{SELF_LLAMA}.q_proj/output",
        "decoder/self/keys": f"{SELF_LLAMA}.k_proj/output",
        "decoder/self/values": f"{SELF_LLAMA}.v_proj/output",
        "decoder/feed_forward/before_activation": f"{LLAMA}.mlp.gate_proj/output",
        "decoder/feed_forward/hidden": f"{LLAMA}.mlp.down_proj/input",
        "decoder/feed_forward/output": f"{LLAMA}.mlp.down_proj/output",
        "decoder/states": "model.norm/output",
    },
    "bert": {
        "encoder/residual": f"{BERT}/input",
        "encoder/self/input": f"{BERT}/input",
        "encoder/self/queries": f"{SELF_BERT}.query/output",
        "encoder/self/keys": f"{SELF_BERT}.key/output",
        "encoder/self/values": f"{SELF_BERT}.value/output",
        "encoder/self/head_outputs": f"{BERT}.attention.output.dense/input",
        "encoder/self/output": f"{BERT}.attention.output.dense/output",
        "encoder/self/residual": f"{BERT}.attention.output/output",
        "encoder/feed_forward/input": f"{BERT}.attention.output/output",
        "encoder/feed_forward/before_activation": f"{BERT}.intermediate.dense/output",
        "encoder/feed_forward/hidden": f"{BERT}.output.dense/input",
        "encoder/feed_forward/output": f"{BERT}.output.dense/output",
        "encoder/feed_forward/residual": f"{BERT}/output",
    },
    "t5": {
        **t5_stack("encoder", {"self": "SelfAttention", "feed_forward": "DenseReluDense"}),
        **t5_stack("decoder", {"self": "SelfAttention", "cross": "EncDecAttention", "feed_forward": "DenseReluDense"}),
    },
}
SITES = {"gpt2": ("decoder/self",), "llama": ("decoder/self",), "bert": ("encoder/self",)}
SITES["t5"] = ("encoder/self", "decoder/self", "decoder/cross")
SPECIAL_TOKENS = {
    "bert": {"pad_token": "w00", "cls_token": "w01", "sep_token": "w02", "unk_token": "w03", "mask_token": "w04"},
    "t5": {"pad_token": "w00", "eos_token": "w01", "unk_token": "w03"},
}
NUM_SPECIAL = 6  # words below are special tokens


def word(number: int) -> str:
    """The text of a token; none is the beginning of another."""
    return f"w{number:02}"


@functools.cache
def recorded(name: str) -> Recording:
    """The record of a case, and its weights."""
    with np.load(FILE) as file:
        about = json.loads(str(file["about"]))["cases"][name]
        arrays = {key.partition("/")[2]: file[key] for key in file.files if key.startswith(f"{name}/")}
    shapes = {key: tuple(shape) for key, shape in about["shapes"].items()}
    return Recording(about, arrays, weights_of(about["architecture"], shapes, about["seed"]))


def write_folder(name: str, folder: Path) -> Path:
    """Write a model folder with a tokenizer, whose words "w00", "w01" ... are the tokens of these numbers."""
    case = recorded(name)
    case.write(folder)
    words = {word(number): number for number in range(case.config["vocab_size"])}
    backend = tokenizers.Tokenizer(models.WordLevel(words, "w03"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    roles = SPECIAL_TOKENS.get(name, {"eos_token": "w01", "unk_token": "w03"})
    backend.add_special_tokens(sorted(set(roles.values())))
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(roles))
    return folder


def texts_of(ids: np.ndarray) -> list[str]:
    """The texts of rows of tokens, without special tokens."""
    return [" ".join(word(number) for number in row if number >= NUM_SPECIAL) for row in ids]


def widen(loaded: LoadedModel, folder: Path) -> LoadedModel:
    """The model in float64."""
    wide = Precision("float64", "float64", "float64")
    model = build(loaded.experiment.model, open_model_folder(folder).interface, wide)
    variables = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), loaded.variables)
    return dataclasses.replace(loaded, model=model, variables=variables)


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The logits and activations of a case by its type, computed once."""

    @functools.cache
    def run(name: str, dtype: str = "float64") -> tuple[jax.Array, ActivationCache]:
        arrays = recorded(name).arrays
        folder = write_folder(name, tmp_path_factory.mktemp("activations") / name)
        with jax.enable_x64(dtype == "float64"):
            model = transformer.load(folder)
            model = widen(model, folder) if dtype == "float64" else model
            target = texts_of(arrays["target"]) if "target" in arrays else None
            return model.run_with_cache(texts_of(arrays["ids"]), ["*", "*/head_contributions"], target=target)

    return run


def real_positions(name: str, stack: str) -> np.ndarray:
    """Which positions of a stack hold a token: [B, T]."""
    arrays = recorded(name).arrays
    prefix = "target_" if stack == "decoder" and "target" in arrays else ""
    lengths = arrays[f"{prefix}lengths"]
    return np.arange(lengths.max()) < lengths[:, None]


def select(name: str, activation: str, found: Any) -> np.ndarray:
    """The real positions of an activation, [(L,) N, F], as the record has them."""
    of_source = activation.startswith("encoder") or activation in ("decoder/cross/keys", "decoder/cross/values")
    real_BxT = real_positions(name, "encoder" if of_source else "decoder")
    layered = "*" in MODULES[name].get(activation, "")
    values = np.asarray(found) if layered else np.asarray(found)[None]
    values = np.broadcast_to(values, (len(values), len(real_BxT), *values.shape[2:]))
    values = values[:, :, : real_BxT.shape[1]][:, real_BxT]
    values = values.reshape(*values.shape[:2], -1)
    return values if layered else values[0]


def expected_values(name: str, activation: str) -> np.ndarray:
    """The recorded values of an activation, [(L,) N, F]."""
    key, _, third = MODULES[name][activation].partition(":")
    array = recorded(name).arrays[key]
    return np.split(array, 3, axis=-1)[int(third)] if third else array


def assert_close(found: Any, expected: np.ndarray, message: str) -> None:
    largest = np.abs(expected).max()
    assert largest > 0.1, message
    # Of float32 16 units in the last place of the largest value: sums of a residual stream round at its largest.
    tolerance = 1e-5 if found.dtype == np.float64 else 16 * np.finfo(np.float32).eps * largest
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance, err_msg=message)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", MODULES)
def test_activations_are_what_the_modules_of_transformers_read_and_return(name: str, dtype: str, caches: Any) -> None:
    cache = caches(name, dtype)[1]
    for activation in MODULES[name]:
        expected = expected_values(name, activation)
        assert_close(select(name, activation, cache[activation]), expected, f"{name} {activation}")


@pytest.mark.parametrize("name", MODULES)
def test_residual_streams_and_states_are_the_hidden_states_of_transformers(name: str, caches: Any) -> None:
    cache = caches(name)[1]
    for stack in dict.fromkeys(site.partition("/")[0] for site in SITES[name]):
        expected = recorded(name).arrays[f"{stack}/hidden_states"]
        found = select(name, f"{stack}/residual", cache[f"{stack}/residual"])
        assert_close(found, expected[:-1], f"{name} {stack}/residual")
        states = np.asarray(cache[f"{stack}/states"])
        real_BxT = real_positions(name, stack)
        assert_close(states[:, : real_BxT.shape[1]][real_BxT], expected[-1], f"{name} {stack}/states")


@pytest.mark.parametrize("name", MODULES)
def test_attention_maps_are_those_of_transformers_and_what_its_softmax_reads(name: str, caches: Any) -> None:
    arrays, cache = recorded(name).arrays, caches(name)[1]
    for site in SITES[name]:
        logits = arrays[f"{site}/logits"]
        *_, num_queries, num_keys = logits.shape
        is_seen = ~np.isnan(logits)
        assert is_seen.sum() > is_seen.size / 3
        for kind in ("weights", "logits"):
            found = np.asarray(cache[f"{site}/{kind}"])[..., :num_queries, :num_keys]
            assert_close(found[is_seen], arrays[f"{site}/{kind}"][is_seen], f"{name} {site}/{kind}")


@pytest.mark.parametrize("name", MODULES)
def test_logits_are_those_of_transformers_in_the_cache_too(name: str, caches: Any) -> None:
    logits, cache = caches(name)
    real_BxT = real_positions(name, SITES[name][-1].partition("/")[0])
    for found in (logits, cache["logits"]):
        found = np.asarray(found)[:, : real_BxT.shape[1], : recorded(name).arrays["logits"].shape[-1]]
        assert_close(found[real_BxT], recorded(name).arrays["logits"], name)


# The output matrix [feature of a head, feature] and the bias of each layer's attention, by the names of transformers.
OUTPUT_MATRICES = {
    "gpt2": {"decoder/self": ("transformer.h.{}.attn.c_proj", False)},
    "llama": {"decoder/self": ("model.layers.{}.self_attn.o_proj", True)},
    "bert": {"encoder/self": ("bert.encoder.layer.{}.attention.output.dense", True)},
    "t5": {
        "encoder/self": ("encoder.block.{}.layer.0.SelfAttention.o", True),
        "decoder/self": ("decoder.block.{}.layer.0.SelfAttention.o", True),
        "decoder/cross": ("decoder.block.{}.layer.1.EncDecAttention.o", True),
    },
}


@pytest.mark.parametrize("name", MODULES)
def test_head_contributions_are_the_products_of_the_recorded_heads_and_output_matrices(name: str, caches: Any) -> None:
    weights, cache = recorded(name).weights, caches(name)[1]
    for site, (path, transposed) in OUTPUT_MATRICES[name].items():
        contributions = np.asarray(cache[f"{site}/head_contributions"])
        num_layers, _, _, num_heads, width = contributions.shape
        real_BxT = real_positions(name, site.partition("/")[0])
        found = contributions[:, :, : real_BxT.shape[1]][:, real_BxT]
        heads = expected_values(name, f"{site}/head_outputs")
        heads = heads.reshape(num_layers, -1, num_heads, heads.shape[-1] // num_heads).astype(float)
        matrices = [weights[f"{path.format(layer)}.weight"] for layer in range(num_layers)]
        matrices = np.stack([matrix.T if transposed else matrix for matrix in matrices])
        expected = np.einsum("lnhd,lhde->lnhe", heads, matrices.reshape(num_layers, num_heads, -1, width))
        assert_close(found, expected, f"{name} {site}/head_contributions")
        biases = [weights.get(f"{path.format(layer)}.bias", np.zeros(width)) for layer in range(num_layers)]
        total = found.sum(axis=2) + np.stack(biases)[:, None]
        assert_close(total, expected_values(name, f"{site}/output"), f"{name} {site}/output")


@pytest.mark.parametrize("name", MODULES)
def test_norm_factors_are_those_of_the_recorded_streams(name: str, caches: Any) -> None:
    """1 / sqrt(variance + epsilon) of what a norm reads: the stream, behind what a post-norm adds to it."""
    config, cache = recorded(name).config, caches(name)[1]
    epsilon = next(config[key] for key in config if key in ("layer_norm_epsilon", "rms_norm_eps", "layer_norm_eps"))
    for activation in MODULES[name]:
        scope, _, last = activation.rpartition("/")
        if last != "output":
            continue
        stack, sublayer = scope.split("/")
        order = [part for part in ("self", "cross", "feed_forward") if f"{stack}/{part}/output" in MODULES[name]]
        before = order.index(sublayer) - 1
        stream = expected_values(name, f"{stack}/residual" if before < 0 else f"{stack}/{order[before]}/residual")
        if name == "bert":
            stream = stream + expected_values(name, activation)
        stream = stream.astype(float)
        centered = stream if name in ("llama", "t5") else stream - stream.mean(axis=-1, keepdims=True)
        expected = 1 / np.sqrt(np.mean(centered**2, axis=-1, keepdims=True) + epsilon)
        real_BxT = real_positions(name, stack)
        found = np.asarray(cache[f"{scope}/norm_factor"])[:, :, : real_BxT.shape[1]][:, real_BxT]
        assert_close(found, expected, f"{name} {scope}/norm_factor")
