"""Defaults for simple tasks: no data, no state between steps, no preparation, no evaluations, no answers."""

from collections.abc import Mapping, Sequence, Sized

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
    """Defaults of transformer.tasks.task.Task.

    A task adds `interface`, `objectives`, `source` and `labels`, and `probe_batch`, the inputs of the examples whose
    maps are stored.
    """

    evaluations: tuple[Evaluation, ...] = ()
    probe_batch: Mapping[str, np.ndarray]

    @property
    def said(self) -> tuple[str, ...]:
        """Nothing: examples that are drawn have no number."""
        return ()

    def fingerprint(self) -> dict[str, str]:
        """Nothing: a task that reads no files draws its examples."""
        return {}

    def init_extra(self, view: StateView, key: Key[Array, ""]) -> PyTree:
        return {}

    def prepare(self, view: StateView, batch: Batch, key: Key[Array, ""]) -> tuple[Batch, PyTree]:
        return batch, view.extra

    def carried(self, view: StateView, batch: Batch, aux: Aux) -> PyTree:
        """What a loss hands on to the next step, of a pass of the model."""
        return view.extra

    def totals(self, batch: Batch) -> dict[str, Float[Array, ""]]:
        """The number of examples, by which sums over them are divided."""
        return {"examples": jnp.float32(len(next(iter(batch.values()))))}

    def probe(self, view: StateView, capture: Capture, key: Key[Array, ""]) -> Aux:
        """One forward pass over the probed examples."""
        inputs = {name: jnp.asarray(values) for name, values in self.probe_batch.items()}
        return view.model.apply(view.variables, inputs, train=False, capture=capture)[1]

    def answer(self, view: StateView, request: PredictionRequest) -> Predictions:
        """Raise UserError, since the task is not about texts."""
        raise UserError("this run's task does not answer texts: it neither translates nor continues nor fills in")


def mean_report(sums: Mapping[str, float], rows: object = None, *, by: str = "tokens") -> EvaluationReport:
    """The report of sums over a split, each divided by the one named `by`."""
    return EvaluationReport({name: value / max(sums[by], 1) for name, value in sums.items() if name != by})


def real_rows(batch: Batch) -> Bool[Array, " B"]:
    """The rows that are examples; the others only fill a batch: their `index` is -1."""
    return jnp.asarray(batch["index"]) >= 0


def describe_top_classes(logits_BxC: Float[Array, "B C"], classes: Sequence[str]) -> list[str]:
    """The most probable class of each row, and how probable it is: "cat 0.973"."""
    probabilities_BxC = np.asarray(jax.nn.softmax(logits_BxC))
    return [f"{classes[int(of_row.argmax())]} {of_row.max():.3f}" for of_row in probabilities_BxC]


def make_capture(view: StateView, inputs: Batch, *, method: str = "forward") -> CaptureFunction:
    """A compiled pass of the model over inputs, for their maps."""

    def look(capture: Capture) -> Mapping[str, CapturedAttention]:
        def maps(variables: Variables, inputs: Batch) -> Mapping[str, CapturedAttention]:
            return view.model.apply(variables, inputs, method=method, train=False, capture=capture)[1].maps

        return jax.jit(maps)(view.variables, dict(inputs))

    return look


def refuse_decoding(request: PredictionRequest, does: str) -> None:
    """Refuse a language and ways of decoding, for a task that generates nothing but `does` something else.

    Raises:
        UserError: As described above.
    """
    if request.language is not None:
        raise UserError(f"--target_language={request.language} is for runs that translate")
    refuse_score_words(request.decoding)
    if request.decoding:
        name = next(iter(request.decoding))
        raise UserError(f"--{name} is for runs that generate; this one {does}")


def refuse_options(request: PredictionRequest, does: str) -> None:
    """Refuse what only texts have, for a task that decodes but `does` something else than write.

    Raises:
        UserError: For a language, samples, stop strings or a coverage penalty.
    """
    given = request.decoding
    if (
        request.language is not None
        or "stop_sequences" in given
        or given.get("num_samples", 1) > 1
        or given.get("coverage_penalty")
    ):
        raise UserError(f"this run {does}: leave out --target_language, --num_samples, --stop and --coverage_penalty")


def check_input_texts(sentences: InputTexts, *, two_sided: bool = False) -> None:
    """Refuse sentences that say nothing, and targets or a language for a model of one side.

    Raises:
        UserError: As described above.
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


def check_fits(texts: Sequence[str], rows: Sequence[Sized], max_length: int | None) -> None:
    """Refuse a text of more tokens than a model has positions.

    Raises:
        UserError: As described above.
    """
    for text, row in zip(texts, rows, strict=True):
        if max_length is not None and len(row) > max_length:
            raise UserError(
                f"{text[:40]!r}... has {len(row)} tokens, more than the model's {max_length} positions: shorten it"
            )


def describe_splits(dataset: str, sizes: Mapping[str, int], what: str, how: str = "") -> str:
    """A data set in one line: how many examples each split has and, where its files do not say it, `how` it was cut."""
    parts = ", ".join(f"{size:,} {name}" for name, size in sizes.items())
    return f"data {dataset}: {parts} {what}" + (f"; {how}" if how else "")


def check_batch_size(rows: int, rows_multiple: int) -> None:
    """Refuse `config.task.batch_size` that a mesh and a config cannot cut into equal parts.

    Raises:
        UserError: As described above.
    """
    if rows % rows_multiple:
        raise UserError(
            f"config.task.batch_size={rows} cannot be cut into {rows_multiple} equal parts (those of the batch on the "
            f"mesh x config.num_microbatches): give a multiple of {rows_multiple}, or another config.sharding"
        )
