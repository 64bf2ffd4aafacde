"""The phrases data set: dates, times, numbers, amounts and quantities in words, from English to German and French.

Templates write them, so that there are unlimited phrases with exact targets and a known word alignment. The split of a
phrase is a hash of its value alone, so that what is held out in one language is held out in the other.
"""

import dataclasses
import random
from collections.abc import Iterator, Sequence
from typing import Annotated, NamedTuple

from transformer.config import Config, PositiveInt, Range, from_config
from transformer.data.datasets.aligned_templates import AlignedPair
from transformer.data.datasets.dataset_name_options import parse_int_options
from transformer.data.datasets.example_splits import hash_split
from transformer.data.phrases.lexicon import PHRASE_LANGUAGES
from transformer.data.phrases.phrase_kinds import KINDS, Value, round_down_to_five_minutes
from transformer.data.phrases.templates import WHOLE

PHRASES = "phrases"
SPLITS = ("train", "validation", "test")

# A repeated value is redrawn at most this often; after that it may repeat, since small kinds run out.
_REDRAWS = 20


class SampledPhrase(NamedTuple):
    """A value of a kind, and the index of its frame."""

    kind: str
    value: Value
    frame_index: int


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


def assign_split(kind: str, value: Value) -> str:
    """Return the split of a value, a pure function: one in ten is for test, one in twenty for validation.

    What no other phrase could teach is always for training: numbers below one hundred, noon and midnight, and one unit
    of a currency.
    """
    if _must_train(kind, value):
        return "train"
    return hash_split(f"{kind}:{','.join(str(part) for part in value)}")


def sample_phrases(split: str, size: int, seed: int, rounded: int = 0) -> Iterator[SampledPhrase]:
    """Sample the values of one split, the kinds in turn: a pure function of the arguments.

    Args:
        split: The split.
        size: The number of values.
        seed: The seed.
        rounded: The percentage of times that are rounded down to five minutes, as clocks are spoken. With 0 one time in
            five is spoken, and one in sixty is a half hour.
    """
    generator = random.Random(f"phrases-{split}-{seed}")
    kinds = tuple(KINDS)
    seen_phrases: set[SampledPhrase] = set()
    for index in range(size):
        kind = kinds[index % len(kinds)]
        for _ in range(_REDRAWS):
            phrase = _draw_phrase(kind, split, rounded, generator)
            if phrase not in seen_phrases:
                break
        seen_phrases.add(phrase)
        yield phrase


def _draw_phrase(kind: str, split: str, rounded: int, generator: random.Random) -> SampledPhrase:
    while True:
        value, frame = KINDS[kind].draw(generator)
        # Without rounding no random number is drawn, so that phrases of recorded results do not change.
        if kind == "time" and rounded and generator.randrange(100) < rounded:
            value = round_down_to_five_minutes(value)
        if assign_split(kind, value) == split:
            return SampledPhrase(kind, value, frame)


def write_phrase(phrase: SampledPhrase, language: str) -> AlignedPair:
    """Write the sentence pair of a sampled value, from English to `language` ("de" or "fr")."""
    return KINDS[phrase.kind].write(phrase.value, phrase.frame_index, language)


@dataclasses.dataclass(frozen=True)
class PhrasesDatasetConfig(Config):
    """The sizes of the phrases data set.

    Attributes:
        train: The number of training values, each written in every language.
        validation: The number of validation values.
        test: The number of test values.
        seed: The seed.
        rounded: The percentage of times that are rounded down to five minutes (`sample_phrases`).

    Raises:
        UserError: If a size is below one, or the percentage above one hundred.
    """

    train: PositiveInt = 25_000
    validation: PositiveInt = 500
    test: PositiveInt = 1_000
    seed: int = 0
    rounded: Annotated[int, Range(0, 100)] = 0


class PhrasePair(NamedTuple):
    """A phrase with its kind and its target language."""

    kind: str
    language: str
    phrase: AlignedPair


def generate_phrases(options: str, languages: Sequence[str] = PHRASE_LANGUAGES) -> dict[str, list[PhrasePair]]:
    """Generate the phrases of every split.

    Kinds and languages alternate, so that every prefix of a split has them evenly.

    Args:
        options: Fields of `PhrasesDatasetConfig`, as in "train=2000,test=200".
        languages: The target languages.

    Raises:
        UserError: If an option is unknown, or a value is not a whole number or out of range.
    """
    config = from_config(PhrasesDatasetConfig, parse_int_options(PHRASES, options, "train=2000,test=200"), PHRASES)
    return {
        split: [
            PhrasePair(phrase.kind, language, write_phrase(phrase, language))
            for phrase in sample_phrases(split, getattr(config, split), config.seed, config.rounded)
            for language in languages
        ]
        for split in SPLITS
    }
