"""Causal language modelling: each token from those before it."""

import dataclasses
import enum
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from transformer.attention.capture import Capture
from transformer.config import UserError
from transformer.data.any_tokenizer import AnyTokenizer
from transformer.data.batches import OneEpoch, Source
from transformer.data.packing import Packed
from transformer.data.windows import Windows, join
from transformer.models.contract import Aux, Interface, Need
from transformer.tasks.continuation import encode_prompts, roll_out
from transformer.tasks.contract import Batch, Evaluation, LossAux, Objective, Report, View
from transformer.tasks.decoding import Decoding
from transformer.tasks.labels import Labels
from transformer.tasks.losses import hidden_token_loss
from transformer.tasks.text_data import (
    Documents,
    TextConfig,
    describe,
    load_documents,
    per_token_and_byte,
    stretches,
    text_bytes,
)

INPUTS = ("tokens", "lengths", "segments", "positions")


class Batching(enum.Enum):
    """How training text fills its rows.

    windows: stretches that begin anywhere in the text, its documents joined. packed: whole documents, several a row,
    which never see each other; every token once an epoch.
    """

    WINDOWS = "windows"
    PACKED = "packed"


@dataclasses.dataclass(frozen=True)
class LanguageModellingConfig(TextConfig):
    """A causal language model's problem; `prompts` are continued greedily at every evaluation, to be looked at."""

    batching: Batching = Batching.WINDOWS
    label_smoothing: float = 0.0
    prompts: tuple[str, ...] = ()
    continued: int = 48

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.label_smoothing < 1:
            raise UserError(f"config.task.label_smoothing={self.label_smoothing} must be at least 0 and below 1")
        if self.continued < 1:
            raise UserError(f"config.task.continued={self.continued} must be at least 1 token")


