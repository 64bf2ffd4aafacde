"""Translation: sentence pairs in, a target sentence out."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax.numpy as jnp
from jaxtyping import Array, Key

from transformer.attention.sites import Site
from transformer.config import UserError
from transformer.data.any_tokenizer import AnyTokenizer
from transformer.data.batches import Source, TokenBatches
from transformer.models.interface import TRANSLATION, Input, Interface
from transformer.tasks.contract import Answers, Batch, Evaluation, Kind, LossAux, Objective, PyTree, Request, View
from transformer.tasks.decoding import Decoding
from transformer.tasks.labels import Labels
from transformer.tasks.losses import hidden_token_loss
from transformer.tasks.plain import PlainTask, means
from transformer.tasks.reinforce import draws, initial_baseline, next_baseline, reinforce, token_log_likelihood
from transformer.tasks.synthetic import made_up_splits
from transformer.tasks.translate import reading, translate
from transformer.tasks.translation_data import Split, TranslationConfig, describe, load_splits, special_tokens, various
from transformer.tasks.translation_metrics import (
    alignment_evaluation,
    decoding_step,
    evaluation_batches,
    translation_evaluation,
)


class Translation(PlainTask):
    """The task: implements transformer.tasks.contract.Task."""

    def __init__(
        self,
        config: TranslationConfig,
        tokenizer: AnyTokenizer,
        splits: Mapping[str, Split],
        rows_multiple: int = 1,
    ):
        self.config, self.tokenizer = config, tokenizer
        special = special_tokens(tokenizer)
        self._pad = special.pad
        self._train, self._rows_multiple = splits["train"], rows_multiple
        longest = max(config.lengths)
        side = Input((max(config.tokens_per_batch // longest, 1), longest))
        self.interface = Interface(
            inputs={"source": side, "target": side},
            vocabularies={"joint": tokenizer.vocabulary},
            **special._asdict(),
            output=TRANSLATION.output,
        )
        self.objectives = (Objective("translation", self._loss),)
        validation, test = splits[config.validation], splits[config.test]
        self.evaluations = self._evaluations(validation, test)
        shown = validation.part(various(validation.pairs, config.probed))
        self._probed_pairs = shown.pairs
        batch = TokenBatches(shown.encoded, lengths=(longest,), tokens=longest * config.probed, seed=None)[0]
        # With their reference translations: teacher forcing.
        self.probed = {name: batch[name] for name in ("source", "target")}

    def _evaluations(self, validation: Split, test: Split) -> tuple[Evaluation, ...]:
        config, tokenizer = self.config, self.tokenizer
        few = validation.part(range(min(config.shown, len(validation.pairs))))
        losses = [
            Evaluation(
                name="loss",
                split=name,
                batches=evaluation_batches(config, split.encoded),
                step=self._loss_sums,
                finish=means,
                at_end=at_end,
                parameters=config.evaluated_parameters,
            )
            for name, split, at_end in ((config.validation, validation, False), (config.test, test, True))
        ]
        decode = decoding_step(config, tokenizer)
        translations = (
            translation_evaluation(config, tokenizer, few, decode, shown=3, length_bounds=config.length_bounds),
            translation_evaluation(
                config, tokenizer, test, decode, shown=20, at_end=True, length_bounds=config.length_bounds
            ),
        )
        linked = any(pair.links is not None for pair in test.pairs)
        aligned = (alignment_evaluation(config, tokenizer, validation, test),) if linked else ()
        return (*losses, *translations, *aligned)

    def source(self, seed: int) -> Source:
        return TokenBatches(
            self._train.encoded,
            lengths=self.config.lengths,
            tokens=self.config.tokens_per_batch,
            seed=seed,
            rows_multiple=self._rows_multiple,
        )

    def init_extra(self, view: View, key: Key[Array, ""]) -> PyTree:
        """What a word is usually worth, of a model whose attention draws; nothing of others."""
        return initial_baseline() if draws(view.model) else super().init_extra(view, key)

    def totals(self, batch: Batch) -> dict[str, Array]:
        """The number of real target tokens, by which every sum of losses is divided."""
        return {"tokens": jnp.sum(batch["labels"] != self._pad).astype(jnp.float32)}

    def labels(self, sites: Sequence[Site]) -> Labels:
        """The tokens of the probe sentences; the target axis shows the predicted tokens."""
        return describe(self.tokenizer, self._probed_pairs, sites)

    def answer(self, view: View, request: Request) -> Answers:
        """The texts translated.

        Errors: UserError for samples, a language that the run was not trained on, and sentences that are too long.
        """
        if request.decoding.get("samples", 1) > 1:
            samples = request.decoding["samples"]
            raise UserError(f"--samples={samples} is for runs that continue texts: a translation is one")
        max_length = view.model.max_length
        own = {
            "length": max(self.config.lengths) if max_length is None else max_length,
            "beams": self.config.beams,
            "length_penalty": self.config.length_penalty,
        }
        if any(name in request.decoding for name in ("temperature", "top_k", "top_p")):
            own["beams"] = 1  # sampling replaces the task's beam search
        decoding = Decoding(**own | dict(request.decoding))
        pairs = translate(
            view, self.tokenizer, request.texts, decoding, language=request.language, max_length=max_length
        )
        labels = describe(self.tokenizer, pairs, view.model.sites)
        return Answers([pair.target for pair in pairs], labels, reading(view, self.tokenizer, pairs))

    def _inputs(self, batch: Batch) -> dict[str, Array]:
        return {name: jnp.asarray(batch[name]) for name in ("source", "target")}

    def _loss(
        self, view: View, batch: Batch, totals: Mapping[str, Array], key: Key[Array, ""]
    ) -> tuple[Array, LossAux]:
        hidden_BxTxE, aux = view.model.apply(
            view.variables, self._inputs(batch), method="hidden", train=view.train, key=key, capture=view.capture
        )
        labels_BxT = jnp.asarray(batch["labels"])
        counts_BxT, score = labels_BxT != self._pad, functools.partial(view.model.logits, view.variables)
        sums = hidden_token_loss(score, hidden_BxTxE, labels_BxT, counts_BxT, self.config.label_smoothing)
        metrics = {
            "loss": sums.smoothed / totals["tokens"],
            "cross_entropy": sums.cross_entropy / totals["tokens"],
            "accuracy": sums.correct / totals["tokens"],
        }
        if not (view.train and "attention_log_prob" in aux.extras):
            return metrics["loss"], LossAux.of(aux, view.extra, metrics)
        baseline = view.extra["baseline"]
        likelihood_BxT = token_log_likelihood(score(hidden_BxTxE), labels_BxT)
        estimate = reinforce(likelihood_BxT, counts_BxT, aux.extras, baseline, self.config.reinforce_entropy)
        loss = metrics["loss"] + self.config.reinforce * estimate.loss / totals["tokens"]
        return loss, LossAux.of(aux, next_baseline(baseline, estimate, counts_BxT), metrics)

    def _loss_sums(self, view: View, batch: Batch, key: Key[Array, ""]) -> tuple[dict[str, Array], None]:
        ones = {"tokens": jnp.float32(1)}
        _, aux = self._loss(view, batch, ones, key)
        return {**aux.metrics, **self.totals(batch)}, None


def build(config: TranslationConfig, directory: Path, rows_multiple: int = 1) -> Translation:
    """The task over its data; a batch's rows are a multiple of `rows_multiple` (devices x micro-batches)."""
    tokenizer, splits = load_splits(config, directory)
    return Translation(config, tokenizer, splits, rows_multiple)


def synthetic(config: TranslationConfig, rows_multiple: int = 1) -> Translation:
    """The task over made-up pairs of the greatest length."""
    tokenizer, splits = made_up_splits(config)
    return Translation(config, tokenizer, splits, rows_multiple)


TASK = Kind(TranslationConfig, build, synthetic)
