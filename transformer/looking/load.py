"""Loading a model to look at: a run's checkpoint, or a folder as Hugging Face publishes models. No data are opened."""

import contextlib
import dataclasses
import logging
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import jax

from transformer.config import UserError
from transformer.interop.huggingface import read_config, read_folder
from transformer.looking.loaded import Loaded
from transformer.models import registry as models
from transformer.models.contract import Model, Variables
from transformer.runs.checkpoint import Checkpoints
from transformer.runs.directory import RunDirectory
from transformer.storage import locate
from transformer.tasks import registry as tasks
from transformer.tasks.contract import Reader
from transformer.training.conversion import Fitting, config_of, kept_of
from transformer.training.experiment import Experiment, resolve
from transformer.training.reading import open_run


def load(source: str | Path, *, step: int | None = None, trust: Collection[str] = ()) -> Loaded:
    """The model of a run directory, or of a folder with config.json, model.safetensors and, of texts, a tokenizer.

    `step` is a run's checkpoint, by default the newest sound one; its parameters are those that the run is judged by
    (`Experiment.evaluated_parameters`). `trust` are the dotted paths of your own modules that a run's config may name
    as code. Nothing is downloaded, and nothing of the folder is run.

    Errors: UserError for what is neither, a model that cannot be read, and a run whose task reads no sentences.
    """
    folder = locate(source)
    run = RunDirectory(folder)
    config = run.config() if run.is_run() and not run.config_file.exists() else read_config(folder)
    if "model_type" not in config:
        if "task" not in config:
            raise UserError(f"{source} is neither a run nor a published model: its config.json has no model_type")
        return _of_run(folder, step, trust)
    if step is not None:
        raise UserError(f"step={step} is of a run's checkpoints: {source} is a published model, which has none")
    return _of_published(folder)


def _of_published(folder: Path) -> Loaded:
    foreign = read_folder(folder)
    kept = kept_of(folder, foreign)
    experiment = resolve(config_of(foreign, kept, Fitting(), name=folder.resolve().name))
    model = _model(experiment, kept)
    params = jax.tree.map(jax.numpy.asarray, foreign.params)
    state = model.functional.bind(params).initial_state(jax.random.key(0))
    return Loaded(experiment, model, Variables(params, state), kept, foreign.config, 0, tuple(foreign.notes))


def _of_run(folder: Path, step: int | None, trust: Collection[str]) -> Loaded:
    run = open_run(folder, trust)
    experiment, path = run.experiment, run.directory.path
    kept = _reader(experiment).kept(path)
    model = _model(experiment, kept)
    shapes = jax.eval_shape(model.init, jax.random.key(0))

    def read(checkpoints: Checkpoints, at: int) -> Variables:
        state = checkpoints.restore_part(at, shapes.state, ("variables", "state"))
        return Variables(run.evaluated(checkpoints, at, shapes.params), state)

    with _quiet():
        step, variables = run.restored(step, read)
    return Loaded(experiment, model, variables, kept, experiment.to_config(), step)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings of orbax that a checkpoint is only read; they go through absl's logger."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _reader(experiment: Experiment) -> Reader:
    name = tasks.name_of(experiment.task)
    reader = tasks.TASKS[name].reader
    if reader is None:
        raise UserError(f"this run's task, {name}, reads no sentences: open its maps with transformer.maps.open")
    return reader


def _model(experiment: Experiment, kept: Any) -> Model:
    interface = _reader(experiment).interface(experiment.task, kept)
    # Nothing is predicted: a model without the head of the task, such as a bare encoder, will do.
    return models.build(experiment.model, dataclasses.replace(interface, output=None), experiment.precision)
