"""Texts with questions at marked places, each made to ask one thing of attention, and which head answers it."""

import dataclasses
import enum
import functools
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from experiments.attention_probes.marked_texts import Corpus, Counted, Words, accuracies
from experiments.attention_probes.sentence_corpora import Agreement, Coreference, CoreferenceByClue
from experiments.attention_probes.symbol_corpora import Brackets, Motifs, Retrieval, Sorting, TwoPlaces
from transformer.attention.capture import Capture
from transformer.attention.sites import Site, between
from transformer.config import BatchRows, Config, Examples, Looked, UserError, from_config, nearest
from transformer.data.batches import TEST_SEED, VALIDATION_SEED, GeneratedBatches, Source
from transformer.data.datasets.options import whole_numbers
from transformer.models.task_interface import LANGUAGE_MODELING, MASKED_LANGUAGE_MODELING, InputSpec, TaskInterface
from transformer.tasks.attention_mass import head_of_most, mass_sums
from transformer.tasks.contract import (
    Answers,
    Batch,
    Evaluation,
    LossAux,
    Objective,
    Reader,
    Reading,
    Report,
    Request,
    Sentences,
    TaskSpec,
    View,
)
from transformer.tasks.labels import Labels, Link
from transformer.tasks.losses import token_loss
from transformer.tasks.plain import PlainTask, check_rows, check_sentences, look_over, most_probable, refuse_decoding

CORPORA: Mapping[str, type] = {
    "coreference": Coreference,
    "coreference_by_clue": CoreferenceByClue,
    "agreement": Agreement,
    "two_places": TwoPlaces,
    "retrieval": Retrieval,
    "sorting": Sorting,
    "brackets": Brackets,
    "motifs": Motifs,
}


def open_corpus(dataset: str) -> Corpus:
    """The corpus of a name such as "brackets" or "brackets/kinds=2,depth=4".

    Raises:
        UserError: For an unknown name or number, and for numbers that cannot be.
    """
    name, _, options = dataset.partition("/")
    if name not in CORPORA:
        raise UserError(f"config.task.dataset={dataset!r} is no corpus: {nearest(name, CORPORA)}")
    first = dataclasses.fields(CORPORA[name])[0]
    corpus: Corpus = from_config(CORPORA[name], whole_numbers(name, options, f"{first.name}={first.default}"), name)
    return corpus


PAD = 0
# The axes of maps of a text over itself.
ITSELF = ("tokens", "tokens")
# Texts whose answers are counted for the baselines that only count.
COUNTED = 4096
# Seeds of held-out texts. That of validation, with other numbers behind it, gives what is counted and what is mapped.
SEEDS = {"validation": VALIDATION_SEED, "test": TEST_SEED}


class Reads(enum.Enum):
    """What a model sees when it answers: the text up to the place, or all of it."""

    PAST = "past"
    WHOLE = "whole"


@dataclasses.dataclass(frozen=True)
class MarkedTextsConfig(Config, path="config.task"):
    """Batches of `batch_size` texts of a corpus, drawn anew at every step; one text in eight is never trained on.

    `dataset`: the name of a corpus, with numbers of its own, such as "brackets/kinds=2,depth=4"
    (experiments.attention_probes.task). Models that read the past alone are asked for what follows each word, those
    that read the `whole` text for what stands at it. `num_eval_examples` held-out texts are evaluated, and
    `num_probe_examples` mapped: the page calls heads by what they read in these, so that a few which ask once each
    would call them wrong.

    Raises:
        UserError: For values out of range, and for a corpus that only the whole text answers.
    """

    dataset: str = "coreference"
    reads: Reads = Reads.PAST
    batch_size: BatchRows = 64
    num_eval_examples: Examples = 512
    num_probe_examples: Looked = 32

    def _check(self) -> None:
        if self.corpus.ahead and self.reads is Reads.PAST:
            raise UserError(
                f"config.task.dataset={self.dataset!r} is answered by what stands behind: say config.task.reads=whole, "
                "and a model that does, such as config.model.family=encoder"
            )

    @functools.cached_property
    def corpus(self) -> Corpus:
        """The corpus of `dataset`."""
        return open_corpus(self.dataset)


