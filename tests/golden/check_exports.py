"""Load folders that Headwise exported by transformers, and compare the logits.

It runs in the environment that make_families.py names:

    golden/bin/python tests/golden/check_exports.py FOLDER...

A folder holds what an export wrote, config.json and model.safetensors, and expected.npz: ids and attention_mask [B, T],
token_type_ids [B, T] where the model has types, decoder_input_ids [B, U] and, where they are padded,
decoder_attention_mask [B, U] of an encoder-decoder, and the logits that Headwise gives for them, float32. One line a
folder: `family: max |difference| = ...`, the largest over real places. Exits 1 where one is over 1e-4 or the library
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
    """The family, and the largest |difference| of the logits over real places; refuses other tensors by name."""
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
    expected = inputs.pop("logits")
    inputs["input_ids"] = inputs.pop("ids")
    mask = inputs["attention_mask"]
    if "decoder_input_ids" in inputs:
        mask = inputs.get("decoder_attention_mask", np.ones_like(inputs["decoder_input_ids"]))
    if expected.shape[:2] != mask.shape:
        raise ValueError(f"{config['model_type']}: expected logits are {expected.shape} for inputs of {mask.shape}")
    with torch.no_grad():
        output = model.eval()(**{name: torch.tensor(value).long() for name, value in inputs.items()})
    logits = (output.prediction_logits if "prediction_logits" in output else output.logits).numpy()
    if logits.shape != expected.shape:
        raise ValueError(f"{config['model_type']}: logits are {logits.shape}, expected ones {expected.shape}")
    real = mask != 0
    return config["model_type"], float(np.abs(logits[real] - expected[real]).max())


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
