"""Defaults for simple tasks: no data files, no state between steps, no preparation, no evaluations, no answers."""

from collections.abc import Mapping, Sequence, Sized
from types import MappingProxyType

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from transformer.attention.capture import Capture, CapturedAttention
from transformer.config import UserError
from transformer.models.model import Aux, Variables
from transformer.tasks.decoding_config import refuse_score_words
from transformer.tasks.task import (
    Batch,
    CaptureFunction,
    Evaluation,
    EvaluationReport,
    InputTexts,
    PredictionRequest,
    Predictions,
    PyTree,
    StateView,
)


class BaseTask:
    """Defaults for transformer.tasks.task.Task.

    A subclass adds `interface`, `objectives`, `training_batches`, `axis_labels` and `probe_batch`.

    Attributes:
        evaluations: The evaluations; none by default.
        probe_batch: The model inputs of the examples whose maps are stored, [B, ...].
    """

    evaluations: tuple[Evaluation, ...] = ()
    probe_batch: Mapping[str, np.ndarray]

    @property
    def data_summary(self) -> tuple[str, ...]:
        """No lines: generated examples have no number to print."""
        return ()

    def fingerprint(self) -> dict[str, str]:
        """Return no fingerprints, as a task that reads no files."""
        return {}

    def init_task_state(self, view: StateView, key: Key[Array, ""]) -> PyTree:
        return {}

    def prepare_batch(self, view: StateView, batch: Batch, key: Key[Array, ""]) -> tuple[Batch, PyTree]:
        return batch, view.task_state

    def next_task_state(self, view: StateView, batch: Batch, aux: Aux) -> PyTree:
        """Return the `task_state` that a loss hands on to the next step.

        Args:
            view: The state that the loss read.
            batch: The prepared batch.
            aux: The auxiliary results of the loss's pass of the model.
        """
        return view.task_state

    def denominators(self, batch: Batch) -> dict[str, Float[Array, ""]]:
        """Return the number of examples, by which sums over them are divided."""
        return {"examples": jnp.float32(len(next(iter(batch.values()))))}

    def probe(self, view: StateView, capture: Capture, key: Key[Array, ""]) -> Aux:
        """Run one forward pass over `probe_batch`."""
        inputs = {name: jnp.asarray(values) for name, values in self.probe_batch.items()}
        return view.model.apply(view.variables, inputs, train=False, capture=capture)[1]

    def predict(self, view: StateView, request: PredictionRequest) -> Predictions:
        """Refuse the request: the task is not about texts.

        Raises:
            UserError: Always.
        """
        raise UserError("this run's task does not answer texts: it neither translates nor continues nor fills in")


def report_means(
    sums: Mapping[str, float],
    rows: object = None,
    *,
    by: str = "tokens",
    metric_denominators: Mapping[str, str] = MappingProxyType({}),
) -> EvaluationReport:
    """Divide the sums over a split by one of them, or each by its own.

    Args:
        sums: The sums by name.
        rows: Ignored, so that the function can be the `finish` of an evaluation.
        by: The name of the sum to divide by, which is left out of the report.
        metric_denominators: The same for sums that are divided by another one, by the name of what is divided.
    """
    counts = {by, *metric_denominators.values()}
    return EvaluationReport(
        {
            name: value / max(sums[metric_denominators.get(name, by)], 1)
            for name, value in sums.items()
            if name not in counts
        }
    )


def real_rows(batch: Batch) -> Bool[Array, " B"]:
    """Return which rows of a batch are examples; rows that only fill up a batch have `index` -1."""
    return jnp.asarray(batch["index"]) >= 0


def describe_top_classes(logits_BxC: Float[Array, "B C"], classes: Sequence[str]) -> list[str]:
    """Describe the most probable class of each row and its probability, as in "cat 0.973".

    Args:
        logits_BxC: The logits.
        classes: The names of the C classes.
    """
    probabilities_BxC = np.asarray(jax.nn.softmax(logits_BxC))
    return [
        f"{classes[int(probabilities_C.argmax())]} {probabilities_C.max():.3f}" for probabilities_C in probabilities_BxC
    ]


