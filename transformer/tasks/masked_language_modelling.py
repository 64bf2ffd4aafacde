"""Masked language modelling: hidden tokens from those around them (Devlin et al. 2019, section 3.1)."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from transformer.config import UserError
from transformer.data.any_tokenizer import AnyTokenizer
from transformer.data.batches import OneEpoch, Source
from transformer.data.windows import Frame, Windows, join
from transformer.models.interface import FILLING
from transformer.tasks.contract import Answers, Batch, Evaluation, Kind, LossAux, Objective, Report, Request, View
from transformer.tasks.filling import fill_in
from transformer.tasks.masking import mask_tokens, words_of_row
from transformer.tasks.plain import refuse_decoding
from transformer.tasks.reading import HIDING, answers_of, reading_of
from transformer.tasks.synthetic import made_up_documents
from transformer.tasks.text_data import Documents, TextConfig, load_documents
from transformer.tasks.text_task import MAPPED_TOKENS, TextTask, max_length_of, real_places


@dataclasses.dataclass(frozen=True)
class MaskedLanguageModellingConfig(TextConfig):
    """Masked language modelling: `masked` is the share of the tokens that are predicted, whole words or not.

    Masks are drawn anew each time that a text is fed (Liu et al. 2019, section 4.1), but fixed in evaluations.
    """

    masked: float = 0.15
    whole_words: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.masked < 1:
            raise UserError(f"config.task.masked={self.masked} must be above 0 and below 1")


class MaskedLanguageModelling(TextTask):
    """The task: implements transformer.tasks.contract.Task."""

    def __init__(
        self,
        config: MaskedLanguageModellingConfig,
        tokenizer: AnyTokenizer,
        splits: Mapping[str, Documents],
        rows_multiple: int = 1,
        how: str = "",
    ):
        if tokenizer.mask is None:
            raise UserError("the run's tokenizer has no mask token, which masked language modelling needs")
        super().__init__(config, tokenizer, splits, rows_multiple, asks=FILLING, how=how)
        self.config, self._mask = config, tokenizer.mask
        special = np.isin(np.arange(tokenizer.vocabulary), sorted(tokenizer.special))
        self._special_V, self._ordinary_N = special, np.flatnonzero(~special)
        self._starts_V = tokenizer.word_starts() if config.whole_words else np.ones(tokenizer.vocabulary, bool)
        self.baselines = Baselines.count(splits["train"], tokenizer.vocabulary)
        self.objectives = (Objective("masked_language_modelling", self._loss),)
        self.evaluations = tuple(self._evaluation(name, splits[name]) for name in config.evaluated)

    def source(self, seed: int) -> Source:
        return self._windows(self._train, seed)

    def prepare(self, view: View, batch: Batch, key: Key[Array, ""]) -> tuple[Batch, dict]:
        """The batch with its tokens hidden by a draw of the key; `labels` are the tokens themselves."""
        tokens_BxT = jnp.asarray(batch["tokens"])
        hidden = mask_tokens(
            tokens_BxT,
            real_places(batch) & ~jnp.take(jnp.asarray(self._special_V), tokens_BxT),
            words_of_row(jnp.take(jnp.asarray(self._starts_V), tokens_BxT)),
            key,
            share=self.config.masked,
            mask=self._mask,
            ordinary_N=jnp.asarray(self._ordinary_N),
        )
        return {**batch, "tokens": hidden.tokens, "labels": tokens_BxT, "counts": hidden.predicted}, view.extra

    def totals(self, batch: Batch) -> dict[str, Array]:
        """The number of hidden tokens, by which every sum of losses is divided."""
        return {"tokens": jnp.sum(batch["counts"]).astype(jnp.float32)}

    def answer(self, view: View, request: Request) -> Answers:
        """The texts with their hidden tokens filled in.

        Errors: UserError for a language, for a way of decoding, and for texts that hide nothing or are too long.
        """
        refuse_decoding(request, "fills in hidden tokens")
        rows = fill_in(view, self.tokenizer, request.texts, max_length_of(view))
        lines = [self.tokenizer.decode(row) for row in rows]
        return answers_of(view, lines, reading_of(self.tokenizer, [row[:MAPPED_TOKENS] for row in rows]))

    def _windows(self, documents: Documents, seed: int | None) -> Windows:
        """Windows between the tokenizer's begin and end tokens, if it has them, across the bounds of documents."""
        return Windows(
            join(documents, self.tokenizer.end),
            context=self.config.context,
            rows=self.config.rows,
            seed=seed,
            frame=Frame(self.tokenizer.begin, self.tokenizer.end),
        )

    def _loss(
        self, view: View, batch: Batch, totals: Mapping[str, Array], key: Key[Array, ""]
    ) -> tuple[Array, LossAux]:
        sums, aux = self.token_sums(view, batch, jnp.asarray(batch["counts"]), key)
        metrics = {"loss": sums.cross_entropy / totals["tokens"], "accuracy": sums.correct / totals["tokens"]}
        return metrics["loss"], LossAux.of(aux, view.extra, metrics)

    def _evaluation(self, name: str, documents: Documents) -> Evaluation:
        return Evaluation(
            name="masked",
            split=name,
            batches=OneEpoch(self._windows(documents, None)),
            step=self._sums,
            finish=_finish,
            at_end=name != self.config.validation,
            parameters=self.config.evaluated_parameters,
        )

    def _sums(self, view: View, batch: Batch, key: Key[Array, ""]) -> tuple[dict[str, Array], None]:
        """Sums over the hidden tokens; every evaluation hides the same ones, so that figures compare."""
        fixed = jax.random.fold_in(jax.random.key(0), jnp.max(jnp.asarray(batch["index"])))
        batch, _ = self.prepare(view, batch, fixed)
        _, aux = self._loss(view, batch, {"tokens": jnp.float32(1)}, key)
        labels_BxT, counts_BxT = batch["labels"], batch["counts"]
        unigram, bigram = self.baselines.predict(jnp.asarray(batch["tokens"]), self._mask)
        sums = {
            **aux.metrics,
            "unigram_accuracy": jnp.sum(counts_BxT & (labels_BxT == unigram)),
            "bigram_accuracy": jnp.sum(counts_BxT & (labels_BxT == bigram)),
            **self.totals(batch),
        }
        return sums, None


