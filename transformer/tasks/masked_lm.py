"""Masked language modeling: predict masked tokens from those around them (Devlin et al. 2019, section 3.1)."""

import dataclasses
import enum
import functools
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from transformer.attention.random_arrays import draw_array
from transformer.config import GreaterThan, HalfOpenRange, UserError
from transformer.data.batches import VALIDATION_SEED, BatchSource, OneEpoch
from transformer.data.next_sentence_pairs import NextSentenceBatches, SentenceBoundaryDetector
from transformer.data.text_batches import SpecialTokenFrame, WindowBatches, join_documents
from transformer.data.token_mixture import TokenShardBatches
from transformer.data.token_shards import TokenShards
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.models.model import Aux
from transformer.models.task_interface import (
    BERT_PRETRAINING,
    LANGUAGE_MODELING,
    MASKED_LANGUAGE_MODELING,
    MASKED_LANGUAGE_MODELING_OF_PAIRS,
    Signature,
    TaskInterface,
)
from transformer.tasks.base_task import refuse_decoding_options, report_means
from transformer.tasks.losses import class_loss
from transformer.tasks.mask_filling import describe_word_probabilities, fill_masks
from transformer.tasks.sharded_text import ShardedTextConfig, load_text, make_token_shards, uses_token_shards
from transformer.tasks.synthetic_data import synthetic_encoded_text
from transformer.tasks.task import (
    Batch,
    Evaluation,
    EvaluationReport,
    InputReader,
    LossAux,
    Objective,
    PredictionRequest,
    Predictions,
    StateView,
    TaskSpec,
)
from transformer.tasks.text_data import Documents, EncodedText
from transformer.tasks.text_task_base import (
    MAX_PROBE_TOKENS,
    TextTask,
    make_encoded_inputs,
    make_text_task_interface,
    max_input_length,
    predictions_with_maps,
    read_framed,
    real_positions,
)

# The shares of predicted tokens that are replaced by the mask token and by a random token; the rest stay.
SHOWN_AS_MASK, SHOWN_AS_RANDOM = 0.8, 0.1


class MaskedTokens(NamedTuple):
    """A masked batch.

    Attributes:
        tokens: The tokens that the model reads.
        predicted: Which of them it must predict.
    """

    tokens: Int[Array, "B T"]
    predicted: Bool[Array, "B T"]


class InputFormat(enum.Enum):
    """What fills a row.

    Attributes:
        CROPS: A window that begins anywhere in the text, its documents joined. Of token shards, as WINDOWS.
        WINDOWS: Windows of the text that do not overlap, each once an epoch.
        PAIRS: Two spans of whole sentences between special tokens; in half of the pairs the second follows the first in
            the text. Their token types are 0 and 1 (transformer.data.next_sentence_pairs).
        FIXED_PAIRS: Pairs that are drawn once for all epochs, as in data prepared in advance (Devlin et al. 2019).
    """

    CROPS = "crops"
    WINDOWS = "windows"
    PAIRS = "pairs"
    FIXED_PAIRS = "fixed_pairs"

    @property
    def paired(self) -> bool:
        """Whether a row holds two texts."""
        return self in (InputFormat.PAIRS, InputFormat.FIXED_PAIRS)


class MaskingMode(enum.Enum):
    """When the masked tokens of an example are chosen.

    Attributes:
        DYNAMIC: Each time that the example is fed (Liu et al. 2019, section 4.1).
        STATIC: Once: the same in every epoch.
    """

    DYNAMIC = "dynamic"
    STATIC = "static"


class PretrainingObjective(enum.Enum):
    """What is predicted of a row.

    Attributes:
        MASKED: Masked tokens, by a bidirectional model.
        LEFT_TO_RIGHT: Every token from those before it, of the same rows, by a causal model (the left-to-right model of
            Devlin et al. 2019, section 5.1).
    """

    MASKED = "masked"
    LEFT_TO_RIGHT = "left_to_right"


