"""Word alignment read from attention, and its error rate against known links."""

from collections.abc import Sequence

import numpy as np

from transformer.data.datasets.slots import Links

Link = tuple[int, int]  # (source word, target word)


def word_weights(weights_TxS: np.ndarray, source_words: Sequence[int], target_words: Sequence[int]) -> np.ndarray:
    """Attention between words: pieces of a source word summed, of a target word averaged (Zenkel et al. 2019).

    `source_words` and `target_words` give each piece's word, or -1 for a piece that is no word's.
    """
    sources, targets = max(source_words) + 1, max(target_words) + 1
    summed = np.zeros((sources, len(target_words)))
    for column, word in enumerate(source_words):
        if word >= 0:
            summed[word] += weights_TxS[: len(target_words), column]
    averaged = np.zeros((targets, sources))
    for word in range(targets):
        averaged[word] = summed[:, [i for i, w in enumerate(target_words) if w == word]].mean(axis=1)
    return averaged


def attention_links(weights_of_words: np.ndarray) -> set[Link]:
    """One link a target word: to the source word of the largest weight."""
    return {(int(source), target) for target, source in enumerate(weights_of_words.argmax(axis=1))}


def diagonal_links(source_words: int, target_words: int) -> set[Link]:
    """One link a target word: to the source word at the same relative place."""
    stretch = (source_words - 1) / max(target_words - 1, 1)
    return {(round(target * stretch), target) for target in range(target_words)}


def alignment_error_rate(predicted: Sequence[set[Link]], known: Sequence[Links]) -> float:
    """AER = 1 - (|A & S| + |A & P|) / (|A| + |S|), summed over sentence pairs (Och and Ney 2003, equation 8).

    S are the sure links and P the possible ones, S among them; A is the predicted links.
    """
    agreed = total = 0
    for links, truth in zip(predicted, known, strict=True):
        agreed += len(links.intersection(truth.sure)) + len(links.intersection(truth.possible))
        total += len(links) + len(truth.sure)
    return 1 - agreed / total
