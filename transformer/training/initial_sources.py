"""Where the first values of a run come from: a checkpoint of another run, or a folder as Hugging Face publishes models.

Of both their arrays are known by path and shape before any is read. A run's model is not built: its family and its
task need not be known to this library.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from transformer.config import UserError, from_config, nearest
from transformer.data.any_tokenizer import AnyTokenizer, load_tokenizer
from transformer.data.tokenizer import FILE, saved_in
from transformer.data.tokenizer_foreign import from_huggingface
from transformer.interop.huggingface import Published, open_folder
from transformer.json_files import read_object
from transformer.layers.lora import LoraConfig
from transformer.models.paths import by_path
from transformer.runs.checkpoint import Checkpoints, StoredLeaf
from transformer.runs.directory import RunDirectory, check_files
from transformer.storage import locate, storage_of
from transformer.training.initialisation_plan import Leaf
from transformer.training.state import AVERAGES, PARAMS, STATE

Wanted = Mapping[str, jax.ShapeDtypeStruct]


class Source(NamedTuple):
    """A model's arrays by their paths in rules, and `read(wanted)`, which places those of some paths.

    `said` is what a report calls it, at `step` of a run (a folder: none). `averaged` are the paths whose values are an
    average's, `lora` says how what is beside its matrices is scaled, `notes` what a person should know of it.
    """

    said: str
    step: int | None
    leaves: Mapping[str, Leaf]
    read: Callable[[Wanted], dict[str, jax.Array]]
    averaged: frozenset[str] = frozenset()
    lora: LoraConfig | None = None
    notes: tuple[str, ...] = ()


def open_source(run: str, step: int | None, average: str, workdir: Path | None) -> Source:
    """The source that config.initialise_from names; no array is read.

    Errors: UserError for a run or folder that is missing or unreadable, that is `workdir` itself, and for a step or
    an average that it lacks.
    """
    path = located(run, workdir)
    if not is_published(path):
        return _of_run(path, run, step, average, workdir)
    for key, given in (("step", step), ("average", average)):
        if given not in (None, ""):
            raise UserError(
                f"config.initialise_from.{key}={given!r} is of runs: {run} is a published model, which has none"
            )
    return _of_folder(path, run, workdir)


def located(run: str, workdir: Path | None) -> Path:
    """The run directory or folder of this name."""
    path = locate(run)
    if workdir is not None and path.resolve() == locate(workdir).resolve():
        raise UserError(f"config.initialise_from.run={run} is this very run: name another")
    try:
        storage_of(path).reach(path)
        recorded = RunDirectory(path).is_run()
    except OSError as error:
        raise UserError(f"config.initialise_from.run={run} cannot be read: {error.strerror or error}") from error
    if not recorded:
        what = "is no run directory: it has no config.json" if path.is_dir() else "is missing"
        raise UserError(
            f"config.initialise_from.run={run} {what}; name the --workdir of a run, or a folder with config.json and "
            "model.safetensors"
        )
    return path


def is_published(path: Path) -> bool:
    """Whether this is a folder of Hugging Face's: its config.json names a model_type, a run's has none."""
    file = RunDirectory(path).config_file
    return file.exists() and "model_type" in read_object(file)  # a run may have lost its own


def tokenizer_of(run: str, workdir: Path) -> AnyTokenizer:
    """The tokenizer of the source of this name.

    Errors: UserError for a source that is missing, or has no tokenizer.
    """
    path = located(run, workdir)
    if is_published(path):
        return from_huggingface(path)
    if not saved_in(path):
        raise UserError(f"config.initialise_from.tokenizer=True, but {run} holds no tokenizer")
    return load_tokenizer(path)


def _of_run(path: Path, run: str, step: int | None, average: str, workdir: Path | None) -> Source:
    with _reading(path, run) as checkpoints:
        steps = checkpoints.steps()
        if not steps:
            raise UserError(f"config.initialise_from.run={run} has no checkpoint yet; {_HOW}")
        at = steps[-1] if step is None else step
        if at not in steps:
            raise UserError(f"config.initialise_from.step={step}: {run} has checkpoints of {steps} alone")
        stored = checkpoints.leaves(at)
    names = _names(stored, run, average)

    def read(wanted: Wanted) -> dict[str, jax.Array]:
        with _reading(path, run) as checkpoints:
            found = checkpoints.restore_leaves(at, {names[source]: leaf for source, leaf in wanted.items()})
        return {source: found[names[source]] for source in wanted}

    leaves = {source: Leaf(stored[name].shape, stored[name].dtype) for source, name in names.items()}
    averaged = frozenset(source for source, name in names.items() if name.startswith(AVERAGES))
    return Source(f"{run} at step {at}", at, leaves, read, averaged, _lora_of(path), _notes(path, workdir))


_HOW = "train it, or make a run of published weights with python -m launch.convert --from=FOLDER --workdir=RUN"


@contextlib.contextmanager
def _reading(path: Path, run: str) -> Iterator[Checkpoints]:
    checkpoints = RunDirectory(path).checkpoints
    if not checkpoints.is_dir():
        raise UserError(f"config.initialise_from.run={run} has no checkpoint yet; {_HOW}")
    check_files(path)
    with Checkpoints.reading(checkpoints) as reader:
        yield reader


def _names(leaves: Mapping[str, StoredLeaf], run: str, average: str) -> dict[str, str]:
    """The names of the checkpoint's leaves that can be taken, by their paths in rules."""
    names = {name.removeprefix(PARAMS): name for name in leaves if name.startswith(PARAMS)}
    if average:
        averages = sorted({name.split("/")[1] for name in leaves if name.startswith(AVERAGES)})
        if average not in averages:
            near = nearest(average, averages) if averages else "it has none"
            raise UserError(f"config.initialise_from.average={average!r} is no average of {run}: {near}")
        inside = f"{AVERAGES}{average}/"
        names |= {path: f"{inside}{path}" for path in names if f"{inside}{path}" in leaves}
    return names | {f"state/{name.removeprefix(STATE)}": name for name in leaves if name.startswith(STATE)}


