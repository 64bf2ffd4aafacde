"""Summarization metrics: fact recall, repeated and hallucinated facts, recall of names, and ROUGE."""

import collections
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from experiments.summarization.data import Article, Fact, parse_facts, write_summary
from transformer.tasks.task import EvaluationReport


def f1_score(shared: int, output: int, reference: int) -> float:
    """Compute F1 = 2 P R / (P + R), with P = shared / output and R = shared / reference; 0 if nothing is shared.

    Args:
        shared: The number of items that output and reference share.
        output: The number of items of the output.
        reference: The number of items of the reference.

    Returns:
        The score, from 0 to 1.
    """
    return 2 * shared / (output + reference) if shared else 0.0


def rouge_n(output: Sequence[str], reference: Sequence[str], order: int) -> float:
    """Compute ROUGE-N: F1 of n-grams, with clipped counts.

    Args:
        output: The words of a summary.
        reference: The words of the true summary.
        order: The number of words n of an n-gram.

    Returns:
        The score, from 0 to 1.
    """
    output_counts, reference_counts = (
        collections.Counter(tuple(words[start : start + order]) for start in range(len(words) - order + 1))
        for words in (output, reference)
    )
    return f1_score((output_counts & reference_counts).total(), output_counts.total(), reference_counts.total())


def rouge_l(output: Sequence[str], reference: Sequence[str]) -> float:
    """Compute ROUGE-L: F1 of the longest common subsequence (Lin 2004, section 3.1, beta = 1).

    Args:
        output: The words of a summary.
        reference: The words of the true summary.

    Returns:
        The score, from 0 to 1.
    """
    return f1_score(common_subsequence_length(output, reference), len(output), len(reference))


def common_subsequence_length(output: Sequence[str], reference: Sequence[str]) -> int:
    """Return the length of the longest common subsequence."""
    row = [0] * (len(reference) + 1)
    for word in output:
        above, row = row, [0]
        for column, reference_word in enumerate(reference):
            row.append(above[column] + 1 if word == reference_word else max(row[column], above[column + 1]))
    return row[-1]


def rouge(outputs: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """Compute the mean ROUGE of some summaries.

    Args:
        outputs: The words of each summary.
        references: The words of each true summary.

    Returns:
        `rouge_1`, `rouge_2` and `rouge_l`, from 0 to 1.
    """
    pairs, count = list(zip(outputs, references, strict=True)), max(len(references), 1)
    scores = {f"rouge_{order}": sum(rouge_n(*pair, order) for pair in pairs) / count for order in (1, 2)}
    return {**scores, "rouge_l": sum(rouge_l(*pair) for pair in pairs) / count}


def summary_report(
    outputs: Sequence[Sequence[str]],
    articles: Sequence[Article],
    vocabulary_names: Collection[str],
    *,
    num_samples: int,
    suffix: str = "",
) -> EvaluationReport:
    """Report facts, names and ROUGE of summaries.

    `oov_recall`: of the out-of-vocabulary names in facts of a kind that the summary states, the fraction that is in its
    place; `in_vocabulary_recall`: of the other names. `fact_recall`: the fraction of facts stated with kind and names
    right. `repeated_facts`: the fraction of sentences that repeat a kind of fact of the same summary (an article has
    one of each kind). `hallucinated_facts`: the fraction of sentences that state no fact of the article. `exact_match`:
    summaries that state every fact once and nothing else, in any order. `rouge_1`, `rouge_2`, `rouge_l`: see `rouge`.

    Args:
        outputs: The words of each decoded summary.
        articles: The articles.
        vocabulary_names: The names in the vocabulary.
        num_samples: The number of summaries that are returned as samples.
        suffix: Appended to the name of each metric.

    Returns:
        The report.
    """
    count: collections.Counter[str] = collections.Counter()
    for words, article in zip(outputs, articles, strict=True):
        count += _count_facts(words, article, vocabulary_names)
    references = [write_summary(article.facts) for article in articles]
    scalars = {
        "oov_recall": count["unseen_said"] / max(count["unseen"], 1),
        "in_vocabulary_recall": count["known_said"] / max(count["known"], 1),
        "fact_recall": count["facts_told"] / max(count["facts"], 1),
        "repeated_facts": count["repeated_facts"] / max(count["sentences"], 1),
        "hallucinated_facts": count["hallucinated_facts"] / max(count["sentences"], 1),
        "exact_match": count["exact"] / max(len(articles), 1),
        **rouge(outputs, references),
    }
    samples = [
        {"source": " ".join(article.words), "target": " ".join(reference), "output": " ".join(words)}
        for article, reference, words in zip(articles[:num_samples], references, outputs, strict=False)
    ]
    note = f"{len(articles)} summaries, {count['unseen']} unseen names, {count['facts']} facts; ROUGE F1 of whole words"
    return EvaluationReport({name + suffix: value for name, value in scalars.items()}, samples, note)


def _count_facts(words: Sequence[str], article: Article, vocabulary_names: Collection[str]) -> collections.Counter[str]:
    """Count what `summary_report` adds up, for one summary."""
    stated_facts, true = parse_facts(words), collections.Counter(article.facts)
    fact_counts = collections.Counter(fact for fact in stated_facts if fact is not None)
    first: dict[str, Fact] = {}
    for fact in fact_counts:
        first.setdefault(fact.kind, fact)
    # An article has but one fact of each kind.
    fact_pairs = [(fact, first[fact.kind]) for fact in article.facts if fact.kind in first]
    names = [pair for facts in fact_pairs for pair in zip(*(fact[1:] for fact in facts), strict=True)]
    count = collections.Counter(
        facts=len(article.facts),
        facts_told=(true & fact_counts).total(),
        sentences=len(stated_facts),
        repeated_facts=fact_counts.total() - len(first),
        hallucinated_facts=sum(fact not in true for fact in stated_facts),
        exact=int(None not in stated_facts and fact_counts == true),
    )
    for right, output_name in names:
        kind = "known" if right in vocabulary_names else "unseen"
        count += collections.Counter({kind: 1, f"{kind}_said": int(right == output_name)})
    return count


def p_gen_sums(
    p_gen_BxT: Float[Array, "B T"], copied_BxT: Bool[Array, "B T"], counts_BxT: Bool[Array, "B T"]
) -> dict[str, Array]:
    """Sum p_gen over the words that a summary must copy, and over the others.

    Args:
        p_gen_BxT: The probability of generating, at each word of the true summary.
        copied_BxT: Which words are out of vocabulary.
        counts_BxT: Which words count.

    Returns:
        The sums `copied` and `written`, and the numbers of words.
    """
    sums: dict[str, Array] = {}
    for name, mask_BxT in (("copied", counts_BxT & copied_BxT), ("written", counts_BxT & ~copied_BxT)):
        sums |= {name: jnp.sum(jnp.where(mask_BxT, p_gen_BxT, 0)), f"{name}_words": jnp.sum(mask_BxT)}
    return sums


def p_gen_report(sums: Mapping[str, np.ndarray], rows: Any) -> EvaluationReport:
    """Report the mean p_gen where true summaries have out-of-vocabulary names (`p_gen/copied`), and elsewhere."""
    shares = {name: float(sums[name]) / max(float(sums[f"{name}_words"]), 1) for name in ("copied", "written")}
    return EvaluationReport({f"p_gen/{name}": share for name, share in shares.items()})
