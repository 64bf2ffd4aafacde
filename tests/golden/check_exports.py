"""Load folders that Headwise exported by transformers, and compare the logits.

It runs in the environment that make_families.py names:

    golden/bin/python tests/golden/check_exports.py FOLDER...

A folder holds what an export wrote, config.json and model.safetensors, and expected.npz: ids and attention_mask [B, T],
token_type_ids [B, T] where the model has types, decoder_input_ids [B, U] and, where they are padded,
decoder_attention_mask [B, U] of an encoder-decoder, or pixel_values of a model of images, and what Headwise gives for
them, float32: the logits, those of an answer's start and end as [B, T, 2], or the last states as hidden. One line a
folder: `class: max |difference| = ...`, the largest over real places. Exits 1 where one is over 1e-4 or the library
misses a tensor, finds one too many, or finds one of another shape.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import transformers

TOLERANCE = 1e-4


def largest_difference(folder: Path) -> tuple[str, float]:
    """The class, and the largest |difference| of what it gives over real places; refuses other tensors by name."""
    config = json.loads((folder / "config.json").read_text())
    kind = getattr(transformers, config["architectures"][0])
    model, report = kind.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", local_files_only=True, output_loading_info=True
    )
    wrong = {name: sorted(map(str, found)) for name, found in report.items() if found}
    if wrong:
        raise ValueError(f"{config['model_type']}: tensors differ: {wrong}")
    with np.load(folder / "expected.npz") as file:
        inputs = {name: file[name] for name in file.files}
    what = "logits" if "logits" in inputs else "hidden"
    expected = inputs.pop(what)
    if "ids" in inputs:
        inputs["input_ids"] = inputs.pop("ids")
    # Logits of whole texts, and all that is of images, have no padding.
    mask = inputs.get("attention_mask") if expected.ndim == 3 else None
    mask = np.ones(expected.shape[:1]) if mask is None else mask
    if "decoder_input_ids" in inputs:
        mask = inputs.get("decoder_attention_mask", np.ones_like(inputs["decoder_input_ids"]))
    if expected.shape[: mask.ndim] != mask.shape:
        raise ValueError(f"{config['model_type']}: expected {what} are {expected.shape} for inputs of {mask.shape}")
    tensors = {
        name: torch.tensor(value if value.dtype.kind == "f" else value.astype(int)) for name, value in inputs.items()
    }
    with torch.no_grad():
        # The class of generation of T5 is its own base model; its decoder's last states are those of the body.
        output = (model if what == "logits" else model.base_model).eval()(**tensors, output_hidden_states=True)
    if what == "hidden":
        is_body = "last_hidden_state" in output
        found = output.last_hidden_state if is_body else output.decoder_hidden_states[-1]
    elif "start_logits" in output:
        found = torch.stack([output.start_logits, output.end_logits], dim=-1)
    else:
        found = output.prediction_logits if "prediction_logits" in output else output.logits
    if tuple(found.shape) != expected.shape:
        raise ValueError(f"{config['model_type']}: {what} are {tuple(found.shape)}, expected ones {expected.shape}")
    real = mask != 0
    return config["architectures"][0], float(np.abs(found.numpy()[real] - expected[real]).max())


def main() -> int:
    folders = [Path(name) for name in sys.argv[1:]]
    if not folders:
        print("usage: check_exports.py FOLDER...", file=sys.stderr)
        return 2
    transformers.utils.logging.disable_progress_bar()
    failed = False
    for folder in folders:
        try:
            family, difference = largest_difference(folder)
        except (OSError, KeyError, AttributeError, RuntimeError, ValueError) as error:
            print(f"{folder.name}: {error}")
            failed = True
            continue
        print(f"{family}: max |difference| = {difference:.1e}")
        failed |= not difference <= TOLERANCE
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
