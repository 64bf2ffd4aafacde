"""Causal language modeling: predict each token from those before it."""

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Key

from transformer.attention.capture import Capture, CapturedAttention
from transformer.attention.sites import AxisKind
from transformer.config import (
    NonNegativeInt,
    NumExamplesOrZero,
    PositiveInt,
    Rate,
    TupleLimits,
    UserError,
)
from transformer.data.batches import BatchSource, OneEpoch
from transformer.data.packing import PackedBatches
from transformer.data.text_batches import WindowBatches, join_documents
from transformer.data.token_mixture import TokenShardBatches
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.models.task_interface import LANGUAGE_MODELING
from transformer.tasks.cloze_evaluation import ZERO_SHOT, ClozeEvaluation
from transformer.tasks.decoding_config import DecodingConfig, DecodingDefaults
from transformer.tasks.sharded_text import ShardedTextConfig, load_text, make_token_shards
from transformer.tasks.synthetic_data import synthetic_encoded_text
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
from transformer.tasks.text_data import Documents, EncodedText, bytes_per_token, mean_token_metrics
from transformer.tasks.text_generation import continuation_evaluation, encode_prompts, predict_continuations
from transformer.tasks.text_task_base import CONTINUATION_READER, TextTask, real_positions

_IMPORTANCE = "importance/"


class Batching(enum.Enum):
    """How text fills the rows of a batch.

    Evaluations read the text the same way, every token once.

    Attributes:
        WINDOWS: Windows that begin anywhere in the text, its documents joined.
        PACKED: Whole documents, several in a row, which do not attend to each other; every token once an epoch.
    """

    WINDOWS = "windows"
    PACKED = "packed"


@dataclasses.dataclass(frozen=True)
class LanguageModelingConfig(ShardedTextConfig):
    """Causal language modeling.

    Attributes:
        batching: How text fills the rows of a batch.
        num_repeated_sequences: The number of examples of repeated random tokens that are mapped in addition to the
            text: they show induction heads (Olsson et al. 2022).
        label_smoothing: The label smoothing of the training loss.
        prompts: Texts that are continued greedily at every evaluation, as samples to read.
        max_new_tokens: The length of these continuations.
        num_cloze_questions: The number of gaps in the validation text to fill from ten candidate words, and the number
            of last words to predict, at the end (transformer.tasks.cloze_evaluation). 0 is none.
        shots: For each pass over these questions, the number of completed examples in front of each.
        decoding: How texts are generated unless a request says otherwise. The continuations during training are greedy
            and end and forbid the same tokens.
    """

    batching: Batching = Batching.WINDOWS
    num_repeated_sequences: NumExamplesOrZero = 1
    label_smoothing: Rate = 0.0
    prompts: tuple[str, ...] = ()
    max_new_tokens: PositiveInt = 48
    num_cloze_questions: NumExamplesOrZero = 0
    shots: Annotated[tuple[NonNegativeInt, ...], TupleLimits(min_length=1, distinct=True)] = ZERO_SHOT
    decoding: DecodingDefaults = dataclasses.field(default_factory=DecodingDefaults)

    def _check(self) -> None:
        super()._check()
        if not self.num_cloze_questions and self.shots != ZERO_SHOT:
            raise UserError(
                f"config.task.shots={self.shots} are passages in front of questions, and "
                "config.task.num_cloze_questions=0: say how many"
            )