@dataclasses.dataclass(frozen=True)
class MaskedLanguageModelingConfig(ShardedTextConfig):
    """Masked language modeling.

    Attributes:
        masked_lm_prob: The share of the tokens that are predicted: 0.15 in Devlin et al. 2019, 0.4 for large models in
            Wettig et al. 2023.
        whole_word_masking: Whether all tokens of a word are masked together, as in BERT's checkpoints of that name (Cui
            et al. 2021).
        masking: When the masked tokens of an example are chosen.
        input_format: What fills a row.
        next_sentence: Whether to predict also whether the second text of a pair follows the first. Both losses are
            added (Devlin et al. 2019, section 3.1).
        objective: What is predicted of a row.
        eval_middle_token: Whether to measure how well the middle token of every held-out text (of a pair, of the second
            text) is predicted: from all other tokens, or from those before it. It compares models of both objectives.
    """

    masked_lm_prob: Annotated[float, GreaterThan(0.0), HalfOpenRange(0.0, 1.0)] = 0.15
    whole_word_masking: bool = False
    masking: MaskingMode = MaskingMode.DYNAMIC
    input_format: InputFormat = InputFormat.CROPS
    next_sentence: bool = False
    objective: PretrainingObjective = PretrainingObjective.MASKED
    eval_middle_token: bool = False

    def _check(self) -> None:
        super()._check()
        if self.next_sentence and not self.input_format.paired:
            raise UserError(
                f"config.task.next_sentence=True asks about pairs of texts, but config.task.input_format="
                f"{self.input_format.value}: say pairs"
            )
        if self.masking is MaskingMode.STATIC and self.input_format in (InputFormat.CROPS, InputFormat.PAIRS):
            raise UserError(
                f"config.task.masking=static hides the same tokens of an example in every epoch, but "
                f"{self.input_format.value} never come again: say config.task.input_format=windows or fixed_pairs"
            )
        if self.objective is PretrainingObjective.LEFT_TO_RIGHT and (
            self.next_sentence or self.masking is MaskingMode.STATIC or self.whole_word_masking
        ):
            raise UserError(
                "config.task.objective=left_to_right hides nothing and its first state has read nothing: leave out "
                "config.task.next_sentence, masking and whole_word_masking"
            )


