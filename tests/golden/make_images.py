"""Record what the independent implementations of ViT and DeiT give.

Recorded with torch 2.15.0 (CPU), transformers 5.23.0, safetensors 0.8.0 and numpy 2.5.5; run it as make_families.py
says. It writes tests/golden/images/<case>.npz; the tests read these and never run this script. The
weights are rebuilt by `weights.random_weights(shapes, seed)`. A file holds, with L layers and N patches and tokens:

    about       JSON: architecture, config (config.json as published), shapes (the tensors), seed, versions
    image     float32 [B, channels, height, width]
    logits      [B, C]
    attention   [L, B, H, N, N]
"""

import importlib.metadata
import json
import tempfile
from pathlib import Path

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
CASES = {
    "vit": ("ViTForImageClassification", {"num_labels": 5}, 3),
    "deit": ("DeiTForImageClassificationWithTeacher", {"num_labels": 3, "num_channels": 1}, 4),
}


def record(name: str, architecture: str, changes: dict, seed: int) -> None:
    """Write the file of one case."""
    kind = getattr(transformers, architecture)
    with tempfile.TemporaryDirectory() as folder:
        kind(kind.config_class(**SMALL, **changes)).save_pretrained(folder)
        config = json.loads((Path(folder) / "config.json").read_text())
        with safe_open(Path(folder) / "model.safetensors", "np") as file:
            shapes = {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
        save_file(random_weights(shapes, seed), Path(folder) / "model.safetensors", {"format": "pt"})
        model, report = kind.from_pretrained(
            folder, dtype=torch.float64, attn_implementation="eager", local_files_only=True, output_loading_info=True
        )
    if any(report.values()):
        raise SystemExit(f"{architecture} did not take its weights: {report}")
    image = np.random.default_rng(seed).normal(size=(2, config.get("num_channels", 3), 12, 12)).astype(np.float32)
    with torch.no_grad():
        output = model.eval()(torch.tensor(image).double(), output_attentions=True)
    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers", "numpy", "safetensors")}
    about = {"architecture": architecture, "config": config, "shapes": shapes, "seed": seed, "versions": versions}
    FOLDER.mkdir(exist_ok=True)
    np.savez_compressed(
        FOLDER / f"{name}.npz",
        about=json.dumps(about),
        picture=image,
        logits=output.logits.numpy().astype(np.float32),
        attention=torch.stack(output.attentions).numpy().astype(np.float32),
    )


if __name__ == "__main__":
    for name, case in CASES.items():
        record(name, *case)
