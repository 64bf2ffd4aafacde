"""Base classes of tasks whose answers are sequences of symbols, such as captions and transcripts."""

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
from transformer.decoding.generation import SpecialTokens, generate
from transformer.models.model import Aux
from transformer.models.task_interface import IMAGE_CAPTIONING, InputSpec, Modality, TaskInterface
from transformer.tasks.attention_mass import TARGET_OVER_GRID
from transformer.tasks.axis_labels import AxisLabels, GoldAlignment
from transformer.tasks.base_task import BaseTask, make_capture_function, refuse_text_options
from transformer.tasks.decoding_config import DecodingConfig
from transformer.tasks.losses import token_loss
from transformer.tasks.task import Batch, LossAux, Objective, PredictionRequest, Predictions, StateView

PAD, BEGIN, END = range(3)
SPECIAL = ("<pad>", "<begin>", "<end>")


class TokenSequenceTask(BaseTask):
    """A task that generates a sequence of tokens from its inputs.

    A batch has the inputs, `target` [B, T], which the decoder reads, and `labels` [B, T], which it predicts, one
    step ahead (`teacher_forcing_arrays`). A subclass adds `interface`, `objectives`, `training_batches`, `axis_labels`
    and `probe_batch`.

    Attributes:
        interface: The interface of the task.
        condition_inputs: The names of the inputs that the sequence is generated from.
        special_tokens: The special tokens, and the number of tokens that may be generated where a model's vocabulary is
            larger.
    """

    interface: TaskInterface
    condition_inputs: tuple[str, ...]
    special_tokens: SpecialTokens = SpecialTokens(PAD, BEGIN, END)

    def model_inputs(self, batch: Batch) -> dict[str, Any]:
        """Return the arrays of a batch that the model reads."""
        return {name: batch[name] for name in self.interface.inputs}

    def denominators(self, batch: Batch) -> dict[str, Array]:
        """Return the number of predicted tokens, ends included, by which every sum is divided."""
        return {"tokens": jnp.sum(self.predicted_steps(batch)).astype(jnp.float32)}

    def predicted_steps(self, batch: Batch) -> Bool[Array, "B T"]:
        """Return the steps at which a token or the end is predicted."""
        return jnp.asarray(batch["labels"]) != self.special_tokens.fill_id

    def score_target(
        self, view: StateView, batch: Batch, denominators: Mapping[str, Array], key: Key[Array, ""]
    ) -> tuple[Float[Array, "B T V"], Aux, dict[str, Array]]:
        """Run the model on the true sequences.

        Args:
            view: The state.
            batch: The prepared batch.
            denominators: The result of `denominators`.
            key: A PRNG key for dropout.

        Returns:
            The logits, the model's auxiliary results, and the metrics `loss` (nats per token) and `accuracy`.
        """
        inputs = self.model_inputs(batch)
        logits, aux = view.model.apply(view.variables, inputs, train=view.train, key=key, capture=view.capture)
        sums = token_loss(logits, jnp.asarray(batch["labels"]), self.predicted_steps(batch), label_smoothing=0.0)
        metrics = {
            "loss": sums.cross_entropy / denominators["tokens"],
            "accuracy": sums.correct / denominators["tokens"],
        }
        return logits, aux, metrics

    def loss(
        self, view: StateView, batch: Batch, denominators: Mapping[str, Array], key: Key[Array, ""]
    ) -> tuple[Array, LossAux]:
        """Compute the cross-entropy in nats per token."""
        _, aux, metrics = self.score_target(view, batch, denominators, key)
        return metrics["loss"], LossAux.from_aux(aux, view.task_state, metrics)

    def loss_sums(self, view: StateView, batch: Batch, key: Key[Array, ""]) -> tuple[dict[str, Array], None]:
        """Sum the loss and its metrics over a batch: the step of an evaluation."""
        _, aux = self.loss(view, batch, {"tokens": jnp.float32(1)}, key)
        return {**aux.metrics, **self.denominators(batch)}, None

    def decode(self, view: StateView, batch: Batch, decoding: DecodingConfig) -> Int[Array, "B T"]:
        """Generate sequences: a pure function that can run under jit.

        Args:
            view: The state.
            batch: The inputs.
            decoding: The decoding options.

        Returns:
            The best sequence for each example.
        """
        rollout = generate(
            view.model,
            view.variables,
            {name: jnp.asarray(batch[name]) for name in self.condition_inputs},
            strategy=decoding.strategy,
            length=decoding.max_new_tokens,
            tokens=self.special_tokens,
            key=jax.random.key(decoding.seed),
            constraints=decoding.token_constraints(),
        )
        return rollout.tokens[:, 0]

    def decode_tokens(
        self, view: StateView, batch: Mapping[str, np.ndarray], decoding: DecodingConfig
    ) -> Int[np.ndarray, "B T"]:
        """Generate sequences from a batch on the host; compiled.

        Args:
            view: The state.
            batch: The inputs.
            decoding: The decoding options.
        """

        @jax.jit
        def run(variables: Any, inputs: Batch) -> Array:
            return self.decode(view._replace(variables=variables), inputs, decoding)

        return np.asarray(run(view.variables, {name: batch[name] for name in self.condition_inputs}))


