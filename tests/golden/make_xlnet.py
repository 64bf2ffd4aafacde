"""Record what an independent implementation of XLNet's two streams gives, over two segments with a memory.

Recorded with Python 3.12, torch 2.15.0 (on a CPU), transformers 5.23.0 and numpy 2.5.5. To run it, from the root of the
checkout, in an environment that has them:

    python tests/golden/make_xlnet.py

It writes tests/golden/xlnet_streams.npz; the tests read it and never run this script. The weights are not stored:
`weights.random_weights(shapes, 0)` rebuilds them bit by bit. The file holds, M positions of memory, T of a segment:

    about                       JSON: config (config.json as published), shapes (of model.safetensors), versions
    tokens, order, types        int32 [2, B, T]: of both segments; order from 0, types 0 and 1
    predicted                   int32 [2, B, P]: positions in the order in which they are predicted
    logits                      [2, B, P, V]: of the query stream at these positions
    content                     [2, B, T, E]: the content stream behind the last layer
    content_maps, query_maps    [L, B, H, T, M + T]: of the second segment; only predicted queries mean anything
    memory                      [L, B, M, E]: what the first segment leaves
"""

import importlib.metadata
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors import safe_open
from safetensors.numpy import save_file
from weights import random_weights

FILE = Path(__file__).with_name("xlnet_streams.npz")
ROWS, LENGTH, PREDICTED, MEMORY, VOCABULARY = 3, 7, 3, 5, 53
CONFIG = {
    "vocab_size": VOCABULARY,
    "d_model": 16,
    "n_layer": 2,
    "n_head": 2,
    "d_inner": 24,
    "attn_type": "bi",
    "mem_len": MEMORY,
}


def model_and_shapes() -> tuple[Any, dict[str, Any], dict[str, tuple[int, ...]]]:
    """The model with rebuilt weights, its config.json, and the shapes of its tensors."""
    kind = transformers.XLNetLMHeadModel
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kind(kind.config_class(**CONFIG)).save_pretrained(folder)
        config = json.loads((folder / "config.json").read_text())
        with safe_open(folder / "model.safetensors", "np") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        save_file(random_weights(shapes, 0), folder / "model.safetensors", {"format": "pt"})
        return kind.from_pretrained(folder, attn_implementation="eager").eval(), config, shapes


def main() -> None:
    """Two segments, the second behind the memory of the first."""
    model, config, shapes = model_and_shapes()
    random = np.random.default_rng(3)
    tokens = random.integers(0, VOCABULARY, (2, ROWS, LENGTH)).astype(np.int32)
    order = np.argsort(random.random((2, ROWS, LENGTH)), axis=-1).astype(np.int32)
    types = random.integers(0, 2, (2, ROWS, LENGTH)).astype(np.int32)
    predicted = np.argsort(order, axis=-1)[..., -PREDICTED:].astype(np.int32)
    found: dict[str, list[Any]] = {"logits": [], "content": []}
    memory = None
    for number in range(2):
        of_order = order[number]
        # 1: this position does not see that one; the content stream sees itself whatever is said here.
        hidden = (of_order[:, None, :] >= of_order[:, :, None]).astype(np.float32)
        places = np.eye(LENGTH, dtype=np.float32)[predicted[number]]
        with torch.no_grad():
            output = model(
                input_ids=torch.tensor(tokens[number]).long(),
                perm_mask=torch.tensor(hidden),
                target_mapping=torch.tensor(places),
                token_type_ids=torch.tensor(types[number]).long(),
                mems=memory,
                use_mems=True,
                output_hidden_states=True,
                output_attentions=True,
                return_dict=True,
            )
        memory = output.mems
        found["logits"].append(output.logits.numpy())
        found["content"].append(output.hidden_states[-2].numpy())
        if number == 0:
            kept = np.stack([layer.numpy() for layer in memory[: CONFIG["n_layer"]]])
    content, query = zip(*output.attentions, strict=True)
    about = {
        "config": config,
        "shapes": shapes,
        "versions": {name: importlib.metadata.version(name) for name in ("torch", "transformers", "numpy")},
    }
    np.savez_compressed(
        FILE,
        about=json.dumps(about),
        tokens=tokens,
        order=order,
        types=types,
        predicted=predicted,
        memory=np.moveaxis(kept, 1, 2),
        content_maps=np.stack([layer.numpy() for layer in content]),
        query_maps=np.stack([layer.numpy() for layer in query]),
        **{name: np.stack(values) for name, values in found.items()},
    )
    with np.load(FILE) as file:
        print({name: file[name].shape for name in file.files})


if __name__ == "__main__":
    main()
