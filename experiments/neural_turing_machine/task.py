"""Algorithmic tasks on binary vectors: copy, recall, N-grams and sorting (Graves et al. 2014)."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from experiments.neural_turing_machine.data import Algorithm, Copy, Problem, SequenceBatch, build_algorithm, format_bits
from experiments.neural_turing_machine.signature import BIT_SEQUENCE_PREDICTION
from transformer.attention.sites import Site
from transformer.config import BatchSize, Config, NumDisplayedExamples, NumExamples, UserError
from transformer.data.batches import GeneratedBatches
from transformer.models.task_interface import InputSpec, Modality, TaskInterface
from transformer.tasks.axis_labels import AxisLabels
from transformer.tasks.base_task import BaseTask, make_capture_function
from transformer.tasks.task import (
    Batch,
    Evaluation,
    EvaluationReport,
    LossAux,
    Objective,
    PredictionRequest,
    Predictions,
    StateView,
    TaskSpec,
)

# Held-out sequences are those of seeds that runs could have: they are refused there.
SEEDS = {"validation": 10**9, "test": 10**9 + 1, "probe": 10**9 + 2}


@dataclasses.dataclass(frozen=True)
class AlgorithmsConfig(Config, path="config.task"):
    """Algorithmic sequences of random sizes, sampled anew at every step.

    Sequences of few bits recur, held-out ones too, as there are no others: what is tested is the algorithm, at sizes of
    which training has few sequences or, beyond `max_size`, none.

    A batch is padded to the first of `bucket_lengths` that holds it, each of which is a program to compile; if none
    does, to the longest sequence of training. `num_bits`, `max_repeats`, `item_length`, `context_length` and
    `num_sorted` are fields of some problems (experiments.neural_turing_machine.data) and by default the paper's.

    Attributes:
        problem: The problem.
        num_bits: The bits of a vector.
        max_repeats: The most repeats.
        item_length: The vectors of an item.
        context_length: The bits of a context.
        num_sorted: The vectors to emit.
        batch_size: Sequences in a batch.
        min_size: The smallest size in training.
        max_size: The largest size in training.
        bucket_lengths: The numbers of steps that batches are padded to.
        eval_sizes: The sizes of held-out sequences.
        num_eval_examples: Validation sequences, and as many test sequences, of each size.
        num_probe_examples: Sequences whose maps are stored, with sizes from `min_size` to `max_size`.

    Raises:
        UserError: If sizes are too small, not rising or repeated, a number is below 1, or the problem has no such
            field.
    """

    problem: Problem = Problem.COPY
    num_bits: int | None = None
    max_repeats: int | None = None
    item_length: int | None = None
    context_length: int | None = None
    num_sorted: int | None = None
    batch_size: BatchSize = 16
    min_size: int = 1
    max_size: int = 20
    bucket_lengths: tuple[int, ...] = ()
    eval_sizes: tuple[int, ...] = (10, 20, 30, 50, 80, 120)
    num_eval_examples: NumExamples = 64
    num_probe_examples: NumDisplayedExamples = 4

    def _check(self) -> None:
        min_size = self.algorithm.min_size
        if not min_size <= self.min_size <= self.max_size:
            raise UserError(
                f"config.task.min_size={self.min_size} and max_size={self.max_size} must rise, from at least {min_size}"
            )
        if any(size < min_size for size in self.eval_sizes) or len(set(self.eval_sizes)) < len(self.eval_sizes):
            raise UserError(f"config.task.eval_sizes={self.eval_sizes} must be different sizes of at least {min_size}")

    @functools.cached_property
    def algorithm(self) -> Algorithm:
        """The problem with its numbers."""
        sizes = {
            name: getattr(self, name)
            for name in ("num_bits", "max_repeats", "item_length", "context_length", "num_sorted")
        }
        return build_algorithm(self.problem, {name: value for name, value in sizes.items() if value is not None})

    def padded_length(self, steps: int) -> int:
        """Return the number of steps that a training batch of so many steps is padded to."""
        max_size = self.algorithm.max_steps(self.max_size)
        return min((length for length in self.bucket_lengths if length >= steps), default=max(max_size, steps))


class Algorithms(BaseTask):
    """Algorithmic tasks: implements transformer.tasks.task.Task.

    The loss is the binary cross-entropy of the expected bits.

    Args:
        config: The config.
        rows_multiple: The number that the rows of a batch are rounded up to a multiple of.
        hardest: Whether every training batch consists of the longest sequences, as programs are compiled for.
    """

    def __init__(self, config: AlgorithmsConfig, rows_multiple: int, *, hardest: bool = False):
        self.config, self.problem, self._hardest = config, config.algorithm, hardest
        self._shortest = config.max_size if hardest else config.min_size
        self._rows, self._sequences = (
            -(-rows // rows_multiple) * rows_multiple for rows in (config.batch_size, config.num_eval_examples)
        )
        max_size = config.padded_length(self.problem.max_steps(config.max_size))
        inputs = {
            # A step is a point with as many coordinates as there are channels, and no number of a token.
            "vectors": InputSpec((self._rows, max_size, self.problem.num_inputs), jnp.float32, Modality.POINTS),
            "lengths": InputSpec((self._rows,)),
        }
        self.interface = TaskInterface(
            inputs, {"bits": self.problem.num_outputs}, output=BIT_SEQUENCE_PREDICTION.output
        )
        self.objectives = (Objective("bits", self._loss),)
        self.evaluations = tuple(
            self._evaluation(split, size) for split in ("validation", "test") for size in config.eval_sizes
        )
        self._probe = self._probe_sequences()
        steps = max(len(one.answer_mask) for one in self._probe)
        parts = [make_batch(one, steps) for one in self._probe]
        self.probe_batch = {
            name: np.concatenate([part[name] for part in parts]) for name in BIT_SEQUENCE_PREDICTION.inputs
        }

    def _evaluation(self, split: str, size: int) -> Evaluation:
        random = np.random.default_rng((SEEDS[split], size))
        sequences = self.problem.sample(random, self._sequences, size, hardest=True)
        return Evaluation(
            name=f"size_{size}",
            split=split,
            batches=[make_batch(sequences, len(sequences.answer_mask))],
            step=self._sums,
            finish=functools.partial(size_report, size),
            at_end=split == "test",
        )

    def _probe_sequences(self) -> list[SequenceBatch]:
        config, random = self.config, np.random.default_rng(SEEDS["probe"])
        sizes = np.linspace(config.max_size, config.min_size, config.num_probe_examples).round().astype(int)
        return [self.problem.sample(random, 1, int(size), hardest=True) for size in sizes]

    def training_batches(self, seed: int) -> GeneratedBatches:
        """Return an endless source of sequences that are sampled anew at every step.

        Raises:
            UserError: If the seed is one of those that held-out sequences are drawn from.
        """
        if seed in SEEDS.values():
            raise UserError(f"config.seed={seed} is a seed of held-out sequences: give another")
        return GeneratedBatches(self._sample_batch, seed)

    def _sample_batch(self, random: np.random.Generator) -> dict[str, np.ndarray]:
        size = int(random.integers(self._shortest, self.config.max_size + 1))
        sequences = self.problem.sample(random, self._rows, size, hardest=self._hardest)
        return make_batch(sequences, self.config.padded_length(len(sequences.answer_mask)))

    def denominators(self, batch: Batch) -> dict[str, Array]:
        """Return the numbers of expected bits and of sequences."""
        mask_BxT, outputs = jnp.asarray(batch["answer_mask"]), batch["targets"].shape[-1]
        examples = jnp.float32(len(mask_BxT))
        return {"bits": jnp.sum(mask_BxT).astype(jnp.float32) * outputs, "examples": examples}

    def _loss(
        self, view: StateView, batch: Batch, denominators: Mapping[str, Array], key: Key[Array, ""]
    ) -> tuple[Array, LossAux]:
        """Return the mean over all expected bits of -log p(bit), in nats."""
        inputs = {name: batch[name] for name in BIT_SEQUENCE_PREDICTION.inputs}
        logits_BxTxO, aux = view.model.apply(view.variables, inputs, train=view.train, key=key, capture=view.capture)
        logits_BxTxO = logits_BxTxO.astype(jnp.promote_types(logits_BxTxO.dtype, jnp.float32))
        targets_BxTxO, mask_BxTx1 = jnp.asarray(batch["targets"]), jnp.asarray(batch["answer_mask"])[..., None]
        nats = jax.nn.softplus(logits_BxTxO) - targets_BxTxO * logits_BxTxO
        nats = jnp.sum(jnp.where(mask_BxTx1, nats, 0))
        wrong_BxTxO = ((logits_BxTxO > 0) != (targets_BxTxO > 0.5)) & mask_BxTx1
        exact = jnp.sum(~jnp.any(wrong_BxTxO, axis=(1, 2)))
        metrics = {
            "loss": nats / denominators["bits"],
            "bit_error_rate": jnp.sum(wrong_BxTxO) / denominators["bits"],
            "bits_per_sequence": nats / np.log(2) / denominators["examples"],
            "exact_match": exact / denominators["examples"],
        }
        if "optimal_nats" in batch:
            metrics["optimal_bits_per_sequence"] = jnp.sum(batch["optimal_nats"]) / np.log(2) / denominators["examples"]
        return metrics["loss"], LossAux.from_aux(aux, view.task_state, metrics)

    def _sums(self, view: StateView, batch: Batch, key: Key[Array, ""]) -> tuple[dict[str, Array], None]:
        one = jnp.float32(1)
        _, aux = self._loss(view, batch, {"bits": one, "examples": one}, key)
        return {**aux.metrics, **self.denominators(batch)}, None

    def axis_labels(self, sites: Sequence[Site]) -> AxisLabels:
        """Label each step with what it shows, or with the expected answer."""
        return make_axis_labels(self._probe)

    def predict(self, view: StateView, request: PredictionRequest) -> Predictions:
        """Copy the texts, words of bits such as 10110011 00110101; the other problems cannot answer texts.

        Raises:
            UserError: If the problem is another one, or a text is not words of that many bits.
        """
        problem = self.problem
        if not isinstance(problem, Copy):
            raise UserError(
                f"a run of problem={self.config.problem.value} does not answer texts: only copy does, words of bits"
            )
        sequences = [problem.copy_vectors(parse_bits(text, problem.num_bits)[None]) for text in request.texts]
        steps = max(len(sequence.answer_mask) for sequence in sequences)
        parts = [make_batch(sequence, steps) for sequence in sequences]
        batch = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        inputs = {name: jnp.asarray(batch[name]) for name in BIT_SEQUENCE_PREDICTION.inputs}
        logits_BxTxO = np.asarray(view.model.apply(view.variables, inputs, train=False)[0])
        lines = [
            " ".join(format_bits(bits) for bits in (logits > 0)[mask])
            for logits, mask in zip(logits_BxTxO, batch["answer_mask"], strict=True)
        ]
        return Predictions(lines, make_axis_labels(sequences), make_capture_function(view, inputs))


def make_batch(sequences: SequenceBatch, steps: int) -> dict[str, np.ndarray]:
    """Pad sequences with zeros to a number of steps.

    Args:
        sequences: The sequences.
        steps: The number of steps.

    Returns:
        The batch, with the true lengths.
    """
    rows, padding = len(sequences.vectors), (0, steps - len(sequences.answer_mask))
    mask_T = np.pad(sequences.answer_mask, padding)
    batch = {
        "vectors": np.pad(sequences.vectors, ((0, 0), padding, (0, 0))),
        "lengths": np.full(rows, len(sequences.answer_mask), np.int32),
        "targets": np.pad(sequences.targets, ((0, 0), padding, (0, 0))),
        "answer_mask": np.broadcast_to(mask_T, (rows, steps)).copy(),
    }
    if sequences.optimal_nats is not None:
        batch["optimal_nats"] = sequences.optimal_nats.astype(np.float32)
    return batch


def size_report(size: int, sums: Mapping[str, Any], rows: object) -> EvaluationReport:
    """Report an evaluation at one size; every name ends in the size.

    For n_grams, `optimality_gap` is the relative excess over the Bayes-optimal bits.

    Args:
        size: The size of the problem, such as the length of a sequence.
        sums: The sums over bits and over examples, with their counts.
        rows: Unused.

    Returns:
        The report.
    """
    per = {
        "bits": ("loss", "bit_error_rate"),
        "examples": ("bits_per_sequence", "optimal_bits_per_sequence", "exact_match"),
    }
    means = {name: float(sums[name] / sums[by]) for by, names in per.items() for name in names if name in sums}
    if "optimal_bits_per_sequence" in means:
        means["optimality_gap"] = means["bits_per_sequence"] / means["optimal_bits_per_sequence"] - 1
    return EvaluationReport({f"{name}/{size}": value for name, value in means.items()})


def make_axis_labels(sequences: Sequence[SequenceBatch]) -> AxisLabels:
    """Return the names of the steps of some sequences."""
    names = tuple(step_names for sequence_batch in sequences for step_names in sequence_batch.step_names)
    return AxisLabels(
        {"steps": names}, tuple(f"sequence {number}: {len(row)} steps" for number, row in enumerate(names))
    )


def parse_bits(text: str, bits: int) -> np.ndarray:
    """Parse words of bits, such as "10110011 00110101".

    Args:
        text: The words.
        bits: The number of bits of each word.

    Returns:
        Vectors [word, bit] of 0 and 1.

    Raises:
        UserError: If the text is not words of `bits` bits.
    """
    words = text.split()
    if not words or any(len(one) != bits or not set(one) <= {"0", "1"} for one in words):
        example = format_bits(np.arange(bits) % 3 == 0)
        raise UserError(f"{text!r} cannot be copied: give words of {bits} bits, such as '{example} {example[::-1]}'")
    return np.array([[float(bit) for bit in one] for one in words], np.float32)


def build_task(config: AlgorithmsConfig, directory: Path, rows_multiple: int = 1) -> Algorithms:
    """Build the task; the rows of a batch are a multiple of `rows_multiple` (devices x microbatches)."""
    return Algorithms(config, rows_multiple)


def build_synthetic_task(config: AlgorithmsConfig, rows_multiple: int = 1) -> Algorithms:
    """Build the task with every batch of the greatest length."""
    return Algorithms(config, rows_multiple, hardest=True)


TASK = TaskSpec(AlgorithmsConfig, build_synthetic_task, build_task)
