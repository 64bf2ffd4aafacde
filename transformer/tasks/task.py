"""The interface between a task and the training step, the loop and the commands."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from jaxtyping import Array, Float, Key

from transformer.attention.capture import NOTHING_CAPTURED, Capture, CapturedAttention
from transformer.attention.sites import Site, sites_between
from transformer.config import UserError
from transformer.data.batches import BatchSource
from transformer.models.model import NO_LOSSES, Aux, AuxiliaryLoss, Model, Variables, replace_with_averaged
from transformer.models.task_interface import TaskInterface
from transformer.tasks.axis_labels import AxisLabels

PyTree = Any
Batch = Mapping[str, np.ndarray | Array]


class StateView(NamedTuple):
    """The part of a training state that a loss, an evaluation or a probe may read.

    `capture`: what a loss passes to its model, so that a training step can measure its heads.
    """

    model: Model
    variables: Variables
    averages: Mapping[str, PyTree]
    extra: PyTree
    step: Array
    train: bool
    capture: Capture | None = None

    def averaged(self, name: str) -> Variables:
        """The variables with the parameters of an average, such as a target network, in the place of those trained.

        Raises:
            UserError: For an average that the run does not keep.
        """
        if name not in self.averages:
            raise UserError(
                f"the task reads the average {name!r}, which this run does not keep: say "
                f"config.parameter_averages.{name}="
                "{'kind': 'exponential', 'decay': 0.99}"
            )
        return self.variables._replace(params=replace_with_averaged(self.variables.params, self.averages[name]))


class LossAux(NamedTuple):
    """The result of a loss beside its value.

    `metrics` are linear in the batch and already divided by their totals, so that microbatches add up; `maps`
    is what the model returned for the view's `capture`, sums that add up as well; `losses` are the model's auxiliary
    losses, which the step divides and adds.
    """

    state: PyTree
    extra: PyTree
    metrics: Mapping[str, Float[Array, ""]]
    maps: Mapping[str, CapturedAttention] = NOTHING_CAPTURED
    losses: Mapping[str, AuxiliaryLoss] = NO_LOSSES

    @classmethod
    def of(cls, aux: Aux, extra: PyTree, metrics: Mapping[str, Float[Array, ""]]) -> "LossAux":
        """The result of a loss that makes one pass of the model: all fields of the pass are copied."""
        return cls(aux.state, extra, metrics, aux.maps, aux.losses)


@dataclasses.dataclass(frozen=True)
class Objective:
    """A loss and the parameters that it trains: those whose path matches one of the patterns `trains`.

    A path joins names with "/", as in "encoder/attention/query/kernel"; patterns are those of fnmatch. `key_name` seeds
    the random numbers of the loss where it is not `name`: an objective that is renamed keeps it, so that recorded
    figures still come back bit for bit.
    """

    name: str
    loss: Callable[[StateView, Batch, Mapping[str, Array], Key[Array, ""]], tuple[Array, LossAux]]
    trains: tuple[str, ...] = ("*",)
    key_name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "key_name", self.key_name or self.name)


class EvaluationReport(NamedTuple):
    """The result of an evaluation: numbers by name, samples to read, and a note on how they were measured.

    The page shows "source", "target" and "output" of a sample, and the image that "image" names: a PNG file
    `samples/NAME.png` that the task has written into the run directory. Samples of one step can share it.
    """

    scalars: Mapping[str, float]
    samples: Sequence[Mapping[str, str]] = ()
    note: str = ""


EvaluationStep = Callable[[StateView, Batch, Key[Array, ""]], tuple[PyTree, PyTree]]


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """A measurement over a set of batches.

    `step` is compiled; it returns sums, added over batches, and rows, joined over batches along their first
    axis. `finish` makes the report from both on the host. `at_end` evaluations run once, when training is over;
    the others at the run's cadence as well. Evaluations that share `step` share its compilation. `parameters`
    names what is evaluated: "raw", or an average. `reads` names the query and key axes of the
    maps that it needs: a model without such a site skips the evaluation.
    """

    name: str
    split: str
    batches: Sequence[Batch]
    step: EvaluationStep
    finish: Callable[[PyTree, PyTree], EvaluationReport]
    at_end: bool = False
    parameters: str = "raw"
    reads: tuple[str, str] | None = None

    def applies(self, sites: Iterable[Site]) -> bool:
        """Whether a model with these sites has the maps that the evaluation reads."""
        return self.reads is None or bool(sites_between(sites, *self.reads))


# A pass over fixed texts that returns the maps of a capture.
CaptureFunction = Callable[[Capture], Mapping[str, CapturedAttention]]


class PredictionRequest(NamedTuple):
    """A request to a trained run: texts, a target language if the run knows several, and how to decode.

    `decoding` sets fields of transformer.tasks.decoding_config.DecodingConfig that are not the task's own, or for a
    task that fills in hidden tokens `words`, whose probabilities there are asked for.
    """

    texts: Sequence[str]
    language: str | None = None
    decoding: Mapping[str, Any] = {}


class Predictions(NamedTuple):
    """A run's answers, a line each; the labels of their positions; and a pass over them that captures maps."""

    lines: Sequence[str]
    labels: AxisLabels
    look: CaptureFunction


