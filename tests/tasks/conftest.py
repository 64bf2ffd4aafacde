"""A small text, and tasks over it with models that were never trained."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from transformer.layers.functional_module import Precision
from transformer.models.registry import build as build_model
from transformer.models.registry import model_config
from transformer.tasks.registry import build_task, task_config
from transformer.tasks.task import StateView

LINE = "The quick brown fox number {0} jumps over {1} lazy dogs, and dog {0} sleeps.\n"
SIZES = {"layers": 2, "width": 16, "heads": 2, "feed_forward": 24, "dropout": 0.0}


@pytest.fixture(scope="session")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "foxes.txt"
    path.write_text("".join(LINE.format(n, n * 7 % 11) for n in range(120)), encoding="utf-8")
    return path


def make_task(path: Path, folder: Path, name: str, **values: Any) -> Any:
    given = {
        "dataset": str(path),
        "tokenizer": "bytes",
        "context_length": 24,
        "batch_size": 4,
        "num_probe_examples": 2,
        "probe_length": 8,
    }
    return build_task(task_config({"name": name, **given, **values}), folder)


def view_of(task: Any, family: str, **values: Any) -> StateView:
    config = model_config({"family": family, "max_length": 64, **SIZES, **values})
    model = build_model(config, task.interface, Precision())
    return StateView(model, jax.jit(model.init)(jax.random.key(0)), {}, {}, jnp.int32(0), train=False)


@pytest.fixture(scope="session")
def language_task(text_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return make_task(text_file, tmp_path_factory.mktemp("language"), "language_modeling", prompts=("The ", "dog"))


@pytest.fixture(scope="session")
def language_view(language_task: Any) -> StateView:
    return view_of(language_task, "decoder")


@pytest.fixture(scope="session")
def masked_task(text_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return make_task(text_file, tmp_path_factory.mktemp("masked"), "masked_lm")


@pytest.fixture(scope="session")
def masked_view(masked_task: Any) -> StateView:
    return view_of(masked_task, "encoder", num_token_types=0, attention_dropout=0.0)
