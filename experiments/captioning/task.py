"""Captions: a drawn scene in, its items in words out, and what was looked at when each of them was named."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from experiments.captioning import data as captions
from experiments.captioning.metrics import caption_report, looking_report, looking_step, named_places
from transformer.attention.sites import Site
from transformer.config import Amount, BatchRows, Beams, Config, Examples, Looked, Pixels, Positive, Range, UserError
from transformer.data.batches import TEST_SEED, VALIDATION_SEED, GeneratedBatches, Source
from transformer.data.images import scaled
from transformer.data.scenes import Item, SceneKind, paint
from transformer.tasks.attention_mass import LOOKED, NO_CELL, cells_of
from transformer.tasks.contract import Answers, Batch, Evaluation, LossAux, PyTree, Report, Request, TaskSpec, View
from transformer.tasks.labels import Link
from transformer.tasks.plain import check_rows, means
from transformer.tasks.reinforce import draws, initial_baseline, next_baseline, reinforce, token_log_likelihood
from transformer.tasks.symbol_sequences import ImageDescriptionTask, links_to, predicted_steps

_SHOWN = 5  # captions to read beside their references
_EXAMPLE = "red circle top left, blue star bottom right"


@dataclasses.dataclass(frozen=True)
class CaptionsConfig(Config, path="config.task"):
    """Batches of `batch_size` scenes of three by three cells, `fewest` to `most` of which hold an item.

    Cells have `pixels` x `pixels` pixels. At least `num_eval_examples` scenes validate, in whole batches, and as many
    others test; `beams`: 1 decodes greedily. Of a model whose attention draws, `reinforce_weight` weights the loss by
    which the draws learn, `entropy_weight` what keeps them apart (transformer.tasks.reinforce).

    Raises:
        UserError: For numbers of items that no such scene has.
    """

    fewest: Positive = 2
    most: Annotated[int, Range(1, 9)] = 3
    pixels: Pixels = 16
    batch_size: BatchRows = 64
    num_eval_examples: Examples = 1000
    beams: Beams = 1
    num_probe_examples: Looked = 6
    reinforce_weight: Amount = 1.0
    entropy_weight: Amount = 0.01

    def _check(self) -> None:
        if self.fewest > self.most:
            raise UserError(f"config.task.fewest={self.fewest} and most={self.most} must rise")

    @property
    def kind(self) -> SceneKind:
        """The scenes."""
        return SceneKind(pixels=self.pixels, fewest=self.fewest, most=self.most)


class Captions(ImageDescriptionTask):
    """The task: implements transformer.tasks.contract.Task."""

    def __init__(self, config: CaptionsConfig, rows_multiple: int = 1):
        check_rows(config.batch_size, rows_multiple)
        self.config, self.kind = config, config.kind
        size = {"size": self.kind.size, "rows": config.batch_size, "beams": config.beams}
        super().__init__("captions", captions.words(self.kind), captions.longest(self.kind), **size, separator=" ")
        self.evaluations = (*self._evaluations("validation", VALIDATION_SEED), *self._evaluations("test", TEST_SEED))
        self.show(self._drawn(np.random.default_rng(VALIDATION_SEED + 1), config.num_probe_examples))

    @property
    def said(self) -> tuple[str, ...]:
        """How many scenes there are, and in how many words they are told."""
        count = len(captions.words(self.kind))
        held = -(-self.config.num_eval_examples // self.config.batch_size) * self.config.batch_size
        return (
            f"data scenes: drawn anew at every step, {held:,} validation and {held:,} test, captions of {count} words",
        )

    def source(self, seed: int) -> Source:
        """Scenes that are drawn anew at every step."""
        return GeneratedBatches(lambda random: self._drawn(random, self.config.batch_size), seed)

    def _drawn(self, random: np.random.Generator, count: int) -> dict[str, np.ndarray]:
        return self._batch([self.kind.draw(random) for _ in range(count)], random)

    def _batch(self, scenes: Sequence[Sequence[Item]], random: np.random.Generator) -> dict[str, np.ndarray]:
        """Scenes painted, with what is said of them; `named`: the cell that each word names."""
        picture = scaled(paint(self.kind, scenes, random))
        named = np.full((len(scenes), self.steps), NO_CELL, np.int32)
        for row, items in enumerate(scenes):
            for step, cell in captions.nouns(items):
                named[row, step] = cell
        told = self.sequences([captions.caption(self.kind, items) for items in scenes])
        return {"picture": picture, "named": named, **told}

    def init_extra(self, view: View, key: Key[Array, ""]) -> PyTree:
        """What a word is usually worth, of a model whose attention draws; nothing of others."""
        return initial_baseline() if draws(view.model) else super().init_extra(view, key)

    def loss(self, view: View, batch: Batch, totals: Mapping[str, Array], key: Key[Array, ""]) -> tuple[Array, LossAux]:
        """Cross-entropy in nats a word, and of an attention that draws the loss of REINFORCE beside it."""
        logits, aux, metrics = self.likelihood(view, batch, totals, key)
        loss = metrics["loss"]
        if not (view.train and "attention_log_prob" in aux.extras):
            return loss, LossAux.of(aux, view.extra, metrics)
        baseline, counts_BxT = view.extra["baseline"], predicted_steps(batch)
        likelihood_BxT = token_log_likelihood(logits, jnp.asarray(batch["labels"]))
        estimate = reinforce(likelihood_BxT, counts_BxT, aux.extras, baseline, self.config.entropy_weight)
        loss += self.config.reinforce_weight * estimate.loss / totals["tokens"]
        return loss, LossAux.of(aux, next_baseline(baseline, estimate, counts_BxT), metrics)

    def _evaluations(self, split: str, seed: int) -> tuple[Evaluation, ...]:
        """The loss, decoded captions against the true ones, and where attention lies at their nouns."""
        source, count, at_end = (
            self.source(seed),
            -(-self.config.num_eval_examples // self.config.batch_size),
            split == "test",
        )
        batches = [source[number] for number in range(count)]
        references = [line for batch in batches for line in self.lines(np.asarray(batch["labels"]))]

        def finish(sums: Any, rows: Mapping[str, np.ndarray]) -> Report:
            return caption_report(self.lines(rows["tokens"]), references, shown=_SHOWN)

        return (
            Evaluation("loss", split, batches, self.loss_sums, means, at_end),
            Evaluation("captions", split, batches, self.decoded, finish, at_end),
            Evaluation("looking", split, batches, looking_step(self.kind), looking_report, at_end, reads=LOOKED),
        )

    def links(self, batch: Mapping[str, np.ndarray], site: Site) -> tuple[tuple[Link, ...], ...]:
        """Every place of the cell that a noun names; of several each is possible, and none must be looked at."""
        cells_K = cells_of(site.key, side=self.kind.side, size=self.kind.size)
        sure = len(cells_K) - site.key.leading == self.kind.side**2
        return links_to(named_places(jnp.asarray(batch["named"]), cells_K), sure=sure)

    def answer(self, view: View, request: Request) -> Answers:
        """Paints the scene that each text describes and says what the model sees in it.

        Raises:
            UserError: For a language, samples, stop strings or a coverage penalty, and for texts that describe no scene
                of the run's kind.
        """
        decoding = self.decoding(request, "captions scenes", f"the longest caption has {self.steps} words")
        scenes = [self._read(text) for text in request.texts]
        return self.answers(view, self._batch(scenes, np.random.default_rng(decoding.seed)), decoding)

    def _read(self, text: str) -> tuple[Item, ...]:
        try:
            return captions.scene(self.kind, text)
        except ValueError as error:
            raise UserError(f"{text[:80]!r} describes no scene: {error}; say something like {_EXAMPLE!r}") from None


TASK = TaskSpec(CaptionsConfig, Captions)
