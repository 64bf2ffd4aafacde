"""Compare our logits with those of transformers for every variation of config.json: the second half of `make hf`.

    .venv/bin/python -m tests.golden.compare_sweep FOLDER

It reads what tests/golden/make_sweep_logits.py wrote, prints every variation that is read as another model or ends in a
traceback, and writes the counts to tests/records/hugging_face_sweep.md.
"""

import collections
import dataclasses
import enum
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors.numpy import save_file

from tests.golden.weights import weights_of
from transformer.config import UserError, shorten_value
from transformer.huggingface.convert import PublishedModel, open_model_folder
from transformer.layers.functional_module import Precision
from transformer.models.model import Variables
from transformer.models.registry import build, model_config
from transformer.models.task_interface import TaskInterface
from transformer.runs.run_directory import current_commit

RECORD = Path(__file__).parents[1] / "records" / "hugging_face_sweep.md"
TOLERANCE = 1e-3  # of the largest output: some variations have outputs of thousands


class Outcome(enum.Enum):
    """What a variation is here, beside transformers."""

    EQUAL = "equal"
    REFUSED = "refused"
    WRONG_KIND = "refused, a value of another kind"
    NEEDLESSLY_REFUSED = "refused, but without effect there"
    NO_MODEL = "no model there"
    WRONG = "wrong in silence"
    TRACEBACK = "traceback"


