"""Images of text: a string along a straight or a bent line in, its glyphs out, and what was looked at for each."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.scene_text.data import ALPHABET, LetteringKind, Line, Written, paint
from transformer.attention.sites import Site
from transformer.config import BatchRows, Beams, Config, Examples, Looked, Pixels, Share, UserError
from transformer.data.batches import TEST_SEED, VALIDATION_SEED, GeneratedBatches, Source
from transformer.data.images import scaled
from transformer.tasks.attention_mass import LOOKED
from transformer.tasks.axis_labels import Link
from transformer.tasks.base_task import check_rows, means
from transformer.tasks.sequence_generation import ImageDescriptionTask, links_to
from transformer.tasks.string_metrics import inside, looking_report, looking_step, string_report
from transformer.tasks.task import Answers, Evaluation, Report, Request, TaskSpec, View

_SHOWN = 5  # strings to read beside their references


@dataclasses.dataclass(frozen=True)
class TextImagesConfig(Config, path="config.task"):
    """Batches of `batch_size` images of `pixels` x `pixels` of a string of `fewest` to `most` glyphs of `alphabet`.

    A share `curved` of what is trained on is written along an arc or a wave, the rest along a straight line. At least
    `num_eval_examples` of either line validate, in whole batches, and as many others test; `beams`: 1 decodes greedily.

    Raises:
        UserError: For values out of range and glyphs that are no capital letter or digit.
    """

    fewest: int = 3
    most: int = 5
    pixels: Pixels = 56
    alphabet: str = ALPHABET
    curved: Share = 0.5
    batch_size: BatchRows = 32
    num_eval_examples: Examples = 1000
    beams: Beams = 1
    num_probe_examples: Looked = 6

    def _check(self) -> None:
        try:
            _ = self.kind
        except ValueError as error:
            raise UserError(f"config.task: {error}") from None

    @property
    def kind(self) -> LetteringKind:
        """The images."""
        return LetteringKind(self.pixels, self.fewest, self.most, alphabet=self.alphabet)


class TextImages(ImageDescriptionTask):
    """The task: implements transformer.tasks.task.Task."""

    def __init__(self, config: TextImagesConfig, rows_multiple: int = 1):
        check_rows(config.batch_size, rows_multiple)
        self.config, self.kind = config, config.kind
        size = {"size": config.pixels, "rows": config.batch_size, "beams": config.beams}
        super().__init__("text", tuple(config.alphabet), config.most, **size, separator="")
        self.evaluations = (*self._evaluations("validation", VALIDATION_SEED), *self._evaluations("test", TEST_SEED))
        # Of either line half, the curved ones first.
        bent = -(-config.num_probe_examples // 2)
        self.show(self._drawn(np.random.default_rng(VALIDATION_SEED + 2), config.num_probe_examples, bent))

    @property
    def said(self) -> tuple[str, ...]:
        """How many strings there are, and of how many glyphs."""
        held = 2 * -(-self.config.num_eval_examples // self.config.batch_size) * self.config.batch_size
        return (
            f"data strings: drawn anew at every step, {held:,} validation and {held:,} test, half of them curved, of "
            f"{len(self.config.alphabet)} glyphs",
        )

    def source(self, seed: int) -> Source:
        """Strings that are drawn anew at every step."""
        rows, curved = self.config.batch_size, self.config.curved

        def draw(random: np.random.Generator) -> dict[str, np.ndarray]:
            return self._drawn(random, rows, int(random.binomial(rows, curved)))

        return GeneratedBatches(draw, seed)

    def _drawn(self, random: np.random.Generator, rows: int, curved: int) -> dict[str, np.ndarray]:
        """So many strings, the first of them along curved lines."""
        lines = [Line.CURVED if row < curved else Line.STRAIGHT for row in range(rows)]
        return self._batch([self.kind.write(self.kind.draw(random), line, random) for line in lines], random)

    def _batch(self, strings: Sequence[Written], random: np.random.Generator) -> dict[str, np.ndarray]:
        """Strings painted, in numbers, and where the glyph of each step stands; a step without one has side 0."""
        image = scaled(paint(self.kind, strings, random))
        middles = np.zeros((len(strings), self.steps, 2), np.float32)
        turns, sides = np.zeros((2, len(strings), self.steps), np.float32)
        for row, written in enumerate(strings):
            count = len(written.text)
            middles[row, :count], turns[row, :count], sides[row, :count] = written.middles, written.turns, written.side
        told = self.sequences([written.text for written in strings])
        return {"image": image, "middles": middles, "turns": turns, "sides": sides, **told}

    def _evaluations(self, split: str, seed: int) -> tuple[Evaluation, ...]:
        """Of curved and of straight strings: the loss, what is read, and where attention lies at each glyph."""
        rows, at_end, evaluations = self.config.batch_size, split == "test", []
        count = -(-self.config.num_eval_examples // rows)
        for offset, line in enumerate((Line.CURVED, Line.STRAIGHT)):
            batches = self._held(seed + offset, count, rows if line is Line.CURVED else 0)
            references = [text for batch in batches for text in self.lines(np.asarray(batch["labels"]))]

            def finish(sums: Any, rows: Mapping[str, np.ndarray], references: Sequence[str] = references) -> Report:
                return string_report(self.lines(rows["tokens"]), references, shown=_SHOWN)

            name = line.value
            evaluations += [
                Evaluation(f"{name}_loss", split, batches, self.loss_sums, means, at_end),
                Evaluation(name, split, batches, self.decoded, finish, at_end),
                Evaluation(f"{name}_looking", split, batches, looking_step, looking_report, at_end, reads=LOOKED),
            ]
        return tuple(evaluations)

    def _held(self, seed: int, count: int, curved: int) -> list[dict[str, np.ndarray]]:
        """So many batches, the first so many strings of each along curved lines."""
        rows = self.config.batch_size
        return [self._drawn(np.random.default_rng((seed, number)), rows, curved) for number in range(count)]

    def links(self, batch: Mapping[str, np.ndarray], site: Site) -> tuple[tuple[Link, ...], ...]:
        """Every place of each step's glyph: each is possible, and none must be looked at."""
        return links_to(inside(site.key, batch), sure=False)

    def answer(self, view: View, request: Request) -> Answers:
        """Paints each string, "A4K" or "straight A4K", along a bent or a straight line and says what the model reads.

        Raises:
            UserError: For a language, samples, stop strings or a coverage penalty, and for texts that are no string of
                the run's glyphs.
        """
        decoding = self.decoding(request, "reads images", f"the longest string has {self.steps} glyphs")
        asked = [self._asked(text) for text in request.texts]
        random = np.random.default_rng(decoding.seed)
        batch = self._batch([self.kind.write(string, line, random) for string, line in asked], random)
        return self.answers(view, batch, decoding)

    def _asked(self, text: str) -> tuple[str, Line]:
        """The string of a text, and the line that it is to be written along."""
        *before, string = text.split() or [""]
        forms = [line.value for line in Line]
        if len(before) > 1 or (before and before[0] not in forms):
            raise UserError(f"{text[:80]!r} is no string: say 'A4K', or 'straight A4K' or 'curved A4K'")
        if unknown := sorted(set(string) - set(self.config.alphabet)):
            raise UserError(f"{text[:80]!r} has {unknown}: this run's glyphs are {self.config.alphabet}")
        if not self.config.fewest <= len(string) <= self.config.most:
            raise UserError(
                f"{text[:80]!r} has {len(string)} glyphs: this run's strings have {self.config.fewest} to "
                f"{self.config.most}"
            )
        return string, Line(before[0]) if before else Line.CURVED


TASK = TaskSpec(TextImagesConfig, TextImages)
