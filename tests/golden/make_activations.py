"""Record the inputs and outputs of the modules of transformers' GPT-2, Llama, BERT and T5 by forward hooks.

Recorded with Python 3.13, torch 2.13.0 (CPU), transformers 5.24.0, safetensors 0.8.0 and numpy 2.4.6. To run it, from
the root of the checkout, in an environment of its own:

    python3.13 -m venv golden
    golden/bin/pip install torch==2.13.0 transformers==5.24.0 safetensors==0.8.0 numpy==2.4.6
    golden/bin/python tests/golden/make_activations.py

It writes tests/golden/activations.npz; tests/golden/test_activations.py reads it. Models and weights are those of
`cases.CASES`, and the models compute in float64. A case has, with N real positions, one text after the other, and L
layers:

    ids, lengths     int32 [B, T], [B]: what the model reads, with its special tokens; target, target_lengths: what the
                     decoder of T5 reads
    MODULE/input     [N, F] of a module by its path; [L, N, F] of a module of every layer, whose path has "*" for the
    MODULE/output    number of the layer
    STACK/hidden_states, SITE/weights    [L + 1, N, E], [L, B, H, Q, K]: what the model returns if it is asked
    SITE/logits      [L, B, H, Q, K]: what the softmax reads; NaN where the mask hides a key and in padding
"""

import importlib.metadata
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from cases import CASES
from make_families import load

FILE = Path(__file__).with_name("activations.npz")
LENGTHS, TARGET_LENGTHS = (5, 3), (4, 2)
SEED = 11
FIRST_TOKEN, LAST_TOKEN = 6, 51  # those outside are special
MASKED = -1e30  # logits below are those of the mask
# The tokens in front of a text and behind it.
SPECIAL_TOKENS: Mapping[str, tuple[list[int], list[int]]] = {"bert": ([1], [2]), "t5": ([], [1])}

# The number of a layer in the path of a module.
LAYER = re.compile(r"^(transformer\.h|model\.layers|bert\.encoder\.layer|(?:en|de)coder\.block)\.\d+")
T5_LAYERS = {
    "encoder": ("0.SelfAttention", "1.DenseReluDense"),
    "decoder": ("0.SelfAttention", "1.EncDecAttention", "2.DenseReluDense"),
}


def t5_points() -> list[str]:
    """The inputs and outputs of T5's modules."""
    points = []
    for stack, sublayers in T5_LAYERS.items():
        points.append(f"{stack}.embed_tokens/output")
        for sublayer in sublayers:
            path = f"{stack}.block.*.layer.{sublayer}"
            layer = path.rpartition(".")[0]
            points += [f"{layer}.layer_norm/output", f"{layer}/output"]
            points += [f"{layer}/input"] if layer.endswith(".0") else []
            if sublayer.endswith("Attention"):
                points += [f"{path}.q/output", f"{path}.k/output", f"{path}.v/output"]
                points += [f"{path}.o/input", f"{path}.o/output"]
            else:
                points += [f"{path}.wi/output", f"{path}.wo/input", f"{path}.wo/output"]
        points.append(f"{stack}.final_layer_norm/output")
    return points


