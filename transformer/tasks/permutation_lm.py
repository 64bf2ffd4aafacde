"""Permutation language modeling: predict tokens in a random order, over segments with a memory (Yang et al. 2019)."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from transformer.attention.capture import Capture
from transformer.attention.sites import Site
from transformer.config import PositiveInt, UserError
from transformer.data.batches import VALIDATION_SEED, BatchSource, OneEpoch, random_generator
from transformer.data.factorization_orders import ContextAttention, OrderSampler, PermutedBatches, PermutedSegments
from transformer.data.text_batches import SpecialTokenFrame, WindowBatches, join_documents
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.layers.segment_memory import MEMORY_AND_TOKENS
from transformer.models.model import Aux
from transformer.models.task_interface import PERMUTATION_LANGUAGE_MODELING, InputSpec, Modality, TaskInterface
from transformer.tasks.axis_labels import AxisLabels
from transformer.tasks.losses import add_z_loss, chunked_token_loss
from transformer.tasks.recurrent_memory import (
    add_memory_to_batch,
    initial_memory_state,
    memory_report,
    next_memory_state,
    sums_with_and_without_memory,
)
from transformer.tasks.sharded_text import ShardedTextConfig, load_text, make_token_shards
from transformer.tasks.synthetic_data import synthetic_encoded_text
from transformer.tasks.task import (
    Batch,
    EncodedInputs,
    Evaluation,
    InputReader,
    InputTexts,
    LossAux,
    Objective,
    StateView,
    TaskSpec,
)
from transformer.tasks.text_data import Documents, EncodedText, evenly_spaced_excerpts, token_axis_labels
from transformer.tasks.text_task_base import CONTINUATION_READER, TextTask, make_text_task_interface

INPUTS = ("tokens", "order", "predicted", "lengths", "memory", "past")


@dataclasses.dataclass(frozen=True)
class PermutationLanguageModelingConfig(ShardedTextConfig):
    """Permutation language modeling (Yang et al. 2019).

    Attributes:
        partial_prediction_k: The last 1 / k of the tokens of every segment's factorization order are predicted.
        max_span_length: The predicted tokens lie in spans of at most this length. 1 predicts single tokens anywhere.
        context_attention: Whether the tokens that are not predicted attend to each other in both directions.
        segments_per_eval_text: The number of segments in a text of an evaluation, each with the memory of those before
            it.
    """

    partial_prediction_k: PositiveInt = 6
    max_span_length: PositiveInt = 1
    context_attention: ContextAttention = ContextAttention.BIDIRECTIONAL
    segments_per_eval_text: PositiveInt = 16

    def _check(self) -> None:
        super()._check()
        if self.partial_prediction_k > self.context_length:
            raise UserError(
                f"config.task.partial_prediction_k={self.partial_prediction_k} of context_length={self.context_length} "
                "tokens predicts none: lower it"
            )

    @property
    def permutations(self) -> OrderSampler:
        """The sampler of a segment's factorization orders."""
        return OrderSampler(
            self.context_length, self.partial_prediction_k, self.max_span_length, self.context_attention
        )