class SymbolSequenceTask(TokenSequenceTask):
    """A task that generates sequences of named symbols from its inputs.

    A batch has the inputs, `target` [B, T], which the decoder reads, and `labels` [B, T], which it predicts, one
    step ahead.

    Args:
        name: The name of the objective.
        symbols: The symbols; the special ones come before them.
        longest: The largest number of symbols in a sequence.
        condition_inputs: The inputs by name.
        rows: Rows in a batch.
        num_beams: The beam size; 1 is greedy decoding.
        separator: What stands between symbols in a line of text.
        output: What the task requires of a model (`TaskInterface.output`).
        vocabulary: The name of the symbols' vocabulary in the interface.
        vocabularies: The vocabulary sizes of the inputs.
    """

    def __init__(
        self,
        name: str,
        symbols: Sequence[str],
        longest: int,
        condition_specs: Mapping[str, InputSpec],
        *,
        rows: int,
        num_beams: int,
        separator: str,
        output: str,
        vocabulary: str = "target",
        vocabularies: Mapping[str, int] | None = None,
    ):
        self.symbols, self.steps, self.separator = (*SPECIAL, *symbols), longest + 1, separator
        self._numbers = {symbol: number for number, symbol in enumerate(self.symbols)}
        self.num_beams, self.condition_inputs = num_beams, tuple(condition_specs)
        self.special_tokens = self.special_tokens._replace(vocab_size=len(self.symbols))
        inputs = {**condition_specs, "target": InputSpec((rows, self.steps))}
        vocabulary_sizes = {**(vocabularies or {}), vocabulary: len(self.symbols)}
        self.interface = TaskInterface(inputs, vocabulary_sizes, PAD, BEGIN, END, output=output)
        self.objectives = (Objective(name, self.loss),)

    def set_probe_batch(self, batch: dict[str, np.ndarray]) -> None:
        """Set the examples whose maps are stored.

        Args:
            batch: Their inputs and true sequences.
        """
        self.probe_examples, self.probe_batch = batch, self.model_inputs(batch)

    def encode_sequences(self, symbols: Sequence[Sequence[str]]) -> dict[str, np.ndarray]:
        """Convert sequences of symbols to `target` and `labels` of a batch."""
        return teacher_forcing_arrays(
            [[self._numbers[symbol] for symbol in sequence] for sequence in symbols], self.steps
        )

    def decoding_step(self, view: StateView, batch: Batch, key: Key[Array, ""]) -> tuple[dict, dict]:
        """Generate sequences from a batch: the step of an evaluation, with `tokens` as rows."""
        decoding = DecodingConfig(max_new_tokens=self.steps, num_beams=self.num_beams, length_penalty=0.0)
        return {}, {"tokens": self.decode(view, batch, decoding)}

    def generate_sequences(
        self, view: StateView, batch: Mapping[str, np.ndarray], decoding: DecodingConfig
    ) -> dict[str, np.ndarray]:
        """Replace the true sequences of a batch with those that the model generates.

        A sequence that is cut off at the largest length has no end.

        Args:
            view: The state.
            batch: The batch.
            decoding: The decoding options.
        """
        rows = self.decode_tokens(view, batch, decoding)
        labels = np.pad(rows, ((0, 0), (0, self.steps - rows.shape[1])), constant_values=PAD)
        read = np.pad(labels[:, :-1], ((0, 0), (1, 0)), constant_values=BEGIN)
        return {**batch, "target": np.where(labels == PAD, PAD, read), "labels": labels}

    def decode_symbols(self, row: np.ndarray) -> list[str]:
        """Return the symbols of one sequence, up to its end."""
        return [self.symbols[number] for number in trim_at_end_token(row)]

    def name_steps(self, row: np.ndarray) -> tuple[str, ...]:
        """Return the names of the steps of one row of `labels`: its symbols and, if it has one, its end."""
        return (*self.decode_symbols(row), *([self.symbols[END]] if END in row else []))

    def format_lines(self, rows: np.ndarray) -> list[str]:
        """Return sequences as lines of text."""
        return [self.separator.join(self.decode_symbols(row)) for row in rows]

    def decoding(self, request: PredictionRequest, does: str, longest: str) -> DecodingConfig:
        """Return the decoding options of a request.

        Args:
            request: The request.
            does: What the run does, for the message about options that it does not have.
            longest: The limit in words, for the message about too large a length.

        Raises:
            UserError: If an option does not apply to the task, or `max_new_tokens` exceeds the longest sequence with
                its end.
        """
        refuse_text_options(request, does)
        decoding = DecodingConfig.with_request(
            request.decoding, max_new_tokens=self.steps, num_beams=self.num_beams, length_penalty=0.0
        )
        if decoding.max_new_tokens > self.steps:
            raise UserError(f"--max_new_tokens={decoding.max_new_tokens}: {longest} with its end")
        return decoding


