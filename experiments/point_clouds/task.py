"""Classification of point clouds: which digit the points were sampled from."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from transformer.attention.sites import Site
from transformer.config import BatchSize, Config, NumDisplayedExamples, NumExamples, PositiveInt, UserError
from transformer.data.batches import PROBE_SEED, TEST_SEED, VALIDATION_SEED, BatchSource, GeneratedBatches
from transformer.data.synthetic_glyphs import DIGITS, draw_point_clouds
from transformer.models.task_interface import POINT_CLASSIFICATION, InputSpec, Modality, TaskInterface
from transformer.tasks.axis_labels import AxisLabels
from transformer.tasks.base_task import BaseTask, check_batch_size, report_means
from transformer.tasks.losses import class_loss
from transformer.tasks.task import Batch, Evaluation, LossAux, Objective, StateView, TaskSpec

CLASSES = tuple(DIGITS)


@dataclasses.dataclass(frozen=True)
class PointCloudsConfig(Config, path="config.task"):
    """Point clouds sampled from the lines of digits, anew at every step.

    Attributes:
        min_points: The fewest points of a cloud.
        max_points: The most points of a cloud.
        batch_size: Clouds in a batch.
        num_eval_examples: Clouds to evaluate, rounded up to whole batches.
        num_probe_examples: Clouds whose maps are stored.

    Raises:
        UserError: If a value is out of range.
    """

    min_points: PositiveInt = 24
    max_points: int = 48
    batch_size: BatchSize = 64
    num_eval_examples: NumExamples = 512
    num_probe_examples: NumDisplayedExamples = 4

    def _check(self) -> None:
        if self.min_points > self.max_points:
            raise UserError(
                f"config.task.min_points={self.min_points} must be at most config.task.max_points={self.max_points}"
            )


class PointClouds(BaseTask):
    """Point cloud classification: implements transformer.tasks.task.Task."""

    def __init__(self, config: PointCloudsConfig, rows_multiple: int = 1):
        check_batch_size(config.batch_size, rows_multiple)
        self.config = config
        inputs = {
            "points": InputSpec((config.batch_size, config.max_points, 2), jnp.float32, Modality.POINTS),
            "lengths": InputSpec((config.batch_size,)),
        }
        self.interface = TaskInterface(
            inputs, {"classes": len(CLASSES)}, output=POINT_CLASSIFICATION.output, class_names=CLASSES
        )
        self.objectives = (Objective("classification", self._loss),)
        self.evaluations = (self._evaluation("validation", VALIDATION_SEED), self._evaluation("test", TEST_SEED))
        first = self.training_batches(PROBE_SEED)[0]
        self._shown = {name: values[: config.num_probe_examples] for name, values in first.items()}
        self.probe_batch = {name: self._shown[name] for name in ("points", "lengths")}

    def training_batches(self, seed: int) -> BatchSource:
        """Return an endless source of clouds that are sampled anew at every step."""
        return GeneratedBatches(self._draw, seed)

    def _draw(self, random: np.random.Generator) -> dict[str, np.ndarray]:
        config = self.config
        labels_B = random.integers(0, len(CLASSES), config.batch_size)
        lengths_B = random.integers(config.min_points, config.max_points + 1, config.batch_size)
        points_BxNx2 = draw_point_clouds([CLASSES[label] for label in labels_B], config.max_points, random)
        points_BxNx2[np.arange(config.max_points) >= lengths_B[:, None]] = 0
        return {
            "points": points_BxNx2,
            "lengths": lengths_B.astype(np.int32),
            "labels": labels_B.astype(np.int32),
        }

    def _loss(
        self, view: StateView, batch: Batch, denominators: Mapping[str, Array], key: Key[Array, ""]
    ) -> tuple[Array, LossAux]:
        """Return the mean over clouds of -log p(class), in nats."""
        inputs = {name: jnp.asarray(batch[name]) for name in POINT_CLASSIFICATION.inputs}
        logits_BxC, aux = view.model.apply(view.variables, inputs, train=view.train, key=key, capture=view.capture)
        labels_B = jnp.asarray(batch["labels"])
        sums = class_loss(logits_BxC, labels_B, jnp.ones_like(labels_B, bool))
        metrics = {
            "loss": sums.cross_entropy / denominators["examples"],
            "accuracy": sums.correct / denominators["examples"],
        }
        return metrics["loss"], LossAux.from_aux(aux, view.task_state, metrics)

    def _evaluation(self, split: str, seed: int) -> Evaluation:
        drawn = self.training_batches(seed)
        batches = [drawn[number] for number in range(-(-self.config.num_eval_examples // self.config.batch_size))]

        def step(view: StateView, batch: Batch, key: Key[Array, ""]) -> tuple[dict[str, Array], None]:
            _, aux = self._loss(view, batch, {"examples": jnp.float32(1)}, key)
            return {**aux.metrics, **self.denominators(batch)}, None

        finish = functools.partial(report_means, by="examples")
        return Evaluation("classification", split, batches, step, finish, at_end=split == "test")

    def axis_labels(self, sites: Sequence[Site]) -> AxisLabels:
        """Label each point with its coordinates, each cloud with its digit."""
        rows = zip(self._shown["points"], self._shown["lengths"], strict=True)
        points = tuple(tuple(f"{x:.2f}, {y:.2f}" for x, y in cloud[:length]) for cloud, length in rows)
        shown = zip(self._shown["labels"], points, strict=True)
        titles = [f"{CLASSES[label]} of {len(names)} points" for label, names in shown]
        return AxisLabels({"points": points}, tuple(titles))


TASK = TaskSpec(PointCloudsConfig, PointClouds)