class LanguageModeling(TextTask):
    """The task of causal language modeling; implements transformer.tasks.task.Task."""

    def __init__(self, config: LanguageModelingConfig, text: EncodedText, rows_multiple: int = 1):
        self.config, tokenizer = config, text.tokenizer
        self._prompts = encode_prompts(tokenizer, config.prompts) if config.prompts else None
        longest = 0 if self._prompts is None else int(self._prompts["lengths"].max()) + config.max_new_tokens
        super().__init__(
            config,
            text,
            rows_multiple,
            asks=LANGUAGE_MODELING,
            max_decoded_length=longest,
            repeated=config.num_repeated_sequences,
        )
        self._bytes_V = bytes_per_token(tokenizer)
        # Spelled as in recorded runs, since the name of an objective seeds its random numbers (`derive_key`).
        self.objectives = (Objective("language_modeling", self._loss, key_name="language_modelling"),)
        self.evaluations = tuple(self._loss_evaluation(name, text.splits[name]) for name in config.eval_splits)
        if self._prompts is not None:
            ends, forbidden = config.decoding.end_ids, config.decoding.forbidden_ids
            greedy = DecodingConfig(max_new_tokens=config.max_new_tokens, end_ids=ends, forbidden_ids=forbidden)
            continued = continuation_evaluation(
                tokenizer, config.prompts, self._prompts, greedy, split=config.validation_split
            )
            self.evaluations += (continued,)
        if config.num_cloze_questions:
            cloze = ClozeEvaluation(
                tokenizer, config.num_cloze_questions, config.shots, config.context_length, config.batch_size
            )
            held_out, averages = text.splits[config.validation_split], config.eval_parameters
            self.evaluations += cloze.evaluations(text.splits["train"], held_out, config.validation_split, averages)

    def training_batches(self, seed: int) -> BatchSource:
        if self.text.train_shards is not None:
            return TokenShardBatches(
                self.text.train_shards,
                context_length=self.config.context_length,
                rows=self.config.batch_size,
                seed=seed,
                packed=self.config.batching is Batching.PACKED,
            )
        return self._batches(self.text.splits["train"], seed)

    def _batches(self, documents: Documents, seed: int | None) -> WindowBatches | PackedBatches:
        context_length, rows, end = self.config.context_length, self.config.batch_size, self.tokenizer.eos_id
        match self.config.batching:
            case Batching.WINDOWS:
                return WindowBatches(
                    join_documents(documents, end), context_length=context_length, rows=rows, seed=seed
                )
            case Batching.PACKED:
                return PackedBatches(documents, context_length=context_length, rows=rows, seed=seed, end=end)

    def denominators(self, batch: Batch) -> dict[str, Array]:
        """Return the number of predicted tokens, by which every sum of losses is divided."""
        return {"tokens": jnp.sum(_predicted_positions(batch)).astype(jnp.float32)}

    def _loss(
        self, view: StateView, batch: Batch, denominators: Mapping[str, Array], key: Key[Array, ""]
    ) -> tuple[Array, LossAux]:
        sums, aux = self.token_sums(
            view, batch, _predicted_positions(batch), key, label_smoothing=self.config.label_smoothing
        )
        metrics = {
            "loss": sums.smoothed / denominators["tokens"],
            "cross_entropy": sums.cross_entropy / denominators["tokens"],
            "accuracy": sums.correct / denominators["tokens"],
        }
        return metrics["loss"], LossAux.from_aux(aux, self.next_task_state(view, batch, aux), metrics)

    def _loss_evaluation(self, name: str, documents: Documents) -> Evaluation:
        batching_note = {
            Batching.WINDOWS: f"windows of {self.config.context_length} that do not overlap",
            Batching.PACKED: f"documents of their own, cut to {self.config.context_length}",
        }[self.config.batching]

        def finish(sums: Mapping[str, Any], rows: object) -> EvaluationReport:
            scalars = mean_token_metrics(sums) | expert_importance_cv(sums)
            return EvaluationReport(scalars, note=f"{int(sums['tokens'])} tokens in {batching_note}")

        return Evaluation(
            name="loss",
            split=name,
            batches=OneEpoch(self._batches(documents, None)),
            step=self._loss_sums,
            finish=finish,
            at_end=name != self.config.validation_split,
            parameters=self.config.eval_parameters,
        )

    def _loss_sums(self, view: StateView, batch: Batch, key: Key[Array, ""]) -> tuple[dict[str, Array], None]:
        _, aux = self._loss(with_expert_gates(view), batch, {"tokens": jnp.float32(1)}, key)
        bytes_BxT = jnp.take(jnp.asarray(self._bytes_V), jnp.asarray(batch["labels"]))
        counted = jnp.sum(jnp.where(_predicted_positions(batch), bytes_BxT, 0)).astype(jnp.float32)
        sums = {"loss": aux.metrics["cross_entropy"], "accuracy": aux.metrics["accuracy"]}
        return {
            **sums,
            **self.denominators(batch),
            **expert_importance_sums(aux.maps, _predicted_positions(batch)),
            "bytes": counted,
        }, None

    def predict(self, view: StateView, request: PredictionRequest) -> Predictions:
        """Continue the texts.

        Without `max_new_tokens`, at most `config.task.decoding.max_new_tokens` or 64 tokens are generated, as far as
        the model's positions suffice.

        Raises:
            UserError: If a target language or a coverage penalty is given, or a text leaves no room for new tokens.
        """
        own = self.config.decoding.own_settings()
        return predict_continuations(view, self.tokenizer, request, request.texts, **own)