class InputTexts(NamedTuple):
    """Texts that somebody has written: of models with two sides their targets as well, or the language to answer in."""

    texts: Sequence[str]
    targets: Sequence[str] | None = None
    language: str | None = None


class EncodedInputs(NamedTuple):
    """Texts as a model reads them: the inputs of its method, and the labels of their positions."""

    inputs: Batch
    method: str
    labels: AxisLabels


def load_run_tokenizer(directory: Path) -> Any:
    """The tokenizer that a run directory holds."""
    # A machine that measures a training step over numbers may have no library of tokenizers.
    from transformer.data.tokenizers.load import load_tokenizer

    return load_tokenizer(directory)


@dataclasses.dataclass(frozen=True)
class InputReader:
    """How a task reads new texts by what its run directory keeps alone, a tokenizer: none of its data are opened.

    `kept(directory)` reads what a run keeps: of images, whose files the texts name, their size and classes.
    `interface(config, kept)` is the task's; `read(config, view, kept, sentences)` raises UserError for texts that are
    empty or do not fit the model. A model of two sides that is given no targets answers itself.
    """

    interface: Callable[[Any, Any], TaskInterface]
    read: Callable[[Any, StateView, Any, InputTexts], EncodedInputs]
    kept: Callable[[Path], Any] = load_run_tokenizer


class Task(Protocol):
    """A problem: its data, objectives, evaluations and probe batch."""

    @property
    def interface(self) -> TaskInterface:
        """The inputs, outputs and vocabularies that a model of this task has."""

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """The losses, in the order in which a step takes them."""

    @property
    def evaluations(self) -> tuple[Evaluation, ...]:
        """The evaluations of the task."""

    @property
    def said(self) -> tuple[str, ...]:
        """What a run says of its data when it begins, in lines: how many examples each split has, and whence."""

    def source(self, seed: int) -> BatchSource:
        """The training batches in the order of a seed."""

    def fingerprint(self) -> Mapping[str, str]:
        """The SHA-256 of what was read of every split, by its name; none where nothing is read."""

    def init_extra(self, view: StateView, key: Key[Array, ""]) -> PyTree:
        """What the task carries from step to step: baselines, replay, worlds."""

    def prepare(self, view: StateView, batch: Batch, key: Key[Array, ""]) -> tuple[Batch, PyTree]:
        """The batch as the losses see it, and the next `extra`: sampling, acting; compiled, without gradient."""

    def totals(self, batch: Batch) -> Mapping[str, Array]:
        """Named denominators of the whole update, taken before it is cut into microbatches."""

    def probe(self, view: StateView, capture: Capture, key: Key[Array, ""]) -> Aux:
        """A pass over the fixed probe batch, whose maps are stored."""

    def labels(self, sites: Sequence[Site]) -> AxisLabels:
        """Names of the probe batch's positions, on the axes of the model's sites that do not name themselves."""

    def answer(self, view: StateView, request: PredictionRequest) -> Predictions:
        """A trained model's answers to new texts (launch.generate).

        Raises:
            UserError: For what the task cannot do, and for texts that do not fit.
        """


@dataclasses.dataclass(frozen=True)
class TaskSpec:
    """A task, which a module of `tasks/`, of a project or of your own exports as TASK.

    `config` is the dataclass of its section. `synthetic(config, rows_multiple)` builds the task over synthetic data of
    the shapes that the config gives, so that its programs can be compiled without the data; the rows of a batch are a
    multiple of `rows_multiple` (devices x microbatches). A task that generates its data needs no more: often it is
    `TaskSpec(SortingConfig, Sorting)`. One that reads data, or keeps something in the run directory, has
    `build(config, directory, rows_multiple)`. `reader`, of a task over texts, reads other texts.
    """

    config: type
    synthetic: Callable[[Any, int], Task]
    build: Callable[[Any, Path, int], Task] | None = None
    reader: InputReader | None = None