class MaskedLanguageModeling(TextTask):
    """The task of masked language modeling; implements transformer.tasks.task.Task.

    Evaluations always mask the same tokens.
    """

    def __init__(self, config: MaskedLanguageModelingConfig, text: EncodedText, rows_multiple: int = 1):
        tokenizer = text.tokenizer
        if tokenizer.mask_id is None:
            raise UserError("the run's tokenizer has no mask token, which masked language modeling needs")
        super().__init__(config, text, rows_multiple, asks=_signature(config))
        self.config, self._mask = config, tokenizer.mask_id
        special = np.isin(np.arange(tokenizer.vocab_size), sorted(tokenizer.special_ids))
        self._special_V, self._ordinary_N = special, np.flatnonzero(~special)
        self._starts_V = tokenizer.word_starts() if config.whole_word_masking else np.ones(tokenizer.vocab_size, bool)
        self.baselines = FrequencyBaselines.count(text.splits["train"], tokenizer.vocab_size)
        # Spelled as in recorded runs, since the name of an objective seeds its random numbers (`derive_key`).
        self.objectives = (Objective("masked_language_modeling", self._loss, key_name="masked_language_modelling"),)
        self._bounds = SentenceBoundaryDetector(tokenizer.token_bytes()) if config.input_format.paired else None
        held_out_batches = {name: OneEpoch(self._held_out(text.splits[name])) for name in config.eval_splits}
        hidden = tuple(self._evaluation(name, batches) for name, batches in held_out_batches.items())
        middles = tuple(
            self._middle(name, batches) for name, batches in held_out_batches.items() if config.eval_middle_token
        )
        self.evaluations = (*hidden, *middles)

    def training_batches(self, seed: int) -> BatchSource:
        if self.text.train_shards is not None:
            return TokenShardBatches(
                self.text.train_shards,
                context_length=self.config.context_length,
                rows=self.config.batch_size,
                seed=seed,
                frame=self._frame,
            )
        documents = self.text.splits["train"]
        return self._windows(documents, seed) if self._bounds is None else self._pairs(documents, seed)

    def prepare_batch(self, view: StateView, batch: Batch, key: Key[Array, ""]) -> tuple[Batch, dict]:
        """Mask the tokens of a batch.

        Returns:
            The batch with masked `tokens`, `labels` [B, T] (the original tokens; left to right, the next tokens)
            and `counts` [B, T], which of them are predicted; and `task_state` unchanged.
        """
        tokens_BxT = jnp.asarray(batch["tokens"])
        if self.config.objective is PretrainingObjective.LEFT_TO_RIGHT:
            labels_BxT, known_BxT = _next_tokens(tokens_BxT, real_positions(batch))
            return {**batch, "labels": labels_BxT, "counts": known_BxT}, view.task_state
        eligible_BxT = self._eligible(batch)
        word_BxT = word_indices(jnp.take(jnp.asarray(self._starts_V), tokens_BxT))
        ordinary_N = jnp.asarray(self._ordinary_N)
        hide = functools.partial(mask_tokens, share=self.config.masked_lm_prob, mask=self._mask, ordinary_N=ordinary_N)
        match self.config.masking:
            case MaskingMode.DYNAMIC:
                hidden = hide(tokens_BxT, eligible_BxT, word_BxT, key)
            case MaskingMode.STATIC:
                hidden = mask_examples(tokens_BxT, eligible_BxT, word_BxT, jnp.asarray(batch["index"]), hide)
        return {**batch, "tokens": hidden.tokens, "labels": tokens_BxT, "counts": hidden.predicted}, view.task_state

    def denominators(self, batch: Batch) -> dict[str, Array]:
        """Return the numbers of predicted tokens and, with next-sentence prediction, of pairs."""
        denominators = {"tokens": jnp.sum(batch["counts"]).astype(jnp.float32)}
        return denominators | ({"pairs": jnp.float32(len(batch["follows"]))} if self.config.next_sentence else {})

    def predict(self, view: StateView, request: PredictionRequest) -> Predictions:
        """Fill in the masked tokens of the texts and report the probabilities of the requested words there.

        Raises:
            UserError: If the model is trained left to right, a target language or a decoding option is given, a text
                has no mask token or is too long, or a word is not a single token.
        """
        if self.config.objective is PretrainingObjective.LEFT_TO_RIGHT:
            raise UserError("this run reads from the left (config.task.objective=left_to_right): it fills in nothing")
        decoding = dict(request.decoding)
        words = decoding.pop("score_words", ())
        refuse_decoding_options(request._replace(decoding=decoding), "fills in hidden tokens")
        filled = fill_masks(view, self.tokenizer, request.texts, max_input_length(view), words)
        lines = [
            self.tokenizer.decode(text.tokens) + describe_word_probabilities(words, text.probabilities)
            for text in filled
        ]
        return predictions_with_maps(
            view, lines, make_encoded_inputs(self.tokenizer, [text.tokens[:MAX_PROBE_TOKENS] for text in filled])
        )

    def _windows(self, documents: Documents, seed: int | None) -> WindowBatches:
        """Return windows between the tokenizer's begin and end tokens, if it has them, across document boundaries."""
        return WindowBatches(
            join_documents(documents, self.tokenizer.eos_id),
            context_length=self.config.context_length,
            rows=self.config.batch_size,
            seed=seed,
            frame=self._frame,
            crops=self.config.input_format is InputFormat.CROPS,
        )

    def _pairs(self, documents: Documents, seed: int) -> NextSentenceBatches:
        assert self._bounds is not None
        return NextSentenceBatches(
            documents,
            self._bounds,
            context_length=self.config.context_length,
            rows=self.config.batch_size,
            seed=seed,
            frame=self._frame,
            repeats=self.config.input_format is InputFormat.FIXED_PAIRS,
        )

    @property
    def _frame(self) -> SpecialTokenFrame:
        return SpecialTokenFrame(self.tokenizer.bos_id, self.tokenizer.eos_id)

    def _eligible(self, batch: Batch) -> Array:
        """Return the positions whose tokens may be masked."""
        return real_positions(batch) & ~jnp.take(jnp.asarray(self._special_V), jnp.asarray(batch["tokens"]))

    def _loss(
        self, view: StateView, batch: Batch, denominators: Mapping[str, Array], key: Key[Array, ""]
    ) -> tuple[Array, LossAux]:
        sums, aux = self._loss_sums(view, batch, key)
        metrics = _mean_metrics(sums, denominators)
        return metrics["loss"], LossAux.from_aux(aux, view.task_state, metrics)

    def _loss_sums(self, view: StateView, batch: Batch, key: Key[Array, ""]) -> tuple[dict[str, Array], Aux]:
        """Sum over the predicted tokens and, with next-sentence prediction, over the pairs."""
        sums, aux = self.token_sums(view, batch, jnp.asarray(batch["counts"]), key)
        loss_sums = {"loss": sums.cross_entropy, "accuracy": sums.correct}
        if self.config.next_sentence:
            follows_B = jnp.asarray(batch["follows"])
            pair_loss = class_loss(aux.extras["next_sentence"], follows_B, jnp.ones_like(follows_B, bool))
            loss_sums |= {"next_sentence_loss": pair_loss.cross_entropy, "next_sentence_accuracy": pair_loss.correct}
        return loss_sums, aux

    def _middle(self, name: str, batches: OneEpoch) -> Evaluation:
        """Measure how well the middle token of every text is predicted: one question for models of both objectives."""

        def step(view: StateView, batch: Batch, key: Key[Array, ""]) -> tuple[dict[str, Array], None]:
            masked = self.mask_middle_tokens(batch)
            counts_BxT = jnp.asarray(masked["counts"])
            sums, _ = self.token_sums(view, masked, counts_BxT, None)
            places = jnp.sum(counts_BxT).astype(jnp.float32)
            return {"middle_loss": sums.cross_entropy, "middle_accuracy": sums.correct, "places": places}, None

        return Evaluation(
            name="middle",
            split=name,
            batches=batches,
            step=step,
            finish=functools.partial(report_means, by="places"),
            at_end=name != self.config.validation_split,
            parameters=self.config.eval_parameters,
        )

    def mask_middle_tokens(self, batch: Batch) -> Batch:
        """Mask the middle token of every text.

        Of a pair the second text is asked about: a model that has learned where a pair's first text tends to end would
        predict that end in the middle of the row.

        Returns:
            The batch with masked `tokens`, `labels` and `counts`, which is true where the middle token is
            predicted.
        """
        tokens_BxT, eligible_BxT = jnp.asarray(batch["tokens"]), self._eligible(batch)
        if self._bounds is not None:
            eligible_BxT &= jnp.asarray(batch["types"]) == 1
        middle_Bx1 = jnp.sum(eligible_BxT, axis=1, keepdims=True) // 2
        middle_BxT = eligible_BxT & (jnp.cumsum(eligible_BxT, axis=1) == middle_Bx1 + 1)
        # A row's very first token, the middle of a window of one, has none before it: neither objective is asked.
        middle_BxT = middle_BxT.at[:, 0].set(False)
        if self.config.objective is PretrainingObjective.LEFT_TO_RIGHT:
            labels_BxT, _ = _next_tokens(tokens_BxT, real_positions(batch))
            return {**batch, "labels": labels_BxT, "counts": jnp.roll(middle_BxT, -1, axis=1)}
        shown_BxT = jnp.where(middle_BxT, self._mask, tokens_BxT)
        return {**batch, "tokens": shown_BxT, "labels": tokens_BxT, "counts": middle_BxT}

    def _held_out(self, documents: Documents) -> WindowBatches | NextSentenceBatches:
        return self._windows(documents, None) if self._bounds is None else self._pairs(documents, VALIDATION_SEED)

    def _evaluation(self, name: str, batches: OneEpoch) -> Evaluation:
        return Evaluation(
            name="masked",
            split=name,
            batches=batches,
            step=self._sums,
            finish=_finish,
            at_end=name != self.config.validation_split,
            parameters=self.config.eval_parameters,
        )

    def _sums(self, view: StateView, batch: Batch, key: Key[Array, ""]) -> tuple[dict[str, Array], None]:
        """Sum over the masked tokens; every evaluation masks the same ones, so that results are comparable."""
        fixed = jax.random.fold_in(jax.random.key(0), jnp.max(jnp.asarray(batch["index"])))
        batch, _ = self.prepare_batch(view, batch, fixed)
        loss_sums, _ = self._loss_sums(view, batch, key)
        if self.config.objective is PretrainingObjective.LEFT_TO_RIGHT:
            return {**loss_sums, **self.denominators(batch)}, None
        labels_BxT, counts_BxT = batch["labels"], batch["counts"]
        unigram, bigram = self.baselines.predict(jnp.asarray(batch["tokens"]), self._mask)
        sums = {
            **loss_sums,
            "unigram_accuracy": jnp.sum(counts_BxT & (labels_BxT == unigram)),
            "bigram_accuracy": jnp.sum(counts_BxT & (labels_BxT == bigram)),
            **self.denominators(batch),
        }
        return sums, None


