"""Decoding over lists of prefixes in NumPy float64: no cache, no rows, no early stop."""

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

# The log-probabilities of the next token behind a prefix; -inf where a token may never come.
NextToken = Callable[[tuple[int, ...]], np.ndarray]


# Whether a sequence has just ended other than by its end token.
Completes = Callable[[tuple[int, ...]], bool]


class Hypothesis(NamedTuple):
    """A sequence and its score: with the token that ended it, or cut off at the greatest length."""

    tokens: tuple[int, ...]
    score: float


def normalized(logits: np.ndarray, never: Sequence[int]) -> np.ndarray:
    """Log-probabilities over the tokens that may come."""
    logits = np.asarray(logits, np.float64).copy()
    logits[list(never)] = -np.inf
    return logits - logits.max() - np.log(np.sum(np.exp(logits - logits.max())))


def with_repetition_penalty(logits: np.ndarray, said: Sequence[int], theta: float) -> np.ndarray:
    """Logits in which every token that was said costs a factor theta (Keskar et al. 2019)."""
    logits = np.asarray(logits, np.float64).copy()
    for token in set(said):
        logits[token] = logits[token] / theta if logits[token] > 0 else logits[token] * theta
    return logits


def nothing(tokens: tuple[int, ...]) -> bool:
    """Only the end token ends."""
    return False


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
    next_token: NextToken,
    *,
    others: Sequence[int],
    end: int | None,
    length: int,
    exponent: float,
    num_beams: int,
    completes: Completes = nothing,
    among_best: bool = False,
) -> list[Hypothesis]:
    """Keep the `num_beams` best prefixes at every length, and every sequence that ends on the way.

    `among_best`: only those sequences that end as one of the `num_beams` best of their length.
    """
    live: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    ended: list[Hypothesis] = []
    for size in range(length):
        extended = []
        for prefix, total in live:
            log_probability = next_token(prefix)
            for token in (*others, *([] if end is None else [end])):
                extended.append(((*prefix, token), total + float(log_probability[token])))
        extended.sort(key=lambda one: -one[1])
        ending = [one[-1] == end or completes(one) for one, _ in extended]
        for (tokens, total), ends in list(zip(extended, ending, strict=True))[: num_beams if among_best else None]:
            if ends:
                ended.append(Hypothesis(tokens, total / penalty(size + 1, exponent)))
        live = [one for one, ends in zip(extended, ending, strict=True) if not ends][:num_beams]
    cut_off = [Hypothesis(prefix, total / penalty(length, exponent)) for prefix, total in live]
    return ranked(ended, cut_off, num_beams)


def greedy(next_token: NextToken, *, end: int | None, length: int, completes: Completes = nothing) -> Hypothesis:
    """The most probable token until the end or the greatest length; the score is not penalized."""
    tokens: tuple[int, ...] = ()
    score = 0.0
    while len(tokens) < length and end not in tokens and not completes(tokens):
        log_probability = next_token(tokens)
        best = int(np.argmax(log_probability))
        tokens, score = (*tokens, best), score + float(log_probability[best])
    return Hypothesis(tokens, score)


def drawn_from(log_probability: np.ndarray, temperature: float, top_k: int, top_p: float) -> np.ndarray:
    """The distribution that sampling draws from: the likeliest tokens one by one until top_k or top_p is reached."""
    order = sorted(range(len(log_probability)), key=lambda token: -log_probability[token])[: top_k or None]
    weights = np.exp((log_probability - log_probability.max()) / temperature)
    mass = sum(weights[token] for token in order)
    found = np.zeros(len(weights))
    for token in order:
        if found.sum() >= top_p:
            break
        found[token] = weights[token] / mass
    return found / found.sum()
