"""ROUGE (Lin 2004): how much of a reference a summary says, by words, pairs of words, and words in their order."""

import collections
from collections.abc import Sequence


def f_measure(shared: int, output: int, reference: int) -> float:
    """F1 = 2 P R / (P + R), P = shared / output, R = shared / reference; 0 where nothing is shared."""
    return 2 * shared / (output + reference) if shared else 0.0


def rouge_n(output: Sequence[str], reference: Sequence[str], order: int) -> float:
    """F1 of the runs of `order` words that both have, each counted as often as in the one that has it less often.

    Its recall is section 2 of the paper.
    """
    said, wanted = (
        collections.Counter(tuple(words[start : start + order]) for start in range(len(words) - order + 1))
        for words in (output, reference)
    )
    return f_measure((said & wanted).total(), said.total(), wanted.total())


def rouge_l(output: Sequence[str], reference: Sequence[str]) -> float:
    """F1 of the longest common subsequence (section 3.1, beta = 1)."""
    return f_measure(common(output, reference), len(output), len(reference))


def common(output: Sequence[str], reference: Sequence[str]) -> int:
    """The most words that stand in both in one order, others between them or not."""
    row = [0] * (len(reference) + 1)
    for word in output:
        above, row = row, [0]
        for column, wanted in enumerate(reference):
            row.append(above[column] + 1 if word == wanted else max(row[column], above[column + 1]))
    return row[-1]


def rouge(outputs: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """`rouge_1`, `rouge_2` and `rouge_l`: means over the summaries of F1 from 0 to 1, of words as they stand."""
    pairs, count = list(zip(outputs, references, strict=True)), max(len(references), 1)
    scores = {f"rouge_{order}": sum(rouge_n(*pair, order) for pair in pairs) / count for order in (1, 2)}
    return {**scores, "rouge_l": sum(rouge_l(*pair) for pair in pairs) / count}