class PermutationLanguageModeling(TextTask):
    """The task of permutation language modeling; implements transformer.tasks.task.Task.

    Its `task_state` is the memory of the batch's rows after the last step.
    """

    def __init__(self, config: PermutationLanguageModelingConfig, text: EncodedText, rows_multiple: int = 1):
        super().__init__(config, text, rows_multiple, asks=PERMUTATION_LANGUAGE_MODELING)
        self.config = config
        self.interface = _make_task_interface(config, text.tokenizer)
        # Spelled as in recorded runs, since the name of an objective seeds its random numbers (`derive_key`).
        self.objectives = (
            Objective("permutation_language_modeling", self._loss, key_name="permutation_language_modelling"),
        )
        self.evaluations = tuple(self._evaluation(name, text.splits[name]) for name in config.eval_splits)
        # Twice the probe length: the first half becomes the memory.
        length = self.probe_batch["tokens"].shape[1]
        texts = evenly_spaced_excerpts(text.splits[config.validation_split], config.num_probe_examples, 2 * length)
        before = dataclasses.replace(config.permutations, length=length)
        mapped = dataclasses.replace(before, context_attention=ContextAttention.PERMUTED)
        random = random_generator(VALIDATION_SEED)
        self._before = {"tokens": texts[:, :length], "order": before.draw(random, config.num_probe_examples).order}
        self.probe_batch = {"tokens": texts[:, length:], "order": mapped.draw(random, config.num_probe_examples).order}

    def training_batches(self, seed: int) -> BatchSource:
        """Return segments that follow one another, each with a random factorization order."""
        return PermutedSegments(self._segment_batches(seed), self.config.permutations, seed)

    def init_task_state(self, view: StateView, key: Key[Array, ""]) -> dict[str, Array]:
        """Return an empty memory; nothing for a model without one."""
        return initial_memory_state(view, self.config.batch_size, self.config.context_length)

    def prepare_batch(self, view: StateView, batch: Batch, key: Key[Array, ""]) -> tuple[Batch, dict[str, Array]]:
        """Add the memory of each row to the batch."""
        return add_memory_to_batch(view, batch)

    def denominators(self, batch: Batch) -> dict[str, Array]:
        """Return the number of predicted tokens, by which every sum of losses is divided."""
        return {"tokens": jnp.float32(batch["predicted"].size)}

    def _loss(
        self, view: StateView, batch: Batch, denominators: Mapping[str, Array], key: Key[Array, ""]
    ) -> tuple[Array, LossAux]:
        sums, aux = self._sums(view, batch, key)
        metrics = {name: sums[name] / denominators["tokens"] for name in ("loss", "accuracy")}
        return metrics["loss"], LossAux.from_aux(aux, next_memory_state(view, batch, aux), metrics)

    def _sums(self, view: StateView, batch: Batch, key: Key[Array, ""] | None) -> tuple[dict[str, Array], Aux]:
        """Sum the loss of the predicted tokens, and count them."""
        inputs = {name: jnp.asarray(batch[name]) for name in INPUTS if name in batch}
        hidden_BxPxE, aux = view.model.apply(
            view.variables, inputs, method="hidden", train=view.train, key=key, capture=view.capture
        )
        counts_BxP = jnp.ones(inputs["predicted"].shape, bool)
        if "lengths" in inputs:
            counts_BxP = inputs["predicted"] < inputs["lengths"][:, None]
        sums = chunked_token_loss(
            functools.partial(view.model.logits, view.variables),
            hidden_BxPxE,
            jnp.take_along_axis(inputs["tokens"], inputs["predicted"], axis=1),
            counts_BxP,
            0.0,
            logits_at_once=self.config.logits_at_once,
            has_z_loss=self.config.z_loss > 0,
        )
        aux = add_z_loss(aux, sums, counts_BxP, self.config.z_loss)
        tokens = jnp.sum(counts_BxP).astype(jnp.float32)
        return {"loss": sums.cross_entropy, "accuracy": sums.correct, "tokens": tokens}, aux

    def _evaluation(self, name: str, documents: Documents) -> Evaluation:
        config = self.config
        windows = WindowBatches(
            join_documents(documents, self.tokenizer.eos_id),
            context_length=config.segments_per_eval_text * config.context_length,
            rows=config.batch_size,
            seed=None,
            frame=SpecialTokenFrame(),
        )
        return Evaluation(
            name="permuted",
            split=name,
            batches=OneEpoch(
                PermutedBatches(windows, config.permutations, VALIDATION_SEED, config.segments_per_eval_text)
            ),
            step=self._over_segments,
            finish=lambda sums, rows: memory_report(sums, config.segments_per_eval_text),
            at_end=name != config.validation_split,
            parameters=config.eval_parameters,
        )

    def _over_segments(self, view: StateView, batch: Batch, key: Key[Array, ""]) -> tuple[dict[str, Array], None]:
        """Sum the loss over segments, with the memory and without it."""

        def score(segment: Batch) -> tuple[dict[str, Array], Mapping[str, Array]]:
            sums, aux = self._sums(view, segment, None)
            return sums, aux.extras

        return sums_with_and_without_memory(view, batch, self.config.segments_per_eval_text, score), None

    def probe(self, view: StateView, capture: Capture, key: Key[Array, ""]) -> Aux:
        """Capture maps of excerpts of the validation text, all predicted in a random order, with as long a memory.

        If the model's memory is shorter, its first positions are padding and hidden.
        """
        before, inputs = (jax.tree.map(jnp.asarray, dict(arrays)) for arrays in (self._before, self.probe_batch))
        _, read = view.model.apply(view.variables, before, method="content", train=False)
        if "memory" in read.extras:
            memory_BxLxMxE, (rows, length) = read.extras["memory"], before["tokens"].shape
            slots = memory_BxLxMxE.shape[2]
            fitted = jnp.pad(memory_BxLxMxE, ((0, 0), (0, 0), (max(length - slots, 0), 0), (0, 0)))[:, :, -length:]
            inputs |= {"memory": fitted, "past": jnp.full(rows, min(slots, length))}
        return view.model.apply(view.variables, inputs, method="hidden", train=False, capture=capture)[1]

    def axis_labels(self, sites: Sequence[Site]) -> AxisLabels:
        """Return the tokens of the probe examples, with and without those of the memory."""
        labels = super().axis_labels(sites)
        texts = np.concatenate([self._before["tokens"], self.probe_batch["tokens"]], axis=1)
        full_labels = token_axis_labels(self.tokenizer, [list(row) for row in texts])
        return dataclasses.replace(
            labels, tokens={**labels.tokens, MEMORY_AND_TOKENS.name: full_labels.tokens["tokens"]}
        )


