"""Next-token prediction over random tokens: a task without data, for steps that are timed on a bare machine."""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from transformer.attention.sites import Site
from transformer.models.interface import CONTINUATION, Input, Interface
from transformer.tasks.contract import Batch, LossAux, Objective, View
from transformer.tasks.labels import Labels
from transformer.tasks.losses import hidden_token_loss
from transformer.tasks.plain import PlainTask


@dataclasses.dataclass(frozen=True)
class RandomTokens(PlainTask):
    """The task: implements transformer.tasks.contract.Task.

    Every step has its own `rows` of `context` tokens, drawn by seed and step.
    """

    rows: int
    context: int
    vocabulary: int

    @property
    def interface(self) -> Interface:
        """Tokens in, the next ones out."""
        return Interface(
            inputs={"tokens": Input((self.rows, self.context))},
            vocabularies={"tokens": self.vocabulary},
            output=CONTINUATION.output,
        )

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """The mean cross-entropy."""
        return (Objective("language_modelling", self._loss),)

    def source(self, seed: int) -> "Drawn":
        """The batches of a seed."""
        return Drawn(self, seed)

    def totals(self, batch: Batch) -> dict[str, Array]:
        """The number of predicted tokens."""
        return {"tokens": jnp.float32(batch["labels"].size)}

    def labels(self, sites: Sequence[Site]) -> Labels:
        """Nothing is probed."""
        return Labels(tokens={}, titles=())

    def _loss(
        self, view: View, batch: Batch, totals: Mapping[str, Array], key: Key[Array, ""]
    ) -> tuple[Array, LossAux]:
        hidden_BxTxE, aux = view.model.apply(
            view.variables, {"tokens": batch["tokens"]}, method="hidden", train=True, key=key, capture=view.capture
        )
        labels = jnp.asarray(batch["labels"])
        score = partial(view.model.logits, view.variables)
        sums = hidden_token_loss(score, hidden_BxTxE, labels, jnp.ones(labels.shape, bool), 0.0)
        loss = sums.smoothed / totals["tokens"]
        return loss, LossAux.of(aux, view.extra, {"loss": loss})


@dataclasses.dataclass(frozen=True)
class Drawn:
    """The batches of one seed: implements transformer.data.batches.Source."""

    task: RandomTokens
    seed: int

    def __getitem__(self, step: int) -> dict[str, Any]:
        random = np.random.default_rng((self.seed, step))
        shape = (self.task.rows, self.task.context + 1)
        text = random.integers(0, self.task.vocabulary, shape, np.int32)
        return {"tokens": text[:, :-1], "labels": text[:, 1:]}