POINTS: Mapping[str, list[str]] = {
    "gpt2": [
        "transformer.wte/output",
        "transformer.wpe/output",
        "transformer.h.*/input",
        "transformer.h.*.ln_1/output",
        "transformer.h.*.attn.c_attn/output",
        "transformer.h.*.attn.c_proj/input",
        "transformer.h.*.attn.c_proj/output",
        "transformer.h.*.ln_2/input",
        "transformer.h.*.ln_2/output",
        "transformer.h.*.mlp.c_fc/output",
        "transformer.h.*.mlp.c_proj/input",
        "transformer.h.*.mlp.c_proj/output",
        "transformer.h.*/output",
        "transformer.ln_f/output",
    ],
    "llama": [
        "model.embed_tokens/output",
        "model.layers.*/input",
        "model.layers.*.input_layernorm/output",
        "model.layers.*.self_attn.q_proj/output",
        "model.layers.*.self_attn.k_proj/output",
        "model.layers.*.self_attn.v_proj/output",
        "model.layers.*.self_attn.o_proj/input",
        "model.layers.*.self_attn.o_proj/output",
        "model.layers.*.post_attention_layernorm/input",
        "model.layers.*.post_attention_layernorm/output",
        "model.layers.*.mlp.gate_proj/output",
        "model.layers.*.mlp.down_proj/input",
        "model.layers.*.mlp.down_proj/output",
        "model.layers.*/output",
        "model.norm/output",
    ],
    "bert": [
        "bert.embeddings/output",
        "bert.encoder.layer.*/input",
        "bert.encoder.layer.*.attention.self.query/output",
        "bert.encoder.layer.*.attention.self.key/output",
        "bert.encoder.layer.*.attention.self.value/output",
        "bert.encoder.layer.*.attention.output.dense/input",
        "bert.encoder.layer.*.attention.output.dense/output",
        "bert.encoder.layer.*.attention.output/output",
        "bert.encoder.layer.*.intermediate.dense/output",
        "bert.encoder.layer.*.output.dense/input",
        "bert.encoder.layer.*.output.dense/output",
        "bert.encoder.layer.*/output",
    ],
    "t5": t5_points(),
}
# What the model returns, by the name of the record; and the order of the softmaxes of a pass.
RETURNED = {
    "gpt2": {"decoder/hidden_states": "hidden_states", "decoder/self/weights": "attentions", "logits": "logits"},
    "llama": {"decoder/hidden_states": "hidden_states", "decoder/self/weights": "attentions", "logits": "logits"},
    "bert": {"encoder/hidden_states": "hidden_states", "encoder/self/weights": "attentions", "logits": "logits"},
    "t5": {
        "encoder/hidden_states": "encoder_hidden_states",
        "decoder/hidden_states": "decoder_hidden_states",
        "encoder/self/weights": "encoder_attentions",
        "decoder/self/weights": "decoder_attentions",
        "decoder/cross/weights": "cross_attentions",
        "logits": "logits",
    },
}
SOFTMAXES = {
    "gpt2": ["decoder/self"] * 3,
    "llama": ["decoder/self"] * 2,
    "bert": ["encoder/self"] * 2,
    "t5": ["encoder/self"] * 2 + ["decoder/self", "decoder/cross"] * 2,
}


def draw_ids(lengths: tuple[int, ...], begin: list[int], end: list[int], pad: int) -> tuple[np.ndarray, np.ndarray]:
    """Random texts with their special tokens, padded at the end, and their lengths."""
    generator = np.random.default_rng(SEED + len(begin))
    texts = [[*begin, *generator.integers(FIRST_TOKEN, LAST_TOKEN + 1, length), *end] for length in lengths]
    width = max(map(len, texts))
    ids = [[*text, *[pad] * (width - len(text))] for text in texts]
    return np.array(ids, np.int32), np.array([len(text) for text in texts], np.int32)


@contextmanager
def hooked(model: torch.nn.Module, points: list[str], found: dict[str, list[torch.Tensor]]) -> Iterator[None]:
    """Within the block, append what the modules of the points read and return; "*" is the number of a layer."""
    wanted = set(points)
    handles = []
    for path, module in model.named_modules():
        pattern = LAYER.sub(r"\1.*", path)
        for side in ("input", "output"):
            name = f"{pattern}/{side}"
            if name not in wanted:
                continue

            def hook(module: Any, args: Any, kwargs: Any, output: Any, name: str = name) -> None:
                value = output if name.endswith("/output") else (args[0] if args else kwargs["hidden_states"])
                found.setdefault(name, []).append(value[0] if isinstance(value, tuple) else value)

            handles.append(module.register_forward_hook(hook, with_kwargs=True))
    yield
    for handle in handles:
        handle.remove()