def make_capture_function(view: StateView, inputs: Batch, *, method: str = "forward") -> CaptureFunction:
    """Return a compiled pass of the model over fixed inputs that captures attention maps.

    Args:
        view: The state.
        inputs: The inputs of the model's method.
        method: The name of the method.
    """

    def look(capture: Capture) -> Mapping[str, CapturedAttention]:
        def maps(variables: Variables, inputs: Batch) -> Mapping[str, CapturedAttention]:
            return view.model.apply(variables, inputs, method=method, train=False, capture=capture)[1].maps

        return jax.jit(maps)(view.variables, dict(inputs))

    return look


def refuse_decoding_options(request: PredictionRequest, does: str) -> None:
    """Refuse a target language and decoding options, for a task that generates nothing.

    Args:
        request: The request.
        does: What the run does instead, for the message, as in "classifies".

    Raises:
        UserError: If the request has a language or any decoding option.
    """
    if request.language is not None:
        raise UserError(f"--target_language={request.language} is for runs that translate")
    refuse_score_words(request.decoding)
    if request.decoding:
        name = next(iter(request.decoding))
        raise UserError(f"--{name} is for runs that generate; this one {does}")


def refuse_text_options(request: PredictionRequest, does: str) -> None:
    """Refuse options that only make sense for texts, for a task that decodes something else.

    Args:
        request: The request.
        does: What the run does, for the message.

    Raises:
        UserError: If the request has a language, several samples, stop strings, a coverage penalty or a replacement of
            unknown words.
    """
    options = request.decoding
    if (
        request.language is not None
        or "stop_sequences" in options
        or options.get("num_samples", 1) > 1
        or options.get("coverage_penalty")
    ):
        raise UserError(f"this run {does}: leave out --target_language, --num_samples, --stop and --coverage_penalty")
    if "replace_unknown" in options:
        raise UserError(f"--replace_unknown={options['replace_unknown']} is for runs that translate sentences")


def check_input_texts(sentences: InputTexts, *, two_sided: bool = False) -> None:
    """Refuse empty texts, and targets or a language for a model that reads one text.

    Args:
        sentences: The texts.
        two_sided: Whether the model reads a source and a target.

    Raises:
        UserError: If there is no text or a text is blank, or if `two_sided` is False and there are targets or a
            language.
    """
    for text in sentences.texts:
        if not text.strip():
            raise UserError(f"text={text!r} has no words to look at: give a sentence")
    if not sentences.texts:
        raise UserError("there is no text to look at: give a sentence")
    if not two_sided and sentences.targets is not None:
        raise UserError(f"target={sentences.targets[0]!r} is for models that translate: this one reads one text")
    if not two_sided and sentences.language is not None:
        raise UserError(f"language={sentences.language!r} is for models that translate: this one reads one text")


def check_text_length(texts: Sequence[str], rows: Sequence[Sized], max_length: int | None) -> None:
    """Refuse a text that has more tokens than the model has positions.

    Args:
        texts: The texts, for the message.
        rows: Their tokens.
        max_length: The model's number of positions, or None if it has no limit.

    Raises:
        UserError: If a text has more than `max_length` tokens.
    """
    for text, row in zip(texts, rows, strict=True):
        if max_length is not None and len(row) > max_length:
            raise UserError(
                f"{text[:40]!r}... has {len(row)} tokens, more than the model's {max_length} positions: shorten it"
            )


def describe_splits(dataset: str, sizes: Mapping[str, int], what: str, how: str = "") -> str:
    """Describe a data set in one line.

    Args:
        dataset: Its name.
        sizes: The number of examples by split.
        what: What is counted, as in "tokens".
        how: How the splits were cut, where the files do not say it.
    """
    parts = ", ".join(f"{size:,} {name}" for name, size in sizes.items())
    return f"data {dataset}: {parts} {what}" + (f"; {how}" if how else "")


def check_batch_size(rows: int, rows_multiple: int, key: str = "batch_size") -> None:
    """Refuse a batch size that cannot be divided among the devices and microbatches.

    Args:
        rows: The batch size.
        rows_multiple: Devices that share the batch x microbatches.
        key: The key of `config.task` that says the batch size.

    Raises:
        UserError: If `rows` is not a multiple of `rows_multiple`.
    """
    if rows % rows_multiple:
        raise UserError(
            f"config.task.{key}={rows} cannot be cut into {rows_multiple} equal parts (those of the batch on the "
            f"mesh x config.num_microbatches): give a multiple of {rows_multiple}, or another config.sharding"
        )
