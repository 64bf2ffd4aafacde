"""What tasks share whose answers are sequences of symbols, said one after another about what is given."""

import abc
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from transformer.attention.sites import Site, sites_between
from transformer.config import UserError
from transformer.data.images import unscale_pixels
from transformer.decoding.constraints import Constraints
from transformer.decoding.generate import SpecialTokens, generate
from transformer.models.model import Aux
from transformer.models.task_interface import IMAGE_CAPTIONING, InputSpec, Modality, TaskInterface
from transformer.tasks.attention_mass import TARGET_OVER_GRID
from transformer.tasks.axis_labels import AxisLabels, GoldLink
from transformer.tasks.base_task import BaseTask, make_capture, refuse_options
from transformer.tasks.decoding_config import DecodingConfig
from transformer.tasks.losses import token_loss
from transformer.tasks.task import Batch, LossAux, Objective, PredictionRequest, Predictions, StateView

PAD, BEGIN, END = range(3)
SPECIAL = ("<pad>", "<begin>", "<end>")


class TokenSequenceTask(BaseTask):
    """Sequences of tokens, said one after another about what is `given`, by the names of these inputs.

    A batch has what is given, `target`, which the decoder reads, and `labels`, which it is to say, one step ahead
    (`teacher_forcing_arrays`). `known`: how many tokens may be said, where a model's table can have rows beyond them. A
    task adds `interface`, `objectives`, `source`, `labels` and `probe_batch`.
    """

    interface: TaskInterface
    given: tuple[str, ...]
    known: int | None = None

    def inputs_of(self, batch: Batch) -> dict[str, Any]:
        """What of a batch the model reads."""
        return {name: batch[name] for name in self.interface.inputs}

    def totals(self, batch: Batch) -> dict[str, Array]:
        """The number of symbols with the ends of their sequences, by which every sum is divided."""
        return {"tokens": jnp.sum(predicted_steps(batch)).astype(jnp.float32)}

    def likelihood(
        self, view: StateView, batch: Batch, totals: Mapping[str, Array], key: Key[Array, ""]
    ) -> tuple[Float[Array, "B T V"], Aux, dict[str, Array]]:
        """A pass of the model: its logits, what comes beside them, and `loss`, in nats a symbol, with `accuracy`."""
        inputs = self.inputs_of(batch)
        logits, aux = view.model.apply(view.variables, inputs, train=view.train, key=key, capture=view.capture)
        sums = token_loss(logits, jnp.asarray(batch["labels"]), predicted_steps(batch), label_smoothing=0.0)
        metrics = {"loss": sums.cross_entropy / totals["tokens"], "accuracy": sums.correct / totals["tokens"]}
        return logits, aux, metrics

    def loss(
        self, view: StateView, batch: Batch, totals: Mapping[str, Array], key: Key[Array, ""]
    ) -> tuple[Array, LossAux]:
        """Cross-entropy in nats a symbol."""
        _, aux, metrics = self.likelihood(view, batch, totals, key)
        return metrics["loss"], LossAux.of(aux, view.extra, metrics)

    def loss_sums(self, view: StateView, batch: Batch, key: Key[Array, ""]) -> tuple[dict[str, Array], None]:
        """The step of an evaluation of the loss."""
        _, _, sums = self.likelihood(view, batch, {"tokens": jnp.float32(1)}, key)
        return {**sums, **self.totals(batch)}, None

    def decode(self, view: StateView, batch: Batch, decoding: DecodingConfig) -> Int[Array, "B T"]:
        """What the model says about what a batch gives, a pure function that can run under jit."""
        rollout = generate(
            view.model,
            view.variables,
            {name: jnp.asarray(batch[name]) for name in self.given},
            strategy=decoding.strategy,
            length=decoding.max_new_tokens,
            tokens=SpecialTokens(PAD, BEGIN, END, self.known),
            key=jax.random.key(decoding.seed),
            constraints=Constraints(decoding.repetition_penalty),
        )
        return rollout.tokens[:, 0]

    def rows_said(
        self, view: StateView, batch: Mapping[str, np.ndarray], decoding: DecodingConfig
    ) -> Int[np.ndarray, "B T"]:
        """The tokens of what the model says about what a batch gives."""

        @jax.jit
        def run(variables: Any, given: Batch) -> Array:
            return self.decode(view._replace(variables=variables), given, decoding)

        return np.asarray(run(view.variables, {name: batch[name] for name in self.given}))


