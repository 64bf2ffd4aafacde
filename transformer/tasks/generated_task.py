"""Tasks that draw their examples from a random generator, anew at every step."""

import abc
import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from transformer.data.batches import (
    PROBE_SEED,
    TEST_SEED,
    VALIDATION_SEED,
    BatchSource,
    GeneratedBatches,
    first_batches,
)
from transformer.models.model import Aux
from transformer.models.task_interface import TaskInterface
from transformer.tasks.base_task import BaseTask, check_batch_size, report_means
from transformer.tasks.task import Batch, Evaluation, LossAux, Objective, StateView


class GeneratedTask(BaseTask, abc.ABC):
    """A task that draws its examples anew at every step, and whose loss is a sum over a batch divided by a count.

    A subclass adds `draw_batch` (or its own `training_batches`), `loss_sums` and `axis_labels`. What these need beside
    `self.config`, a subclass sets before it calls `__init__`, which draws the held-out batches and those of the probe.

    Args:
        config: The section of the config, with `batch_size`, `num_eval_examples` and `num_probe_examples`.
        interface: The inputs, outputs and vocabularies that the task requires of a model.
        objective: The name of the objective.
        rows_multiple: The number that the rows of a batch must be a multiple of.
        key_name: The name that seeds the random numbers of the loss (`Objective.key_name`).

    Attributes:
        probe_examples: The batch whose inputs are `probe_batch`.
        denominator: The name of the count that the sums are divided by, one of `denominators`.
        metric_denominators: The names of the counts of those metrics that are divided by another one, such as words in
            place of tokens, by the name of the metric.
        further_inputs: Arrays of a batch that the model reads beside those of the interface, such as the lengths by
            which it masks what is padded.
    """

    denominator: str = "examples"
    metric_denominators: Mapping[str, str] = MappingProxyType({})
    further_inputs: tuple[str, ...] = ()

    def __init__(
        self, config: Any, interface: TaskInterface, objective: str, rows_multiple: int = 1, *, key_name: str = ""
    ):
        check_batch_size(config.batch_size, rows_multiple)
        self.config, self.interface = config, interface
        self.objectives = (Objective(objective, self.loss, key_name=key_name),)
        self.probe_examples = self.draw_probe_examples()
        self.probe_batch = self.model_inputs(self.probe_examples)
        self.evaluations = self.make_evaluations("validation", VALIDATION_SEED) + self.make_evaluations(
            "test", TEST_SEED
        )

    def draw_batch(self, random: np.random.Generator) -> dict[str, np.ndarray]:
        """Draw a training batch: the model's inputs, and what `loss_sums` compares its outputs with."""
        raise NotImplementedError(f"{type(self).__name__} says neither draw_batch nor training_batches")

    @abc.abstractmethod
    def loss_sums(self, view: StateView, batch: Batch, key: Key[Array, ""] | None) -> tuple[dict[str, Array], Aux]:
        """Return the sums over a batch that are reported, of which `loss` is trained on, and the model's other results.

        The key is for dropout; an evaluation may give none.
        """

    def training_batches(self, seed: int) -> BatchSource:
        """Return an endless source of batches that are drawn anew at every step."""
        return GeneratedBatches(self.draw_batch, seed)

    def held_out_batches(self, seed: int) -> list[dict[str, np.ndarray]]:
        """Draw batches like those of training, of at least `num_eval_examples` examples."""
        return first_batches(self.training_batches(seed), self.config.num_eval_examples, self.config.batch_size)

    def draw_probe_examples(self) -> dict[str, np.ndarray]:
        """Draw the examples whose maps are stored: by default the first of a batch like those of training."""
        batch = self.training_batches(PROBE_SEED)[0]
        return {name: values[: self.config.num_probe_examples] for name, values in batch.items()}

    def model_inputs(self, batch: Batch) -> dict[str, Any]:
        """Return the arrays of a batch that the model reads."""
        return {name: batch[name] for name in (*self.interface.inputs, *self.further_inputs)}

    def apply_model(self, view: StateView, batch: Batch, key: Key[Array, ""] | None) -> tuple[Any, Aux]:
        """Run the model on the inputs of a batch."""
        inputs = {name: jnp.asarray(values) for name, values in self.model_inputs(batch).items()}
        return view.model.apply(view.variables, inputs, train=view.train, key=key, capture=view.capture)

    def loss(
        self, view: StateView, batch: Batch, denominators: Mapping[str, Array], key: Key[Array, ""] | None
    ) -> tuple[Array, LossAux]:
        """Return the mean of the loss, with the means of all sums as metrics."""
        sums, aux = self.loss_sums(view, batch, key)
        metrics = {
            # A batch may have none of what a metric counts.
            name: value / jnp.maximum(denominators[self.metric_denominators[name]], 1)
            if name in self.metric_denominators
            else value / denominators[self.denominator]
            for name, value in sums.items()
        }
        return metrics["loss"], LossAux.from_aux(aux, view.task_state, metrics)

    def evaluation_step(
        self, view: StateView, batch: Batch, key: Key[Array, ""] | None
    ) -> tuple[dict[str, Array], None]:
        """Return the sums over a batch and the counts to divide them by."""
        sums, _ = self.loss_sums(view, batch, key)
        return {**sums, **self.denominators(batch)}, None

    def make_evaluations(self, split: str, seed: int) -> tuple[Evaluation, ...]:
        """Return the evaluations of a split: by default the means of all sums.

        Args:
            split: The split. The test split is evaluated once, after training.
            seed: The seed of its examples.
        """
        finish = functools.partial(report_means, by=self.denominator, metric_denominators=self.metric_denominators)
        batches = self.held_out_batches(seed)
        return (
            Evaluation(self.objectives[0].name, split, batches, self.evaluation_step, finish, at_end=split == "test"),
        )