def teacher_forcing_arrays(sequences: Sequence[Sequence[int]], steps: int) -> dict[str, Int[np.ndarray, "B T"]]:
    """Convert sequences of token numbers to `target` and `labels` of a batch.

    Args:
        sequences: The sequences, without begin and end.
        steps: Steps of a row: the length of the longest sequence with its begin or end.

    Returns:
        `target` [B, T], which starts with BEGIN, and `labels` [B, T], which finish with END; the rest is PAD.
    """
    target, labels = np.full((2, len(sequences), steps), PAD, np.int32)
    for row, numbers in enumerate(sequences):
        target[row, : len(numbers) + 1] = [BEGIN, *numbers][:steps]
        labels[row, : len(numbers) + 1] = [*numbers, END][:steps]
    return {"target": target, "labels": labels}


def trim_at_end_token(row: np.ndarray) -> list[int]:
    """Return the numbers of one sequence before its end or padding."""
    return list(itertools.takewhile(lambda number: number not in (PAD, END), row.tolist()))


def predicted_step_mask(batch: Batch) -> Bool[Array, "B T"]:
    """Return the steps at which a symbol or the end is predicted."""
    return jnp.asarray(batch["labels"]) != PAD


def gold_alignments_from_mask(
    places_BxTxK: Bool[Array | np.ndarray, "B T K"], *, sure: bool
) -> tuple[tuple[GoldAlignment, ...], ...]:
    """Return gold alignments from every symbol to each of its positions.

    Args:
        places_BxTxK: Which positions each symbol is about.
        sure: Whether the links are sure, or merely possible.
    """
    links = (np.argwhere(np.asarray(row_links)) for row_links in places_BxTxK)
    return tuple(tuple(GoldAlignment(int(step), int(key), sure) for step, key in row_links) for row_links in links)