class SymbolSequenceTask(TokenSequenceTask):
    """Sequences of at most `longest` of the `symbols` about what is `given`, in batches of `rows`.

    A batch has what is given, `target`, which the decoder reads, and `labels`, which it is to say, one step ahead. In a
    line of text `separator` stands between symbols. `output` is what the task asks of a model (`TaskInterface.output`),
    `vocabulary` the name by which models know that of the symbols, and `vocabularies` are those of what is given.
    """

    def __init__(
        self,
        name: str,
        symbols: Sequence[str],
        longest: int,
        given: Mapping[str, InputSpec],
        *,
        rows: int,
        beams: int,
        separator: str,
        output: str,
        vocabulary: str = "target",
        vocabularies: Mapping[str, int] | None = None,
    ):
        self.symbols, self.steps, self.separator = (*SPECIAL, *symbols), longest + 1, separator
        self._numbers = {symbol: number for number, symbol in enumerate(self.symbols)}
        self.beams, self.given, self.known = beams, tuple(given), len(self.symbols)
        inputs = {**given, "target": InputSpec((rows, self.steps))}
        sizes = {**(vocabularies or {}), vocabulary: len(self.symbols)}
        self.interface = TaskInterface(inputs, sizes, PAD, BEGIN, END, output=output)
        self.objectives = (Objective(name, self.loss),)

    def show(self, batch: dict[str, np.ndarray]) -> None:
        """Have the maps of these examples and what is true of them stored."""
        self.shown, self.probe_batch = batch, self.inputs_of(batch)

    def sequences(self, said: Sequence[Sequence[str]]) -> dict[str, np.ndarray]:
        """Sequences as numbers: `target` and `labels` of a batch."""
        return teacher_forcing_arrays([[self._numbers[symbol] for symbol in of_row] for of_row in said], self.steps)

    def decoded(self, view: StateView, batch: Batch, key: Key[Array, ""]) -> tuple[dict, dict]:
        """The step of an evaluation of what is said about what is given and nothing else."""
        decoding = DecodingConfig(max_new_tokens=self.steps, beams=self.beams, length_penalty=0.0)
        return {}, {"tokens": self.decode(view, batch, decoding)}

    def say(self, view: StateView, batch: Mapping[str, np.ndarray], decoding: DecodingConfig) -> dict[str, np.ndarray]:
        """The batch with what the model says in the place of what is true; one that was cut off has no end."""
        rows = self.rows_said(view, batch, decoding)
        labels = np.pad(rows, ((0, 0), (0, self.steps - rows.shape[1])), constant_values=PAD)
        read = np.pad(labels[:, :-1], ((0, 0), (1, 0)), constant_values=BEGIN)
        return {**batch, "target": np.where(labels == PAD, PAD, read), "labels": labels}

    def said_in(self, row: np.ndarray) -> list[str]:
        """The symbols of one sequence, up to its end."""
        return [self.symbols[number] for number in up_to_end(row)]

    def steps_of(self, row: np.ndarray) -> tuple[str, ...]:
        """The names of the steps of one row of `labels`: its symbols and, where it has one, its end."""
        return (*self.said_in(row), *([self.symbols[END]] if END in row else []))

    def lines(self, rows: np.ndarray) -> list[str]:
        """Sequences as lines of text."""
        return [self.separator.join(self.said_in(row)) for row in rows]

    def decoding(self, request: PredictionRequest, does: str, longest: str) -> DecodingConfig:
        """How a request wants sequences decoded, of a run that `does` something.

        Raises:
            UserError: For what such a run does not have, and for more symbols than the longest sequence has.
        """
        refuse_options(request, does)
        decoding = DecodingConfig.asked(
            request.decoding, max_new_tokens=self.steps, beams=self.beams, length_penalty=0.0
        )
        if decoding.max_new_tokens > self.steps:
            raise UserError(f"--max_new_tokens={decoding.max_new_tokens}: {longest} with its end")
        return decoding


