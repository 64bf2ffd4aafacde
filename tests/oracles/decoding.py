"""Decoding over lists of prefixes in NumPy float64: no cache, no rows, no early stop."""

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

# The log-probabilities of the next token behind a prefix; -inf where a token may never come.
NextToken = Callable[[tuple[int, ...]], np.ndarray]


class Hypothesis(NamedTuple):
    """A sequence and its score: with its end token, or cut off at the greatest length."""

    tokens: tuple[int, ...]
    score: float


def normalised(logits: np.ndarray, never: Sequence[int]) -> np.ndarray:
    """Log-probabilities over the tokens that may come."""
    logits = np.asarray(logits, np.float64).copy()
    logits[list(never)] = -np.inf
    return logits - logits.max() - np.log(np.sum(np.exp(logits - logits.max())))


def penalty(length: int, exponent: float) -> float:
    """((5 + length) / 6)^exponent (Wu et al. 2016, equation 14)."""
    return ((5.0 + length) / 6.0) ** exponent


def best_first(hypotheses: list[Hypothesis]) -> list[Hypothesis]:
    return sorted(hypotheses, key=lambda one: -one.score)


def ranked(ended: list[Hypothesis], cut_off: list[Hypothesis], count: int) -> list[Hypothesis]:
    """The best that ended; where they are fewer than `count`, the best that were cut off behind them."""
    return (best_first(ended)[:count] + best_first(cut_off))[:count]


def enumerate_all(
    next_token: NextToken, *, others: Sequence[int], end: int, length: int, exponent: float, count: int
) -> list[Hypothesis]:
    """The best of every sequence there is; `others` are the tokens that may come beside `end`."""
    ended, cut_off = [], []
    for size in range(length + 1):
        for prefix in itertools.product(others, repeat=size):
            total = sum(float(next_token(prefix[:place])[token]) for place, token in enumerate(prefix))
            if size == length:
                cut_off.append(Hypothesis(prefix, total / penalty(length, exponent)))
            else:
                with_end = total + float(next_token(prefix)[end])
                ended.append(Hypothesis((*prefix, end), with_end / penalty(size + 1, exponent)))
    return ranked(ended, cut_off, count)


def beam_search(
    next_token: NextToken, *, others: Sequence[int], end: int, length: int, exponent: float, beams: int
) -> list[Hypothesis]:
    """Keep the `beams` best prefixes at every length, and every sequence that ends on the way."""
    live: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    ended: list[Hypothesis] = []
    for size in range(length):
        extended = []
        for prefix, total in live:
            log_probability = next_token(prefix)
            score = (total + float(log_probability[end])) / penalty(size + 1, exponent)
            ended.append(Hypothesis((*prefix, end), score))
            extended += [((*prefix, token), total + float(log_probability[token])) for token in others]
        live = sorted(extended, key=lambda one: -one[1])[:beams]
    cut_off = [Hypothesis(prefix, total / penalty(length, exponent)) for prefix, total in live]
    return ranked(ended, cut_off, beams)


def greedy(next_token: NextToken, *, end: int, length: int) -> Hypothesis:
    """The most probable token until the end or the greatest length; the score is not penalised."""
    tokens: tuple[int, ...] = ()
    score = 0.0
    while len(tokens) < length and end not in tokens:
        log_probability = next_token(tokens)
        best = int(np.argmax(log_probability))
        tokens, score = (*tokens, best), score + float(log_probability[best])
    return Hypothesis(tokens, score)