def build_task(
    config: PermutationLanguageModelingConfig, directory: Path, rows_multiple: int = 1
) -> PermutationLanguageModeling:
    """Build the task over its data.

    Args:
        config: The config.
        directory: The run directory, which keeps the tokenizer.
        rows_multiple: Devices that share the batch x microbatches; the batch size must be a multiple.
    """
    return PermutationLanguageModeling(config, load_text(config, directory, roles=()), rows_multiple)


def build_synthetic_task(
    config: PermutationLanguageModelingConfig, rows_multiple: int = 1
) -> PermutationLanguageModeling:
    """Build the task over synthetic text."""
    text = synthetic_encoded_text(config, roles=(), texts=config.batch_size)
    return PermutationLanguageModeling(config, text, rows_multiple)


def _make_task_interface(config: PermutationLanguageModelingConfig, tokenizer: Tokenizer) -> TaskInterface:
    """Return what the task requires of a model: the order of every segment, and its predicted positions."""
    interface = make_text_task_interface(config, tokenizer, asks=PERMUTATION_LANGUAGE_MODELING)
    order = InputSpec((config.batch_size, config.context_length), modality=Modality.POSITIONS)
    predicted = InputSpec((config.batch_size, config.permutations.num_predicted), modality=Modality.POSITIONS)
    return dataclasses.replace(interface, inputs={**interface.inputs, "order": order, "predicted": predicted})


def _read(config: Any, view: StateView, tokenizer: Tokenizer, sentences: InputTexts) -> EncodedInputs:
    """Encode texts to be read from left to right, without a memory, so that the keys are the text's own tokens.

    Raises:
        UserError: If a text is empty or too long, or a target or a language is given.
    """
    reading = CONTINUATION_READER.encode(config, view, tokenizer, sentences)
    tokens = {**reading.labels.tokens, MEMORY_AND_TOKENS.name: reading.labels.tokens["tokens"]}
    # The query stream of a position predicts the token that stands there.
    tokens_BxT, lengths_B = (np.asarray(reading.inputs[name]) for name in ("tokens", "lengths"))
    predicted_BxT = np.where(np.arange(tokens_BxT.shape[1]) < lengths_B[:, None], tokens_BxT, -1)
    labels = dataclasses.replace(reading.labels, tokens=tokens)
    return reading._replace(labels=labels, predicted_BxT=predicted_BxT)


READER = InputReader(_make_task_interface, _read, reads_tokens=True)
TASK = TaskSpec(PermutationLanguageModelingConfig, build_synthetic_task, build_task, READER, make_token_shards)
