"""The embedded data set: dates, times, numbers, amounts and quantities in words, from English.

Templates write them in German and French: unlimited, with exact targets and a known word alignment. The split
of a phrase is a hash of its value alone, so that what is held out in one language is held out in the other.
"""

import dataclasses
import hashlib
import random
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import tensorflow_datasets as tfds

from transformer.config import UserError
from transformer.data.datasets.lexicon import LANGUAGES
from transformer.data.datasets.phrase_kinds import KINDS, Value, rounded_down
from transformer.data.datasets.phrase_templates import WHOLE
from transformer.data.datasets.slots import Phrase

SPLITS = ("train", "validation", "test")

# A value that is met again is drawn again this often, after which the phrase may repeat: small kinds run dry.
_REDRAWS = 20


class Drawn(NamedTuple):
    """One value of a kind, in a frame."""

    kind: str
    value: Value
    frame: int


def _must_train(kind: str, value: Value) -> bool:
    """Whether a value has words that other values are made of, or that no other value shows."""
    match kind:
        case "number":
            return value[0] < 100
        case "time":
            hour, minute = value
            return not minute and hour in WHOLE
        case "amount":
            return value[1:] == (1, 0)
        case _:
            return False


def split_of(kind: str, value: Value) -> str:
    """The split of a value, a pure function: one in ten tests, one in twenty validates, the rest trains.

    What no other phrase could teach always trains: numbers below one hundred, noon and midnight, and one
    unit of a currency.
    """
    if _must_train(kind, value):
        return "train"
    text = f"{kind}:{','.join(str(part) for part in value)}"
    bucket = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) % 20
    return "test" if bucket < 2 else "validation" if bucket < 3 else "train"


def draw(split: str, size: int, seed: int, rounded: int = 0) -> Iterator[Drawn]:
    """The values of one split: `size` of them, the kinds in turn, a pure function of the arguments.

    `rounded` percent of the times are rounded down to five minutes, in which clocks are spoken; without it one time
    in five is spoken, and one in sixty a half hour.
    """
    generator = random.Random(f"phrases-{split}-{seed}")
    kinds = tuple(KINDS)
    seen: set[Drawn] = set()
    for index in range(size):
        kind = kinds[index % len(kinds)]
        for _ in range(_REDRAWS):
            drawn = _draw_one(kind, split, rounded, generator)
            if drawn not in seen:
                break
        seen.add(drawn)
        yield drawn


def _draw_one(kind: str, split: str, rounded: int, generator: random.Random) -> Drawn:
    while True:
        value, frame = KINDS[kind].draw(generator)
        # Nothing is drawn where nothing is rounded: those phrases have figures on record.
        if kind == "time" and rounded and generator.randrange(100) < rounded:
            value = rounded_down(value)
        if split_of(kind, value) == split:
            return Drawn(kind, value, frame)


def write(drawn: Drawn, language: str) -> Phrase:
    """The sentence pair of a drawn value, from English to `language` ("de" or "fr")."""
    return KINDS[drawn.kind].write(drawn.value, drawn.frame, language)


@dataclasses.dataclass(eq=False, kw_only=True)
class PhrasesConfig(tfds.core.BuilderConfig):
    """How much to generate: phrases of each split for each language, the seed, and the target languages.

    `rounded` is the percentage of times that are rounded down to five minutes (`draw`).

    Errors: UserError for a size below one, a percentage above one hundred, an unknown language, or none.
    """

    name: str = ""
    train: int = 25_000
    validation: int = 500
    test: int = 1_000
    seed: int = 0
    rounded: int = 0
    languages: tuple[str, ...] = LANGUAGES

    def __post_init__(self) -> None:
        for split in SPLITS:
            if getattr(self, split) < 1:
                raise UserError(f"phrases: {split}={getattr(self, split)} must be at least 1")
        if not 0 <= self.rounded <= 100:
            raise UserError(f"phrases: rounded={self.rounded} must be a percentage, 0 to 100")
        if not self.languages or not set(self.languages) <= set(LANGUAGES):
            raise UserError(f"phrases: languages={self.languages} must be some of {', '.join(LANGUAGES)}")
        sizes = f"{self.train}-{self.validation}-{self.test}"
        self.name = f"{'-'.join(self.languages)}_{sizes}_seed{self.seed}_rounded{self.rounded}"


class Phrases(tfds.core.GeneratorBasedBuilder):
    """English phrases with their German and French translations and word alignments."""

    VERSION = tfds.core.Version("1.0.0")
    BUILDER_CONFIGS: ClassVar = [PhrasesConfig(description="The default sizes.")]

    def _info(self) -> tfds.core.DatasetInfo:
        # One feature for all links, because TFDS spends its time by the feature.
        features = dict.fromkeys(("source", "target", "language", "kind", "alignment"), tfds.features.Text())
        return tfds.core.DatasetInfo(
            builder=self,
            description=__doc__,
            features=tfds.features.FeaturesDict(features),
            supervised_keys=("source", "target"),
            # Kinds and languages take turns, so that every prefix of a split holds them evenly.
            disable_shuffling=True,
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Any]:
        return {split: self._generate_examples(split) for split in SPLITS}

    def _generate_examples(self, split: str) -> Iterator[tuple[int, dict[str, Any]]]:
        config = self.builder_config
        key = 0
        for drawn in draw(split, getattr(config, split), config.seed, config.rounded):
            for language in config.languages:
                phrase = write(drawn, language)
                yield (
                    key,
                    {
                        "source": phrase.source,
                        "target": phrase.target,
                        "language": language,
                        "kind": drawn.kind,
                        "alignment": phrase.links.to_text(),
                    },
                )
                key += 1
