"""Loading a model to look into: a run's checkpoint, or a folder as Hugging Face publishes them. No data are opened."""

import contextlib
import dataclasses
import html
import logging
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from transformer.attention.capture import Capture
from transformer.attention.sites import Site
from transformer.config import UserError, hash_config
from transformer.huggingface.convert import read_config, read_model_folder
from transformer.interpret.named_maps import Maps, maps_of
from transformer.interpret.show import AttentionPage, in_notebook
from transformer.maps.report.page import DEFAULT_BUDGET, render_single_text
from transformer.maps.report.single_text import Look, store_single_text
from transformer.maps.report.value_norms import check_size, value_norms
from transformer.models import registry as models
from transformer.models.model import Model, Variables, count_parameters
from transformer.models.registry import name_of
from transformer.runs.checkpoint import Checkpoints
from transformer.runs.run_directory import RunDirectory
from transformer.storage.paths import parse_path
from transformer.tasks import registry as tasks
from transformer.tasks.base_task import make_capture
from transformer.tasks.task import EncodedInputs, InputReader, InputTexts, StateView
from transformer.training.config import ExperimentConfig, resolve_config
from transformer.training.huggingface_conversion import FineTuning, fine_tuning_config, load_preprocessing
from transformer.training.run_loading import open_run

Texts = str | Sequence[str]
TITLE = 200  # characters


