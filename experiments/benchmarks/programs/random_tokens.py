"""Next-token prediction over random tokens: tasks without data, to time training steps."""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from transformer.attention.sites import Site
from transformer.models.task_interface import LANGUAGE_MODELING, TRANSLATION, InputSpec, TaskInterface
from transformer.tasks.axis_labels import AxisLabels
from transformer.tasks.base_task import BaseTask
from transformer.tasks.losses import chunked_token_loss
from transformer.tasks.task import Batch, LossAux, Objective, StateView


class RandomTokenTask(BaseTask):
    """The common base of both tasks: the mean cross-entropy of `labels`."""

    @property
    def interface(self) -> TaskInterface:
        """The inputs and outputs of a model."""
        raise NotImplementedError

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """The mean cross-entropy."""
        return (Objective("loss", self._loss),)

    def training_batches(self, seed: int) -> "RandomBatches":
        """The batches of a seed."""
        return RandomBatches(self, seed)

    def sample_batch(self, random: np.random.Generator) -> dict[str, Any]:
        """One batch."""
        raise NotImplementedError

    def denominators(self, batch: Batch) -> dict[str, Array]:
        """The number of predicted tokens."""
        return {"tokens": jnp.float32(batch["labels"].size)}

    def axis_labels(self, sites: Sequence[Site]) -> AxisLabels:
        """Nothing is probed."""
        return AxisLabels(tokens={}, titles=())

    def _loss(
        self, view: StateView, batch: Batch, denominators: Mapping[str, Array], key: Key[Array, ""]
    ) -> tuple[Array, LossAux]:
        inputs = {name: values for name, values in batch.items() if name != "labels"}
        hidden_BxTxE, aux = view.model.apply(
            view.variables, inputs, method="hidden", train=True, key=key, capture=view.capture
        )
        labels = jnp.asarray(batch["labels"])
        score = partial(view.model.logits, view.variables)
        sums = chunked_token_loss(score, hidden_BxTxE, labels, jnp.ones(labels.shape, bool), 0.0)
        loss = sums.smoothed / denominators["tokens"]
        return loss, LossAux.from_aux(aux, view.task_state, {"loss": loss})


@dataclasses.dataclass(frozen=True)
class RandomLanguageModeling(RandomTokenTask):
    """Language modeling: each step has its own batch of random tokens, sampled by seed and step."""

    batch_size: int
    context_length: int
    vocab_size: int

    @property
    def interface(self) -> TaskInterface:
        """Tokens in, the next ones out."""
        return TaskInterface(
            inputs={"tokens": InputSpec((self.batch_size, self.context_length))},
            vocabularies={"tokens": self.vocab_size},
            output=LANGUAGE_MODELING.output,
        )

    def sample_batch(self, random: np.random.Generator) -> dict[str, Any]:
        """One batch."""
        text = random.integers(0, self.vocab_size, (self.batch_size, self.context_length + 1), np.int32)
        return {"tokens": text[:, :-1], "labels": text[:, 1:]}


@dataclasses.dataclass(frozen=True)
class RandomTranslation(RandomTokenTask):
    """Translation: source and target have `context_length` random tokens each, without padding."""

    batch_size: int
    context_length: int
    vocab_size: int

    @property
    def interface(self) -> TaskInterface:
        """Sources and targets in, the next tokens of the targets out."""
        shape = (self.batch_size, self.context_length)
        return TaskInterface(
            inputs={"source": InputSpec(shape), "target": InputSpec(shape)},
            vocabularies={"joint": self.vocab_size},
            pad_id=0,
            bos_id=1,
            eos_id=2,
            output=TRANSLATION.output,
        )

    def sample_batch(self, random: np.random.Generator) -> dict[str, Any]:
        """One batch."""
        text = random.integers(3, self.vocab_size, (2, self.batch_size, self.context_length), np.int32)
        begin = np.ones((self.batch_size, 1), np.int32)
        return {"source": text[0], "target": np.concatenate([begin, text[1, :, :-1]], axis=1), "labels": text[1]}


@dataclasses.dataclass(frozen=True)
class RandomBatches:
    """The batches of one seed: implements transformer.data.batches.BatchSource."""

    task: RandomTokenTask
    seed: int

    def __getitem__(self, step: int) -> dict[str, Any]:
        return self.task.sample_batch(np.random.default_rng((self.seed, step)))
