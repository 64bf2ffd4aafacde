"""What the tasks over texts share: batches of one width, a loss on hidden states, a probe of the validation text."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Key

from transformer.attention.capture import Capture
from transformer.config import UserError
from transformer.data.any_tokenizer import AnyTokenizer
from transformer.models.contract import Aux, Interface, Need
from transformer.tasks.contract import Batch, View
from transformer.tasks.labels import Labels
from transformer.tasks.losses import TokenLoss, hidden_token_loss
from transformer.tasks.text_data import Documents, TextConfig, describe, repeats, stretches

# What a model may be given; every batch has some of them.
INPUTS = ("tokens", "lengths", "segments", "positions")


class TextTask:
    """A task whose batches are rows of tokens.

    `decoded` is the greatest length that it generates, prompt included; `repeated` the number of examples of random
    tokens that repeat, which are probed beside the stretches of text.
    """

    def __init__(
        self,
        config: TextConfig,
        tokenizer: AnyTokenizer,
        splits: Mapping[str, Documents],
        rows_multiple: int,
        *,
        need: Need,
        decoded: int = 0,
        repeated: int = 0,
    ):
        self.tokenizer, self._train, self._text = tokenizer, splits["train"], config
        if config.rows % rows_multiple:
            raise UserError(
                f"config.task.rows={config.rows} cannot be cut into {rows_multiple} equal parts (those of the batch on "
                f"the mesh x config.accumulate): give a multiple of {rows_multiple}, or another config.sharding"
            )
        self.interface = Interface(
            inputs={"tokens": jax.ShapeDtypeStruct((config.rows, config.context), jnp.int32)},
            vocabularies={"tokens": tokenizer.vocabulary},
            pad=tokenizer.pad,
            begin=tokenizer.begin,
            end=tokenizer.end,
            need=need,
            decoded=decoded,
        )
        length = min(config.probed_length, config.context)
        self._repeats = repeats(tokenizer, repeated, length)
        texts = stretches(splits[config.validation], config.probed, length)
        self.probed = np.concatenate([texts, self._repeats.tokens])

    def init_extra(self, view: View, key: Key[Array, ""]) -> dict:
        """Nothing is carried from step to step."""
        return {}

    def probe(self, view: View, capture: Capture, key: Key[Array, ""]) -> Aux:
        """The maps of stretches of the validation text and of the random tokens, nothing hidden."""
        tokens = jnp.asarray(self.probed)
        inputs = {"tokens": tokens, "lengths": jnp.full(tokens.shape[0], tokens.shape[1])}
        _, aux = view.model.apply(view.variables, inputs, method="hidden", train=False, capture=capture)
        return aux

    def labels(self) -> Labels:
        """The tokens of those examples."""
        labels = describe(self.tokenizer, [list(row) for row in self.probed])
        random, period = self._repeats
        if not len(random):
            return labels
        texts = len(self.probed) - len(random)
        return dataclasses.replace(
            labels,
            titles=(*labels.titles[:texts], *[f"random tokens, repeated every {period}"] * len(random)),
            periods=(*[None] * texts, *[period] * len(random)),
        )

    def token_sums(
        self, view: View, batch: Batch, counts_BxT: Bool[Array, "B T"], key: Any, *, label_smoothing: float = 0.0
    ) -> tuple[TokenLoss, Aux]:
        """The sums of the losses of the labels that count, and what the model returned beside its states."""
        inputs = {name: jnp.asarray(batch[name]) for name in INPUTS if name in batch}
        hidden_BxTxE, aux = view.model.apply(
            view.variables, inputs, method="hidden", train=view.train, key=key, capture=view.capture
        )
        sums = hidden_token_loss(
            functools.partial(view.model.logits, view.variables),
            hidden_BxTxE,
            jnp.asarray(batch["labels"]),
            counts_BxT,
            label_smoothing,
            logits_at_once=self._text.logits_at_once,
        )
        return sums, aux


def real_places(batch: Batch) -> Bool[Array, "B T"]:
    """The places of a batch that hold a token: those below `lengths`, or all."""
    shape = batch["tokens"].shape
    if "lengths" not in batch:
        return jnp.ones(shape, bool)
    return jnp.arange(shape[1]) < jnp.asarray(batch["lengths"])[:, None]