class Sweep:
    """The variations of one case, with a folder for each set of shapes.

    Args:
        file: The file of make_sweep_logits.py.
        folder: Where model folders are written.
    """

    def __init__(self, file: Path, folder: Path):
        with np.load(file) as content:
            self.arrays = {name: content[name] for name in content.files}
        self.about = json.loads(str(self.arrays.pop("about")))
        self.folder = folder
        self._outputs: dict[str, dict[str, np.ndarray]] = {}

    def compare(self, entry: Mapping[str, Any]) -> tuple[Outcome, str]:
        """Return what one variation is, and what is wrong."""
        usual = self.about["entries"][0]
        try:
            published = self._open(entry["config"], entry.get("shapes", usual["shapes"]))
            if "outputs" not in entry:
                return Outcome.NO_MODEL, ""
            found = self._compute(published, entry)
        except UserError as error:
            if "outputs" not in entry:
                return Outcome.NO_MODEL, ""
            if entry["outputs"] != usual["outputs"]:
                return Outcome.REFUSED, str(error)
            return (Outcome.WRONG_KIND if "it must be a " in str(error) else Outcome.NEEDLESSLY_REFUSED), str(error)
        except Exception as error:
            return Outcome.TRACEBACK, f"{type(error).__name__}: {error}"
        for name, values in found.items():
            expected = self.arrays[entry["outputs"][name]]
            limit = TOLERANCE * max(1.0, float(np.abs(expected[np.isfinite(expected)]).max(initial=0)))
            if values.shape != expected.shape or not np.allclose(values, expected, rtol=0, atol=limit, equal_nan=True):
                difference = np.abs(values - expected).max() if values.shape == expected.shape else values.shape
                return Outcome.WRONG, f"{name} differs by {difference}"
        return Outcome.EQUAL, ""

    def _open(self, config: Mapping[str, Any], shapes: Mapping[str, Any]) -> PublishedModel:
        names = {name: tuple(shape) for name, shape in shapes.items()}
        folder = self.folder / str(hash(tuple(sorted(names.items()))))
        if not folder.exists():
            folder.mkdir(parents=True)
            weights = weights_of(self.about["architecture"], names, self.about["seed"])
            save_file(weights, folder / "model.safetensors", {"format": "pt"})
        (folder / "config.json").write_text(json.dumps(config))
        return open_model_folder(folder)

    def _compute(self, published: PublishedModel, entry: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Return our outputs by their names there; each model is run once."""
        identity = repr((published.model, published.interface, sorted(entry["shapes"].items()), entry["inputs"]))
        if identity not in self._outputs:
            self._outputs[identity] = self._run(published, entry)
        return self._outputs[identity]

    def _run(self, published: PublishedModel, entry: Mapping[str, Any]) -> dict[str, np.ndarray]:
        theirs = {name: self.arrays[number] for name, number in entry["inputs"].items()}
        interface: TaskInterface = published.interface
        if "pixel_values" in theirs:
            inputs = {"image": theirs["pixel_values"].transpose(0, 2, 3, 1)}
        elif "decoder_input_ids" in theirs:
            # A target begins behind the start token, and its own last token is predicted, not read.
            target = np.pad(theirs["decoder_input_ids"][:, 1:], ((0, 0), (0, 1)), constant_values=self.about["start"])
            inputs = {"source": theirs["input_ids"].astype(np.int32), "target": target.astype(np.int32)}
            rows = published.model["vocab_size"]
            tokens = {"tokens": rows, "joint": rows, **interface.vocabularies}
            # No padding, which texts of random tokens might have.
            interface = TaskInterface({}, tokens, None, self.about["start"], None)
        else:
            ids = theirs["input_ids"].astype(np.int32)
            inputs = {"tokens": ids, "lengths": np.full(len(ids), ids.shape[1], np.int32)}
            interface = dataclasses.replace(interface, bos_id=None)
        model = build(model_config(published.model), interface, Precision())
        with jax.default_matmul_precision("highest"), jax.disable_jit():
            first, aux = model.apply(Variables(published.read_params(), {}), inputs, train=False)
        ours = {"pooler_output": aux.extras.get("pooled"), "seq_relationship_logits": aux.extras.get("next_sentence")}
        main = next(name for name in ("logits", "prediction_logits", "last_hidden_state") if name in entry["outputs"])
        outputs = {main: np.asarray(first)}
        return outputs | {name: np.asarray(ours[name]) for name in entry["outputs"] if ours.get(name) is not None}


def main() -> None:
    """Compare all cases of a folder, print what is wrong, and write the record."""
    rows, totals = [], collections.Counter[Outcome]()
    for file in sorted(Path(sys.argv[1]).glob("*.npz")):
        with tempfile.TemporaryDirectory() as folder:
            sweep, counts = Sweep(file, Path(folder)), collections.Counter[Outcome]()
            for entry in sweep.about["entries"]:
                outcome, reason = sweep.compare(entry)
                counts[outcome] += 1
                if outcome in (Outcome.WRONG, Outcome.TRACEBACK, Outcome.NEEDLESSLY_REFUSED):
                    value = shorten_value(entry["value"])
                    print(f"{file.stem}: {entry['key']}={value}: {outcome.value}: {reason}", flush=True)
        print(file.stem, {outcome.value: count for outcome, count in counts.items()}, flush=True)
        rows.append((file.stem.replace("+", " "), counts))
        totals += counts
    read = totals.total() - totals[Outcome.NO_MODEL]
    needless = totals[Outcome.NEEDLESSLY_REFUSED]
    lines = [
        "# Every key of config.json beside transformers",
        "",
        f"Commit: `{current_commit()}`. Written by `make hf`: transformers 5.24.0, torch 2.13.0, on a CPU, in float32.",
        f"Every key of a small config.json is varied by itself: {totals.total():,} variations, {len(rows)} case(s).",
        f"transformers makes a model of {read:,} of them. {totals[Outcome.WRONG]} are read as other models than there,",
        f"{totals[Outcome.TRACEBACK]} end in a traceback. {totals[Outcome.WRONG_KIND]} have a value of another kind",
        f"than the class says, which is refused here. {needless} others ({needless / max(read, 1):.1%}) are refused,",
        "although they change no output there.",
        "",
        "| case | equal | refused | without effect there | wrong, or a traceback |",
        "| --- | --- | --- | --- | --- |",
    ]
    for case, counts in rows:
        faults = counts[Outcome.WRONG] + counts[Outcome.TRACEBACK]
        refused = counts[Outcome.REFUSED] + counts[Outcome.WRONG_KIND]
        without_effect = counts[Outcome.NEEDLESSLY_REFUSED]
        lines.append(f"| {case} | {counts[Outcome.EQUAL]} | {refused} | {without_effect} | {faults} |")
    RECORD.write_text("\n".join(lines) + "\n")
    sys.exit(1 if totals[Outcome.WRONG] + totals[Outcome.TRACEBACK] else 0)


if __name__ == "__main__":
    main()