def _lora_of(path: Path) -> LoraConfig | None:
    """How a run scales what it has learned beside its matrices, where its model is one that may have such."""
    model = RunDirectory(path).config().get("model", {})
    given = model.get("lora") if isinstance(model, Mapping) else None
    return None if not given or not given.get("rank") else from_config(LoraConfig, given, "config.model.lora")


def _notes(path: Path, workdir: Path | None) -> tuple[str, ...]:
    """A warning where the tokenizers differ: rows of a table of tokens are matched by number."""
    files = [folder / FILE for folder in (path, locate(workdir or path))]
    differ = all(file.is_file() for file in files) and files[0].read_bytes() != files[1].read_bytes()
    return (_another_tokenizer(path),) if differ else ()


def _another_tokenizer(path: Path) -> str:
    return (
        f"{path} has another tokenizer: row n of a table of tokens that was loaded was another token's "
        "(config.initialise_from.tokenizer=True brings it along)"
    )


def _of_folder(path: Path, run: str, workdir: Path | None) -> Source:
    try:
        published = open_folder(path)
    except UserError as error:
        raise UserError(f"config.initialise_from.run: {error}") from error
    arrays: dict[str, np.ndarray] = {}

    def read(wanted: Wanted) -> dict[str, jax.Array]:
        if not arrays:
            arrays.update(by_path(published.read()))
        return {source: _placed(arrays[source], leaf) for source, leaf in wanted.items()}

    leaves = {name: Leaf(tuple(leaf.shape), "float32") for name, leaf in by_path(published.shapes).items()}
    said = f"{run}, a {published.config['model_type']} model as Hugging Face publishes it"
    notes = (*published.notes, *_notes_of_folder(path, published, workdir))
    return Source(said, None, leaves, read, notes=notes)


def _placed(array: np.ndarray, leaf: jax.ShapeDtypeStruct) -> jax.Array:
    if leaf.sharding is None:
        return jax.numpy.asarray(array)
    return jax.make_array_from_callback(array.shape, leaf.sharding, array.__getitem__)


def _notes_of_folder(path: Path, published: Published, workdir: Path | None) -> tuple[str, ...]:
    if workdir is None or "picture" in published.interface.inputs or not saved_in(workdir):
        return ()
    theirs, ours = (
        (each.vocabulary, each.pieces(range(each.vocabulary)))
        for each in (from_huggingface(path), load_tokenizer(workdir))
    )
    return () if theirs == ours else (_another_tokenizer(path),)
