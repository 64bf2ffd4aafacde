"""The interface between a task and the training step, the loop and the commands."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from jaxtyping import Array, Float, Key

from transformer.attention.capture import NOTHING_CAPTURED, Capture, CapturedAttention
from transformer.attention.sites import Site, sites_between
from transformer.config import UserError
from transformer.data.batches import BatchSource
from transformer.models.model import NO_LOSSES, Aux, AuxiliaryLoss, Model, Variables, replace_with_averaged
from transformer.models.task_interface import TaskInterface
from transformer.tasks.axis_labels import AxisLabels

if TYPE_CHECKING:  # a step of random tokens needs no tokenizer
    from transformer.data.token_shards import TokenShards

PyTree = Any
Batch = Mapping[str, np.ndarray | Array]


class StateView(NamedTuple):
    """The part of a training state that a loss, an evaluation or a probe may read.

    Attributes:
        model: The model.
        variables: Its parameters and state, those after the preceding objectives of the same step.
        averages: The averaged parameters by the name of the average and their path.
        task_state: The task's own state (`Task.init_task_state`).
        step: The number of updates made, [].
        train: Whether the pass is a training step, so that dropout acts.
        capture: The capture that a loss passes to its model, so that a training step can measure its heads.
    """

    model: Model
    variables: Variables
    averages: Mapping[str, PyTree]
    task_state: PyTree
    step: Array
    train: bool
    capture: Capture | None = None

    def averaged(self, name: str) -> Variables:
        """Return the variables with averaged parameters, such as those of a target network.

        Args:
            name: The name of the average, a key of `config.parameter_averages`.

        Returns:
            The variables with the averaged parameters in place of the trained ones.

        Raises:
            UserError: If the run does not keep this average.
        """
        if name not in self.averages:
            raise UserError(
                f"the task reads the average {name!r}, which this run does not keep: say "
                f"config.parameter_averages.{name}="
                "{'kind': 'exponential', 'decay': 0.99}"
            )
        return self.variables._replace(params=replace_with_averaged(self.variables.params, self.averages[name]))


class LossAux(NamedTuple):
    """The auxiliary results of a loss.

    Attributes:
        state: The model's next state.
        task_state: The task's next `task_state`.
        metrics: Metrics by name, []. They are linear in the batch and already divided by their totals, so that those of
            microbatches add up.
        maps: What the model returned for `StateView.capture`: sums, which add up over microbatches too.
        losses: The model's auxiliary losses, which the training step divides by their denominators and adds to the
            loss.
        task_state_weight: The number of examples, tokens or words of which a mean has gone into `task_state`, such as a
            baseline's: microbatches are averaged by it. None averages them evenly.
    """

    state: PyTree
    task_state: PyTree
    metrics: Mapping[str, Float[Array, ""]]
    maps: Mapping[str, CapturedAttention] = NOTHING_CAPTURED
    losses: Mapping[str, AuxiliaryLoss] = NO_LOSSES
    task_state_weight: Array | None = None

    @classmethod
    def from_aux(
        cls,
        aux: Aux,
        task_state: PyTree,
        metrics: Mapping[str, Float[Array, ""]],
        *,
        task_state_weight: Array | None = None,
    ) -> "LossAux":
        """Return the result of a loss that makes one pass of the model.

        Args:
            aux: The auxiliary results of that pass, whose state, maps and losses are taken over.
            task_state: The task's next `task_state`.
            metrics: Metrics by name, [].
            task_state_weight: The number of examples, tokens or words of which a mean has gone into `task_state`.
        """
        return cls(aux.state, task_state, metrics, aux.maps, aux.losses, task_state_weight)


@dataclasses.dataclass(frozen=True)
class Objective:
    """A loss and the parameters that it trains.

    Attributes:
        name: The name of the objective, a key of `config.optimizers`.
        loss_fn: The loss: (view, batch, denominators, key) to its value [] and its auxiliary results. `denominators`
            are those of the whole batch, also where `batch` is a microbatch.
        trainable: Patterns of fnmatch. A parameter is trained if its path matches one of them; a path joins names with
            "/", as in "encoder/attention/query/kernel".
        key_name: The name that seeds the random numbers of the loss; by default `name`. An objective that is renamed
            keeps its old name here, so that recorded results can be reproduced bit for bit.
        compares_rows: Why the loss is no sum over the rows of the batch, such as that the others are a row's negatives.
            Microbatches, which would compare fewer rows, are then refused. Empty for a sum over rows.
    """

    name: str
    loss_fn: Callable[[StateView, Batch, Mapping[str, Array], Key[Array, ""]], tuple[Array, LossAux]]
    trainable: tuple[str, ...] = ("*",)
    key_name: str = ""
    compares_rows: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "key_name", self.key_name or self.name)


class EvaluationReport(NamedTuple):
    """The result of an evaluation.

    Attributes:
        scalars: Numbers by name.
        samples: Samples to read. The page shows "source", "target" and "output" of a sample, and the image that "image"
            names: a PNG file `samples/NAME.png` that the task has written into the run directory. Samples of one step
            can share an image.
        note: How the numbers were measured.
    """

    scalars: Mapping[str, float]
    samples: Sequence[Mapping[str, str]] = ()
    note: str = ""


EvaluationStep = Callable[[StateView, Batch, Key[Array, ""]], tuple[PyTree, PyTree]]


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """A measurement over a set of batches.

    Attributes:
        name: The name of the evaluation.
        split: The data split that it measures.
        batches: The batches of one pass.
        step: A function (view, batch, key) to (sums, rows), which is compiled. Sums are added over batches; rows are
            concatenated over batches along their first axis. Evaluations that share a step share its compilation.
        finish: A function (sums, rows) to the report, run on the host.
        at_end: Whether the evaluation runs once, after training; the others also run every `config.eval_every` steps.
        parameters: Which parameters are evaluated: "raw", or the name of an average.
        required_axes: The query and key axes of the maps that the evaluation needs, by name. It is skipped for a model
            without such an attention site. None reads no maps.
    """

    name: str
    split: str
    batches: Sequence[Batch]
    step: EvaluationStep
    finish: Callable[[PyTree, PyTree], EvaluationReport]
    at_end: bool = False
    parameters: str = "raw"
    required_axes: tuple[str, str] | None = None

    def applies(self, sites: Iterable[Site]) -> bool:
        """Whether a model with these attention sites has the maps that the evaluation reads."""
        return self.required_axes is None or bool(sites_between(sites, *self.required_axes))


# A pass over fixed texts that returns the maps of a capture.
CaptureFunction = Callable[[Capture], Mapping[str, CapturedAttention]]


class PredictionRequest(NamedTuple):
    """A request to a trained run.

    Attributes:
        texts: The texts to translate, continue, classify or fill in.
        language: The target language, for runs that translate into several.
        decoding: Fields of transformer.tasks.decoding_config.DecodingConfig that differ from the task's own. For a task
            that fills in masked tokens, `score_words`: words whose probabilities there are reported.
        is_chat: Whether the texts were written by a chat template. Special tokens in them are then read as such, and a
            line is the model's answer alone. Only for tasks whose `InputReader` has `chats`.
    """

    texts: Sequence[str]
    language: str | None = None
    decoding: Mapping[str, Any] = {}
    is_chat: bool = False


class Predictions(NamedTuple):
    """The answers of a run.

    Attributes:
        lines: The answers, one line each.
        labels: The labels of the positions that `capture_maps` maps.
        capture_maps: A pass over the answers that captures attention maps.
    """

    lines: Sequence[str]
    labels: AxisLabels
    capture_maps: CaptureFunction


class InputTexts(NamedTuple):
    """Texts given by a user.

    Attributes:
        texts: The texts, or the names of image files for a task about images.
        targets: Their targets, for models that read a source and a target. None lets the model produce them.
        language: The target language, for models that translate into several.
        token_rows: For a task with `InputReader.reads_tokens`, the token numbers to read; `texts` then describe them.
    """

    texts: Sequence[str]
    targets: Sequence[str] | None = None
    language: str | None = None
    token_rows: Sequence[Sequence[int]] = ()


class EncodedInputs(NamedTuple):
    """Texts as a model reads them.

    Attributes:
        inputs: The inputs of the model's method by name, [B, ...].
        method: The name of the method.
        labels: The labels of their positions.
        predicted_BxT: The token that the logits of each position predict, -1 where they predict none; None if the model
            predicts no tokens of the texts.
    """

    inputs: Batch
    method: str
    labels: AxisLabels
    predicted_BxT: np.ndarray | None = None


def load_run_tokenizer(directory: Path) -> Any:
    """Load the tokenizer from a run directory."""
    # Imported here: a machine that only measures training steps may lack the tokenizers library.
    from transformer.data.tokenizers.load import load_tokenizer

    return load_tokenizer(directory)


@dataclasses.dataclass(frozen=True)
class InputReader:
    """How a task reads new texts with only what its run directory holds; its data are not opened.

    Attributes:
        make_task_interface: A function (config, kept) to the task's interface.
        encode: A function (config, view, kept, texts) to the model's inputs. It raises UserError if texts are empty or
            too long for the model. If a model of a source and a target is given no targets, it decodes them itself.
        load_preprocessor: A function from the run directory to what is read of it: by default the tokenizer; for
            images, whose files the texts name, their size and classes.
        generate: A function (config, view, kept, request) to the lines that the model generates; None if it generates
            none.
        chats: Whether texts of a chat template can be continued.
        reads_tokens: Whether `encode` takes token numbers in place of texts. It adds no special tokens to them.
    """

    make_task_interface: Callable[[Any, Any], TaskInterface]
    encode: Callable[[Any, StateView, Any, InputTexts], EncodedInputs]
    load_preprocessor: Callable[[Path], Any] = load_run_tokenizer
    generate: "Callable[[Any, StateView, Any, PredictionRequest], Sequence[str]] | None" = None
    chats: bool = False
    reads_tokens: bool = False


class Task(Protocol):
    """A problem: its data, objectives, evaluations and probe batch.

    transformer.tasks.base_task.BaseTask has defaults for most methods.
    """

    @property
    def interface(self) -> TaskInterface:
        """The inputs, outputs and vocabularies that the task requires of a model."""

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """The losses, in the order in which a training step applies them."""

    @property
    def evaluations(self) -> tuple[Evaluation, ...]:
        """The evaluations, both those during training and those at its end."""

    @property
    def data_summary(self) -> tuple[str, ...]:
        """Lines about the data to print when a run begins: how many examples each split has, and how it was split."""

    def training_batches(self, seed: int) -> BatchSource:
        """Return the training batches.

        Args:
            seed: The seed of their order.
        """

    def fingerprint(self) -> Mapping[str, str]:
        """Return the SHA-256 of the data read, by split; empty if nothing is read."""

    def init_task_state(self, view: StateView, key: Key[Array, ""]) -> PyTree:
        """Return the state that the task carries from step to step, such as a baseline, a memory or environments.

        Args:
            view: The state before the first step, without `task_state`.
            key: A PRNG key.

        Raises:
            UserError: If the task cannot train this model.
        """

    def prepare_batch(self, view: StateView, batch: Batch, key: Key[Array, ""]) -> tuple[Batch, PyTree]:
        """Prepare a training batch for the losses, for instance by masking, sampling or acting.

        It is compiled with the training step; no gradient flows through it.

        Args:
            view: The state at the start of the step.
            batch: The batch from `training_batches`.
            key: A PRNG key.

        Returns:
            The batch as the losses see it, and the next `task_state`.
        """

    def denominators(self, batch: Batch) -> Mapping[str, Array]:
        """Return the denominators of the losses and metrics.

        Args:
            batch: The whole prepared batch, before it is split into microbatches.

        Returns:
            Counts by name, [], such as the number of predicted tokens.
        """

    def probe(self, view: StateView, capture: Capture, key: Key[Array, ""]) -> Aux:
        """Run the model on the fixed probe batch, whose maps are stored.

        Args:
            view: The state, outside of training.
            capture: The maps to capture.
            key: A PRNG key.

        Returns:
            The auxiliary results of the pass, with the maps.
        """

    def axis_labels(self, sites: Sequence[Site]) -> AxisLabels:
        """Return the names of the probe batch's positions.

        Args:
            sites: The model's attention sites. Axes that name their own positions (`Axis.names`) may be left out.
        """

    def predict(self, view: StateView, request: PredictionRequest) -> Predictions:
        """Answer new texts with a trained model (`launch.generate`).

        Args:
            view: The trained state.
            request: The texts, and how to decode.

        Raises:
            UserError: If the task does not support what is requested, or a text is empty or too long.
        """


@dataclasses.dataclass(frozen=True)
class TaskSpec:
    """A task as a module of `transformer/tasks/`, of a project or of your own exports it, under the name TASK.

    A task that generates its data needs only the first two fields, as in `TaskSpec(SortingConfig, Sorting)`.

    Attributes:
        config_class: The dataclass of its section of the config.
        build_synthetic: A function (config, rows_multiple) to the task over synthetic data of the shapes that the
            config implies, so that its programs can be compiled before the data are read. The number of rows of a batch
            must be a multiple of `rows_multiple` (devices x microbatches).
        build: A function (config, run directory, rows_multiple) to the task over its real data, for a task that reads
            data or keeps something in the run directory. None if `build_synthetic` is the whole task.
        input_reader: How new texts are read without the data. None if the task reads no texts.
        make_token_shards: A function (config, run directory or None) that tokenizes a text once, for all runs, and
            returns its token shards by name. None if the task reads none.
        complete_config: A function from a config to one with what it leaves to the data, such as the names of classes,
            which is what a run records. None leaves nothing to the data.
    """

    config_class: type
    build_synthetic: Callable[[Any, int], Task]
    build: Callable[[Any, Path, int], Task] | None = None
    input_reader: InputReader | None = None
    make_token_shards: Callable[[Any, Path | None], Mapping[str, "TokenShards"]] | None = None
    complete_config: Callable[[Any], Any] | None = None
