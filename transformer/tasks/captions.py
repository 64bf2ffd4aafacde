"""Captions: a drawn scene in, its items in words out, and what was looked at when each of them was named."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from transformer.attention.sites import Site, between
from transformer.config import Amount, Looked, Positive, UserError
from transformer.data import captions
from transformer.data.batches import Source
from transformer.data.captions import BEGIN, END, PAD
from transformer.data.drawn import Drawn
from transformer.data.pictures import scaled, unscaled
from transformer.data.scenes import Item, SceneKind, paint
from transformer.decode.constraints import Constraints
from transformer.decode.generate import Rollout, Tokens, generate
from transformer.models.interface import CAPTIONING, Input, Interface, Modality
from transformer.tasks.caption_metrics import (
    LOOKED,
    NO_CELL,
    caption_report,
    cells_of,
    looking_report,
    looking_step,
)
from transformer.tasks.contract import (
    Answers,
    Batch,
    Evaluation,
    Kind,
    LossAux,
    Objective,
    PyTree,
    Report,
    Request,
    View,
)
from transformer.tasks.decoding import Decoding
from transformer.tasks.labels import Labels, Link
from transformer.tasks.losses import token_loss
from transformer.tasks.plain import PlainTask, check_rows, look_over, means
from transformer.tasks.reinforce import draws, initial_baseline, next_baseline, reinforce, token_log_likelihood

# Training draws its batches by (seed, step): by these seeds no run trains.
VALIDATION, TEST = 2**40, 2**41
_SHOWN = 5  # captions to read beside their references
_EXAMPLE = "red circle top left, blue star bottom right"


@dataclasses.dataclass(frozen=True)
class CaptionsConfig:
    """Batches of `rows` scenes of three by three cells, `fewest` to `most` of which hold an item.

    Cells have `pixels` x `pixels` pixels. At least `examples` scenes validate, in whole batches, and as many others
    test; `beams`: 1 decodes greedily. Of a model whose attention draws, `reinforce` weights the loss by which the
    draws learn, `reinforce_entropy` what keeps them apart (transformer.tasks.reinforce).

    Errors: UserError for numbers of items that no such scene has.
    """

    fewest: int = 2
    most: int = 3
    pixels: Positive = 16
    rows: Positive = 64
    examples: Positive = 1000
    beams: Positive = 1
    probed: Looked = 6
    reinforce: Amount = 1.0
    reinforce_entropy: Amount = 0.01

    def __post_init__(self) -> None:
        for name in ("pixels", "rows", "examples", "beams", "probed"):
            if getattr(self, name) < 1:
                raise UserError(f"config.task.{name}={getattr(self, name)} must be at least 1")
        for name in ("reinforce", "reinforce_entropy"):
            if not getattr(self, name) >= 0:
                raise UserError(f"config.task.{name}={getattr(self, name)} must be at least 0")
        if not 1 <= self.fewest <= self.most <= 9:
            raise UserError(
                f"config.task.fewest={self.fewest} and most={self.most}: items are 1 to 9, and fewest <= most"
            )

    @property
    def kind(self) -> SceneKind:
        """The scenes."""
        return SceneKind(pixels=self.pixels, fewest=self.fewest, most=self.most)


class Captions(PlainTask):
    """The task: implements transformer.tasks.contract.Task."""

    def __init__(self, config: CaptionsConfig, rows_multiple: int = 1):
        check_rows(config.rows, rows_multiple)
        self.config, self.kind = config, config.kind
        self.words, self.steps = captions.words(self.kind), captions.longest(self.kind) + 1
        self._numbers = {word: number for number, word in enumerate(self.words)}
        size = self.kind.size
        inputs = {
            "picture": Input((config.rows, size, size, 3), jnp.float32, Modality.PICTURE),
            "target": Input((config.rows, self.steps)),
        }
        vocabularies = {"target": len(self.words)}
        self.interface = Interface(inputs, vocabularies, PAD, BEGIN, END, output=CAPTIONING.output)
        self.objectives = (Objective("captions", self._loss),)
        self._looking = looking_step(self.kind, _inputs, PAD)
        self.evaluations = (*self._evaluations("validation", VALIDATION), *self._evaluations("test", TEST))
        self._probed_batch = self._batch(*self._scenes(np.random.default_rng(VALIDATION + 1), config.probed))
        self.probed = {name: self._probed_batch[name] for name in ("picture", "target")}

    @property
    def said(self) -> tuple[str, ...]:
        """How many scenes there are, and in how many words they are told."""
        count, held = len(self.words) - END - 1, -(-self.config.examples // self.config.rows) * self.config.rows
        return (
            f"data scenes: drawn anew at every step, {held:,} validation and {held:,} test, captions of {count} words",
        )

    def source(self, seed: int) -> Source:
        """Scenes that are drawn anew at every step."""
        return Drawn(lambda random: self._batch(*self._scenes(random, self.config.rows)), seed)

    def _scenes(self, random: np.random.Generator, count: int) -> tuple[list[tuple[Item, ...]], np.random.Generator]:
        """So many scenes, and the generator that paints them."""
        return [self.kind.draw(random) for _ in range(count)], random

    def _batch(self, scenes: Sequence[Sequence[Item]], random: np.random.Generator) -> dict[str, np.ndarray]:
        """Scenes painted, with what is said of them."""
        picture = scaled(paint(self.kind, scenes, random))
        named = np.full((len(scenes), self.steps), NO_CELL, np.int32)
        for row, items in enumerate(scenes):
            for step, cell in captions.nouns(items):
                named[row, step] = cell
        told = self._sequences([captions.caption(self.kind, items) for items in scenes])
        return {"picture": picture, "named": named, **told}

    def _sequences(self, said: Sequence[Sequence[str]]) -> dict[str, np.ndarray]:
        """Captions as numbers: `target` is what the decoder reads, `labels` what it is to say, one step ahead."""
        target, labels = np.full((2, len(said), self.steps), PAD, np.int32)
        for row, of_row in enumerate(said):
            numbers = [self._numbers[word] for word in of_row]
            target[row, : len(numbers) + 1] = [BEGIN, *numbers][: self.steps]
            labels[row, : len(numbers) + 1] = [*numbers, END][: self.steps]
        return {"target": target, "labels": labels}

    def init_extra(self, view: View, key: Key[Array, ""]) -> PyTree:
        """What a word is usually worth, of a model whose attention draws; nothing of others."""
        return initial_baseline() if draws(view.model) else super().init_extra(view, key)

    def totals(self, batch: Batch) -> dict[str, Array]:
        """The number of words with the ends of their captions, by which every sum is divided."""
        return {"tokens": jnp.sum(jnp.asarray(batch["labels"]) != PAD).astype(jnp.float32)}

    def _loss(
        self, view: View, batch: Batch, totals: Mapping[str, Array], key: Key[Array, ""]
    ) -> tuple[Array, LossAux]:
        """Cross-entropy in nats a word, and of an attention that draws the loss of REINFORCE beside it."""
        logits, aux = view.model.apply(view.variables, _inputs(batch), train=view.train, key=key, capture=view.capture)
        labels_BxT = jnp.asarray(batch["labels"])
        counts_BxT = labels_BxT != PAD
        sums = token_loss(logits, labels_BxT, counts_BxT, label_smoothing=0.0)
        loss = sums.cross_entropy / totals["tokens"]
        metrics = {"loss": loss, "accuracy": sums.correct / totals["tokens"]}
        if not (view.train and "attention_log_prob" in aux.extras):
            return loss, LossAux.of(aux, view.extra, metrics)
        baseline = view.extra["baseline"]
        likelihood_BxT = token_log_likelihood(logits, labels_BxT)
        estimate = reinforce(likelihood_BxT, counts_BxT, aux.extras, baseline, self.config.reinforce_entropy)
        loss += self.config.reinforce * estimate.loss / totals["tokens"]
        return loss, LossAux.of(aux, next_baseline(baseline, estimate, counts_BxT), metrics)

    def _loss_sums(self, view: View, batch: Batch, key: Key[Array, ""]) -> tuple[dict[str, Array], None]:
        _, aux = self._loss(view, batch, {"tokens": jnp.float32(1)}, key)
        return {**aux.metrics, **self.totals(batch)}, None

    def _evaluations(self, split: str, seed: int) -> tuple[Evaluation, ...]:
        """The loss, decoded captions against the true ones, and where attention lies at their nouns."""
        source, count, at_end = self.source(seed), -(-self.config.examples // self.config.rows), split == "test"
        batches = [source[number] for number in range(count)]
        references = [line for batch in batches for line in self._lines(np.asarray(batch["labels"]))]

        def finish(sums: Any, rows: Mapping[str, np.ndarray]) -> Report:
            return caption_report(self._lines(rows["tokens"]), references, shown=_SHOWN)

        return (
            Evaluation("loss", split, batches, self._loss_sums, means, at_end),
            Evaluation("captions", split, batches, self._decoded, finish, at_end),
            Evaluation("looking", split, batches, self._looking, looking_report, at_end, reads=LOOKED),
        )

    def _decoded(self, view: View, batch: Batch, key: Key[Array, ""]) -> tuple[dict, dict]:
        decoding = Decoding(length=self.steps, beams=self.config.beams, length_penalty=0.0)
        return {}, {"tokens": _decode(view, batch, decoding).tokens[:, 0]}

    def _lines(self, rows: np.ndarray) -> list[str]:
        """The words of each row, up to its end."""
        return [" ".join(self._said(row)) for row in rows]

    def _said(self, row: np.ndarray) -> list[str]:
        numbers = row.tolist()
        return [self.words[number] for number in numbers[: numbers.index(END) if END in numbers else None]]

    def labels(self, sites: Sequence[Site]) -> Labels:
        """The words and pictures of the probe, and at each noun the places of the cell that it names."""
        return self._describe(self._probed_batch, sites)

    def _describe(self, batch: Mapping[str, np.ndarray], sites: Sequence[Site]) -> Labels:
        said = [self._said(row) for row in batch["labels"]]
        ended = [END in row for row in batch["labels"]]
        steps = tuple((*row, *([self.words[END]] if end else [])) for row, end in zip(said, ended, strict=True))
        pictures = unscaled(batch["picture"])
        gold = {site.name: self._links(batch["named"], site) for site in between(sites, *LOOKED)}
        grids = {site.key.name: pictures for site in between(sites, *LOOKED)}
        return Labels({"target": steps}, tuple(map(" ".join, said)), gold or None, pictures=grids)

    def _links(self, named_BxT: np.ndarray, site: Site) -> tuple[tuple[Link, ...], ...]:
        """Every place of the cell that a noun names; of several each is possible, and none must be looked at."""
        cells_K = cells_of(site.key, self.kind)
        sure = len(cells_K) - site.key.leading == self.kind.side**2
        return tuple(
            tuple(
                Link(int(step), int(key), sure)
                for step in np.flatnonzero(row != NO_CELL)
                for key in np.flatnonzero(cells_K == row[step])
            )
            for row in named_BxT
        )

    def answer(self, view: View, request: Request) -> Answers:
        """Paints the scene that each text describes and says what the model sees in it.

        Errors: UserError for a language, samples, stop strings or a coverage penalty, and for texts that describe no
        scene of the run's kind.
        """
        given = request.decoding
        unfit = "stops" in given or given.get("samples", 1) > 1 or given.get("coverage_penalty")
        if request.language is not None or unfit:
            raise UserError("this run captions scenes: leave out --language, --samples, --stop and --coverage_penalty")
        decoding = Decoding.asked(given, length=self.steps, beams=self.config.beams, length_penalty=0.0)
        if decoding.length > self.steps:
            raise UserError(f"--length={decoding.length}: the longest caption has {self.steps} words with its end")
        scenes = [self._read(text) for text in request.texts]
        batch = self._batch(scenes, np.random.default_rng(decoding.seed))

        @jax.jit
        def run(variables: Any, batch: Batch) -> Array:
            return _decode(view._replace(variables=variables), batch, decoding).tokens[:, 0]

        rows = np.asarray(run(view.variables, {"picture": batch["picture"]}))
        told = [self._said(row) for row in rows]
        said = batch | self._sequences(told)
        # Where the model is to look is known of the words that it should have said.
        right = [row == list(captions.caption(self.kind, items)) for row, items in zip(told, scenes, strict=True)]
        said["named"] = np.where(np.array(right)[:, None], batch["named"], NO_CELL)
        return Answers(self._lines(rows), self._describe(said, view.model.sites), look_over(view, _inputs(said)))

    def _read(self, text: str) -> tuple[Item, ...]:
        try:
            return captions.scene(self.kind, text)
        except ValueError as error:
            raise UserError(f"{text[:80]!r} describes no scene: {error}; say something like {_EXAMPLE!r}") from None


def _inputs(batch: Batch) -> dict[str, Array]:
    return {name: jnp.asarray(batch[name]) for name in ("picture", "target")}


def _decode(view: View, batch: Batch, decoding: Decoding) -> Rollout:
    """The model's captions of the pictures of a batch, a pure function that can run under jit."""
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


def build(config: CaptionsConfig, directory: Path, rows_multiple: int = 1) -> Captions:
    """The task; nothing is read, and nothing kept in the run directory."""
    return Captions(config, rows_multiple)


def synthetic(config: CaptionsConfig, rows_multiple: int = 1) -> Captions:
    """The task as it is: its scenes are drawn anyway."""
    return Captions(config, rows_multiple)


TASK = Kind(CaptionsConfig, build, synthetic)