def _predicted_positions(batch: Batch) -> Array:
    """Return the positions whose labels are predicted."""
    return jnp.asarray(batch["counts"]) if "counts" in batch else real_positions(batch)


def build_task(config: LanguageModelingConfig, directory: Path, rows_multiple: int = 1) -> LanguageModeling:
    """Build the task over its data.

    Args:
        config: The config.
        directory: The run directory, which keeps the tokenizer.
        rows_multiple: Devices that share the batch x microbatches; the batch size must be a multiple.
    """
    return LanguageModeling(config, load_text(config, directory, roles=()), rows_multiple)


def build_synthetic_task(config: LanguageModelingConfig, rows_multiple: int = 1) -> LanguageModeling:
    """Build the task over synthetic text, without prompts and questions, whose lengths depend on the real tokenizer."""
    text = synthetic_encoded_text(config, roles=())
    config = dataclasses.replace(config, prompts=(), num_cloze_questions=0, shots=ZERO_SHOT)
    return LanguageModeling(config, text, rows_multiple)


def with_expert_gates(view: StateView) -> StateView:
    """Return the view with a capture of the gates of the model's experts; unchanged for a model without experts."""
    sites = tuple(site.name for site in view.model.sites if site.key.kind is AxisKind.EXPERTS)
    return view._replace(capture=Capture(sites)) if sites else view


def expert_importance_sums(maps: Mapping[str, CapturedAttention], counts_BxT: Bool[Array, "B T"]) -> dict[str, Array]:
    """Sum the gates of every layer and expert over the positions that count, [L, X].

    Importance(X) = sum_x G(x) (Shazeer et al. 2017, equation 6).

    Args:
        maps: The gates by site, captured through `with_expert_gates`.
        counts_BxT: Which positions count.
    """
    return {
        f"{_IMPORTANCE}{site}": jnp.sum(jnp.where(counts_BxT[:, :, None], gates.weights[:, :, 0], 0), axis=(1, 2))
        for site, gates in maps.items()
        if gates.weights is not None
    }


def expert_importance_cv(sums: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Compute the coefficient of variation of the experts' importance.

    Args:
        sums: The sums of `expert_importance_sums`.

    Returns:
        `importance_cv/SITE/n` for the n-th layer of a site: the standard deviation of its experts' importance divided
        by the mean.
    """
    return {
        f"importance_cv/{name.removeprefix(_IMPORTANCE)}/{layer}": float(
            np.std(importances) / max(np.mean(importances), 1e-30)
        )
        for name, layer_importances in sums.items()
        if name.startswith(_IMPORTANCE)
        for layer, importances in enumerate(layer_importances)
    }


def _continue_texts(
    config: LanguageModelingConfig, view: StateView, tokenizer: Tokenizer, request: PredictionRequest
) -> Sequence[str]:
    """Return the texts of a request with their continuations."""
    own = config.decoding.own_settings()
    return predict_continuations(view, tokenizer, request, request.texts, **own).lines


READER = dataclasses.replace(CONTINUATION_READER, generate=_continue_texts, chats=True)
TASK = TaskSpec(LanguageModelingConfig, build_synthetic_task, build_task, READER, make_token_shards)
