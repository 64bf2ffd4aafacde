"""The first layers of a stack frozen: bit for bit as they were, without optimizer state, and others trained as ever."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from transformer.config import UserError
from transformer.models.model import leaves_by_path
from transformer.training.build import TrainingComponents, build_components, make_jitted_train_step
from transformer.training.config import resolve_config
from transformer.training.partitioning import single_device_placement

SIZES = {"dropout": 0.0, "width": 8, "heads": 2, "feed_forward": 8, "max_length": 16}
TASKS: dict[str, dict[str, Any]] = {
    "decoder": {"name": "language_modeling", "dataset": "repeated", "context_length": 8, "batch_size": 2},
    "encoder": {"name": "classification", "vocab_size": 32, "bucket_lengths": (8,), "batch_size": 2},
    "encoder_decoder": {"name": "translation", "vocab_size": 32, "bucket_lengths": (8,), "tokens_per_batch": 16},
}
DEPTHS = {
    "decoder": {"layers": 3},
    "encoder": {"layers": 3, "head": "classes"},
    "encoder_decoder": {"encoder_layers": 2, "decoder_layers": 3},
}
STACKS = {"layers": 3, "encoder": 2, "decoder": 3}


def components(family: str, optimizer: dict[str, Any], **model: Any) -> tuple[Any, TrainingComponents]:
    experiment = resolve_config(
        {
            "name": "frozen",
            "steps": 2,
            "log_every": 1,
            "checkpoint_every": 2,
            "task": TASKS[family],
            "model": {"family": family, **SIZES, **DEPTHS[family], **model},
            "optimizer": {"learning_rate": 0.1, "schedule": "constant", "warmup_steps": 0, **optimizer},
        }
    )
    return experiment, build_components(experiment, Path(), single_device_placement(), synthetic=True)


def train(family: str, optimizer: dict[str, Any], **model: Any) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """The parameters by path before and after a step, and the state after it."""
    experiment, parts = components(family, optimizer, **model)
    start = parts.init_state(jax.random.key(0))
    before = {path: np.asarray(leaf) for path, leaf in leaves_by_path(start.variables.params).items()}
    step = make_jitted_train_step(experiment, parts)
    state, metrics = step(start, parts.task.training_batches(0)[0])
    assert np.isfinite(float(metrics.values["loss"] if "loss" in metrics.values else metrics.values["update_norm"]))
    return before, {path: np.asarray(leaf) for path, leaf in leaves_by_path(state.variables.params).items()}, state


def front(path: str) -> bool:
    return path.split("/")[0] in ("embedding", "positions", "types", "embedding_norm")


@pytest.mark.parametrize(
    ("family", "model"),
    [("decoder", {}), ("decoder", {"scan_unroll": 3}), ("encoder", {}), ("encoder_decoder", {})],
)
def test_the_first_layers_keep_their_bits_and_the_others_train(family: str, model: dict[str, Any]) -> None:
    adamw = {"algorithm": "adamw", "weight_decay": 0.5, "clip_norm": 1.0, "frozen_layers": 2}
    before, after, state = train(family, adamw, **model)
    state_shapes = {name: leaf.shape for name, leaf in leaves_by_path(state.optimizers).items()}
    for path, first in before.items():
        layers = STACKS.get(path.split("/")[0], 0)
        frozen = 2 if layers else len(first) if front(path) else 0
        np.testing.assert_array_equal(after[path][:frozen], first[:frozen], err_msg=path)
        moments = [shape for name, shape in state_shapes.items() if name.partition("mu/")[2] == path]
        if front(path) or layers == 2:
            assert moments == []
        elif layers:
            assert moments == [(layers - 2, *first.shape[1:])]
            if path.endswith("kernel"):
                assert (after[path][2:] != first[2:]).all(), path
        else:
            assert moments == [first.shape]


def test_the_layers_above_learn_what_they_would_learn_without_frozen_ones() -> None:
    sgd = {"algorithm": "sgd", "beta1": 0.0, "layer_decay": 0.5}
    before, whole, _ = train("decoder", sgd)
    same, frozen, _ = train("decoder", {**sgd, "frozen_layers": 1})
    for path, first in before.items():
        np.testing.assert_array_equal(same[path], first)
        changed = slice(1, None) if path.startswith("layers/") else slice(0, 0) if front(path) else slice(None)
        np.testing.assert_allclose(frozen[path][changed], whole[path][changed], rtol=1e-6, atol=1e-7, err_msg=path)


@pytest.mark.parametrize(
    ("family", "model", "number", "says"),
    [
        ("decoder", {}, 4, r"frozen_layers=4 is more than the 3 layers of layers: say at most so many"),
        ("encoder_decoder", {}, 3, r"frozen_layers=3 is more than the 2 layers of encoder"),
        (
            "decoder",
            {"layers": 6, "experts": {"count": 3, "every_n_layers": 3}},
            4,
            r"frozen_layers=4 divides the layers of layers, which are stored in groups of 3: say a multiple",
        ),
    ],
)
def test_layers_that_cannot_be_frozen_are_refused_by_name(
    family: str, model: dict[str, Any], number: int, says: str
) -> None:
    with pytest.raises(UserError, match=says) as refused:
        components(family, {"frozen_layers": number}, **model)
    assert "\n" not in str(refused.value)


def test_a_model_without_stacked_layers_has_no_first_ones() -> None:
    recurrent = {"family": "recurrent_encoder_decoder", "width": 4, "embedding_width": 4}
    experiment = resolve_config(
        {
            "name": "frozen",
            "steps": 1,
            "task": TASKS["encoder_decoder"],
            "model": recurrent,
            "optimizer": {"frozen_layers": 1},
        }
    )
    with pytest.raises(UserError, match=r"frozen_layers=1 needs a model of stacked layers, and this one has none: say"):
        build_components(experiment, Path(), single_device_placement(), synthetic=True)
