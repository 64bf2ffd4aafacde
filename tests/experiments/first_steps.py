"""Five steps of every config of the experiments, to the last bit: a file to compare with another commit's.

    python -m tests.experiments.first_steps --out=before.json [--data=FOLDER] [--part=0/2] [--only=TEXT]
    python -m tests.experiments.first_steps --compare before.json after.json

A config whose data set lies in no folder under FOLDER has made-up data of its shapes; one that is too large for a
plain machine is shrunk first, and says so. The rest is what `launch.train` computes on one device.
"""

import argparse
import hashlib
import json
import re
import sys
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from launch.config_files import load_config
from tests.experiments.variants import CHECKOUT, FILES, variants_of
from transformer.config import UserError, flatten_config
from transformer.training.build import TrainingComponents, build_components, flops_counter, make_jitted_train_step
from transformer.training.config import apply_overrides, resolve_config
from transformer.training.partitioning import single_device_placement

STEPS = 5
LARGEST = 10_000_000  # parameters of a model that is run as it is
# The folder of each data set that is not generated, under the folder of all data.
FOLDERS = {
    "multi30k": "multi30k",
    "cifar10-jpg": ".",
    "easy_vqa": "easy-vqa",
    "omniglot": "omniglot",
    "omniglot_characters": "omniglot",
    "fsdd": "fsdd",
    "glue": "glue",
    "tinyshakespeare": "tinyshakespeare",
}
# What a model that is too large is shrunk to, of the keys that have a value.
SMALL: Mapping[str, Any] = {
    "model.size": None,
    "model.layers": 2,
    "model.encoder_layers": 2,
    "model.decoder_layers": 2,
    "model.width": 64,
    "model.heads": 4,
    "model.kv_heads": None,
    "model.head_dim": 16,
    "model.feed_forward": 128,
    "model.vocab_size": None,
    "model.embedding_width": 32,
    "model.channels": (8, 8, 8, 8),
    "task.context_length": 32,
    "task.batch_size": 8,
    "task.tokens_per_batch": 512,
    "task.vocab_size": 512,
    "num_microbatches": 1,
}


def configs() -> list[str]:
    """Every config file of the experiments, with every argument that it takes."""
    return [f"{file.relative_to(CHECKOUT)}{argument}" for file in FILES for argument in variants_of(file)]


def assembled(values: Mapping[str, Any], data: Path | None, folder: Path) -> tuple[Any, TrainingComponents, str]:
    """The experiment with its data if they are there, else with made-up data."""
    name = re.split("[/,]", str(values["task"].get("dataset") or ""))[0]
    found = None if data is None or name not in FOLDERS else data / FOLDERS[name]
    if found is not None and found.is_dir():
        values = apply_overrides(values, {"task.data_dir": str(found)})
    experiment, one_device = resolve_config(values), single_device_placement()
    if name.startswith("wmt14"):
        return experiment, build_components(experiment, folder, one_device, synthetic=True), "made-up data: no download"
    try:
        return experiment, build_components(experiment, folder, one_device), "its data"
    except UserError as refused:
        made_up = build_components(experiment, folder, one_device, synthetic=True)
        return experiment, made_up, f"made-up data: {str(refused)[:120]}"


def parameters_of(components: TrainingComponents) -> int:
    """The number of parameters of a model."""
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(components.abstract_state.variables.params))


def first_steps(name: str, data: Path | None, *, num_steps: int = STEPS, largest: int = LARGEST) -> dict[str, Any]:
    """What the first steps of a config compute: the metrics of each, exactly, and a digest of the last state.

    A model of more than `largest` parameters is shrunk.
    """
    values = load_config(str(CHECKOUT / name)).to_dict()
    flat = flatten_config(resolve_config(values).to_config())
    values.pop("initialize_from", None)  # other runs
    with tempfile.TemporaryDirectory() as folder:
        experiment, components, source = assembled(values, data, Path(folder))
        shrunk = parameters_of(components) > largest
        if shrunk:
            # Channels are one number in some families.
            kept = {
                key: value
                for key, value in SMALL.items()
                if flat.get(key) is not None and not (isinstance(value, tuple) and isinstance(flat[key], int))
            }
            values = apply_overrides(values, kept)
            experiment, components, source = assembled(values, data, Path(folder))
        step = make_jitted_train_step(experiment, components)
        state = components.init_state(jax.random.key(experiment.run.seed))
        batches = components.task.training_batches(experiment.run.seed)
        flops = flops_counter(components)
        steps = []
        for index in range(num_steps):
            batch = batches[index]
            state, metrics = step(state, batch)
            steps.append(
                {
                    jax.tree_util.keystr(path): np.asarray(leaf).tolist()
                    for path, leaf in jax.tree_util.tree_leaves_with_path(metrics)
                    if np.asarray(leaf).size <= 4
                }
                | {"flops": flops(batch)}
            )
        digest = hashlib.sha256()
        for leaf in jax.tree.leaves(state.variables.params):
            digest.update(np.asarray(leaf).tobytes())
    return {
        "source": source,
        "shrunk": shrunk,
        "parameters": parameters_of(components),
        "steps": steps,
        "state": digest.hexdigest(),
    }


def compare(before: Path, after: Path, names: Mapping[str, str]) -> list[str]:
    """What differs between two files, a line each."""
    first, second = (json.loads(path.read_text()) for path in (before, after))
    lines = []
    for name, record in first.items():
        other = second.pop(names.get(name, name), None)
        if other is None:
            lines.append(f"{name}: is in {before} alone")
        elif record != other:
            differing = sorted(key for key in record | other if record.get(key) != other.get(key))
            lines.append(f"{name}: {', '.join(differing)} differ")
    return lines + [f"{name}: is in {after} alone" for name in second]


def main() -> None:
    """Record, or compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--only", default="")
    parser.add_argument("--compare", type=Path, nargs=2)
    parser.add_argument("--names", type=Path, help="a JSON file: what the config files of the first are called later")
    arguments = parser.parse_args()
    if arguments.compare:
        names = json.loads(arguments.names.read_text()) if arguments.names else {}
        lines = compare(*arguments.compare, names)
        print("\n".join(lines) or "equal to the last bit")
        sys.exit(bool(lines))
    part, parts = map(int, arguments.part.split("/"))
    chosen = [name for name in configs() if arguments.only in name][part::parts]
    records = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    for name in chosen:
        if name in records and "error" not in records[name]:
            continue
        try:
            records[name] = first_steps(name, arguments.data)
        except Exception as error:  # told, and the others go on
            traceback.print_exc()
            records[name] = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(name, records[name].get("error") or records[name]["steps"][-1], flush=True)
        arguments.out.write_text(json.dumps(records, indent=1))
        jax.clear_caches()


if __name__ == "__main__":
    main()
