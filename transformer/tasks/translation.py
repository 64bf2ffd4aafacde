"""Translation: sentence pairs in, a target sentence out."""

import functools
from collections.abc import Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from transformer.attention.capture import Capture
from transformer.data.any_tokenizer import AnyTokenizer
from transformer.data.batches import Source, TokenBatches
from transformer.models.contract import Aux, Interface, Need
from transformer.tasks.contract import Batch, Evaluation, LossAux, Objective, Report, View
from transformer.tasks.labels import Labels
from transformer.tasks.losses import hidden_token_loss
from transformer.tasks.rehearsal import made_up_splits
from transformer.tasks.translation_data import Split, TranslationConfig, describe, load_splits, special_tokens, various
from transformer.tasks.translation_metrics import (
    alignment_evaluation,
    decoding_step,
    evaluation_batches,
    translation_evaluation,
)


class Translation:
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
        shape = jax.ShapeDtypeStruct((max(config.tokens_per_batch // longest, 1), longest), jnp.int32)
        self.interface = Interface(
            inputs={"source": shape, "target": shape},
            vocabularies={"joint": tokenizer.vocabulary},
            **special._asdict(),
            need=Need.TRANSLATION,
        )
        self.objectives = (Objective("translation", self._loss),)
        validation, test = splits[config.validation], splits[config.test]
        self.evaluations = self._evaluations(validation, test)
        self.probed = validation.part(various(validation.pairs, config.probed))
        self._probe = TokenBatches(self.probed.encoded, lengths=(longest,), tokens=longest * config.probed, seed=None)[
            0
        ]

    def _evaluations(self, validation: Split, test: Split) -> tuple[Evaluation, ...]:
        config, tokenizer = self.config, self.tokenizer
        few = validation.part(range(min(config.shown, len(validation.pairs))))
        losses = [
            Evaluation(
                name="loss",
                split=name,
                batches=evaluation_batches(config, split.encoded),
                step=self._loss_sums,
                finish=_means,
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
        """The training batches in the order of a seed."""
        return TokenBatches(
            self._train.encoded,
            lengths=self.config.lengths,
            tokens=self.config.tokens_per_batch,
            seed=seed,
            rows_multiple=self._rows_multiple,
        )

    def init_extra(self, view: View, key: Key[Array, ""]) -> dict:
        """Nothing is carried from step to step."""
        return {}

    def prepare(self, view: View, batch: Batch, key: Key[Array, ""]) -> tuple[Batch, dict]:
        """The batch as it is."""
        return batch, view.extra

    def totals(self, batch: Batch) -> dict[str, Array]:
        """The number of real target tokens, by which every sum of losses is divided."""
        return {"tokens": jnp.sum(batch["labels"] != self._pad).astype(jnp.float32)}

    def probe(self, view: View, capture: Capture, key: Key[Array, ""]) -> Aux:
        """The maps of the probe sentences with their reference translations (teacher forcing)."""
        _, aux = view.model.apply(view.variables, self._inputs(self._probe), train=False, capture=capture)
        return aux

    def labels(self) -> Labels:
        """The tokens of the probe sentences; the target axis shows the token that each position predicts."""
        return describe(self.tokenizer, self.probed.pairs)

    def _inputs(self, batch: Batch) -> dict[str, Array]:
        return {name: jnp.asarray(batch[name]) for name in ("source", "target")}

    def _loss(
        self, view: View, batch: Batch, totals: Mapping[str, Array], key: Key[Array, ""]
    ) -> tuple[Array, LossAux]:
        hidden_BxTxE, aux = view.model.apply(
            view.variables, self._inputs(batch), method="hidden", train=view.train, key=key, capture=view.capture
        )
        labels_BxT = jnp.asarray(batch["labels"])
        sums = hidden_token_loss(
            functools.partial(view.model.logits, view.variables),
            hidden_BxTxE,
            labels_BxT,
            labels_BxT != self._pad,
            self.config.label_smoothing,
        )
        metrics = {
            "loss": sums.smoothed / totals["tokens"],
            "cross_entropy": sums.cross_entropy / totals["tokens"],
            "accuracy": sums.correct / totals["tokens"],
        }
        return metrics["loss"], LossAux(aux.state, view.extra, metrics, aux.maps)

    def _loss_sums(self, view: View, batch: Batch, key: Key[Array, ""]) -> tuple[dict[str, Array], None]:
        ones = {"tokens": jnp.float32(1)}
        _, aux = self._loss(view, batch, ones, key)
        return {**aux.metrics, **self.totals(batch)}, None


def build(config: TranslationConfig, directory: Path, rows_multiple: int = 1) -> Translation:
    """The task over its data; a batch's rows are a multiple of `rows_multiple` (devices x micro-batches)."""
    tokenizer, splits = load_splits(config, directory)
    return Translation(config, tokenizer, splits, rows_multiple)


def rehearse(config: TranslationConfig, rows_multiple: int = 1) -> Translation:
    """The task over made-up pairs of the greatest length."""
    tokenizer, splits = made_up_splits(config)
    return Translation(config, tokenizer, splits, rows_multiple)


def _means(sums: Mapping[str, float], rows: object) -> Report:
    return Report({name: value / sums["tokens"] for name, value in sums.items() if name != "tokens"})
