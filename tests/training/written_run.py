"""A run that was never trained: its directory with one checkpoint, of parameters and averages that a test gives."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from transformer.huggingface.convert import CONVERSIONS
from transformer.models import model as models
from transformer.models.model import leaves_by_path
from transformer.runs.checkpoint import Checkpoints
from transformer.runs.run_directory import RunDirectory
from transformer.training.build import build_components
from transformer.training.checkpoint_metadata import collect_metadata
from transformer.training.config import changeable_keys, resolve_config
from transformer.training.partitioning import single_device_placement
from transformer.training.state import TrainState

MODEL, _ = CONVERSIONS["gpt2"].convert_config(
    {"model_type": "gpt2", "vocab_size": 128, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 36}, frozenset()
)
CONFIG: dict[str, Any] = {
    "name": "written",
    "steps": 1,
    "task": {
        "name": "language_modeling",
        "dataset": str(Path(__file__).resolve().parents[2] / "LICENSE"),
        "tokenizer": "characters",
        "context_length": 32,
        "batch_size": 8,
        "num_probe_examples": 3,
        "probe_length": 12,
    },
    "model": MODEL,
    "optimizer": {},
}
"""Of a model that GPT-2's arrangement can express."""


def write_run(path: Path, config: dict[str, Any], changed: Callable[[TrainState], TrainState]) -> Path:
    """Save what `changed` makes of the first state as the checkpoint of step 0."""
    experiment = resolve_config(config)
    with RunDirectory.claim(path, experiment.to_config(), may_change=changeable_keys(experiment)) as directory:
        setting = build_components(experiment, directory.path, single_device_placement())
        state = changed(setting.init_state(jax.random.key(0)))
        with contextlib.closing(Checkpoints(directory.checkpoints_dir, 1)) as checkpoints:
            checkpoints.save(0, state, collect_metadata(experiment, setting, directory))
    return path


def drawn(params: Any, seed: int) -> Any:
    """Parameters of these shapes, large enough that no head is uniform."""
    random = np.random.default_rng(seed)
    return jax.tree.map(
        lambda leaf: jax.device_put(random.normal(0, 0.5, leaf.shape).astype(leaf.dtype), leaf.sharding), params
    )


def with_params(seed: int) -> Callable[[TrainState], TrainState]:
    """A state of drawn parameters."""

    def changed(state: TrainState) -> TrainState:
        params = drawn(state.variables.params, seed)
        return state._replace(variables=state.variables._replace(params=params))

    return changed


def with_average(name: str, seed: int) -> Callable[[TrainState], TrainState]:
    """A state whose parameters, with the average's in their place, are those of `with_params(seed)`."""

    def changed(state: TrainState) -> TrainState:
        wanted, others = (drawn(state.variables.params, number) for number in (seed, seed + 1))
        average = {path: leaf for path, leaf in leaves_by_path(wanted).items() if path in state.averages[name]}
        params = models.replace_with_averaged(wanted, {path: leaves_by_path(others)[path] for path in average})
        return state._replace(variables=state.variables._replace(params=params), averages={name: average})

    return changed
