"""Run directories from published models, and published models from run directories."""

import contextlib
import dataclasses
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from transformer.config import UserError
from transformer.data.any_tokenizer import AnyTokenizer, load_tokenizer
from transformer.data.tokenizer import Tokenizer, saved_in
from transformer.data.tokenizer_foreign import from_huggingface
from transformer.interop.huggingface import Foreign, build_model, read_config, read_folder, write_folder
from transformer.models.contract import PyTree, count_parameters
from transformer.runs.checkpoint import Checkpoints
from transformer.runs.directory import RunDirectory, write_json
from transformer.training.assembly import assemble
from transformer.training.experiment import Experiment, changeable, resolve
from transformer.training.mesh import one_device
from transformer.training.provenance import provenance
from transformer.training.reading import open_run

TASKS = {
    "decoder": "language_modelling",
    "encoder": "masked_language_modelling",
    "encoder_decoder": "translation",
}
"""What a model of a family is trained on further."""

_TOKENIZER_FILES = ("tokenizer.json", "source.spm", "target.spm", "vocab.json")
_SPECIAL = {
    "pad": ("pad_token",),
    "begin": ("bos_token", "cls_token"),
    "end": ("eos_token", "sep_token"),
    "unknown": ("unk_token",),
    "mask": ("mask_token",),
}


@dataclasses.dataclass(frozen=True)
class Fitting:
    """How a converted model is trained further: its data, batches and steps.

    `context` is the greatest length of a text in tokens, at most the model's own; `rows` such texts fill a batch.
    Absent values are the task's own.
    """

    dataset: str | None = None
    data_dir: str | None = None
    test: str | None = None
    context: int = 128
    rows: int = 16
    steps: int = 1000
    learning_rate: float = 5e-5
    seed: int = 0

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise UserError(f"--rows={self.rows} must be at least 1")
        if self.context < 2:
            raise UserError(f"--context={self.context} must be at least 2 tokens")


@dataclasses.dataclass(frozen=True)
class Converted:
    """The result of a conversion: the task or the other library's family, the parameters, and notes for the user."""

    kind: str
    parameters: int
    notes: tuple[str, ...] = ()


def import_run(source: Path, workdir: Path, fitting: Fitting) -> Converted:
    """Make a run directory of a Hugging Face folder: its config, its tokenizer, and a checkpoint at step 0.

    Errors: UserError for a folder that cannot be read, data that is missing, or a run directory that is not empty.
    """
    # A refused start leaves a lock file, which does not count.
    if workdir.exists() and (not workdir.is_dir() or {entry.name for entry in workdir.iterdir()} - {"lock"}):
        raise UserError(f"--workdir={workdir} exists and is not empty; name a new directory")
    read_config(source)  # says of what is no such folder more than the tokenizer's absence does
    tokenizer = from_huggingface(source)
    foreign = read_folder(source)
    experiment = resolve(config_of(foreign, tokenizer, fitting, name=workdir.resolve().name))
    with RunDirectory.claim(workdir, experiment.to_config(), may_change=changeable(experiment)) as directory:
        try:
            # First: without its checkpoint, whatever became of that, it is refused instead of trained from the start.
            directory.record(converted={"model_type": foreign.config["model_type"], "notes": foreign.notes})
            tokenizer.save(directory.path)
            parameters = _save_start(experiment, directory, foreign.params, fitting.seed)
        except BaseException:
            if not directory.checkpoints.exists():
                directory.abandon()
            raise
    return Converted(TASKS[foreign.model["family"]], parameters, tuple(foreign.notes))


def _save_start(experiment: Experiment, directory: RunDirectory, params: PyTree, seed: int) -> int:
    """Save the state before the first step, with these parameters; return their number."""
    assembly = assemble(experiment, directory.path, one_device())
    state = assembly.initialise(jax.random.key(seed))
    placed = jax.tree.map(
        lambda leaf, given: jax.device_put(given, leaf.sharding), assembly.abstract.variables.params, params
    )
    state = state._replace(variables=state.variables._replace(params=placed))
    with contextlib.closing(Checkpoints(directory.checkpoints, experiment.run.keep)) as checkpoints:
        checkpoints.save(0, state, provenance(experiment, assembly, directory))
    count = count_parameters(placed)
    directory.record(parameters=count)
    return count


