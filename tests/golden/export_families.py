"""Write every exchanged family and head as a folder that check_exports.py loads, with what it is to give.

    python tests/golden/export_families.py FOLDER [case ...]

The logits of a family are ours; those of a head, and the states of a body, are the recorded ones of heads.npz and of
images/ (cases as "images/dinov2").

It runs where Headwise is installed; every model goes through an import and an export on the way.
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.golden.recordings import EXCHANGED, head_recording, model_of, recorded_heads, recording
from transformer.huggingface.convert import open_model_folder, write_model_folder
from transformer.models.model import Variables
from transformer.models.registry import model_config

IMAGES = Path(__file__).with_name("images")
NAMES = {"ids": "tokens", "lengths": "lengths", "types": "types"}


def export(name: str, folder: Path) -> None:
    """One case: its folder, and the inputs and our logits beside it."""
    recorded = recording(name)
    model, params = model_of(name, recorded, folder / "in" / name)
    section = open_model_folder(folder / "in" / name).model
    keys = ("pad_token_id", "eos_token_id", "decoder_start_token_id")
    tokens = {key: recorded.config[key] for key in keys if key in recorded.config}
    model_type = recorded.config["model_type"]
    write_model_folder(folder / "out" / name, model_config(section), params, tokens, model_type=model_type)
    arrays, decodes = recorded.arrays, recorded.about["kind"] == "encoder_decoder"
    names = {"ids": "source", "target": "target"} if decodes else NAMES
    inputs = {ours: jnp.asarray(arrays[theirs]) for theirs, ours in names.items() if theirs in arrays}
    with jax.default_matmul_precision("highest"):
        logits, _ = model.apply(Variables(jax.tree.map(jnp.asarray, params), {}), inputs, train=False)
    given = {"ids": arrays["ids"], "attention_mask": real(arrays["lengths"]), "logits": np.asarray(logits)}
    if "types" in arrays:
        given["token_type_ids"] = arrays["types"]
    if decodes:
        given |= {"decoder_input_ids": arrays["target"], "decoder_attention_mask": real(arrays["target_lengths"])}
    np.savez(folder / "out" / name / "expected.npz", **given)


def export_head(case: str, folder: Path) -> None:
    """One case of heads.npz, as "gpt2/classes"."""
    about, found, name = recorded_heads()[0], head_recording(case), case.replace("/", "_")
    found.write(folder / "in" / name)
    foreign = open_model_folder(folder / "in" / name)
    keys = ("pad_token_id", "eos_token_id", "decoder_start_token_id")
    tokens = {key: found.config[key] for key in keys if key in found.config}
    model, model_type = model_config(foreign.model), found.config["model_type"]
    write_model_folder(folder / "out" / name, model, foreign.read_params(), tokens, model_type=model_type)
    given = {"hidden" if case.endswith("/none") else "logits": found.arrays["outputs"]}
    if "image" in found.arrays:
        given["pixel_values"] = found.arrays["image"]
    else:
        given |= {"ids": found.arrays["ids"], "attention_mask": real(np.array(about["lengths"]))}
    if "target" in found.arrays:
        given["decoder_input_ids"] = found.arrays["target"]
        given["decoder_attention_mask"] = real(np.array(about["target_lengths"]))
    np.savez(folder / "out" / name / "expected.npz", **given)


def export_image(name: str, folder: Path) -> None:
    """One case of images/, as "dinov2"."""
    found = recording(name, IMAGES)
    found.write(folder / "in" / f"images_{name}")
    foreign = open_model_folder(folder / "in" / f"images_{name}")
    model, out = model_config(foreign.model), folder / "out" / f"images_{name}"
    write_model_folder(out, model, foreign.read_params(), model_type=found.config["model_type"])
    what = "logits" if "logits" in found.arrays else "hidden"
    np.savez(out / "expected.npz", **{what: found.arrays[what], "pixel_values": found.arrays["picture"]})


def real(lengths: np.ndarray) -> np.ndarray:
    """One where a token is real: [B, T]."""
    return (np.arange(lengths.max()) < lengths[:, None]).astype(np.int64)


if __name__ == "__main__":
    pictures = [f"images/{path.stem}" for path in sorted(IMAGES.glob("*.npz"))]
    for case in sys.argv[2:] or (*EXCHANGED, *recorded_heads()[0]["cases"], *pictures):
        if case.startswith("images/"):
            export_image(case.removeprefix("images/"), Path(sys.argv[1]))
        else:
            (export_head if "/" in case else export)(case, Path(sys.argv[1]))
        print(case, flush=True)
