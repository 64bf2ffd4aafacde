"""Scene text recognition: images of a string along a straight or curved line, with the position of every glyph."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from experiments.scene_text.data import ALPHABET, RenderedText, TextLine, TextRenderer, render_text
from transformer.attention.sites import Site
from transformer.config import (
    BatchSize,
    Config,
    Fraction,
    ImageSize,
    NumBeams,
    NumDisplayedExamples,
    NumExamples,
    UserError,
)
from transformer.data.batches import (
    PROBE_SEED,
    TEST_SEED,
    VALIDATION_SEED,
    BatchSource,
    GeneratedBatches,
    random_generator,
)
from transformer.data.images import scale_pixels
from transformer.tasks.attention_mass import TARGET_OVER_GRID
from transformer.tasks.axis_labels import GoldAlignment
from transformer.tasks.base_task import check_batch_size, report_means
from transformer.tasks.sequence_generation_base import ImageToSequenceTask, gold_alignments_from_mask
from transformer.tasks.string_metrics import glyph_mask, glyph_mass_report, string_report, sum_glyph_attention_mass
from transformer.tasks.task import Evaluation, EvaluationReport, PredictionRequest, Predictions, StateView, TaskSpec

_NUM_SAMPLES = 5  # strings to read beside their references


@dataclasses.dataclass(frozen=True)
class SceneTextConfig(Config, path="config.task"):
    """Images of strings, sampled anew at every step.

    Attributes:
        min_length: The fewest glyphs of a string.
        max_length: The most glyphs of a string.
        image_size: The height and width of an image.
        alphabet: The glyphs.
        curved_fraction: The fraction of training strings along an arc or a wave; the others are along a straight line.
        batch_size: Images in a batch.
        num_eval_examples: Curved and straight strings each in the validation set and in the test set, rounded up to
            whole batches.
        num_beams: The beam size; 1 decodes greedily.
        num_probe_examples: Images whose maps are stored.

    Raises:
        UserError: If a value is out of range, or a glyph is not a capital letter or digit.
    """

    min_length: int = 3
    max_length: int = 5
    image_size: ImageSize = 56
    alphabet: str = ALPHABET
    curved_fraction: Fraction = 0.5
    batch_size: BatchSize = 32
    num_eval_examples: NumExamples = 1000
    num_beams: NumBeams = 1
    num_probe_examples: NumDisplayedExamples = 6

    def _check(self) -> None:
        try:
            _ = self.text_renderer
        except ValueError as error:
            raise UserError(f"config.task: {error}") from None

    @property
    def text_renderer(self) -> TextRenderer:
        """The renderer of the images."""
        return TextRenderer(self.image_size, self.min_length, self.max_length, alphabet=self.alphabet)


class SceneText(ImageToSequenceTask):
    """Scene text recognition: implements transformer.tasks.task.Task."""

    def __init__(self, config: SceneTextConfig, rows_multiple: int = 1):
        check_batch_size(config.batch_size, rows_multiple)
        self.config, self.text_renderer = config, config.text_renderer
        size = {"size": config.image_size, "rows": config.batch_size, "num_beams": config.num_beams}
        super().__init__("text", tuple(config.alphabet), config.max_length, **size, separator="")
        self.evaluations = (*self._evaluations("validation", VALIDATION_SEED), *self._evaluations("test", TEST_SEED))
        # Of either line half, the curved ones first.
        bent = -(-config.num_probe_examples // 2)
        self.set_probe_batch(self._sample_batch(random_generator(PROBE_SEED), config.num_probe_examples, bent))

    @property
    def data_summary(self) -> tuple[str, ...]:
        """A line on the numbers of strings and of glyphs."""
        num_held_out = 2 * -(-self.config.num_eval_examples // self.config.batch_size) * self.config.batch_size
        return (
            f"data strings: drawn anew at every step, {num_held_out:,} validation and {num_held_out:,} test, "
            f"half of them curved, of {len(self.config.alphabet)} glyphs",
        )

    def training_batches(self, seed: int) -> BatchSource:
        """Return an endless source of strings that are sampled anew at every step."""
        rows, curved_fraction = self.config.batch_size, self.config.curved_fraction

        def draw(random: np.random.Generator) -> dict[str, np.ndarray]:
            return self._sample_batch(random, rows, int(random.binomial(rows, curved_fraction)))

        return GeneratedBatches(draw, seed)

    def _sample_batch(self, random: np.random.Generator, rows: int, curved: int) -> dict[str, np.ndarray]:
        """Sample strings, the first `curved` of them along curved lines."""
        lines = [TextLine.CURVED if row < curved else TextLine.STRAIGHT for row in range(rows)]
        return self._batch(
            [self.text_renderer.place_glyphs(self.text_renderer.sample_string(random), line, random) for line in lines],
            random,
        )

    def _batch(self, strings: Sequence[RenderedText], random: np.random.Generator) -> dict[str, np.ndarray]:
        """Render strings, encode them, and return the square of each step's glyph; a step without one has side 0."""
        image = scale_pixels(render_text(self.text_renderer, strings, random))
        middles = np.zeros((len(strings), self.steps, 2), np.float32)
        turns, sides = np.zeros((2, len(strings), self.steps), np.float32)
        for row, string in enumerate(strings):
            count = len(string.text)
            middles[row, :count], turns[row, :count], sides[row, :count] = (
                string.glyph_centers,
                string.glyph_angles,
                string.glyph_size,
            )
        target_arrays = self.encode_sequences([string.text for string in strings])
        return {"image": image, "middles": middles, "turns": turns, "sides": sides, **target_arrays}

    def _evaluations(self, split: str, seed: int) -> tuple[Evaluation, ...]:
        """Return the evaluations of loss, decoded strings and attention mass, for curved and straight strings."""
        rows, at_end, evaluations = self.config.batch_size, split == "test", []
        count = -(-self.config.num_eval_examples // rows)
        for offset, line in enumerate((TextLine.CURVED, TextLine.STRAIGHT)):
            batches = self._sample_held_out((seed, offset), count, rows if line is TextLine.CURVED else 0)
            references = [text for batch in batches for text in self.format_lines(np.asarray(batch["labels"]))]

            def finish(
                sums: Any, rows: Mapping[str, np.ndarray], references: Sequence[str] = references
            ) -> EvaluationReport:
                return string_report(self.format_lines(rows["tokens"]), references, num_samples=_NUM_SAMPLES)

            name, by_line = line.value, functools.partial(_name_metrics, line)
            evaluations += [
                Evaluation(f"{name}_loss", split, batches, self.loss_sums, by_line(report_means), at_end),
                Evaluation(name, split, batches, self.decoding_step, by_line(finish), at_end),
                Evaluation(
                    f"{name}_looking",
                    split,
                    batches,
                    sum_glyph_attention_mass,
                    by_line(glyph_mass_report),
                    at_end,
                    required_axes=TARGET_OVER_GRID,
                ),
            ]
        return tuple(evaluations)

    def _sample_held_out(self, seed: tuple[int, int], count: int, curved: int) -> list[dict[str, np.ndarray]]:
        """Sample batches whose first `curved` strings are along curved lines."""
        rows, (split, line) = self.config.batch_size, seed
        return [self._sample_batch(random_generator(split, number, line), rows, curved) for number in range(count)]

    def gold_alignments(self, batch: Mapping[str, np.ndarray], site: Site) -> tuple[tuple[GoldAlignment, ...], ...]:
        """Return gold alignments: every grid position of each step's glyph is possible, none is required."""
        return gold_alignments_from_mask(glyph_mask(site.key, batch), sure=False)

    def predict(self, view: StateView, request: PredictionRequest) -> Predictions:
        """Render each string, "A4K" or "straight A4K", along a curved or a straight line, and recognize it.

        Raises:
            UserError: If a language, samples, stop strings or a coverage penalty is given, or a text is no string of
                the run's glyphs.
        """
        decoding = self.decoding(request, "reads images", f"the longest string has {self.steps} glyphs")
        strings = [self._parse_string(text) for text in request.texts]
        random = np.random.default_rng(decoding.seed)
        batch = self._batch([self.text_renderer.place_glyphs(string, line, random) for string, line in strings], random)
        return self.predict_batch(view, batch, decoding)

    def _parse_string(self, text: str) -> tuple[str, TextLine]:
        """Parse the string of a text, and the line that it is written along."""
        *words_before, string = text.split() or [""]
        forms = [line.value for line in TextLine]
        if len(words_before) > 1 or (words_before and words_before[0] not in forms):
            raise UserError(f"{text[:80]!r} is no string: say 'A4K', or 'straight A4K' or 'curved A4K'")
        if unknown := sorted(set(string) - set(self.config.alphabet)):
            raise UserError(f"{text[:80]!r} has {unknown}: this run's glyphs are {self.config.alphabet}")
        if not self.config.min_length <= len(string) <= self.config.max_length:
            raise UserError(
                f"{text[:80]!r} has {len(string)} glyphs: this run's strings have {self.config.min_length} to "
                f"{self.config.max_length}"
            )
        return string, TextLine(words_before[0]) if words_before else TextLine.CURVED


def _name_metrics(
    line: TextLine, finish: Callable[[Any, Any], EvaluationReport]
) -> Callable[[Any, Any], EvaluationReport]:
    """Return what finishes an evaluation with its metrics named by the line, if that is straight."""

    def finish_named(sums: Any, rows: Any) -> EvaluationReport:
        report = finish(sums, rows)
        return report._replace(scalars={f"{line.value}_{name}": value for name, value in report.scalars.items()})

    return finish if line is TextLine.CURVED else finish_named


TASK = TaskSpec(SceneTextConfig, SceneText)
