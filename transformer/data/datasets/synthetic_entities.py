"""Synthetic sentences with named entities, whose types only the words around them tell.

The same names are of people and of places, alone or in pairs, so that a name by itself says neither its type nor where
its entity ends.
"""

import numpy as np

from transformer.data.labeled_words import LabeledWords

LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
NAMES = ("austin", "chelsea", "florence", "georgia", "jordan", "london", "madison", "paris", "sydney", "victoria")
PERSON, PLACE = "PER", "LOC"
# No two entities stand side by side: their border could not be known.
TEMPLATES = (
    "PER met PER in LOC",
    "PER and PER left LOC",
    "the mayor of LOC called PER",
    "the road to LOC is closed",
    "the sister of PER is ill",
    "in LOC the singer PER was born",
    "the train from LOC to LOC is late",
    "the letter from PER to PER is late",
    "PER went by the train from LOC to LOC",
    "PER read the letter from PER to PER",
)


def sample_entities(random: np.random.Generator) -> list[LabeledWords]:
    """Sample a sentence; every word has a label by the scheme of IOB2."""
    words: list[str] = []
    labels: list[int] = []
    for word in TEMPLATES[random.integers(len(TEMPLATES))].split():
        if word not in (PERSON, PLACE):
            words.append(word)
            labels.append(LABELS.index("O"))
            continue
        names = random.choice(NAMES, 1 + random.integers(2), replace=False)
        words += map(str, names)
        labels += [LABELS.index(f"{'I' if place else 'B'}-{word}") for place in range(len(names))]
    return [LabeledWords(tuple(words), tuple(labels))]
