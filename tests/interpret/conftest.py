"""Tiny models as Hugging Face publishes them: random weights, each with a tokenizer of its kind."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import tokenizers
from safetensors.numpy import save_file
from tokenizers import decoders, models, pre_tokenizers

from transformer.data.tokenizers.token_text import byte_characters
from transformer.huggingface.convert import CONVERSIONS
from transformer.huggingface.parameter_conversion import parameter_shapes, params_to_tensors, plan_file_tensors
from transformer.layers.functional_module import Precision
from transformer.models.registry import build, model_config

END = "<|endoftext|>"
SMALL = {
    "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32},
    "bert": {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 24,
    },
    "t5": {
        "d_model": 16,
        "d_kv": 8,
        "d_ff": 32,
        "num_layers": 1,
        "num_heads": 2,
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 16,
        "n_positions": 12,
        "feed_forward_proj": "relu",
        "is_encoder_decoder": True,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "decoder_start_token_id": 0,
    },
}
MERGES = (("Ġ", "q"), ("Ġq", "u"), ("t", "h"), ("th", "e"), ("Ġ", "the"), ("ð", "Ł"))
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "fox", "jump", "##ing", "!")
PIECES = ("<pad>", "</s>", "<unk>", "▁the", "▁fox", "▁der", "▁Fuchs", "s", "▁", *"abcdefghijklmnopqrtuvwxyz")


def write_weights(folder: Path, config: Mapping[str, Any]) -> None:
    """config.json and model.safetensors of a family, large enough random weights that no head is uniform."""
    family = CONVERSIONS[config["model_type"]]
    section, interface = family.convert_config(dict(config), frozenset())
    shapes = build(model_config(section), interface, Precision()).functional.shapes()
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32) / 2, shapes)
    folder.mkdir()
    tensors_of = dict(params_to_tensors(plan_file_tensors(family, parameter_shapes(shapes)), params))
    arrays = {name: np.ascontiguousarray(array) for name, array in tensors_of.items()}
    save_file(arrays, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))


def write_gpt2(folder: Path) -> Path:
    pieces = [*byte_characters(), *("".join(pair) for pair in MERGES)]
    backend = tokenizers.Tokenizer(models.BPE({piece: n for n, piece in enumerate(pieces)}, list(MERGES)))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([END])
    write_weights(folder, {"model_type": "gpt2", "vocab_size": backend.get_vocab_size(), **SMALL["gpt2"]})
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": END, "eos_token": END}))
    return folder


def write_bert(folder: Path) -> Path:
    write_weights(folder, {"model_type": "bert", "vocab_size": len(WORDS), "type_vocab_size": 2, **SMALL["bert"]})
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    roles = ("pad", "unk", "cls", "sep", "mask")
    named = {f"{role}_token": word for role, word in zip(roles, WORDS, strict=False)}
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True, **named}))
    return folder


def write_t5(folder: Path) -> Path:
    scored = [(piece, -float(number)) for number, piece in enumerate(PIECES)]
    backend = tokenizers.Tokenizer(models.Unigram(scored, 2, False))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    write_weights(folder, {"model_type": "t5", "vocab_size": len(PIECES), **SMALL["t5"]})
    backend.save(str(folder / "tokenizer.json"))
    roles = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(roles))
    return folder


WRITERS = {"gpt2": write_gpt2, "bert": write_bert, "t5": write_t5}


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder of each kind, by the name of the kind."""
    return {name: write(tmp_path_factory.mktemp("published") / f"tiny-{name}") for name, write in WRITERS.items()}
