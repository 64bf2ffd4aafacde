"""The recorded cases: their arrays, their weights rebuilt, and our model with these weights."""

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import save_file

from tests.golden.extra_conversions import ARRANGEMENTS, family
from tests.golden.weights import weights_of
from transformer.huggingface.convert import open_model_folder
from transformer.huggingface.parameter_conversion import parameter_shapes, plan_file_tensors, tensors_to_params
from transformer.layers.functional_module import Precision
from transformer.models.model import Model, PyTree
from transformer.models.registry import build, model_config
from transformer.models.task_interface import TaskInterface

FOLDER = Path(__file__).with_name("families")
CASES = sorted(path.stem for path in FOLDER.glob("*.npz"))
EXCHANGED = [name for name in CASES if name not in ARRANGEMENTS]


class Recording(NamedTuple):
    """A file: what it says of itself, its arrays, and the weights by the names of the implementation."""

    about: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]
    weights: dict[str, np.ndarray]

    @property
    def config(self) -> dict[str, Any]:
        return dict(self.about["config"])

    def write(self, folder: Path) -> None:
        """Write a folder as Hugging Face would publish it."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config))
        save_file(self.weights, folder / "model.safetensors", {"format": "pt"})


def recording(name: str, folder: Path = FOLDER) -> Recording:
    with np.load(folder / f"{name}.npz") as file:
        arrays = {key: file[key] for key in file.files}
    about = json.loads(str(arrays.pop("about")))
    shapes = {key: tuple(shape) for key, shape in about["shapes"].items()}
    return Recording(about, arrays, weights_of(about["architecture"], shapes, about["seed"]))


@functools.cache
def recorded_heads() -> tuple[Mapping[str, Any], Mapping[str, np.ndarray]]:
    """What heads.npz says of itself, and its arrays."""
    with np.load(Path(__file__).with_name("heads.npz")) as file:
        arrays = {key: file[key] for key in file.files}
    return json.loads(str(arrays.pop("about"))), arrays


def head_recording(case: str) -> Recording:
    """One case of heads.npz, as "gpt2/classes"."""
    about = recorded_heads()[0]["cases"][case]
    arrays = {key.rpartition("/")[2]: value for key, value in recorded_heads()[1].items() if key.startswith(f"{case}/")}
    shapes = {key: tuple(shape) for key, shape in about["shapes"].items()}
    return Recording(about, arrays, weights_of(about["architecture"], shapes, about["seed"]))


def model_of(name: str, recorded: Recording, folder: Path) -> tuple[Model, PyTree]:
    """Our model of a case and its parameters, through a folder where the case is exchanged as one."""
    config = recorded.config
    if name in ARRANGEMENTS:
        entries, section_of, prepared = ARRANGEMENTS[name]
        rows = next(
            len(recorded.weights[entry.tensor_name]) for entry in entries if entry.leaf_paths == ("embedding/table",)
        )
        section = section_of(config) | {"vocab_size": rows}
        bare = TaskInterface({}, {"tokens": rows, "joint": rows}, pad_id=0, bos_id=0, eos_id=0)
        shapes = parameter_shapes(build(model_config(section), bare, Precision()).functional.shapes())
        plan, weights = plan_file_tensors(family(entries), shapes), prepared(recorded.weights)
        assert {planned.tensor_name: planned.shape for planned in plan} == {
            key: value.shape for key, value in weights.items()
        }
        params = tensors_to_params(plan, weights.items())
    else:
        recorded.write(folder)
        foreign = open_model_folder(folder)
        section, params = foreign.model, foreign.read_params()
    rows = section["vocab_size"]
    begin = config.get("decoder_start_token_id", 0)
    interface = TaskInterface({}, {"tokens": rows, "joint": rows}, config.get("pad_token_id"), begin, None)
    return build(model_config(section), interface, Precision()), params