@contextmanager
def softmaxes(found: list[torch.Tensor]) -> Iterator[None]:
    """Within the block, append what every softmax reads."""
    softmax = torch.nn.functional.softmax

    def record(logits: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        found.append(logits)
        return softmax(logits, *args, **options)

    torch.nn.functional.softmax = record
    try:
        yield
    finally:
        torch.nn.functional.softmax = softmax


def record(name: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What the file says about a case, and its arrays."""
    model, config, shapes = load(CASES[name])
    pad = config.get("pad_token_id") or 0
    ids, lengths = draw_ids(LENGTHS, *SPECIAL_TOKENS.get(name, ([], [])), pad)
    arrays = {"ids": ids, "lengths": lengths}
    is_real = np.arange(ids.shape[1]) < lengths[:, None]
    inputs = {"input_ids": torch.tensor(ids).long(), "attention_mask": torch.tensor(is_real).long()}
    is_real_target = is_real
    if name == "t5":
        target, target_lengths = draw_ids(TARGET_LENGTHS, [config["decoder_start_token_id"]], [], pad)
        arrays |= {"target": target, "target_lengths": target_lengths}
        is_real_target = np.arange(target.shape[1]) < target_lengths[:, None]
        inputs["decoder_input_ids"] = torch.tensor(target).long()
        inputs["decoder_attention_mask"] = torch.tensor(is_real_target).long()
    found: dict[str, list[torch.Tensor]] = {}
    read_by_softmax: list[torch.Tensor] = []
    with torch.no_grad(), hooked(model, POINTS[name], found), softmaxes(read_by_softmax):
        output = model(**inputs, output_hidden_states=True, output_attentions=True, use_cache=False)
    assert found.keys() == set(POINTS[name]), set(POINTS[name]) - found.keys()
    assert len(read_by_softmax) == len(SOFTMAXES[name])

    def real_positions(values: torch.Tensor) -> np.ndarray:
        """Values [B, T, F] of the real positions."""
        real = is_real if values.shape[1] == is_real.shape[1] else is_real_target
        return np.broadcast_to(values.numpy(), (*real.shape, values.shape[-1]))[real]

    for point, values in found.items():
        array = np.stack([real_positions(value) for value in values])
        arrays[point] = array if "*" in point else array[0]
    for key, attribute in RETURNED[name].items():
        value = getattr(output, attribute)
        if key == "logits":
            arrays[key] = real_positions(value)
        elif key.endswith("hidden_states"):
            arrays[key] = np.stack([real_positions(layer) for layer in value])
        else:
            arrays[key] = torch.stack(value).numpy()
    for site in dict.fromkeys(SOFTMAXES[name]):
        own = [logits for of, logits in zip(SOFTMAXES[name], read_by_softmax, strict=True) if of == site]
        logits = torch.stack(own).numpy()
        queries = is_real if site.startswith("encoder") else is_real_target
        hidden = (logits < MASKED) | ~queries[None, :, None, :, None]
        arrays[f"{site}/logits"] = np.where(hidden, np.nan, logits)
        arrays[f"{site}/weights"] = np.where(queries[None, :, None, :, None], arrays[f"{site}/weights"], 0)
    about = {"architecture": CASES[name].architecture, "config": config, "shapes": shapes, "seed": CASES[name].seed}
    return about, arrays


def main() -> None:
    transformers.utils.logging.disable_progress_bar()
    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers", "numpy")}
    about: dict[str, Any] = {"versions": versions, "cases": {}}
    arrays: dict[str, np.ndarray] = {}
    for name in POINTS:
        about["cases"][name], own = record(name)
        kinds = {"f": np.float32, "i": np.int32}
        arrays |= {f"{name}/{key}": value.astype(kinds[value.dtype.kind]) for key, value in own.items()}
        largest = {key: float(np.nanmax(np.abs(value))) for key, value in own.items()}
        print(name, len(own), "arrays; largest", sorted(largest.items(), key=lambda item: -item[1])[2:8])
    np.savez_compressed(FILE, about=json.dumps(about, sort_keys=True), **arrays)
    print(f"{FILE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