class LanguageModelling:
    """The task: implements transformer.tasks.contract.Task."""

    def __init__(
        self,
        config: LanguageModellingConfig,
        tokenizer: AnyTokenizer,
        splits: Mapping[str, Documents],
        rows_multiple: int = 1,
    ):
        self.config, self.tokenizer, self._train = config, tokenizer, splits["train"]
        self._rows = -(-config.rows // rows_multiple) * rows_multiple
        shape = jax.ShapeDtypeStruct((self._rows, config.context), jnp.int32)
        self.interface = Interface(
            inputs={"tokens": shape},
            vocabularies={"tokens": tokenizer.vocabulary},
            pad=tokenizer.pad,
            begin=tokenizer.begin,
            end=tokenizer.end,
            need=Need.CONTINUATION,
            decoded=self._longest_prompt() + config.continued if config.prompts else 0,
        )
        self._bytes_V = text_bytes(tokenizer)
        self.objectives = (Objective("language_modelling", self._loss),)
        self.probed = stretches(splits[config.validation], config.probed, min(config.probed_length, config.context))
        losses = tuple(self._loss_evaluation(name, splits[name]) for name in config.evaluated)
        self.evaluations = (*losses, *((self._continuations(),) if config.prompts else ()))

    def _longest_prompt(self) -> int:
        return int(encode_prompts(self.tokenizer, self.config.prompts)["lengths"].max())

    def source(self, seed: int) -> Source:
        """The training batches in the order of a seed."""
        context, rows, end = self.config.context, self._rows, self.tokenizer.end
        match self.config.batching:
            case Batching.WINDOWS:
                return Windows(join(self._train, end), context=context, rows=rows, seed=seed)
            case Batching.PACKED:
                return Packed(self._train, context=context, rows=rows, seed=seed, end=end)

    def init_extra(self, view: View, key: Key[Array, ""]) -> dict:
        """Nothing is carried from step to step."""
        return {}

    def prepare(self, view: View, batch: Batch, key: Key[Array, ""]) -> tuple[Batch, dict]:
        """The batch as it is."""
        return batch, view.extra

    def totals(self, batch: Batch) -> dict[str, Array]:
        """The number of predicted tokens, by which every sum of losses is divided."""
        return {"tokens": jnp.sum(_counts(batch)).astype(jnp.float32)}

    def probe(self, view: View, capture: Capture, key: Key[Array, ""]) -> Aux:
        """The maps of stretches of the validation text."""
        tokens = jnp.asarray(self.probed)
        _, aux = view.model.apply(view.variables, {"tokens": tokens}, method="hidden", train=False, capture=capture)
        return aux

    def labels(self) -> Labels:
        """The tokens of those stretches."""
        return describe(self.tokenizer, [list(row) for row in self.probed])

    def _loss(
        self, view: View, batch: Batch, totals: Mapping[str, Array], key: Key[Array, ""]
    ) -> tuple[Array, LossAux]:
        inputs = {name: jnp.asarray(batch[name]) for name in INPUTS if name in batch}
        hidden_BxTxE, aux = view.model.apply(
            view.variables, inputs, method="hidden", train=view.train, key=key, capture=view.capture
        )
        sums = hidden_token_loss(
            functools.partial(view.model.logits, view.variables),
            hidden_BxTxE,
            jnp.asarray(batch["labels"]),
            _counts(batch),
            self.config.label_smoothing,
            logits_at_once=self.config.logits_at_once,
        )
        metrics = {
            "loss": sums.smoothed / totals["tokens"],
            "cross_entropy": sums.cross_entropy / totals["tokens"],
            "accuracy": sums.correct / totals["tokens"],
        }
        return metrics["loss"], LossAux(aux.state, view.extra, metrics, aux.maps)

    def _loss_evaluation(self, name: str, documents: Documents) -> Evaluation:
        stream = join(documents, self.tokenizer.end)
        batches = OneEpoch(Windows(stream, context=self.config.context, rows=self._rows, seed=None))

        def finish(sums: Mapping[str, float], rows: object) -> Report:
            note = f"{int(sums['tokens'])} tokens in windows of {self.config.context} that do not overlap"
            return Report(per_token_and_byte(sums), note=note)

        return Evaluation(
            name="loss",
            split=name,
            batches=batches,
            step=self._loss_sums,
            finish=finish,
            at_end=name != self.config.validation,
            parameters=self.config.evaluated_parameters,
        )

    def _loss_sums(self, view: View, batch: Batch, key: Key[Array, ""]) -> tuple[dict[str, Array], None]:
        _, aux = self._loss(view, batch, {"tokens": jnp.float32(1)}, key)
        bytes_BxT = jnp.take(jnp.asarray(self._bytes_V), jnp.asarray(batch["labels"]))
        counted = jnp.sum(jnp.where(_counts(batch), bytes_BxT, 0)).astype(jnp.float32)
        sums = {"loss": aux.metrics["cross_entropy"], "accuracy": aux.metrics["accuracy"]}
        return {**sums, **self.totals(batch), "bytes": counted}, None

    def _continuations(self) -> Evaluation:
        """The prompts with what the model makes of them, by greedy decoding."""
        config = self.config
        prompts = encode_prompts(self.tokenizer, config.prompts)
        decoding = Decoding(length=config.continued)

        def step(view: View, batch: Batch, key: Any) -> tuple[dict, dict]:
            return {}, {"tokens": roll_out(view, self.tokenizer, batch, decoding).tokens[:, 0]}

        def finish(sums: Any, rows: Mapping[str, np.ndarray]) -> Report:
            pairs = zip(config.prompts, rows["tokens"], strict=True)
            samples = [{"prompt": prompt, "output": self.tokenizer.decode(tokens)} for prompt, tokens in pairs]
            return Report({}, samples, note=f"{len(samples)} prompts continued")

        return Evaluation("continuations", config.validation, [prompts], step, finish)


def _counts(batch: Batch) -> Array:
    """The places whose labels are predicted."""
    if "counts" in batch:
        return jnp.asarray(batch["counts"])
    labels = jnp.asarray(batch["labels"])
    if "lengths" in batch:
        return jnp.arange(labels.shape[1]) < jnp.asarray(batch["lengths"])[:, None]
    return jnp.ones(labels.shape, bool)


def build(config: LanguageModellingConfig, directory: Path, rows_multiple: int = 1) -> LanguageModelling:
    """The task over its data; a batch's rows are a multiple of `rows_multiple` (devices x micro-batches)."""
    tokenizer, splits = load_documents(config, directory, roles=())
    return LanguageModelling(config, tokenizer, splits, rows_multiple)
