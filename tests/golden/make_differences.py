"""Measure how far our logits are from the recorded ones, and which class an export writes, for every recorded case.

It writes tests/golden/differences.json, of which docs/models/hugging_face.md is generated. Nothing but Headwise is
needed: .venv/bin/python -m tests.golden.make_differences [case ...]
"""

import dataclasses
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tests.golden.recordings import EXCHANGED, Recording, head_recording, recorded_heads, recording
from tests.golden.weights import random_weights
from transformer.config import UserError
from transformer.huggingface.convert import PublishedModel, open_model_folder, write_model_folder
from transformer.layers.functional_module import Precision
from transformer.models.model import Variables
from transformer.models.registry import build, model_config
from transformer.models.task_interface import TaskInterface

GOLDEN = Path(__file__).parent
FILE = GOLDEN / "differences.json"
_TEXT_INPUTS = {"ids": "tokens", "lengths": "lengths", "types": "types"}


def case_names() -> Iterator[str]:
    """Yield every case that is exchanged as a folder, as "families/gpt2" or "heads/gpt2/classes"."""
    yield from (f"families/{name}" for name in EXCHANGED)
    yield from (f"heads/{name}" for name in sorted(recorded_heads()[0]["cases"]))
    for folder in ("classifiers", "images"):
        yield from (f"{folder}/{path.stem}" for path in sorted((GOLDEN / folder).glob("*.npz")))


def open_case(name: str) -> Recording:
    """Return a case with its arrays and weights."""
    folder, _, case = name.partition("/")
    if folder == "heads":
        return head_recording(case)
    recorded = recording(case, GOLDEN / folder)
    if folder != "images":
        return recorded
    # Image models have another distribution of random weights.
    shapes = {key: tuple(shape) for key, shape in recorded.about["shapes"].items()}
    return recorded._replace(weights=random_weights(shapes, recorded.about["seed"]))


def measure(name: str) -> dict[str, Any]:
    """Return the model type and class of a case, the class that an export writes, and the largest difference.

    The difference is that of the logits, or of the last states of a model without a head, at real tokens, in float32.
    """
    recorded = open_case(name)
    model_type = recorded.config["model_type"]
    with tempfile.TemporaryDirectory() as folder:
        recorded.write(Path(folder) / "in")
        published = open_model_folder(Path(folder) / "in")
        try:
            config = model_config(published.model)
            write_model_folder(Path(folder) / "out", config, published.read_params(), model_type=model_type)
            written = json.loads((Path(folder) / "out" / "config.json").read_text())["architectures"][0]
        except UserError:
            written = None
        difference = _largest_difference(recorded, published)
    return {
        "model_type": model_type,
        "read": recorded.about.get("architecture") or recorded.config["architectures"][0],
        "written": written,
        "difference": float(f"{difference:.1e}"),
    }


def _largest_difference(recorded: Recording, published: PublishedModel) -> float:
    arrays, config = recorded.arrays, recorded.config
    expected = next(arrays[key] for key in ("logits", "outputs", "hidden") if key in arrays)
    inputs, interface, lengths = {}, published.interface, None
    if "image" in interface.inputs:
        picture = arrays["picture"] if "picture" in arrays else arrays["image"]
        inputs = {"image": picture.transpose(0, 2, 3, 1)}
    elif "target" in arrays:
        inputs = {"source": arrays["ids"], "target": arrays["target"]}
        lengths = arrays.get("target_lengths", np.array(recorded_heads()[0]["target_lengths"]))
        rows = published.model["vocab_size"]
        tokens = {"tokens": rows, "joint": rows, **interface.vocabularies}
        interface = TaskInterface({}, tokens, config["pad_token_id"], config["decoder_start_token_id"], None)
    else:
        lengths = arrays.get("lengths", np.array(recorded_heads()[0]["lengths"], np.int32))
        inputs = {_TEXT_INPUTS[key]: arrays[key] for key in _TEXT_INPUTS if key in arrays} | {"lengths": lengths}
        interface = dataclasses.replace(interface, bos_id=config.get("decoder_start_token_id"))
    model = build(model_config(published.model), interface, Precision())
    variables = Variables(published.read_params(), {})
    # A body whose config ties it has the head of next tokens: its states are what that reads.
    is_tied_body = published.model.get("head") == "next_tokens" and expected.shape[-1] == published.model["width"]
    with jax.default_matmul_precision("highest"), jax.disable_jit():
        hidden_or_logits, aux = model.apply(
            variables, inputs, method="hidden" if is_tied_body else "forward", train=False
        )
    found = np.asarray(hidden_or_logits)
    if "next_sentence" in recorded.about.get("architecture", "").lower() or found.shape != expected.shape:
        found = np.asarray(aux.extras["next_sentence"])
    if lengths is not None and expected.ndim == 3:
        is_real = np.arange(expected.shape[1]) < np.asarray(lengths)[:, None]
        found, expected = found[is_real], expected[is_real]
    return float(np.abs(found - expected).max())


def main() -> None:
    """Measure the cases that are named, or all, and write the file; the others stay as they are."""
    measured = json.loads(FILE.read_text(encoding="utf-8")) if sys.argv[1:] else {}
    for name in sys.argv[1:] or case_names():
        measured[name] = measure(name)
        print(name, measured[name])
    measured = {name: measured[name] for name in case_names()}
    lines = (f"{json.dumps(name)}: {json.dumps(result, sort_keys=True)}" for name, result in measured.items())
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
