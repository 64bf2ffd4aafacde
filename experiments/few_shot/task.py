"""Few-shot classification: name the class of a query drawing from a support set of new characters."""

import colorsys
import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, UInt8

from experiments.few_shot.data import (
    CharacterSet,
    EpisodeBatch,
    RotationAugmentation,
    make_placeholder_characters,
    open_character_set,
    sample_episodes,
)
from transformer.attention.sites import AxisKind, Site, sites_between
from transformer.config import (
    BatchSize,
    Config,
    ImageSize,
    NumDisplayedExamples,
    NumExamples,
    PositiveInt,
    Range,
    TupleLimits,
    UserError,
)
from transformer.data.batches import VALIDATION_SEED, BatchSource, GeneratedBatches, fingerprint
from transformer.data.batches import Batch as Rows
from transformer.models.model import Aux
from transformer.models.task_interface import FEW_SHOT_CLASSIFICATION, InputSpec, Modality, TaskInterface
from transformer.tasks.axis_labels import AxisLabels, GoldAlignment
from transformer.tasks.base_task import describe_splits, report_means
from transformer.tasks.generated_task import GeneratedTask
from transformer.tasks.losses import class_loss
from transformer.tasks.task import Batch, Evaluation, StateView, TaskSpec

EPISODE, SHOT = "episode", "shot"
_QUERY_LABEL = "?"


@dataclasses.dataclass(frozen=True)
class FewShotConfig(Config, path="config.task"):
    """Few-shot episodes: a support set of new characters, and a query drawing of one of them.

    Attributes:
        dataset: "strokes" (synthetic), or, from Omniglot's archives, "omniglot" (alphabets held out) or
            "omniglot_characters" (characters held out), with options (experiments.few_shot.data).
        data_dir: The folder of Omniglot's archives.
        image_size: Height and width of a drawing in pixels.
        ways: The characters of an episode.
        shots: The drawings of each character in the support set; with several numbers batches alternate between them,
            and each is evaluated.
        rotation_augmentation: The training characters that are added.
        eval_rotation_augmentation: The held-out characters that are added.
        batch_size: Episodes in a batch.
        num_eval_examples: Held-out episodes to evaluate.
        num_probe_examples: Held-out episodes whose maps are stored.

    Raises:
        UserError: If a value is out of range.
    """

    dataset: str = "strokes"
    data_dir: str | None = None
    image_size: ImageSize = 28
    ways: Annotated[int, Range(2)] = 5
    shots: Annotated[tuple[PositiveInt, ...], TupleLimits(min_length=1, distinct=True)] = (1,)
    rotation_augmentation: RotationAugmentation = RotationAugmentation.ROTATIONS
    eval_rotation_augmentation: RotationAugmentation = RotationAugmentation.NONE
    batch_size: BatchSize = 32
    num_eval_examples: NumExamples = 1000
    num_probe_examples: NumDisplayedExamples = 2

    @property
    def shots_of_batches(self) -> tuple[int, ...]:
        """The numbers of shots in the order of the batches, the longest episodes first."""
        return tuple(sorted(self.shots, reverse=True))


@dataclasses.dataclass(frozen=True)
class AlternatingSources:
    """A source whose batches alternate between several sources."""

    sources: tuple[BatchSource, ...]

    def __getitem__(self, step: int) -> Rows:
        return self.sources[step % len(self.sources)][step]