class MarkedTexts(PlainTask):
    """The task: implements transformer.tasks.contract.Task."""

    def __init__(self, config: MarkedTextsConfig, rows_multiple: int = 1):
        check_rows(config.batch_size, rows_multiple)
        self.config, self.corpus = config, config.corpus
        self.interface = interface_of(config)
        self.objectives = (Objective("marks", self._loss),)
        count = -(-config.num_eval_examples // config.batch_size) * config.batch_size
        held_out = {split: draw(self.corpus, (seed, 0), count, held_out=True) for split, seed in SEEDS.items()}
        self.evaluations = (
            *(self._answers(split, texts) for split, texts in held_out.items()),
            self._heads("validation", {"validation": held_out["validation"]}),
            self._heads("test", held_out),
        )
        self._shown = draw(self.corpus, (VALIDATION_SEED, 2), config.num_probe_examples, held_out=True)
        self.probe_batch = padded(self.corpus, self._shown)

    def source(self, seed: int) -> Source:
        """Texts that are drawn anew at every step, none of them held out."""
        corpus, rows = self.corpus, self.config.batch_size
        return GeneratedBatches(lambda random: batch_of(corpus, drawn_by(corpus, random, rows, held_out=False)), seed)

    def totals(self, batch: Batch) -> dict[str, Array]:
        """The number of marked places."""
        return {"marks": jnp.sum(jnp.asarray(batch["labels"]) != PAD).astype(jnp.float32)}

    def _logits(
        self, view: View, batch: Batch, key: Key[Array, ""] | None, capture: Capture | None
    ) -> tuple[Float[Array, "B T V"], Any]:
        inputs = {name: jnp.asarray(batch[name]) for name in ("tokens", "lengths")}
        return view.model.apply(view.variables, inputs, train=view.train, key=key, capture=capture)

    def _loss(
        self, view: View, batch: Batch, totals: Mapping[str, Array], key: Key[Array, ""] | None
    ) -> tuple[Array, LossAux]:
        """The mean over the marked places of -log p(answer), in nats."""
        logits_BxTxV, aux = self._logits(view, batch, key, view.capture)
        labels_BxT = jnp.asarray(batch["labels"])
        sums = token_loss(logits_BxTxV, labels_BxT, labels_BxT != PAD, label_smoothing=0.0)
        metrics = {"loss": sums.cross_entropy / totals["marks"], "accuracy": sums.correct / totals["marks"]}
        return metrics["loss"], LossAux.of(aux, view.extra, metrics)

    @functools.cached_property
    def _counted(self) -> Counted:
        return Counted.of(self.corpus, draw(self.corpus, (VALIDATION_SEED, 1), COUNTED, held_out=False))

    def _answers(self, split: str, texts: Sequence[Words]) -> Evaluation:
        """Loss and accuracy, also of whole texts, beside rules that do not read what should be read, on the same texts.

        A text is right if all its answers are.
        """

        def step(view: View, batch: Batch, key: Any) -> tuple[dict[str, Array], None]:
            logits_BxTxV, _ = self._logits(view, batch, None, None)
            labels_BxT = jnp.asarray(batch["labels"])
            sums = token_loss(logits_BxTxV, labels_BxT, labels_BxT != PAD, label_smoothing=0.0)
            right_BxT = (jnp.argmax(logits_BxTxV, axis=-1) == labels_BxT) | (labels_BxT == PAD)
            whole = jnp.sum(jnp.all(right_BxT, axis=1)).astype(jnp.float32)
            return {"loss": sums.cross_entropy, "accuracy": sums.correct, "whole": whole, **self.totals(batch)}, None

        @functools.cache
        def baselines() -> dict[str, float]:
            return accuracies(self.corpus, self._counted, texts)

        def finish(sums: Mapping[str, float], rows: object) -> Report:
            beside = {f"{name}_accuracy": share for name, share in baselines().items()}
            shares = {name: sums[name] / sums["marks"] for name in ("loss", "accuracy")}
            shares["text_accuracy"] = sums["whole"] / len(texts)
            note = f"{int(sums['marks'])} marks in {len(texts)} texts"
            return Report({**shares, **beside}, note=note)

        return Evaluation("marks", split, self._batches(texts), step, finish, at_end=split == "test")

    def _heads(self, split: str, texts: Mapping[str, Sequence[Words]]) -> Evaluation:
        """How often the largest weight of the best head falls on what should be read, for each source.

        The best is that of the first of the splits given, and its share that of the last: test figures are of heads
        that were chosen on validation texts.
        """
        names = list(self.corpus.sources)
        first, *_, last = (*texts, *texts)

        def step(view: View, batch: Batch, key: Any) -> tuple[dict, None]:
            sites = between(view.model.sites, *ITSELF)
            _, aux = self._logits(view, batch, None, Capture(tuple(site.name for site in sites)))
            gold_BxSxQxK, number_B = jnp.asarray(batch["gold"]), jnp.asarray(batch["split"])
            sums: dict[str, Any] = {}
            for number, of_split in enumerate(texts):
                of_rows = gold_BxSxQxK & (number_B == number)[:, None, None, None]
                hits = {
                    name: mass_sums({site: hits_of(aux.maps[site.name].weights, of_rows[:, at]) for site in sites})
                    for at, name in enumerate(names)
                }
                sums[of_split] = {"hits": hits, "marks": jnp.sum(jnp.any(of_rows[:, 0], axis=-1))}
            return sums, None

        def finish(sums: Mapping[str, Any], rows: object) -> Report:
            scalars, notes = {}, []
            for name, words in self.corpus.sources.items():
                hits, site, layer, head = head_of_most(sums[first]["hits"][name], sums[last]["hits"][name])
                scalars[f"{name}_head_accuracy"] = hits / max(float(sums[last]["marks"]), 1)
                notes.append(f"layer {layer}, head {head} of {site} reads {words}")
            return Report(scalars, note="; ".join(notes) + f" (chosen on {first} texts)")

        batches = [
            {**batch, "split": np.full(self.config.batch_size, number, np.int32)}
            for number, of_split in enumerate(texts.values())
            for batch in self._batches(of_split, gold=True)
        ]
        return Evaluation("heads", split, batches, step, finish, at_end=split == "test", reads=ITSELF)

    def _batches(self, texts: Sequence[Words], *, gold: bool = False) -> list[dict[str, np.ndarray]]:
        rows = self.config.batch_size
        return [batch_of(self.corpus, texts[start : start + rows], gold=gold) for start in range(0, len(texts), rows)]

    def labels(self, sites: Sequence[Site]) -> Labels:
        """The words, each text with its answers, and what each of them should be read from."""
        return describe(self.corpus, self._shown, sites)

    def answer(self, view: View, request: Request) -> Answers:
        """What is said at every marked place, and how probable it is.

        Raises:
            UserError: For a language, for a way of decoding, and for texts that are no text of the corpus.
        """
        refuse_decoding(request, "answers at marked places")
        rows = [words_of(self.corpus, text) for text in request.texts]
        inputs = padded(self.corpus, rows)
        logits_BxTxV = np.asarray(view.model.apply(view.variables, inputs, train=False)[0])
        names = ("<pad>", *self.corpus.words)
        lines = []
        for words, logits_TxV in zip(rows, logits_BxTxV, strict=True):
            places = [mark.place for mark in self.corpus.marks(words)]
            said = most_probable(logits_TxV[places][:, : len(names)], names)
            lines.append(", ".join(f"{words[at]} = {word}" for at, word in zip(places, said, strict=True)))
        return Answers(lines, describe(self.corpus, rows, view.model.sites), look_over(view, inputs))


def hits_of(weights_LxBxHxQxK: Float[Array, "L B H Q K"], gold_BxQxK: Bool[Array, "B Q K"]) -> Float[Array, "L H"]:
    """For each layer and head in how many rows of the map the largest weight is a gold one's."""
    keys = weights_LxBxHxQxK.shape[-1]
    largest = jnp.argmax(weights_LxBxHxQxK, axis=-1)[..., None] == jnp.arange(keys)
    return jnp.sum(largest & gold_BxQxK[None, :, None], axis=(1, 3, 4)).astype(jnp.float32)


def draw(corpus: Corpus, seed: tuple[int, int], count: int, *, held_out: bool) -> list[list[str]]:
    """So many texts that a seed determines, all held out or none."""
    return drawn_by(corpus, np.random.default_rng(seed), count, held_out=held_out)


def drawn_by(corpus: Corpus, random: np.random.Generator, count: int, *, held_out: bool) -> list[list[str]]:
    """So many texts, all held out or none: which of them are is told by their words, whatever drew them."""
    texts: list[list[str]] = []
    while len(texts) < count:
        words = corpus.draw(random)
        if is_held_out(" ".join(words)) == held_out:
            texts.append(words)
    return texts


def is_held_out(text: str) -> bool:
    """Whether a text is kept for validation and test: one in eight, the same in all runs."""
    return zlib.crc32(text.encode()) % 8 == 0


def padded(corpus: Corpus, texts: Sequence[Words]) -> dict[str, np.ndarray]:
    """Texts as rows of the greatest length: `tokens`, the first word of the corpus being 1, and `lengths`."""
    number_of = {word: number for number, word in enumerate(corpus.words, PAD + 1)}
    tokens = np.full((len(texts), corpus.longest), PAD, np.int32)
    for row, words in enumerate(texts):
        tokens[row, : len(words)] = [number_of[word] for word in words]
    return {"tokens": tokens, "lengths": np.array([len(words) for words in texts], np.int32)}


def batch_of(corpus: Corpus, texts: Sequence[Words], *, gold: bool = False) -> dict[str, np.ndarray]:
    """Texts with `labels` [B, T], the answers at their marks; `gold` [B, S, T, T]: of each source where it stands."""
    number_of = {word: number for number, word in enumerate(corpus.words, PAD + 1)}
    batch = padded(corpus, texts)
    labels, length = np.full_like(batch["tokens"], PAD), corpus.longest
    where = np.zeros((len(texts), len(corpus.sources), length, length) if gold else (0, 0, 0, 0), bool)
    for row, words in enumerate(texts):
        for mark in corpus.marks(words):
            labels[row, mark.place] = number_of[mark.answer]
            for source, places in enumerate(mark.sources if gold else ()):
                where[row, source, mark.place, list(places)] = True
    return {**batch, "labels": labels, **({"gold": where} if gold else {})}


def describe(corpus: Corpus, texts: Sequence[Words], sites: Sequence[Site]) -> Labels:
    """The words of texts, their answers as titles, and gold links from each mark to all that it should be read from."""
    marks = [corpus.marks(words) for words in texts]
    links = tuple(
        tuple(Link(mark.place, at, True) for mark in of_text for places in mark.sources for at in places)
        for of_text in marks
    )
    titles = tuple(
        f"{' '.join(mark.answer for mark in of_text)}: {' '.join(words)}"[:60]
        for words, of_text in zip(texts, marks, strict=True)
    )
    named = {"tokens": tuple(map(tuple, texts))}
    linked = " or ".join(corpus.sources.values())
    return Labels(named, titles, {site.name: links for site in between(sites, *ITSELF)} or None, linked=linked)


def words_of(corpus: Corpus, text: str) -> list[str]:
    """The words of a text that somebody has written.

    Raises:
        UserError: For words that the corpus has not, for too many, and for a text that asks nothing.
    """
    words = text.split()
    unknown = [word for word in words if word not in corpus.words]
    example = " ".join(corpus.draw(np.random.default_rng(0)))
    if unknown:
        raise UserError(
            f"{text[:40]!r} has the word {unknown[0]!r}, which the corpus has not; a text of it is {example!r}"
        )
    if not corpus.marks(words):
        raise UserError(f"{text[:40]!r} asks nothing; a text of the corpus is {example!r}")
    if len(words) > corpus.longest:
        raise UserError(f"{text[:40]!r} has {len(words)} words, more than the {corpus.longest} of the longest text")
    return words


def interface_of(config: MarkedTextsConfig, kept: object = None) -> TaskInterface:
    """What the task asks of a model."""
    asks = LANGUAGE_MODELING if config.reads is Reads.PAST else MASKED_LANGUAGE_MODELING
    inputs = {name: InputSpec((config.batch_size, config.corpus.longest)) for name in asks.inputs}
    return TaskInterface(inputs, {"tokens": len(config.corpus.words) + 1}, PAD, output=asks.output)


def read(config: MarkedTextsConfig, view: View, kept: object, sentences: Sentences) -> Reading:
    """Texts of the corpus, word by word.

    Raises:
        UserError: For texts that are none, a target, and a language.
    """
    check_sentences(sentences)
    rows = [words_of(config.corpus, text) for text in sentences.texts]
    return Reading(padded(config.corpus, rows), "forward", describe(config.corpus, rows, view.model.sites))


TASK = TaskSpec(MarkedTextsConfig, MarkedTexts, reader=Reader(interface_of, read, lambda directory: None))
