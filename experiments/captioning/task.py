"""Captioning of synthetic scenes, with gold alignments between nouns and image positions."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from experiments.captioning import data as captions
from experiments.captioning.metrics import attention_mass_report, attention_mass_step, caption_report, named_cell_mask
from transformer.attention.sites import Site
from transformer.config import (
    BatchSize,
    Config,
    ImageSize,
    NonNegativeFloat,
    NumBeams,
    NumDisplayedExamples,
    NumExamples,
    PositiveInt,
    Range,
    UserError,
)
from transformer.data.batches import (
    PROBE_SEED,
    TEST_SEED,
    VALIDATION_SEED,
    BatchSource,
    GeneratedBatches,
    first_batches,
    random_generator,
)
from transformer.data.images import scale_pixels
from transformer.data.synthetic_scenes import SceneGenerator, SceneItem, render_scenes
from transformer.tasks.attention_mass import NO_CELL, TARGET_OVER_GRID, cell_of_patch
from transformer.tasks.axis_labels import GoldAlignment
from transformer.tasks.base_task import check_batch_size, report_means
from transformer.tasks.hard_attention_reinforce import add_reinforce_loss, initial_baseline, samples_attention
from transformer.tasks.sequence_generation_base import (
    ImageToSequenceTask,
    gold_alignments_from_mask,
    predicted_step_mask,
)
from transformer.tasks.task import (
    Batch,
    Evaluation,
    EvaluationReport,
    LossAux,
    PredictionRequest,
    Predictions,
    PyTree,
    StateView,
    TaskSpec,
)

_SHOWN = 5  # captions to read beside their references
_EXAMPLE = "red circle top left, blue star bottom right"


@dataclasses.dataclass(frozen=True)
class CaptioningConfig(Config, path="config.task"):
    """Captioning of scenes of 3 x 3 cells, sampled anew at every step.

    Attributes:
        min_items: The fewest items of a scene.
        max_items: The most items of a scene.
        cell_pixels: The height and width of a cell in pixels.
        batch_size: Scenes in a batch.
        num_eval_examples: Scenes of the validation set and of the test set, rounded up to whole batches.
        num_beams: The beam size; 1 decodes greedily.
        num_probe_examples: Scenes whose maps are stored.
        reinforce_weight: Weight of the REINFORCE loss of hard attention
            (transformer.tasks.hard_attention_reinforce).
        entropy_weight: Weight of its entropy bonus.

    Raises:
        UserError: If `min_items` is above `max_items`.
    """

    min_items: PositiveInt = 2
    max_items: Annotated[int, Range(1, 9)] = 3
    cell_pixels: ImageSize = 16
    batch_size: BatchSize = 64
    num_eval_examples: NumExamples = 1000
    num_beams: NumBeams = 1
    num_probe_examples: NumDisplayedExamples = 6
    reinforce_weight: NonNegativeFloat = 1.0
    entropy_weight: NonNegativeFloat = 0.01

    def _check(self) -> None:
        if self.min_items > self.max_items:
            raise UserError(f"config.task.min_items={self.min_items} and max_items={self.max_items} must rise")

    @property
    def scene_generator(self) -> SceneGenerator:
        """The distribution of the scenes."""
        return SceneGenerator(cell_pixels=self.cell_pixels, min_items=self.min_items, max_items=self.max_items)


class Captioning(ImageToSequenceTask):
    """Image captioning: implements transformer.tasks.task.Task."""

    def __init__(self, config: CaptioningConfig, rows_multiple: int = 1):
        check_batch_size(config.batch_size, rows_multiple)
        self.config, self.scene_generator = config, config.scene_generator
        size = {"size": self.scene_generator.image_size, "rows": config.batch_size, "num_beams": config.num_beams}
        super().__init__(
            "captions",
            captions.caption_vocabulary(self.scene_generator),
            captions.max_caption_length(self.scene_generator),
            **size,
            separator=" ",
        )
        self.evaluations = (*self._evaluations("validation", VALIDATION_SEED), *self._evaluations("test", TEST_SEED))
        self.set_probe_batch(self._sample(random_generator(PROBE_SEED), config.num_probe_examples))

    @property
    def data_summary(self) -> tuple[str, ...]:
        """A line on the numbers of scenes and of words."""
        count = len(captions.caption_vocabulary(self.scene_generator))
        num_held_out = -(-self.config.num_eval_examples // self.config.batch_size) * self.config.batch_size
        return (
            f"data scenes: drawn anew at every step, {num_held_out:,} validation and {num_held_out:,} test, "
            f"captions of {count} words",
        )

    def training_batches(self, seed: int) -> BatchSource:
        """Return an endless source of scenes that are sampled anew at every step."""
        return GeneratedBatches(lambda random: self._sample(random, self.config.batch_size), seed)

    def _sample(self, random: np.random.Generator, count: int) -> dict[str, np.ndarray]:
        return self._batch([self.scene_generator.draw(random) for _ in range(count)], random)

    def _batch(self, scenes: Sequence[Sequence[SceneItem]], random: np.random.Generator) -> dict[str, np.ndarray]:
        """Render the scenes, with their captions; `named` is the cell that each word names."""
        image = scale_pixels(render_scenes(self.scene_generator, scenes, random))
        noun_cells = np.full((len(scenes), self.steps), NO_CELL, np.int32)
        for row, items in enumerate(scenes):
            for step, cell in captions.noun_positions(items):
                noun_cells[row, step] = cell
        sequences = self.encode_sequences([captions.write_caption(self.scene_generator, items) for items in scenes])
        return {"image": image, "named": noun_cells, **sequences}

    def init_task_state(self, view: StateView, key: Key[Array, ""]) -> PyTree:
        """Return the initial REINFORCE baseline of a model with hard attention; nothing otherwise."""
        return initial_baseline() if samples_attention(view.model) else super().init_task_state(view, key)

    def loss(
        self, view: StateView, batch: Batch, denominators: Mapping[str, Array], key: Key[Array, ""]
    ) -> tuple[Array, LossAux]:
        """Return the cross-entropy in nats per word, plus the REINFORCE loss of hard attention."""
        logits, aux, metrics = self.score_target(view, batch, denominators, key)
        labels_BxT, counts_BxT = jnp.asarray(batch["labels"]), predicted_step_mask(batch)
        num_tokens = denominators["tokens"]
        return add_reinforce_loss(self.config, view, aux, metrics, lambda: logits, labels_BxT, counts_BxT, num_tokens)

    def _evaluations(self, split: str, seed: int) -> tuple[Evaluation, ...]:
        """Return the evaluations of the loss, of decoded captions, and of the attention mass at nouns."""
        at_end = split == "test"
        batches = first_batches(self.training_batches(seed), self.config.num_eval_examples, self.config.batch_size)
        references = [line for batch in batches for line in self.format_lines(np.asarray(batch["labels"]))]

        def finish(sums: Any, rows: Mapping[str, np.ndarray]) -> EvaluationReport:
            return caption_report(self.format_lines(rows["tokens"]), references, num_samples=_SHOWN)

        return (
            Evaluation("loss", split, batches, self.loss_sums, report_means, at_end),
            Evaluation("captions", split, batches, self.decoding_step, finish, at_end),
            Evaluation(
                "looking",
                split,
                batches,
                attention_mass_step(self.scene_generator),
                attention_mass_report,
                at_end,
                required_axes=TARGET_OVER_GRID,
            ),
        )

    def gold_alignments(self, batch: Mapping[str, np.ndarray], site: Site) -> tuple[tuple[GoldAlignment, ...], ...]:
        """Return gold alignments: every position of the cell that a noun names.

        If the cell has several positions, each is a possible alignment and none is required.
        """
        cells_K = cell_of_patch(site.key, side=self.scene_generator.grid_size, size=self.scene_generator.image_size)
        sure = len(cells_K) - site.key.num_leading_positions == self.scene_generator.grid_size**2
        return gold_alignments_from_mask(named_cell_mask(jnp.asarray(batch["named"]), cells_K), sure=sure)

    def predict(self, view: StateView, request: PredictionRequest) -> Predictions:
        """Render the scene that each text describes, and caption it.

        Raises:
            UserError: If a language, samples, stop strings or a coverage penalty is asked for, or a text describes no
                scene of the run's kind.
        """
        decoding = self.decoding(request, "captions scenes", f"the longest caption has {self.steps} words")
        scenes = [self._parse_scene(text) for text in request.texts]
        return self.predict_batch(view, self._batch(scenes, np.random.default_rng(decoding.seed)), decoding)

    def _parse_scene(self, text: str) -> tuple[SceneItem, ...]:
        try:
            return captions.parse_scene(self.scene_generator, text)
        except ValueError as error:
            raise UserError(f"{text[:80]!r} describes no scene: {error}; say something like {_EXAMPLE!r}") from None


TASK = TaskSpec(CaptioningConfig, Captioning)