@dataclasses.dataclass(frozen=True)
class FrequencyBaselines:
    """Predictions without a model.

    Attributes:
        most_frequent_id: The most frequent token of the training text (unigram).
        following_V: The most frequent token after each token of the training text (bigram), [V].
    """

    most_frequent_id: int
    following_V: np.ndarray

    @classmethod
    def count(cls, documents: Documents, vocabulary: int) -> "FrequencyBaselines":
        """Count the tokens of the training text."""
        joined = np.concatenate(list(documents))
        most_frequent = int(np.bincount(joined, minlength=vocabulary).argmax())
        tokens, next_tokens = (
            np.concatenate([document[part] for document in documents]) for part in (slice(None, -1), slice(1, None))
        )
        pairs, counts = np.unique(tokens.astype(np.int64) * vocabulary + next_tokens, return_counts=True)
        following = np.full(vocabulary, most_frequent, np.int32)
        order = np.argsort(counts, kind="stable")
        # Assigned in order of increasing count, so that the most frequent pair of each token remains.
        following[pairs[order] // vocabulary] = pairs[order] % vocabulary
        return cls(most_frequent, following)

    def predict(self, shown_BxT: Array, mask: int) -> tuple[Array, Array]:
        """Predict every position of a masked text.

        Args:
            shown_BxT: The masked tokens.
            mask: The mask token.

        Returns:
            The unigram and the bigram predictions, [B, T]. After a mask token, and at the first position, both are the
            most frequent token.
        """
        before_BxT = jnp.roll(shown_BxT, 1, axis=1)
        known_BxT = (before_BxT != mask) & (jnp.arange(shown_BxT.shape[1]) > 0)
        unigram_BxT = jnp.full_like(shown_BxT, self.most_frequent_id)
        return unigram_BxT, jnp.where(known_BxT, jnp.take(jnp.asarray(self.following_V), before_BxT), unigram_BxT)


def mask_tokens(
    tokens_BxT: Int[Array, "B T"],
    eligible_BxT: Bool[Array, "B T"],
    word_BxT: Int[Array, "B T"],
    key: Key[Array, ""],
    *,
    share: float,
    mask: int,
    ordinary_N: Int[Array, " N"],
) -> MaskedTokens:
    """Choose a share of each row's eligible tokens and mask them 80 / 10 / 10 (Devlin et al. 2019, section 3.1).

    Of the chosen tokens 80% are replaced by the mask token and 10% by a random ordinary token; 10% stay. Whole words
    are chosen in random order; one that does not fit what is left of the share is left out, and the next is tried. If
    none fits, the first of the smallest is chosen. If every token is a word of its own, the share is met exactly.

    Args:
        tokens_BxT: The tokens.
        eligible_BxT: Which tokens may be chosen.
        word_BxT: The number of the word that each token belongs to, from 0 in each row.
        key: A PRNG key.
        share: The share of the eligible tokens to choose.
        mask: The mask token.
        ordinary_N: The tokens that may replace a chosen token.
    """
    choosing, showing, drawing = jax.random.split(key, 3)
    predicted_BxT = jax.vmap(_choose_words, (0, 0, 0, None))(
        eligible_BxT, word_BxT, draw_array(jax.random.uniform, choosing, tokens_BxT.shape), share
    )
    fate_BxT = draw_array(jax.random.uniform, showing, tokens_BxT.shape)
    number = partial(jax.random.randint, minval=0, maxval=ordinary_N.shape[0])
    random_BxT = jnp.take(ordinary_N, draw_array(number, drawing, tokens_BxT.shape))
    shown_BxT = jnp.where(fate_BxT < SHOWN_AS_MASK + SHOWN_AS_RANDOM, random_BxT, tokens_BxT)
    shown_BxT = jnp.where(fate_BxT < SHOWN_AS_MASK, mask, shown_BxT)
    return MaskedTokens(jnp.where(predicted_BxT, shown_BxT, tokens_BxT).astype(tokens_BxT.dtype), predicted_BxT)


def mask_examples(
    tokens_BxT: Int[Array, "B T"],
    eligible_BxT: Bool[Array, "B T"],
    word_BxT: Int[Array, "B T"],
    index_B: Int[Array, " B"],
    hide: Callable[..., MaskedTokens],
) -> MaskedTokens:
    """Mask every row by a key derived from the number of its example, so that it is always masked the same way.

    Args:
        tokens_BxT: The tokens.
        eligible_BxT: Which tokens may be masked.
        word_BxT: The number of the word that each token belongs to.
        index_B: The numbers of the examples.
        hide: `mask_tokens` with its keyword arguments bound.
    """

    def row(tokens_T: Array, eligible_T: Array, word_T: Array, index: Array) -> MaskedTokens:
        key = jax.random.fold_in(jax.random.key(0), index.astype(jnp.uint32))
        return hide(tokens_T[None], eligible_T[None], word_T[None], key)

    return jax.tree.map(lambda x: x[:, 0], jax.vmap(row)(tokens_BxT, eligible_BxT, word_BxT, index_B))


def word_indices(starts_BxT: Bool[Array, "B T"]) -> Int[Array, "B T"]:
    """Return the number of the word that each token belongs to, from the tokens that begin a word."""
    return jnp.maximum(jnp.cumsum(starts_BxT, axis=1) - 1, 0)


def _choose_words(
    eligible_T: Bool[Array, " T"], word_T: Int[Array, " T"], luck_T: Float[Array, " T"], share: float
) -> Bool[Array, " T"]:
    """Choose words of one row in the order of `luck_T`, each that fits what is left of the share; one at least."""
    size_W = jax.ops.segment_sum(eligible_T.astype(jnp.int32), word_T, num_segments=word_T.shape[0])
    order_W = jnp.argsort(jnp.where(size_W > 0, luck_T, jnp.inf))
    ordered_W = size_W[order_W]
    smallest = jnp.min(jnp.where(ordered_W > 0, ordered_W, word_T.shape[0]))
    budget = jnp.maximum(jnp.round(share * jnp.sum(eligible_T)).astype(jnp.int32), smallest)

    def fill(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        # Takes words up to the first that does not fit what is left: what is left only shrinks, so it never fits again.
        taken_W, open_W, room = state
        open_W &= ordered_W <= room
        fits_W = open_W & (jnp.cumsum(jnp.where(open_W, ordered_W, 0)) <= room)
        return taken_W | fits_W, open_W & ~fits_W, room - jnp.sum(jnp.where(fits_W, ordered_W, 0), dtype=room.dtype)

    nothing_W = jnp.zeros_like(ordered_W, bool)
    fits_W, _, _ = jax.lax.while_loop(lambda state: jnp.any(state[1]), fill, (nothing_W, ordered_W > 0, budget))
    chosen_W = jnp.zeros_like(fits_W).at[order_W].set(fits_W)
    return chosen_W[word_T] & eligible_T


def _mean_metrics(sums: Mapping[str, Any], denominators: Mapping[str, Any]) -> dict[str, Any]:
    """Divide sums by tokens or pairs; with both, `loss` is the sum of the two means."""
    means = {
        name: value / denominators["pairs" if name.startswith("next_sentence") else "tokens"]
        for name, value in sums.items()
    }
    if "next_sentence_loss" in means:
        means |= {"loss": means["loss"] + means["next_sentence_loss"], "masked_loss": means["loss"]}
    return means


def _finish(sums: Mapping[str, float], rows: object) -> EvaluationReport:
    denominators = {name: max(sums[name], 1) for name in ("tokens", "pairs") if name in sums}
    means = _mean_metrics({name: value for name, value in sums.items() if name not in denominators}, denominators)
    return EvaluationReport(means, note=f"{int(sums['tokens'])} predicted tokens, the same at every evaluation")


def _next_tokens(tokens_BxT: Array, real_BxT: Array) -> tuple[Array, Array]:
    """Return the token after each position, and whether there is one."""
    return jnp.roll(tokens_BxT, -1, axis=1), real_BxT & jnp.roll(real_BxT, -1, axis=1).at[:, -1].set(False)


def _signature(config: MaskedLanguageModelingConfig) -> Signature:
    """Return what the task requires of a model."""
    if config.objective is PretrainingObjective.LEFT_TO_RIGHT:
        return LANGUAGE_MODELING
    if config.next_sentence:
        return BERT_PRETRAINING
    return MASKED_LANGUAGE_MODELING_OF_PAIRS if config.input_format.paired else MASKED_LANGUAGE_MODELING


def _make_task_interface(config: MaskedLanguageModelingConfig, tokenizer: Tokenizer) -> TaskInterface:
    return make_text_task_interface(config, tokenizer, asks=_signature(config))


def _special_roles(config: MaskedLanguageModelingConfig) -> tuple[str, ...]:
    """Return the roles of the special tokens of a newly trained tokenizer."""
    return ("mask", "begin", "end") if config.input_format.paired else ("mask",)


def build_task(config: MaskedLanguageModelingConfig, directory: Path, rows_multiple: int = 1) -> MaskedLanguageModeling:
    """Build the task over its data.

    Args:
        config: The config.
        directory: The run directory, which keeps the tokenizer.
        rows_multiple: Devices that share the batch x microbatches; the batch size must be a multiple.

    Raises:
        UserError: If data are missing, or the tokenizer has no mask token.
    """
    if uses_token_shards(config):
        _check_format_of_shards(config)
    return MaskedLanguageModeling(config, load_text(config, directory, _special_roles(config)), rows_multiple)


def make_masked_token_shards(config: MaskedLanguageModelingConfig, directory: Path | None) -> Mapping[str, TokenShards]:
    """Return the token shards of a config's text, whose tokenizer has a mask token, as `make_token_shards`."""
    _check_format_of_shards(config)
    return make_token_shards(config, directory, _special_roles(config))


def _check_format_of_shards(config: MaskedLanguageModelingConfig) -> None:
    """Check that rows can be read from token shards.

    Raises:
        UserError: If a row holds two texts, or the same tokens must be masked in every epoch.
    """
    if config.input_format.paired:
        raise UserError(
            f"config.task.input_format={config.input_format.value} draws pairs from sentences of all documents, which "
            "are not found in token shards: say windows, or leave out config.task.shards_dir"
        )
    if config.masking is MaskingMode.STATIC:
        raise UserError(
            "config.task.masking=static hides the same tokens of an example in every epoch, but windows of token "
            "shards begin elsewhere in every epoch: say dynamic, or leave out config.task.shards_dir"
        )


def build_synthetic_task(config: MaskedLanguageModelingConfig, rows_multiple: int = 1) -> MaskedLanguageModeling:
    """Build the task over synthetic text."""
    text = synthetic_encoded_text(config, _special_roles(config))
    return MaskedLanguageModeling(config, text, rows_multiple)


TASK = TaskSpec(
    MaskedLanguageModelingConfig,
    build_synthetic_task,
    build_task,
    InputReader(_make_task_interface, read_framed, reads_tokens=True),
    make_masked_token_shards,
)