@dataclasses.dataclass(frozen=True)
class Baselines:
    """Guesses without a model: the most frequent token, or the most frequent one behind the token before.

    `following_V` is the training text's most frequent token behind each token.
    """

    most_frequent: int
    following_V: np.ndarray

    @classmethod
    def count(cls, documents: Documents, vocabulary: int) -> "Baselines":
        """Count the training text."""
        joined = np.concatenate(list(documents))
        most_frequent = int(np.bincount(joined, minlength=vocabulary).argmax())
        before, behind = (
            np.concatenate([document[part] for document in documents]) for part in (slice(None, -1), slice(1, None))
        )
        pairs, counts = np.unique(before.astype(np.int64) * vocabulary + behind, return_counts=True)
        following = np.full(vocabulary, most_frequent, np.int32)
        order = np.argsort(counts, kind="stable")
        # Written in the order of rising counts: the most frequent pair of each token stays.
        following[pairs[order] // vocabulary] = pairs[order] % vocabulary
        return cls(most_frequent, following)

    def predict(self, shown_BxT: Array, mask: int) -> tuple[Array, Array]:
        """Both guesses for every position of the masked text; behind a mask token both are the most frequent token."""
        before_BxT = jnp.roll(shown_BxT, 1, axis=1)
        known_BxT = (before_BxT != mask) & (jnp.arange(shown_BxT.shape[1]) > 0)
        unigram_BxT = jnp.full_like(shown_BxT, self.most_frequent)
        return unigram_BxT, jnp.where(known_BxT, jnp.take(jnp.asarray(self.following_V), before_BxT), unigram_BxT)


def _finish(sums: Mapping[str, float], rows: object) -> Report:
    tokens = max(sums["tokens"], 1)
    means = {name: value / tokens for name, value in sums.items() if name != "tokens"}
    return Report(means, note=f"{int(sums['tokens'])} hidden tokens, the same at every evaluation")


def build(config: MaskedLanguageModellingConfig, directory: Path, rows_multiple: int = 1) -> MaskedLanguageModelling:
    """The task over its data; a batch's rows are a multiple of `rows_multiple` (devices x micro-batches)."""
    tokenizer, splits, how = load_documents(config, directory, roles=("mask",))
    return MaskedLanguageModelling(config, tokenizer, splits, rows_multiple, how)


def synthetic(config: MaskedLanguageModellingConfig, rows_multiple: int = 1) -> MaskedLanguageModelling:
    """The task over made-up text."""
    tokenizer, splits = made_up_documents(config, roles=("mask",))
    return MaskedLanguageModelling(config, tokenizer, splits, rows_multiple)


TASK = Kind(MaskedLanguageModellingConfig, build, synthetic, HIDING)
