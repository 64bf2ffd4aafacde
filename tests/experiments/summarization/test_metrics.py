"""ROUGE against recorded values of another implementation and by hand, and what is counted of summaries."""

import itertools

import numpy as np
import pytest

from experiments.summarization.data import Article, Fact, write_summary
from experiments.summarization.metrics import (
    common_subsequence_length,
    p_gen_report,
    p_gen_sums,
    rouge,
    rouge_l,
    rouge_n,
    summary_report,
)

MILL, RACE = Fact("mill", "Bado", "Kesto"), Fact("race", "Timo", "Kesto")
ARTICLE = Article(("irrelevant",), (MILL, RACE), ({}, {}))


# By rouge_score 0.1.2 (Google), no stemmer: the F measures of random words.
RECORDED = (
    ("of the the a sale the a wins bado run wins a", "of bado sport a kesto the kesto sport a", 0.47619, 0, 0.380952),
    ("run run wins the wins of", "sport sport sale sale sale sale of a the the the run of sport", 0.3, 0, 0.2),
    ("wins a kesto a the kesto bado sport bado kesto", "sale of sport a of a the sport sale wins", 0.5, 0.111111, 0.4),
    ("sport run", "wins of bado bado kesto", 0, 0, 0),
)


@pytest.mark.parametrize(("output", "reference", "first", "second", "longest"), RECORDED)
def test_rouge_is_that_of_another_implementation(
    output: str, reference: str, first: float, second: float, longest: float
) -> None:
    found = rouge([output.split()], [reference.split()])
    assert found == pytest.approx({"rouge_1": first, "rouge_2": second, "rouge_l": longest}, abs=1e-6)


def test_rouge_by_hand() -> None:
    output, reference = ["the", "cat", "sat", "on", "the", "mat"], ["the", "cat", "on", "the", "red", "mat"]
    assert rouge_n(output, reference, 1) == pytest.approx(5 / 6)  # all but "sat" and "red", "the" twice
    assert rouge_n(output, reference, 2) == pytest.approx(2 / 5)  # "the cat", "on the"
    assert common_subsequence_length(output, reference) == 5  # the cat on the mat
    assert rouge_l(output, reference) == pytest.approx(5 / 6)
    assert rouge_n([], reference, 1) == rouge_l([], reference) == rouge_n(["the"], ["the"], 2) == 0
    scores = rouge([output, reference], [reference, reference])
    assert scores == pytest.approx({"rouge_1": 11 / 12, "rouge_2": 0.7, "rouge_l": 11 / 12})


def test_the_longest_common_subsequence_is_that_of_all_subsequences() -> None:
    random = np.random.default_rng(0)
    for _ in range(20):
        output, reference = (tuple("abc"[letter] for letter in random.integers(0, 3, 6)) for _ in range(2))
        subsequences = {chosen for size in range(7) for chosen in itertools.combinations(reference, size)}
        wanted = max(len(each) for each in subsequences if each in set(itertools.combinations(output, len(each))))
        assert common_subsequence_length(output, reference) == wanted


def test_facts_are_right_wrong_or_told_again() -> None:
    wrong, nothing = Fact("race", "Bado", "Kesto"), ["Kesto", "Kesto", "."]
    right = write_summary([RACE, MILL])
    again = [*write_summary([MILL, MILL, wrong]), *nothing]
    report = summary_report([right, again], [ARTICLE, ARTICLE], {"Kesto"}, num_samples=1, suffix="/2")
    found = {name.removesuffix("/2"): value for name, value in report.scalars.items()}
    # Bado and Timo of both articles are unseen; the one race has Bado in the place of Timo.
    assert (found["oov_recall"], found["in_vocabulary_recall"]) == (3 / 4, 1)
    assert found["fact_recall"] == 3 / 4
    assert found["repeated_facts"] == 1 / 6
    assert found["hallucinated_facts"] == 2 / 6
    assert found["exact_match"] == 1 / 2
    assert report.samples == [
        {"source": "irrelevant", "target": " ".join(write_summary([MILL, RACE])), "output": " ".join(right)}
    ]
    unknown = ["<unknown>" if word in ("Bado", "Timo") else word for word in right]
    nobody = summary_report([unknown], [ARTICLE], {"Kesto"}, num_samples=0).scalars
    assert (
        nobody["oov_recall"],
        nobody["in_vocabulary_recall"],
        nobody["fact_recall"],
        nobody["hallucinated_facts"],
    ) == (0, 1, 0, 1)
    empty = summary_report([[]], [ARTICLE], {"Kesto"}, num_samples=0).scalars
    assert (empty["repeated_facts"], empty["hallucinated_facts"], empty["rouge_1"]) == (0, 0, 0)


def test_a_fact_told_again_of_somebody_else_is_told_again() -> None:
    """Or an attention that is driven away from the names that it has read would repeat itself and not be seen to."""
    twice = write_summary([MILL, Fact("mill", "Timo", "Bado"), RACE])
    found = summary_report([twice], [ARTICLE], (), num_samples=0).scalars
    assert (found["repeated_facts"], found["hallucinated_facts"], found["oov_recall"]) == (1 / 3, 1 / 3, 1)


def test_p_gen_is_told_apart_by_what_must_be_copied() -> None:
    p_gen, copied = np.float32([[0.2, 0.4, 0.9, 0.7]]), np.array([[True, True, False, False]])
    sums = p_gen_sums(p_gen, copied, np.array([[True, True, True, False]]))
    found = p_gen_report({name: np.asarray(value) for name, value in sums.items()}, None).scalars
    assert found == pytest.approx({"p_gen/copied": 0.3, "p_gen/written": 0.9})