@dataclasses.dataclass(frozen=True, repr=False)
class Loaded:
    """A model as `transformer.load` returns it: `look` at a sentence, or `run_with_maps`.

    `kept` is what it reads sentences by, its tokenizer; a model of images, which reads the files that the sentences
    name, has their size and classes. `config` is what the page shows of it, a run's config or a published model's;
    `step` the checkpoint's; `notes` say what of a published model was passed over or read in another type.
    """

    experiment: ExperimentConfig
    model: Model
    variables: Variables
    kept: Any
    config: Mapping[str, Any]
    step: int = 0
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The run's name, or the folder's."""
        return self.experiment.run.name

    @property
    def sites(self) -> tuple[Site, ...]:
        """Where the model attends."""
        return self.model.sites

    @property
    def parameters(self) -> int:
        """The number of parameters."""
        return count_parameters(self.variables.params)

    def look(
        self,
        text: Texts,
        target: Texts | None = None,
        *,
        language: str | None = None,
        page: str | Path | None = None,
        budget: int = DEFAULT_BUDGET,
        vectors: bool = False,
    ) -> AttentionPage:
        """The page of what every head attends to in a text, or in several.

        In a notebook it is shown in place. Elsewhere, and where `page` names one, it is written to a file, whose path
        is printed. A model of two sides reads `target` as its own answer; without one it answers itself, in
        `language` where it knows several. With `vectors` the page also has every query and key, and shows of a head
        how their components make a logit: for a short text, since they are as large as the model is wide.

        Raises:
            UserError: For a text that is empty or longer than the model's positions, for a target that the model has no
                place for, and for a page that cannot be written.
        """
        reading, titles = self._read(text, target, language)
        labels = dataclasses.replace(reading.labels, titles=titles)
        look = self._looking(reading, vectors)
        if vectors:
            names = tuple(site.name for site in self.sites)
            check_size(jax.eval_shape(lambda: look(Capture(names, maps=False))))
        settings = (self.experiment.maps, hash_config(self.config))
        with tempfile.TemporaryDirectory() as folder:
            store, captured = store_single_text(Path(folder) / "maps", self.sites, labels, look, *settings)
            facts = value_norms(self.sites, store.labels, captured, vectors)
            written = render_single_text(store, self.name, self.config, self.parameters, budget, beneath=facts)
        looked = AttentionPage(" / ".join(titles), written)
        return looked if page is None and in_notebook() else looked.saved(page)

    def _looking(self, reading: EncodedInputs, vectors: bool) -> Look:
        """A pass over what was read that also captures what lies beneath the maps."""
        look = make_capture(self._view(), reading.inputs, method=reading.method)
        return lambda capture: look(dataclasses.replace(capture, norms=True, vectors=vectors))

    def run_with_maps(self, text: Texts, target: Texts | None = None, *, language: str | None = None) -> Maps:
        """The weights of every head as named arrays: by site, then by layer, [example, head, query, key].

        Raises:
            UserError: As `look`
            UserError: For a model without attention.
        """
        if not self.sites:
            raise UserError(f"{self.name} is a model without attention: it has no maps")
        reading, _ = self._read(text, target, language)
        capture = Capture(tuple(site.name for site in self.sites))
        captured = make_capture(self._view(), reading.inputs, method=reading.method)(capture)
        return maps_of(self.sites, reading.labels.completed(self.sites), captured)

    def _read(self, text: Texts, target: Texts | None, language: str | None) -> tuple[EncodedInputs, tuple[str, ...]]:
        """The texts as the model reads them, and how they are called."""
        reader = tasks.TASKS[tasks.name_of(self.experiment.task)].reader
        assert reader is not None  # as load has seen
        texts, targets = _as_tuple(text), None if target is None else _as_tuple(target)
        reading = reader.read(self.experiment.task, self._view(), self.kept, InputTexts(texts, targets, language))
        sides = texts if targets is None else map(" → ".join, zip(texts, targets, strict=True))
        said = (" ".join(each.split()) for each in sides)
        return reading, tuple(each if len(each) <= TITLE else f"{each[: TITLE - 1]}…" for each in said)

    def _view(self) -> StateView:
        return StateView(self.model, self.variables, {}, {}, jnp.int32(self.step), train=False)

    def __repr__(self) -> str:
        heads = sum(len(site.layers) * len(site.heads) for site in self.sites)
        counts = f"{self.parameters:,} parameters, {heads} heads at {', '.join(site.name for site in self.sites)}"
        return f"Loaded({self.name!r}: {name_of(self.experiment.model)}, {counts})"

    def _repr_html_(self) -> str:
        """A table of the sites, as notebooks show it."""
        rows = "".join(
            f"<tr><td>{html.escape(site.name)}</td><td>{len(site.layers)}</td><td>{len(site.heads)}</td></tr>"
            for site in self.sites
        )
        table = f"<table><tr><th>site</th><th>layers</th><th>heads</th></tr>{rows}</table>"
        said = f"{name_of(self.experiment.model)}, {self.parameters:,} parameters"
        calls = "<code>.look(text)</code> shows what every head attends to"
        return f"<p><b>{html.escape(self.name)}</b>: {said}; {calls}</p>{table}"


def load(source: str | Path, *, step: int | None = None, trust: Collection[str] = ()) -> Loaded:
    """The model of a run directory, or of a folder with config.json, model.safetensors and, of texts, a tokenizer.

    `step` is a run's checkpoint, by default the newest sound one; its parameters are those that the run is judged by
    (`ExperimentConfig.eval_parameters`). `trust` are the dotted paths of your own modules that a run's config may name
    as code. Nothing is downloaded, and nothing of the folder is run.

    Raises:
        UserError: For what is neither, a model that cannot be read, and a run whose task reads no sentences.
    """
    folder = parse_path(source)
    run = RunDirectory(folder)
    config = run.config() if run.is_run() and not run.config_file.exists() else read_config(folder)
    if "model_type" not in config:
        if "task" not in config:
            raise UserError(f"{source} is neither a run nor a published model: its config.json has no model_type")
        return _of_run(folder, step, trust)
    if step is not None:
        raise UserError(f"step={step} is of a run's checkpoints: {source} is a published model, which has none")
    return _of_published(folder)


def _as_tuple(texts: Texts) -> tuple[str, ...]:
    return (texts,) if isinstance(texts, str) else tuple(texts)


def _of_published(folder: Path) -> Loaded:
    imported = read_model_folder(folder)
    kept = load_preprocessing(folder, imported)
    experiment = resolve_config(fine_tuning_config(imported, kept, FineTuning(), name=folder.resolve().name))
    model = _model(experiment, kept)
    params = jax.tree.map(jax.numpy.asarray, imported.params)
    state = model.functional.bind(params).initial_state(jax.random.key(0))
    return Loaded(experiment, model, Variables(params, state), kept, imported.config, 0, tuple(imported.notes))


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


def _reader(experiment: ExperimentConfig) -> InputReader:
    name = tasks.name_of(experiment.task)
    reader = tasks.TASKS[name].reader
    if reader is None:
        raise UserError(f"this run's task, {name}, reads no sentences: open its maps with transformer.maps.open")
    return reader


def _model(experiment: ExperimentConfig, kept: Any) -> Model:
    interface = _reader(experiment).interface(experiment.task, kept)
    # Nothing is predicted: a model without the head of the task, such as a bare encoder, will do.
    return models.build(experiment.model, dataclasses.replace(interface, output=None), experiment.precision)
