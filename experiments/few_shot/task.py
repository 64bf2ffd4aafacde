"""Few-shot learning: characters that no parameter has met, known again from one or a few drawings of each."""

import colorsys
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, UInt8

from experiments.few_shot.data import CharacterSet, Episodes, Turned, draw_episodes, made_up, open_characters
from transformer.attention.sites import AxisKind, Site, between
from transformer.config import BatchRows, Config, Examples, Items, Looked, Pixels, Positive, Range, UserError
from transformer.data.batches import TEST_SEED, VALIDATION_SEED, GeneratedBatches, Source, fingerprint
from transformer.data.batches import Batch as Rows
from transformer.models.task_interface import FEW_SHOT_CLASSIFICATION, InputSpec, Modality, TaskInterface
from transformer.tasks.contract import Batch, Evaluation, LossAux, Objective, TaskSpec, View
from transformer.tasks.labels import Labels, Link
from transformer.tasks.losses import class_loss
from transformer.tasks.plain import PlainTask, check_rows, means, said_of

EPISODE, SHOT = "episode", "shot"
_ASKED = "?"


@dataclasses.dataclass(frozen=True)
class FewShotsConfig(Config, path="config.task"):
    """Episodes of so many `ways`, characters, each shown `shots` times, and one more drawing whose class is asked.

    Of several numbers of shots a batch has one, in turn, and each is evaluated. `dataset`: "strokes", characters drawn
    here, or, of Omniglot's archives in `data_dir`, "omniglot", whose alphabets are held out whole, or
    "omniglot_characters", with options (experiments.few_shot.data); drawings have `side` x `side` pixels.
    `turned` makes new characters of those that train, `held_out_turned` of those that do not. An evaluation has
    `num_eval_examples` episodes of held-out characters; of others `num_probe_examples` are mapped.

    Raises:
        UserError: For values out of range.
    """

    dataset: str = "strokes"
    data_dir: str | None = None
    side: Pixels = 28
    ways: Annotated[int, Range(2)] = 5
    shots: Annotated[tuple[Positive, ...], Items(least=1, distinct=True)] = (1,)
    turned: Turned = Turned.ROTATIONS
    held_out_turned: Turned = Turned.NONE
    batch_size: BatchRows = 32
    num_eval_examples: Examples = 1000
    num_probe_examples: Looked = 2

    @property
    def turns(self) -> tuple[int, ...]:
        """The numbers of shots in the order in which batches have them, the longest episodes first."""
        return tuple(sorted(self.shots, reverse=True))


@dataclasses.dataclass(frozen=True)
class InTurn:
    """Batches of several sources in turn."""

    sources: tuple[Source, ...]

    def __getitem__(self, step: int) -> Rows:
        return self.sources[step % len(self.sources)][step]


