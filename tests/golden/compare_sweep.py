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
import unittest.mock
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from safetensors.numpy import save_file

from tests.golden.weights import weights_of
from transformer.config import UserError, shorten_value
from transformer.huggingface.convert import PublishedModel, open_model_folder
from transformer.layers.functional_module import Precision
from transformer.models import registry
from transformer.models.model import Model, Variables
from transformer.models.task_interface import TaskInterface
from transformer.runs.run_directory import current_commit

RECORD = Path(__file__).parents[1] / "records" / "hugging_face_sweep.md"
TEXT_PAIRS = {"source": "input_ids", "target": "decoder_input_ids"}
# Of the largest output: some variations have outputs of thousands, and attention to near ties amplifies rounding (a
# Gemma of width 3072 changes by 8e-4 of it if its weights change by 1e-6 of theirs).
TOLERANCE = 2e-3


class Outcome(enum.Enum):
    """What a variation is here, beside transformers."""

    EQUAL = "equal"
    REFUSED = "refused"
    WRONG_KIND = "refused, a value of another kind"
    NEEDLESSLY_REFUSED = "refused, but without effect there"
    NO_MODEL = "no model there"
    WRONG = "wrong in silence"
    TRACEBACK = "traceback"


class Row(NamedTuple):
    """What the record says of one case."""

    variations: int
    no_model: int
    equal: int
    refused: int
    wrong_kind: int
    needless: int
    faults: int
    commit: str


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
            if entry["outputs"] != usual["outputs"] or any(
                usual["uses"][use] != entry["uses"][use] for use in entry["uses"]
            ):
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
            inputs = {name: theirs[key].astype(np.int32) for name, key in TEXT_PAIRS.items()}
            rows = published.model["vocab_size"]
            tokens = {"tokens": rows, "joint": rows, **interface.vocabularies}
            # Token 0 is in none of the texts: there is no padding.
            interface = TaskInterface({}, tokens, 0, self.about["start"], None)
        else:
            ids = theirs["input_ids"].astype(np.int32)
            inputs = {"tokens": ids, "lengths": np.full(len(ids), ids.shape[1], np.int32)}
            interface = dataclasses.replace(interface, bos_id=None)
        section = published.model
        if str(section.get("positions")).startswith("rotary"):
            # Their long texts are longer than the model's length, which rotary positions there do not check.
            section = section | {"max_length": max(section["max_length"], inputs["tokens"].shape[1])}
        model = registry.build(registry.model_config(section), interface, Precision())
        with jax.default_matmul_precision("highest"), jax.disable_jit():
            first, aux = model.apply(Variables(published.read_params(), {}), inputs, train=False)
        ours = {"pooler_output": aux.extras.get("pooled"), "seq_relationship_logits": aux.extras.get("next_sentence")}
        main = next(name for name in ("logits", "prediction_logits", "last_hidden_state") if name in entry["outputs"])
        outputs = {main: np.asarray(first)}
        return outputs | {name: np.asarray(ours[name]) for name in entry["outputs"] if ours.get(name) is not None}


def count_outcomes(file: Path) -> collections.Counter[Outcome]:
    """Return how often each outcome is that of a variation of one case; print what is wrong or needlessly refused."""
    counts = collections.Counter[Outcome]()
    with tempfile.TemporaryDirectory() as folder:
        sweep = Sweep(file, Path(folder))
        for entry in sweep.about["entries"]:
            outcome, reason = sweep.compare(entry)
            counts[outcome] += 1
            if outcome in (Outcome.WRONG, Outcome.TRACEBACK, Outcome.NEEDLESSLY_REFUSED):
                value = shorten_value(entry["value"])
                print(f"{file.stem}: {entry['key']}={value}: {outcome.value}: {reason}", flush=True)
    print(file.stem, {outcome.value: count for outcome, count in counts.items()}, flush=True)
    return counts


def build_each_once(build: Callable[..., Model]) -> Callable[..., Model]:
    """Return `registry.build` with the models that it has built."""
    models: dict[str, Model] = {}

    def build_once(*arguments: Any) -> Model:
        identity = repr(arguments)
        if identity not in models:
            models[identity] = build(*arguments)
        return models[identity]

    return build_once


def read_rows() -> dict[str, Row]:
    """Return the rows of the record by case."""
    lines = RECORD.read_text().splitlines() if RECORD.exists() else []
    cells = [line.strip("| ").split(" | ") for line in lines if line.endswith("` |")]
    return {case: Row(*map(int, counts), commit.removeprefix("commit ").strip("`")) for case, *counts, commit in cells}


def write_record(rows: Mapping[str, Row]) -> None:
    """Write the record: the sums of all cases, and a row for each."""
    variations, no_model, wrong_kind, needless, faults = (
        sum(getattr(row, name) for row in rows.values())
        for name in ("variations", "no_model", "wrong_kind", "needless", "faults")
    )
    read = variations - no_model
    types = {case.split()[0] for case in rows}
    lines = [
        "# Every key of config.json beside transformers",
        "",
        "Written by `make hf`: transformers 5.24.0, torch 2.13.0, on a CPU, in float32. Every key of a small",
        f"config.json is varied by itself: {variations:,} variations of {len(rows)} cases of {len(types)} types.",
        f"transformers makes a model of {read:,} of them. {faults} are read as other models than there, or end in a",
        f"traceback. {wrong_kind:,} have a value of another kind than the class says, which is refused here.",
        f"{needless} others ({needless / max(read, 1):.2%}) are refused, although they change nothing there: no",
        "output, no greedy text of 12 tokens, and no output in training.",
        "",
        f"| case | {' | '.join(name.replace('_', ' ') for name in Row._fields[:-1])} | measured at |",
        f"| {' | '.join('---' for _ in (None, *Row._fields))} |",
        *(
            f"| {case} | {' | '.join(map(str, row[:-1]))} | commit `{row.commit}` |"
            for case, row in sorted(rows.items())
        ),
    ]
    RECORD.write_text("\n".join(lines) + "\n")


def main() -> None:
    """Compare all cases of a folder, print what is wrong, and write their rows into the record; others stay."""
    # Most variations are one of a few models, and the shapes of each take longer than its logits.
    with unittest.mock.patch.object(registry, "build", build_each_once(registry.build)):
        counts_by_case = {
            file.stem.replace("+", " "): count_outcomes(file) for file in sorted(Path(sys.argv[1]).glob("*.npz"))
        }
    commit = current_commit()
    rows = {
        case: Row(
            variations=counts.total(),
            no_model=counts[Outcome.NO_MODEL],
            equal=counts[Outcome.EQUAL],
            refused=counts[Outcome.REFUSED],
            wrong_kind=counts[Outcome.WRONG_KIND],
            needless=counts[Outcome.NEEDLESSLY_REFUSED],
            faults=counts[Outcome.WRONG] + counts[Outcome.TRACEBACK],
            commit=commit,
        )
        for case, counts in counts_by_case.items()
    }
    write_record(read_rows() | rows)
    sys.exit(1 if any(row.faults for row in rows.values()) else 0)


if __name__ == "__main__":
    main()