class FewShotClassification(GeneratedTask):
    """Few-shot classification: implements transformer.tasks.task.Task."""

    def __init__(self, config: FewShotConfig, opened: CharacterSet, rows_multiple: int = 1):
        self._opened = opened
        self.splits = {
            split: (config.rotation_augmentation if split == "train" else config.eval_rotation_augmentation)(drawings)
            for split, drawings in opened.splits.items()
        }
        most = max(config.shots)
        for split, drawings in self.splits.items():
            characters, num_drawers = drawings.shape[:2]
            if characters < config.ways or num_drawers <= most:
                raise UserError(
                    f"{opened.name} has {characters} characters of {num_drawers} hands in {split}: config.task.ways="
                    f"{config.ways} and shots={most} need {config.ways} characters of {most + 1}"
                )
        length = config.ways * most + 1
        inputs = {
            "images": InputSpec(
                (config.batch_size, length, config.image_size, config.image_size, 1), jnp.float32, Modality.IMAGE
            ),
            "shown": InputSpec((config.batch_size, length)),
        }
        # No number of shots is 0: evaluations draw from other seeds.
        random = np.random.default_rng((VALIDATION_SEED, 0))
        self._probe_episodes = sample_episodes(
            random, self.splits["validation"], config.num_probe_examples, config.ways, most
        )
        interface = TaskInterface(inputs, {"classes": config.ways}, output=FEW_SHOT_CLASSIFICATION.output)
        super().__init__(config, interface, "few_shots", rows_multiple)

    def fingerprint(self) -> dict[str, str]:
        """Return the fingerprint of every split's drawings."""
        return {split: fingerprint([drawings]) for split, drawings in self._opened.splits.items()}

    @property
    def data_summary(self) -> tuple[str, ...]:
        """A line on the number of characters of each split, with the added ones."""
        sizes = {split: len(drawings) for split, drawings in self.splits.items()}
        return (describe_splits(self.config.dataset, sizes, "characters", self._opened.split_note),)

    def _sample_batch(self, split: str, shots: int, random: np.random.Generator) -> dict[str, np.ndarray]:
        config = self.config
        return make_batch(sample_episodes(random, self.splits[split], config.batch_size, config.ways, shots))

    def draw_probe_examples(self) -> dict[str, np.ndarray]:
        """Return held-out episodes of the largest number of shots."""
        return make_batch(self._probe_episodes)

    def training_batches(self, seed: int) -> BatchSource:
        """Return an endless source of episodes, whose batches alternate between the numbers of shots."""
        draws = (functools.partial(self._sample_batch, "train", shots) for shots in self.config.shots_of_batches)
        return AlternatingSources(tuple(GeneratedBatches(draw, seed) for draw in draws))

    def loss_sums(self, view: StateView, batch: Batch, key: Key[Array, ""] | None) -> tuple[dict[str, Array], Aux]:
        """Sum -log p(class of the query) and the correct classes; the support set has no loss."""
        logits_BxTxC, aux = self.apply_model(view, batch, key)
        labels_B = jnp.asarray(batch["labels"])
        sums = class_loss(logits_BxTxC[:, -1], labels_B, jnp.ones(labels_B.shape, bool))
        return {"loss": sums.cross_entropy, "accuracy": sums.correct}, aux

    def make_evaluations(self, split: str, seed: int) -> tuple[Evaluation, ...]:
        """Return an evaluation of each number of shots."""
        return tuple(self._evaluation(split, seed, shots) for shots in sorted(self.config.shots))

    def _evaluation(self, split: str, seed: int, shots: int) -> Evaluation:
        # Step 256 of run `shots` has the generator of the first batch but draws from other characters. Recorded
        # figures rest on these numbers, so they stay.
        generators = (
            np.random.default_rng((seed + shots, number))
            for number in range(-(-self.config.num_eval_examples // self.config.batch_size))
        )

        def step(view: StateView, batch: Batch, key: Key[Array, ""]) -> tuple[dict[str, Array], None]:
            sums, _ = self.loss_sums(view, batch, None)
            scalars = {f"{name}_{shots}_shot": value for name, value in sums.items()}
            return {**scalars, **self.denominators(batch)}, None

        return Evaluation(
            name=f"{shots}_shot",
            split=split,
            batches=[self._sample_batch(split, shots, random) for random in generators],
            step=step,
            finish=functools.partial(report_means, by="examples"),
            at_end=split != "validation",
        )

    def axis_labels(self, sites: Sequence[Site]) -> AxisLabels:
        """Label each drawing with its class's letter and the query with a question mark.

        Gold alignments lead from the query to the shots of its class. The image of an episode has its drawings side by
        side, each class in its own color.
        """
        letters = class_names(self.config.ways)
        names, links, titles = [], [], []
        for episode_number, classes in enumerate(self._probe_episodes.classes.tolist(), 1):
            *shots, query_class = classes
            names.append((*(f"{at} {letters[shot]}" for at, shot in enumerate(shots, 1)), _QUERY_LABEL))
            links.append(
                tuple(GoldAlignment(len(shots), at, True) for at, shot in enumerate(shots) if shot == query_class)
            )
            titles.append(f"episode {episode_number}: {_QUERY_LABEL} is {letters[query_class]}")
        gold = {site.name: tuple(links) for site in sites_between(sites, EPISODE, SHOT)}
        grids = {site.key.name: site.key.shape for site in sites if site.key.kind is AxisKind.GRID}
        images = {
            name: tile_episodes(self._probe_episodes, shape, self.config.ways) for name, shape in grids.items() if shape
        }
        tokens = dict.fromkeys((EPISODE, SHOT), tuple(names))
        return AxisLabels(tokens, tuple(titles), gold or None, images=images)


def make_batch(episodes: EpisodeBatch) -> dict[str, np.ndarray]:
    """Return the model's inputs (ink 1, paper 0; the query's class masked) and the query's class."""
    shown_BxT = episodes.classes + 1
    shown_BxT[:, -1] = 0
    images = (episodes.images / np.float32(255)).astype(np.float32)[..., None]
    return {"images": images, "shown": shown_BxT, "labels": episodes.classes[:, -1]}


def class_names(ways: int) -> list[str]:
    """Return names for the classes: A, B, C, ..., or numbers if there are more than 26."""
    return [chr(ord("A") + number) if ways <= 26 else str(number + 1) for number in range(ways)]


def tile_episodes(episodes: EpisodeBatch, shape: tuple[int, int], ways: int) -> UInt8[np.ndarray, "B height width 3"]:
    """Tile each episode's drawings in a grid; each class has its color, the query is black.

    Args:
        episodes: The episodes.
        shape: The rows and columns of the grid.
        ways: The number of classes.

    Returns:
        Images [episode, height, width, 3].
    """
    rows, columns = shape
    count, length, image_size, _ = episodes.images.shape
    colors_Wx3 = np.array([colorsys.hsv_to_rgb(way / ways, 0.9, 0.75) for way in range(ways)])
    color_BxTx3 = colors_Wx3[episodes.classes]
    color_BxTx3[:, -1] = 0
    ink: Float[np.ndarray, "B T Y X 1"] = episodes.images[..., None] / 255
    places = np.full((count, rows * columns, image_size, image_size, 3), 255, np.uint8)
    places[:, :length] = np.round(255 * (1 - ink * (1 - color_BxTx3[:, :, None, None])))
    tiled = places.reshape(count, rows, columns, image_size, image_size, 3).swapaxes(2, 3)
    return tiled.reshape(count, rows * image_size, columns * image_size, 3)


def build_task(config: FewShotConfig, directory: Path, rows_multiple: int = 1) -> FewShotClassification:
    """Build the task over its data."""
    opened = open_character_set(config.dataset, data_dir=config.data_dir, image_size=config.image_size)
    return FewShotClassification(config, opened, rows_multiple)


def build_synthetic_task(config: FewShotConfig, rows_multiple: int = 1) -> FewShotClassification:
    """Build the task over blank characters."""
    num_drawers = max(config.shots, default=1) + 1
    opened = make_placeholder_characters(
        config.dataset, classes=config.ways, num_drawers=num_drawers, image_size=config.image_size
    )
    return FewShotClassification(config, opened, rows_multiple)


TASK = TaskSpec(FewShotConfig, build_synthetic_task, build_task)
