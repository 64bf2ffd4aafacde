"""Record what the independent implementations of vision Transformers give.

vit and deit were recorded with torch 2.15.0 (CPU), transformers 5.23.0, safetensors 0.8.0 and numpy 2.5.5, the others
with torch 2.13.0 (CPU), transformers 5.24.0, safetensors 0.8.0 and numpy 2.4.6; run it as make_families.py says, with
the names of cases. It writes tests/golden/images/<case>.npz; the tests read these and never run this script. The
weights are rebuilt by `weights.random_weights(shapes, seed)`. A file holds, with L layers and N patches and tokens:

    about       JSON: architecture, config (config.json as published), shapes (the tensors), seed, versions
    picture     float32 [B, channels, height, width]
    logits      [B, C] of a class with a head
    hidden      [B, N, E] of a class without one, and pooled [B, E]
    attention   [L, B, H, N, N]
    pooling     [B, H, 1, N]: the weights of attention pooling
    losses      [2]: the cross-entropy of the labels 0 and 1 of a class with a head, and the same after one step of
                gradient descent at the rate 0.01
"""

import importlib.metadata
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors import safe_open
from safetensors.numpy import save_file
from weights import random_weights

FOLDER = Path(__file__).with_name("images")
SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "image_size": 12,
    "patch_size": 4,
}
ODD = SMALL | {"hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 20}
DINOV2 = {key: value for key, value in ODD.items() if key != "intermediate_size"} | {"mlp_ratio": 2}
GATED = DINOV2 | {"use_swiglu_ffn": True, "use_mask_token": False, "num_channels": 1, "layer_norm_eps": 1e-5}
CASES = {
    "vit": ("ViTForImageClassification", SMALL | {"num_labels": 5}, 3),
    "deit": ("DeiTForImageClassificationWithTeacher", SMALL | {"num_labels": 3, "num_channels": 1}, 4),
    "dinov2": ("Dinov2ForImageClassification", DINOV2 | {"num_labels": 5}, 5),
    "dinov2_gated": ("Dinov2ForImageClassification", GATED | {"num_labels": 3}, 6),
    "dinov2_body": ("Dinov2Model", DINOV2, 7),
    "siglip_vision_model": ("SiglipVisionModel", ODD, 8),
    "siglip_headless": ("SiglipVisionModel", ODD | {"vision_use_head": False, "hidden_act": "quick_gelu"}, 9),
    "siglip": ("SiglipForImageClassification", {"vision_config": ODD, "num_labels": 5}, 10),
    "clip_vision_model": ("CLIPVisionModel", ODD, 11),
    "clip": ("CLIPForImageClassification", {"vision_config": ODD | {"layer_norm_eps": 1e-3}, "num_labels": 3}, 12),
}


def losses(model: Any, image: torch.Tensor) -> np.ndarray:
    """The loss before and after one step of gradient descent."""
    labels, found = torch.arange(len(image)), []
    for _ in range(2):
        loss = torch.nn.functional.cross_entropy(model(image).logits, labels)
        found.append(loss.item())
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter -= 0.01 * parameter.grad
    return np.array(found)


def record(name: str, architecture: str, changes: dict, seed: int) -> None:
    """Write the file of one case."""
    kind = getattr(transformers, architecture)
    with tempfile.TemporaryDirectory() as folder:
        kind(kind.config_class(**changes)).save_pretrained(folder)
        config = json.loads((Path(folder) / "config.json").read_text())
        config.pop("text_config", None)
        with safe_open(Path(folder) / "model.safetensors", "np") as file:
            shapes = {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
        save_file(random_weights(shapes, seed), Path(folder) / "model.safetensors", {"format": "pt"})
        model, report = kind.from_pretrained(
            folder, dtype=torch.float64, attn_implementation="eager", local_files_only=True, output_loading_info=True
        )
    if any(report.values()):
        raise SystemExit(f"{architecture} did not take its weights: {report}")
    channels = config.get("vision_config", config).get("num_channels", 3)
    image = np.random.default_rng(seed).normal(size=(2, channels, 12, 12)).astype(np.float32)
    pixels = torch.tensor(image).double()
    with torch.no_grad():
        output = model.eval()(pixels, output_attentions=True)
    found = {"attention": torch.stack(output.attentions)}
    if "logits" in output:
        found["logits"] = output.logits
    else:
        found["hidden"] = output.last_hidden_state
        if output.pooler_output is not None:
            found["pooled"] = output.pooler_output
    if config.get("vision_use_head"):
        states, head = output.last_hidden_state, model.head
        with torch.no_grad():
            probe = head.probe.repeat(len(states), 1, 1)
            found["pooling"] = head.attention(probe, states, states, average_attn_weights=False)[1]
    arrays = {key: value.numpy().astype(np.float32) for key, value in found.items()}
    if "logits" in arrays:
        arrays["losses"] = losses(model, pixels)
    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers", "numpy", "safetensors")}
    about = {"architecture": architecture, "config": config, "shapes": shapes, "seed": seed, "versions": versions}
    FOLDER.mkdir(exist_ok=True)
    np.savez_compressed(FOLDER / f"{name}.npz", about=json.dumps(about), picture=image, **arrays)
    print(name, {key: float(np.abs(value).max()) for key, value in arrays.items()}, arrays.get("losses"))


if __name__ == "__main__":
    for name in sys.argv[1:] or CASES:
        record(name, *CASES[name])