def config_of(foreign: Foreign, tokenizer: AnyTokenizer, fitting: Fitting, *, name: str) -> dict[str, Any]:
    """The config of a run that trains a model further.

    Errors: UserError for a tokenizer with more tokens than the model.
    """
    model, rows = foreign.model, foreign.model["embedding_rows"]
    if tokenizer.vocabulary > rows:
        raise UserError(f"the tokenizer has {tokenizer.vocabulary} tokens, more than the model's vocab_size={rows}")
    context = min(fitting.context, model["max_length"])
    return {
        "name": name,
        "seed": fitting.seed,
        "steps": fitting.steps,
        "task": _task(TASKS[model["family"]], context, fitting),
        "model": model,
        # A schedule without an end allows more steps later.
        "optimizer": {
            "algorithm": "adamw",
            "learning_rate": fitting.learning_rate,
            "schedule": "constant",
            "warmup": min(100, fitting.steps),
            "beta2": 0.999,
            "epsilon": 1e-8,
            "weight_decay": 0.01,
            "clip_norm": 1.0,
        },
    }


def _task(name: str, context: int, fitting: Fitting) -> dict[str, Any]:
    given = {"dataset": fitting.dataset, "data_dir": fitting.data_dir, "test": fitting.test}
    task = {"name": name, **{key: value for key, value in given.items() if value is not None}}
    if name == "translation":
        lengths = tuple(length for length in (32, 64) if length < context)
        return {**task, "lengths": (*lengths, context), "tokens_per_batch": fitting.rows * context}
    return {**task, "tokenizer": "given", "context": context, "rows": fitting.rows}


def export_run(workdir: Path, target: Path, step: int | None = None) -> Converted:
    """Write a run's parameters, config.json and tokenizer as Hugging Face publishes them.

    Errors: UserError for a folder that is no run, a step without a checkpoint, and a model that Hugging Face has no
    class for, naming what it cannot express.
    """
    run = open_run(workdir)
    directory, experiment = run
    if not saved_in(directory.path):
        raise UserError(f"{workdir} holds no tokenizer, and so does not say how many tokens its model has")
    tokenizer = load_tokenizer(directory.path)
    model = build_model(experiment.model, experiment.model.rows(tokenizer.vocabulary), experiment.precision)
    shapes = model.functional.shapes()
    step, params = run.restored(
        step, lambda checkpoints, at: checkpoints.restore_part(at, shapes, ("variables", "params"))
    )
    family = write_folder(target, experiment.model, params, _token_keys(experiment, tokenizer))
    _write_tokenizer(directory.path, target, tokenizer, experiment.model.max_length)
    return Converted(family.model_type, count_parameters(params), (f"step {step}",))


def _token_keys(experiment: Experiment, tokenizer: AnyTokenizer) -> dict[str, int | None]:
    keys = {"pad_token_id": tokenizer.pad, "eos_token_id": tokenizer.end}
    if hasattr(experiment.model, "decoder_layers"):
        return {**keys, "decoder_start_token_id": tokenizer.begin}
    return {**keys, "bos_token_id": tokenizer.begin}


def _write_tokenizer(run: Path, target: Path, tokenizer: AnyTokenizer, max_length: int) -> None:
    for name in _TOKENIZER_FILES:
        if (run / name).is_file():
            shutil.copyfile(run / name, target / name)
    if isinstance(tokenizer, Tokenizer):
        write_json(target / "tokenizer_config.json", tokenizer_config(tokenizer, max_length))


def tokenizer_config(tokenizer: Tokenizer, max_length: int) -> Mapping[str, Any]:
    """The content of tokenizer_config.json: the special tokens by role."""
    tokens = {role: getattr(tokenizer, role) for role in _SPECIAL}
    texts = {role: tokenizer.backend.id_to_token(number) for role, number in tokens.items() if number is not None}
    # config.json may name a token number that the tokenizer lacks.
    roles = {name: text for role, text in texts.items() if text is not None for name in _SPECIAL[role]}
    return {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": max_length, **roles}
