"""Pictures of text: a string along a straight or a bent line in, its glyphs out, and what was looked at for each."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from transformer.attention.sites import Site, between
from transformer.config import Looked, Positive, UserError
from transformer.data.batches import Source
from transformer.data.drawn import Drawn
from transformer.data.lettering import ALPHABET, LetteringKind, Line, Written, paint
from transformer.decode.constraints import Constraints
from transformer.decode.generate import Rollout, Tokens, generate
from transformer.models.interface import CAPTIONING, Input, Interface, Modality
from transformer.tasks.contract import (
    Answers,
    Batch,
    Evaluation,
    Kind,
    LossAux,
    Objective,
    Report,
    Request,
    View,
)
from transformer.tasks.decoding import Decoding
from transformer.tasks.labels import Labels, Link
from transformer.tasks.losses import token_loss
from transformer.tasks.plain import PlainTask, check_rows, look_over, means
from transformer.tasks.string_metrics import LOOKED, inside, looking_report, looking_step, string_report

# Training draws its batches by (seed, step): by these seeds no run trains. Each line of writing has its own.
VALIDATION, TEST = 2**40, 2**41
PAD, BEGIN, END = range(3)
_SPECIAL = ("<pad>", "<begin>", "<end>")
_SHOWN = 5  # strings to read beside their references


@dataclasses.dataclass(frozen=True)
class TextPicturesConfig:
    """Batches of `rows` pictures of `pixels` x `pixels`, each of a string of `fewest` to `most` glyphs of `alphabet`.

    A share `curved` of what is trained on is written along an arc or a wave, the rest along a straight line. At least
    `examples` of either line validate, in whole batches, and as many others test; `beams`: 1 decodes greedily.

    Errors: UserError for values out of range and glyphs that are no capital letter or digit.
    """

    fewest: int = 3
    most: int = 5
    pixels: Positive = 56
    alphabet: str = ALPHABET
    curved: float = 0.5
    rows: Positive = 32
    examples: Positive = 1000
    beams: Positive = 1
    probed: Looked = 6

    def __post_init__(self) -> None:
        for name in ("pixels", "rows", "examples", "beams", "probed"):
            if getattr(self, name) < 1:
                raise UserError(f"config.task.{name}={getattr(self, name)} must be at least 1")
        if not 0 <= self.curved <= 1:
            raise UserError(f"config.task.curved={self.curved} must be from 0 to 1, a share of the strings")
        try:
            _ = self.kind
        except ValueError as error:
            raise UserError(f"config.task: {error}") from None

    @property
    def kind(self) -> LetteringKind:
        """The pictures."""
        return LetteringKind(self.pixels, self.fewest, self.most, alphabet=self.alphabet)


class TextPictures(PlainTask):
    """The task: implements transformer.tasks.contract.Task."""

    def __init__(self, config: TextPicturesConfig, rows_multiple: int = 1):
        check_rows(config.rows, rows_multiple)
        self.config, self.kind = config, config.kind
        self.glyphs, self.steps = (*_SPECIAL, *config.alphabet), config.most + 1
        self._numbers = {glyph: number for number, glyph in enumerate(self.glyphs)}
        inputs = {
            "picture": Input((config.rows, config.pixels, config.pixels, 3), jnp.float32, Modality.PICTURE),
            "target": Input((config.rows, self.steps)),
        }
        vocabularies = {"target": len(self.glyphs)}
        self.interface = Interface(inputs, vocabularies, PAD, BEGIN, END, output=CAPTIONING.output)
        self.objectives = (Objective("text", self._loss),)
        self._looking = looking_step(_inputs)
        self.evaluations = (*self._evaluations("validation", VALIDATION), *self._evaluations("test", TEST))
        # Of either line half, the curved ones first.
        bent = -(-config.probed // 2)
        self._probed_batch = self._drawn(np.random.default_rng(VALIDATION + 2), config.probed, bent)
        self.probed = {name: self._probed_batch[name] for name in ("picture", "target")}

    @property
    def said(self) -> tuple[str, ...]:
        """How many strings there are, and of how many glyphs."""
        held = 2 * -(-self.config.examples // self.config.rows) * self.config.rows
        return (
            f"data strings: drawn anew at every step, {held:,} validation and {held:,} test, half of them curved, of "
            f"{len(self.config.alphabet)} glyphs",
        )

    def source(self, seed: int) -> Source:
        """Strings that are drawn anew at every step."""
        rows, curved = self.config.rows, self.config.curved

        def draw(random: np.random.Generator) -> dict[str, np.ndarray]:
            return self._drawn(random, rows, int(random.binomial(rows, curved)))

        return Drawn(draw, seed)

    def _drawn(self, random: np.random.Generator, rows: int, curved: int) -> dict[str, np.ndarray]:
        """So many strings, the first of them along curved lines."""
        lines = [Line.CURVED if row < curved else Line.STRAIGHT for row in range(rows)]
        return self._batch([self.kind.write(self.kind.draw(random), line, random) for line in lines], random)

    def _batch(self, strings: Sequence[Written], random: np.random.Generator) -> dict[str, np.ndarray]:
        """Strings painted, in numbers, and where the glyph of each step stands; a step without one has side 0."""
        picture = paint(self.kind, strings, random).astype(np.float32) / np.float32(127.5) - 1
        middles = np.zeros((len(strings), self.steps, 2), np.float32)
        turns, sides = np.zeros((2, len(strings), self.steps), np.float32)
        for row, written in enumerate(strings):
            count = len(written.text)
            middles[row, :count], turns[row, :count], sides[row, :count] = written.middles, written.turns, written.side
        told = self._sequences([written.text for written in strings])
        return {"picture": picture, "middles": middles, "turns": turns, "sides": sides, **told}

    def _sequences(self, texts: Sequence[Sequence[str]]) -> dict[str, np.ndarray]:
        """Strings in numbers: `target` is what the decoder reads, `labels` what it is to say, one step ahead."""
        target, labels = np.full((2, len(texts), self.steps), PAD, np.int32)
        for row, text in enumerate(texts):
            numbers = [self._numbers[glyph] for glyph in text]
            target[row, : len(numbers) + 1] = [BEGIN, *numbers][: self.steps]
            labels[row, : len(numbers) + 1] = [*numbers, END][: self.steps]
        return {"target": target, "labels": labels}

    def totals(self, batch: Batch) -> dict[str, Array]:
        """The number of glyphs with the ends of their strings, by which every sum is divided."""
        return {"tokens": jnp.sum(jnp.asarray(batch["labels"]) != PAD).astype(jnp.float32)}

    def _loss(
        self, view: View, batch: Batch, totals: Mapping[str, Array], key: Key[Array, ""]
    ) -> tuple[Array, LossAux]:
        """Cross-entropy in nats a glyph."""
        logits, aux = view.model.apply(view.variables, _inputs(batch), train=view.train, key=key, capture=view.capture)
        labels_BxT = jnp.asarray(batch["labels"])
        sums = token_loss(logits, labels_BxT, labels_BxT != PAD, label_smoothing=0.0)
        loss = sums.cross_entropy / totals["tokens"]
        metrics = {"loss": loss, "accuracy": sums.correct / totals["tokens"]}
        return loss, LossAux.of(aux, view.extra, metrics)

    def _loss_sums(self, view: View, batch: Batch, key: Key[Array, ""]) -> tuple[dict[str, Array], None]:
        _, aux = self._loss(view, batch, {"tokens": jnp.float32(1)}, key)
        return {**aux.metrics, **self.totals(batch)}, None

    def _evaluations(self, split: str, seed: int) -> tuple[Evaluation, ...]:
        """Of curved and of straight strings: the loss, what is read, and where attention lies at each glyph."""
        rows, at_end, evaluations = self.config.rows, split == "test", []
        count = -(-self.config.examples // rows)
        for offset, line in enumerate((Line.CURVED, Line.STRAIGHT)):
            batches = self._held(seed + offset, count, rows if line is Line.CURVED else 0)
            references = [text for batch in batches for text in self._texts(np.asarray(batch["labels"]))]

            def finish(sums: Any, rows: Mapping[str, np.ndarray], references: Sequence[str] = references) -> Report:
                return string_report(self._texts(rows["tokens"]), references, shown=_SHOWN)

            name = line.value
            evaluations += [
                Evaluation(f"{name}_loss", split, batches, self._loss_sums, means, at_end),
                Evaluation(name, split, batches, self._decoded, finish, at_end),
                Evaluation(f"{name}_looking", split, batches, self._looking, looking_report, at_end, reads=LOOKED),
            ]
        return tuple(evaluations)

    def _held(self, seed: int, count: int, curved: int) -> list[dict[str, np.ndarray]]:
        """So many batches, the first so many strings of each along curved lines."""
        rows = self.config.rows
        return [self._drawn(np.random.default_rng((seed, number)), rows, curved) for number in range(count)]

    def _decoded(self, view: View, batch: Batch, key: Key[Array, ""]) -> tuple[dict, dict]:
        decoding = Decoding(length=self.steps, beams=self.config.beams, length_penalty=0.0)
        return {}, {"tokens": _decode(view, batch, decoding).tokens[:, 0]}

    def _texts(self, rows: np.ndarray) -> list[str]:
        """The glyphs of each row, up to its end."""
        return ["".join(self._said(row)) for row in rows]

    def _said(self, row: np.ndarray) -> list[str]:
        numbers = row.tolist()
        return [self.glyphs[number] for number in numbers[: numbers.index(END) if END in numbers else None]]

    def labels(self, sites: Sequence[Site]) -> Labels:
        """The glyphs and pictures of the probe, and at each glyph its places."""
        return self._describe(self._probed_batch, sites)

    def _describe(self, batch: Mapping[str, np.ndarray], sites: Sequence[Site]) -> Labels:
        said = [self._said(row) for row in batch["labels"]]
        ended = [END in row for row in batch["labels"]]
        steps = tuple((*row, *([_SPECIAL[END]] if end else [])) for row, end in zip(said, ended, strict=True))
        pictures = np.round((batch["picture"] + 1) * 127.5).astype(np.uint8)
        looked = between(sites, *LOOKED)
        gold = {site.name: _links(batch, site) for site in looked}
        grids = {site.key.name: pictures for site in looked}
        return Labels({"target": steps}, tuple(map("".join, said)), gold or None, pictures=grids)

    def answer(self, view: View, request: Request) -> Answers:
        """Paints each string, "A4K" or "straight A4K", along a bent or a straight line and says what the model reads.

        Errors: UserError for a language, samples, stop strings or a coverage penalty, and for texts that are no string
        of the run's glyphs.
        """
        given = request.decoding
        unfit = "stops" in given or given.get("samples", 1) > 1 or given.get("coverage_penalty")
        if request.language is not None or unfit:
            raise UserError("this run reads pictures: leave out --language, --samples, --stop and --coverage_penalty")
        decoding = Decoding.asked(given, length=self.steps, beams=self.config.beams, length_penalty=0.0)
        if decoding.length > self.steps:
            raise UserError(f"--length={decoding.length}: the longest string has {self.steps} glyphs with its end")
        asked = [self._asked(text) for text in request.texts]
        random = np.random.default_rng(decoding.seed)
        batch = self._batch([self.kind.write(string, line, random) for string, line in asked], random)

        @jax.jit
        def run(variables: Any, batch: Batch) -> Array:
            return _decode(view._replace(variables=variables), batch, decoding).tokens[:, 0]

        rows = np.asarray(run(view.variables, {"picture": batch["picture"]}))
        read = self._texts(rows)
        said = batch | self._sequences([self._said(row) for row in rows])
        # Where the model is to look is known of strings that it read as they are.
        right = np.array([line == string for line, (string, _) in zip(read, asked, strict=True)])
        said["sides"] = np.where(right[:, None], batch["sides"], 0)
        return Answers(read, self._describe(said, view.model.sites), look_over(view, _inputs(said)))

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


def _links(batch: Mapping[str, np.ndarray], site: Site) -> tuple[tuple[Link, ...], ...]:
    """Every place of each step's glyph: each is possible, and none must be looked at."""
    found_BxTxK = np.asarray(inside(site.key, batch))
    return tuple(tuple(Link(int(step), int(key), False) for step, key in np.argwhere(row)) for row in found_BxTxK)


def _inputs(batch: Batch) -> dict[str, Array]:
    return {name: jnp.asarray(batch[name]) for name in ("picture", "target")}


def _decode(view: View, batch: Batch, decoding: Decoding) -> Rollout:
    """What the model reads in the pictures of a batch, a pure function that can run under jit."""
    return generate(
        view.model,
        view.variables,
        {"picture": jnp.asarray(batch["picture"])},
        chooser=decoding.chooser,
        length=decoding.length,
        tokens=Tokens(PAD, BEGIN, END),
        key=jax.random.key(decoding.seed),
        constraints=Constraints(decoding.repetition_penalty),
    )


def build(config: TextPicturesConfig, directory: Path, rows_multiple: int = 1) -> TextPictures:
    """The task; nothing is read, and nothing kept in the run directory."""
    return TextPictures(config, rows_multiple)


def synthetic(config: TextPicturesConfig, rows_multiple: int = 1) -> TextPictures:
    """The task as it is: its strings are drawn anyway."""
    return TextPictures(config, rows_multiple)


TASK = Kind(TextPicturesConfig, build, synthetic)
