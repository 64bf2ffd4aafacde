"""Language modeling over successive segments, each with a memory of the last (Dai et al. 2019)."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import jax.numpy as jnp
from jaxtyping import Array, Key

from transformer.config import PositiveInt, UserError
from transformer.data.batches import BatchSource, OneEpoch
from transformer.data.text_batches import WindowBatches, join_documents
from transformer.models.model import Aux
from transformer.tasks.language_modeling import READER, Batching, LanguageModeling, LanguageModelingConfig
from transformer.tasks.recurrent_memory import (
    add_memory_to_batch,
    initial_memory_state,
    memory_report,
    next_memory_state,
    sums_with_and_without_memory,
)
from transformer.tasks.sharded_text import load_text, make_token_shards
from transformer.tasks.synthetic_data import synthetic_encoded_text
from transformer.tasks.task import Batch, Evaluation, StateView, TaskSpec
from transformer.tasks.text_data import Documents, EncodedText


@dataclasses.dataclass(frozen=True)
class SegmentLanguageModelingConfig(LanguageModelingConfig):
    """Language modeling with a memory.

    Attributes:
        segments_per_eval_text: The number of successive segments in a text of the evaluation "recurrence".
    """

    segments_per_eval_text: PositiveInt = 16

    def _check(self) -> None:
        super()._check()
        if self.batching is not Batching.WINDOWS:
            raise UserError(
                f"config.task.batching={self.batching.value}: segments that follow one another cross the bounds of "
                "documents; say windows"
            )


class SegmentLanguageModeling(LanguageModeling):
    """The task of language modeling with a memory; implements transformer.tasks.task.Task.

    Its `task_state` is the memory of the batch's rows after the last step.
    """

    config: SegmentLanguageModelingConfig

    def __init__(self, config: SegmentLanguageModelingConfig, text: EncodedText, rows_multiple: int = 1):
        super().__init__(config, text, rows_multiple)
        segment_evaluations = tuple(self._evaluation(name, text.splits[name]) for name in config.eval_splits)
        self.evaluations = (*self.evaluations, *segment_evaluations)

    def training_batches(self, seed: int) -> BatchSource:
        """Return segments that follow one another from step to step."""
        return self._segment_batches(seed)

    def init_task_state(self, view: StateView, key: Key[Array, ""]) -> dict[str, Array]:
        """Return an empty memory.

        Raises:
            UserError: If the model has no memory.
        """
        first = initial_memory_state(view, self.config.batch_size, self.config.context_length)
        if not first:
            raise UserError(
                "the task segment_lm hands a memory on, and the model has none: say "
                "config.model.family=transformer_xl with config.model.memory_length above 0, or the task "
                "language_modeling"
            )
        return first

    def prepare_batch(self, view: StateView, batch: Batch, key: Key[Array, ""]) -> tuple[Batch, dict[str, Array]]:
        """Add the memory of each row to the batch."""
        return add_memory_to_batch(view, batch)

    def next_task_state(self, view: StateView, batch: Batch, aux: Aux) -> dict[str, Array]:
        """Return the memory that the rows have left."""
        return next_memory_state(view, batch, aux)

    def _evaluation(self, name: str, documents: Documents) -> Evaluation:
        config, stream = self.config, join_documents(documents, self.tokenizer.eos_id)
        windows = WindowBatches(
            stream,
            context_length=config.segments_per_eval_text * config.context_length,
            rows=config.batch_size,
            seed=None,
        )

        return Evaluation(
            name="recurrence",
            split=name,
            batches=OneEpoch(windows),
            step=self._over_segments,
            finish=lambda sums, rows: memory_report(sums, config.segments_per_eval_text),
            at_end=name != config.validation_split,
            parameters=config.eval_parameters,
        )

    def _over_segments(self, view: StateView, batch: Batch, key: Key[Array, ""]) -> tuple[dict[str, Array], None]:
        """Sum the loss over segments, with the memory and without it."""

        def score(segment: Batch) -> tuple[dict[str, Array], Mapping[str, Array]]:
            denominators = self.denominators(segment)
            _, aux = self._loss(view, segment, {"tokens": jnp.float32(1)}, key)
            return {
                "loss": aux.metrics["cross_entropy"],
                "accuracy": aux.metrics["accuracy"],
                **denominators,
            }, aux.task_state

        return sums_with_and_without_memory(view, batch, self.config.segments_per_eval_text, score), None


def build_task(
    config: SegmentLanguageModelingConfig, directory: Path, rows_multiple: int = 1
) -> SegmentLanguageModeling:
    """Build the task over its data.

    Args:
        config: The config.
        directory: The run directory, which keeps the tokenizer.
        rows_multiple: Devices that share the batch x microbatches; the batch size must be a multiple.
    """
    return SegmentLanguageModeling(config, load_text(config, directory, roles=()), rows_multiple)


def build_synthetic_task(config: SegmentLanguageModelingConfig, rows_multiple: int = 1) -> SegmentLanguageModeling:
    """Build the task over synthetic text, without prompts, whose lengths depend on the real tokenizer."""
    text = synthetic_encoded_text(config, roles=(), texts=config.batch_size)
    return SegmentLanguageModeling(dataclasses.replace(config, prompts=()), text, rows_multiple)


TASK = TaskSpec(SegmentLanguageModelingConfig, build_synthetic_task, build_task, READER, make_token_shards)