def teacher_forcing_arrays(said: Sequence[Sequence[int]], steps: int) -> dict[str, Int[np.ndarray, "B T"]]:
    """Sequences of numbers as `target` and `labels` of a batch, `steps` long with the begin or the end."""
    target, labels = np.full((2, len(said), steps), PAD, np.int32)
    for row, numbers in enumerate(said):
        target[row, : len(numbers) + 1] = [BEGIN, *numbers][:steps]
        labels[row, : len(numbers) + 1] = [*numbers, END][:steps]
    return {"target": target, "labels": labels}


def up_to_end(row: np.ndarray) -> list[int]:
    """The numbers of one sequence before its end, or before where it was cut off."""
    return list(itertools.takewhile(lambda number: number not in (PAD, END), row.tolist()))


def predicted_steps(batch: Batch) -> Bool[Array, "B T"]:
    """The steps at which something is to be said: a symbol or the end."""
    return jnp.asarray(batch["labels"]) != PAD


def gold_links(places_BxTxK: Bool[Array | np.ndarray, "B T K"], *, sure: bool) -> tuple[tuple[GoldLink, ...], ...]:
    """For each example a link from every symbol to each of its places."""
    links = (np.argwhere(np.asarray(of_row)) for of_row in places_BxTxK)
    return tuple(tuple(GoldLink(int(step), int(key), sure) for step, key in of_row) for of_row in links)


def gold_links_of_correct(
    links: Sequence[tuple[GoldLink, ...]], right_B: Bool[np.ndarray, " B"]
) -> tuple[tuple[GoldLink, ...], ...]:
    """The links of examples that were said rightly: of others it is not known what their symbols are about."""
    return tuple(of_row if right else () for of_row, right in zip(links, right_B, strict=True))


class ImageToSequenceTask(SymbolSequenceTask, abc.ABC):
    """Images of `size` x `size` pixels in batches of `rows`, descriptions of at most `longest` of the `symbols`.

    A batch has `image` and the sequences of transformer.tasks.sequence_generation, and what `links` needs.

    A task adds `source`, `evaluations` and `links`, and calls `show` with the batch whose maps are stored.
    """

    def __init__(
        self, name: str, symbols: Sequence[str], longest: int, *, size: int, rows: int, beams: int, separator: str
    ):
        given = {"image": InputSpec((rows, size, size, 3), jnp.float32, Modality.IMAGE)}
        options: dict[str, Any] = {"rows": rows, "beams": beams, "separator": separator}
        super().__init__(name, symbols, longest, given, output=IMAGE_CAPTIONING.output, **options)

    @abc.abstractmethod
    def links(self, batch: Mapping[str, np.ndarray], site: Site) -> tuple[tuple[GoldLink, ...], ...]:
        """For each image which places each symbol is about."""

    def labels(self, sites: Sequence[Site]) -> AxisLabels:
        """The symbols and images of the probe, and the places that each symbol is about."""
        return self._describe(self.shown, sites)

    def _describe(
        self, batch: Mapping[str, np.ndarray], sites: Sequence[Site], right_B: Bool[np.ndarray, " B"] | None = None
    ) -> AxisLabels:
        """Of descriptions that are not `right` it is not known what their symbols are about."""
        steps = tuple(map(self.steps_of, batch["labels"]))
        looked, images = sites_between(sites, *TARGET_OVER_GRID), unscale_pixels(batch["image"])
        gold = {site.name: self.links(batch, site) for site in looked}
        if right_B is not None:
            gold = {name: gold_links_of_correct(links, right_B) for name, links in gold.items()}
        grids = {site.key.name: images for site in looked}
        return AxisLabels({"target": steps}, tuple(self.lines(batch["labels"])), gold or None, images=grids)

    def answers(self, view: StateView, batch: Mapping[str, np.ndarray], decoding: DecodingConfig) -> Predictions:
        """What the model says of the images of a batch, beside what is true of them."""
        said = self.say(view, batch, decoding)
        right_B = (said["labels"] == batch["labels"]).all(axis=1)
        labels = self._describe(said, view.model.sites, right_B)
        return Predictions(self.lines(said["labels"]), labels, make_capture(view, self.inputs_of(said)))


def model_inputs(batch: Batch) -> dict[str, Any]:
    """What of a batch the model reads."""
    return {name: batch[name] for name in ("image", "target")}