class FewShots(PlainTask):
    """The task: implements transformer.tasks.contract.Task."""

    def __init__(self, config: FewShotsConfig, opened: CharacterSet, rows_multiple: int = 1):
        check_rows(config.batch_size, rows_multiple)
        self.config, self._opened = config, opened
        self.splits = {
            split: (config.turned if split == "train" else config.held_out_turned)(drawings)
            for split, drawings in opened.splits.items()
        }
        most = max(config.shots)
        for split, drawings in self.splits.items():
            characters, hands = drawings.shape[:2]
            if characters < config.ways or hands <= most:
                raise UserError(
                    f"{opened.name} has {characters} characters of {hands} hands in {split}: config.task.ways="
                    f"{config.ways} and shots={most} need {config.ways} characters of {most + 1}"
                )
        length = config.ways * most + 1
        inputs = {
            "images": InputSpec((config.batch_size, length, config.side, config.side, 1), jnp.float32, Modality.IMAGE),
            "shown": InputSpec((config.batch_size, length)),
        }
        self.interface = TaskInterface(inputs, {"classes": config.ways}, output=FEW_SHOT_CLASSIFICATION.output)
        self.objectives = (Objective("few_shots", self._loss),)
        self.evaluations = tuple(
            self._evaluation(split, seed, shots)
            for split, seed in (("validation", VALIDATION_SEED), ("test", TEST_SEED))
            for shots in sorted(config.shots)
        )
        # No number of shots is 0: evaluations draw from other seeds.
        random = np.random.default_rng((VALIDATION_SEED, 0))
        self._shown = draw_episodes(random, self.splits["validation"], config.num_probe_examples, config.ways, most)
        self.probe_batch = {name: values for name, values in batch_of(self._shown).items() if name in inputs}

    def fingerprint(self) -> dict[str, str]:
        """That of every split's drawings, as they were opened."""
        return {split: fingerprint([drawings]) for split, drawings in self._opened.splits.items()}

    @property
    def said(self) -> tuple[str, ...]:
        """How many characters each split has, those that are turned among them."""
        sizes = {split: len(drawings) for split, drawings in self.splits.items()}
        return (said_of(self.config.dataset, sizes, "characters", self._opened.cut),)

    def _draw(self, split: str, shots: int, random: np.random.Generator) -> dict[str, np.ndarray]:
        config = self.config
        return batch_of(draw_episodes(random, self.splits[split], config.batch_size, config.ways, shots))

    def source(self, seed: int) -> Source:
        """Episodes that are drawn anew at every step."""
        draws = (functools.partial(self._draw, "train", shots) for shots in self.config.turns)
        return InTurn(tuple(GeneratedBatches(draw, seed) for draw in draws))

    def _sums(self, view: View, batch: Batch, key: Key[Array, ""] | None) -> tuple[dict[str, Array], Any]:
        inputs = {name: jnp.asarray(batch[name]) for name in FEW_SHOT_CLASSIFICATION.inputs}
        logits_BxTxC, aux = view.model.apply(view.variables, inputs, train=view.train, key=key, capture=view.capture)
        labels_B = jnp.asarray(batch["labels"])
        sums = class_loss(logits_BxTxC[:, -1], labels_B, jnp.ones(labels_B.shape, bool))
        return {"loss": sums.cross_entropy, "accuracy": sums.correct}, aux

    def _loss(
        self, view: View, batch: Batch, totals: Mapping[str, Array], key: Key[Array, ""]
    ) -> tuple[Array, LossAux]:
        """The mean of -log p(the last one's class); what is said at the steps before has no part in it."""
        sums, aux = self._sums(view, batch, key)
        metrics = {name: value / totals["examples"] for name, value in sums.items()}
        return metrics["loss"], LossAux.of(aux, view.extra, metrics)

    def _evaluation(self, split: str, seed: int, shots: int) -> Evaluation:
        drawn = GeneratedBatches(functools.partial(self._draw, split, shots), seed + shots)

        def step(view: View, batch: Batch, key: Key[Array, ""]) -> tuple[dict[str, Array], None]:
            sums, _ = self._sums(view, batch, None)
            named = {f"{name}_{shots}": value for name, value in sums.items()}
            return {**named, **self.totals(batch)}, None

        return Evaluation(
            name=f"{shots}_shot",
            split=split,
            batches=[drawn[number] for number in range(-(-self.config.num_eval_examples // self.config.batch_size))],
            step=step,
            finish=functools.partial(means, by="examples"),
            at_end=split != "validation",
        )

    def labels(self, sites: Sequence[Site]) -> Labels:
        """The class of each drawing by a letter, the asked one's a question mark; its shots are gold.

        The image of an episode has its drawings side by side, each class in a color of its own.
        """
        letters = class_names(self.config.ways)
        names, links, titles = [], [], []
        for number, classes in enumerate(self._shown.classes.tolist(), 1):
            *shots, asked = classes
            names.append((*(f"{at} {letters[shot]}" for at, shot in enumerate(shots, 1)), _ASKED))
            links.append(tuple(Link(len(shots), at, True) for at, shot in enumerate(shots) if shot == asked))
            titles.append(f"episode {number}: {_ASKED} is {letters[asked]}")
        gold = {site.name: tuple(links) for site in between(sites, EPISODE, SHOT)}
        grids = {site.key.name: site.key.shape for site in sites if site.key.kind is AxisKind.GRID}
        images = {name: montage(self._shown, shape, self.config.ways) for name, shape in grids.items() if shape}
        tokens = dict.fromkeys((EPISODE, SHOT), tuple(names))
        return Labels(tokens, tuple(titles), gold or None, images=images)


def batch_of(episodes: Episodes) -> dict[str, np.ndarray]:
    """What is fed, ink as 1 and paper as 0, and the class of the last, which is not shown."""
    shown_BxT = episodes.classes + 1
    shown_BxT[:, -1] = 0
    images = (episodes.images / np.float32(255)).astype(np.float32)[..., None]
    return {"images": images, "shown": shown_BxT, "labels": episodes.classes[:, -1]}


def class_names(ways: int) -> list[str]:
    """A, B, C, ... of the classes, and numbers where there are more than letters."""
    return [chr(ord("A") + number) if ways <= 26 else str(number + 1) for number in range(ways)]


def montage(episodes: Episodes, shape: tuple[int, int], ways: int) -> UInt8[np.ndarray, "B height width 3"]:
    """The drawings of each episode row by row in a grid of this shape: each class has its color, the last is black."""
    rows, columns = shape
    count, length, side, _ = episodes.images.shape
    colors_Wx3 = np.array([colorsys.hsv_to_rgb(way / ways, 0.9, 0.75) for way in range(ways)])
    color_BxTx3 = colors_Wx3[episodes.classes]
    color_BxTx3[:, -1] = 0
    ink: Float[np.ndarray, "B T Y X 1"] = episodes.images[..., None] / 255
    places = np.full((count, rows * columns, side, side, 3), 255, np.uint8)
    places[:, :length] = np.round(255 * (1 - ink * (1 - color_BxTx3[:, :, None, None])))
    laid = places.reshape(count, rows, columns, side, side, 3).swapaxes(2, 3)
    return laid.reshape(count, rows * side, columns * side, 3)


def build(config: FewShotsConfig, directory: Path, rows_multiple: int = 1) -> FewShots:
    """The task over its data; nothing is kept in the run directory."""
    opened = open_characters(config.dataset, data_dir=config.data_dir, side=config.side)
    return FewShots(config, opened, rows_multiple)


def synthetic(config: FewShotsConfig, rows_multiple: int = 1) -> FewShots:
    """The task over as many empty characters as an episode needs."""
    hands = max(config.shots, default=1) + 1
    opened = made_up(config.dataset, classes=config.ways, hands=hands, side=config.side)
    return FewShots(config, opened, rows_multiple)


TASK = TaskSpec(FewShotsConfig, synthetic, build)
