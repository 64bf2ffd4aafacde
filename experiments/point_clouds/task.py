"""Classification of point clouds: which digit the points were sampled from."""

import dataclasses
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from experiments.point_clouds.signature import POINT_CLASSIFICATION
from transformer.attention.sites import Site
from transformer.config import BatchSize, Config, NumDisplayedExamples, NumExamples, PositiveInt, UserError
from transformer.data.synthetic_glyphs import DIGITS, draw_point_clouds
from transformer.models.model import Aux
from transformer.models.task_interface import InputSpec, Modality, TaskInterface
from transformer.tasks.axis_labels import AxisLabels
from transformer.tasks.generated_task import GeneratedTask
from transformer.tasks.losses import class_loss
from transformer.tasks.task import Batch, StateView, TaskSpec

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


class PointClouds(GeneratedTask):
    """Point cloud classification: implements transformer.tasks.task.Task."""

    def __init__(self, config: PointCloudsConfig, rows_multiple: int = 1):
        inputs = {
            "points": InputSpec((config.batch_size, config.max_points, 2), jnp.float32, Modality.POINTS),
            "lengths": InputSpec((config.batch_size,)),
        }
        interface = TaskInterface(
            inputs, {"classes": len(CLASSES)}, output=POINT_CLASSIFICATION.output, class_names=CLASSES
        )
        super().__init__(config, interface, "classification", rows_multiple)

    def draw_batch(self, random: np.random.Generator) -> dict[str, np.ndarray]:
        """Sample clouds of random digits."""
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

    def loss_sums(self, view: StateView, batch: Batch, key: Key[Array, ""] | None) -> tuple[dict[str, Array], Aux]:
        """Sum -log p(class) in nats and the clouds that are classified correctly."""
        logits_BxC, aux = self.apply_model(view, batch, key)
        labels_B = jnp.asarray(batch["labels"])
        sums = class_loss(logits_BxC, labels_B, jnp.ones_like(labels_B, bool))
        return {"loss": sums.cross_entropy, "accuracy": sums.correct}, aux

    def axis_labels(self, sites: Sequence[Site]) -> AxisLabels:
        """Label each point with its coordinates, each cloud with its digit."""
        examples = self.probe_examples
        rows = zip(examples["points"], examples["lengths"], strict=True)
        points = tuple(tuple(f"{x:.2f}, {y:.2f}" for x, y in cloud[:length]) for cloud, length in rows)
        titles = [
            f"{CLASSES[label]} of {len(names)} points" for label, names in zip(examples["labels"], points, strict=True)
        ]
        return AxisLabels({"points": points}, tuple(titles))


TASK = TaskSpec(PointCloudsConfig, PointClouds)
