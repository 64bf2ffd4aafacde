"""What every task gives to the step and the loop."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from jaxtyping import Array, Float, Key

from transformer.attention.capture import NOTHING_CAPTURED, Capture, Captured
from transformer.attention.sites import Site, between
from transformer.data.batches import Source
from transformer.models.contract import NO_LOSSES, Aux, AuxiliaryLoss, Model, Variables
from transformer.models.interface import Interface
from transformer.tasks.labels import Labels

PyTree = Any
Batch = Mapping[str, np.ndarray | Array]


class View(NamedTuple):
    """All that a loss, an evaluation or a probe may see of a training run.

    `capture` is what a loss passes to its model, so that a training step can observe its heads.
    """

    model: Model
    variables: Variables
    averages: Mapping[str, PyTree]
    extra: PyTree
    step: Array
    train: bool
    capture: Capture | None = None


class LossAux(NamedTuple):
    """What a loss returns beside its value.

    `metrics` are linear in the batch and already divided by their totals, so that micro-batches add up; `captured`
    is what the model returned for the view's `capture`, sums that add up as well; `losses` are what the model itself
    adds to the loss, which the step divides and adds.
    """

    state: PyTree
    extra: PyTree
    metrics: Mapping[str, Float[Array, ""]]
    captured: Mapping[str, Captured] = NOTHING_CAPTURED
    losses: Mapping[str, AuxiliaryLoss] = NO_LOSSES

    @classmethod
    def of(cls, aux: Aux, extra: PyTree, metrics: Mapping[str, Float[Array, ""]]) -> "LossAux":
        """What a loss of one pass of the model returns: everything that the pass returned goes on."""
        return cls(aux.state, extra, metrics, aux.maps, aux.losses)


@dataclasses.dataclass(frozen=True)
class Objective:
    """A loss and the parameters that it trains: those whose path matches one of the patterns `trains`.

    A path joins names with "/", as in "encoder/attention/query/kernel"; patterns are those of fnmatch.
    """

    name: str
    loss: Callable[[View, Batch, Mapping[str, Array], Key[Array, ""]], tuple[Array, LossAux]]
    trains: tuple[str, ...] = ("*",)


class Report(NamedTuple):
    """What an evaluation found: numbers by name, samples to look at, and a note on how it was measured."""

    scalars: Mapping[str, float]
    samples: Sequence[Mapping[str, str]] = ()
    note: str = ""


EvaluationStep = Callable[[View, Batch, Key[Array, ""]], tuple[PyTree, PyTree]]


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Something measured over a set of batches.

    `step` is compiled; it returns sums, added over batches, and rows, joined over batches along their first
    axis. `finish` makes the report from both on the host. `at_end` evaluations run once, when training is over;
    the others at the run's cadence as well. Evaluations that share `step` share its compilation. `parameters`
    names what is evaluated: "raw", or an average. `reads` are the names of the query and key axes of the maps that
    it is about: a model without such a site does without the evaluation.
    """

    name: str
    split: str
    batches: Sequence[Batch]
    step: EvaluationStep
    finish: Callable[[PyTree, PyTree], Report]
    at_end: bool = False
    parameters: str = "raw"
    reads: tuple[str, str] | None = None

    def applies(self, sites: Iterable[Site]) -> bool:
        """Whether a model with these sites has the maps that the evaluation reads."""
        return self.reads is None or bool(between(sites, *self.reads))


# A pass over fixed texts that captures what is asked for.
Look = Callable[[Capture], Mapping[str, Captured]]


class Request(NamedTuple):
    """What a trained run is asked: texts, a target language where there are several, and how to decode.

    `decoding` sets fields of transformer.tasks.decoding.Decoding that are not the task's own.
    """

    texts: Sequence[str]
    language: str | None = None
    decoding: Mapping[str, Any] = {}


class Answers(NamedTuple):
    """What was said, a line each; what its positions are called; and a pass over it that captures what is asked for."""

    lines: Sequence[str]
    labels: Labels
    look: Look


class Task(Protocol):
    """A problem: what is fed, what is minimised, what is measured, what is mapped."""

    @property
    def interface(self) -> Interface:
        """What the task asks of a model."""

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """The losses, in the order in which a step takes them."""

    @property
    def evaluations(self) -> tuple[Evaluation, ...]:
        """What is measured, and when."""

    def source(self, seed: int) -> Source:
        """The training batches in the order of a seed."""

    def init_extra(self, view: View, key: Key[Array, ""]) -> PyTree:
        """What the task carries from step to step: baselines, replay, worlds."""

    def prepare(self, view: View, batch: Batch, key: Key[Array, ""]) -> tuple[Batch, PyTree]:
        """The batch as the losses see it, and the next `extra`: sampling, acting; compiled, without gradient."""

    def totals(self, batch: Batch) -> Mapping[str, Array]:
        """Named denominators of the whole update, taken before it is cut into micro-batches."""

    def probe(self, view: View, capture: Capture, key: Key[Array, ""]) -> Aux:
        """A pass over the fixed probe batch, whose maps are stored."""

    def labels(self, sites: Sequence[Site]) -> Labels:
        """What the probe batch's positions are, on the axes of the model's sites that do not name themselves."""

    def answer(self, view: View, request: Request) -> Answers:
        """What a trained model says to new texts, for a person who asks (launch.generate).

        Errors: UserError for what the task cannot do, and for texts that do not fit.
        """


@dataclasses.dataclass(frozen=True)
class Kind:
    """Everything that the library knows of a problem: what a file of `tasks/`, or one's own, exports as TASK.

    `config` is its section's dataclass; `build(config, directory, rows_multiple)` opens the data, the rows of a batch
    a multiple of devices x micro-batches; `rehearse(config, rows_multiple)` builds the task over made-up data of the
    same shapes, so that its programs can be compiled before there are data.
    """

    config: type
    build: Callable[[Any, Path, int], Task]
    rehearse: Callable[[Any, int], Task]