def keep_correct_gold_alignments(
    links: Sequence[tuple[GoldAlignment, ...]], right_B: Bool[np.ndarray, " B"]
) -> tuple[tuple[GoldAlignment, ...], ...]:
    """Keep the gold alignments of correctly generated sequences; those of others are unknown."""
    return tuple(row_links if right else () for row_links, right in zip(links, right_B, strict=True))


class ImageToSequenceTask(SymbolSequenceTask, abc.ABC):
    """A task that generates sequences of symbols from images.

    A batch has `image`, the sequences, and what `gold_alignments` needs. A subclass adds `training_batches`,
    `evaluations` and `gold_alignments`, and calls `set_probe_batch` with the batch whose maps are stored.

    Args:
        name: The name of the objective.
        symbols: The symbols.
        longest: The largest number of symbols in a sequence.
        size: The side of the images in pixels.
        rows: Rows in a batch.
        num_beams: The beam size; 1 is greedy decoding.
        separator: What stands between symbols in a line of text.
    """

    def __init__(
        self, name: str, symbols: Sequence[str], longest: int, *, size: int, rows: int, num_beams: int, separator: str
    ):
        condition_specs = {"image": InputSpec((rows, size, size, 3), jnp.float32, Modality.IMAGE)}
        options: dict[str, Any] = {"rows": rows, "num_beams": num_beams, "separator": separator}
        super().__init__(name, symbols, longest, condition_specs, output=IMAGE_CAPTIONING.output, **options)

    @abc.abstractmethod
    def gold_alignments(self, batch: Mapping[str, np.ndarray], site: Site) -> tuple[tuple[GoldAlignment, ...], ...]:
        """Return, for each image, the gold alignments from symbols to the grid positions that they are about.

        Args:
            batch: The batch.
            site: The attention site, whose key axis is the grid.
        """

    def axis_labels(self, sites: Sequence[Site]) -> AxisLabels:
        """Return the symbols and images of the probe examples, and their gold alignments."""
        return self._describe(self.probe_examples, sites)

    def _describe(
        self, batch: Mapping[str, np.ndarray], sites: Sequence[Site], right_B: Bool[np.ndarray, " B"] | None = None
    ) -> AxisLabels:
        """Return the labels of a batch, without the gold alignments of sequences that are not correct."""
        steps = tuple(map(self.name_steps, batch["labels"]))
        looked, images = sites_between(sites, *TARGET_OVER_GRID), unscale_pixels(batch["image"])
        gold = {site.name: self.gold_alignments(batch, site) for site in looked}
        if right_B is not None:
            gold = {name: keep_correct_gold_alignments(links, right_B) for name, links in gold.items()}
        grids = {site.key.name: images for site in looked}
        return AxisLabels({"target": steps}, tuple(self.format_lines(batch["labels"])), gold or None, images=grids)

    def predict_batch(self, view: StateView, batch: Mapping[str, np.ndarray], decoding: DecodingConfig) -> Predictions:
        """Generate sequences from the images of a batch.

        Args:
            view: The state.
            batch: The images with their true sequences.
            decoding: The decoding options.

        Returns:
            The generated lines, with gold alignments where they are correct.
        """
        generated = self.generate_sequences(view, batch, decoding)
        right_B = (generated["labels"] == batch["labels"]).all(axis=1)
        labels = self._describe(generated, view.model.sites, right_B)
        return Predictions(
            self.format_lines(generated["labels"]), labels, make_capture_function(view, self.model_inputs(generated))
        )


def model_inputs(batch: Batch) -> dict[str, Any]:
    """Return the arrays of a batch that the model reads."""
    return {name: batch[name] for name in ("image", "target")}
