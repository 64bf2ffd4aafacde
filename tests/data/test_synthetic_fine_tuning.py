"""Problems made here: every answer against another way to it, and labels that no shortcut tells."""

import itertools
from collections import Counter

import pytest

from transformer.config import UserError
from transformer.data.datasets.synthetic_fine_tuning import PEOPLE, PROBLEMS, generate_grammar_examples
from transformer.data.labeled_text_batches import LabeledExample

SIZES = "train=300,validation=20,test=20"


def of(problem: str) -> list[LabeledExample]:
    return generate_grammar_examples(f"{problem}/{SIZES}")["train"]


def facts_of(text: str) -> list[tuple[str, str]]:
    """Who is taller than whom, by what the words say."""
    told = []
    for fact in text.split(" and "):
        first, _, how, _, second = fact.split()
        told.append((first, second) if how == "taller" else (second, first))
    return told


def orders(facts: list[tuple[str, str]], people: set[str]) -> list[tuple[str, ...]]:
    """Every order of people, the tallest first, in which all facts hold."""
    return [
        order
        for order in itertools.permutations(sorted(people))
        if all(order.index(first) < order.index(second) for first, second in facts)
    ]


def test_an_acceptable_verb_agrees_with_the_first_noun_alone() -> None:
    examples = of("acceptability")
    neighbors = Counter()
    for one, other in zip(examples[::2], examples[1::2], strict=True):
        assert {one.label, other.label} == {0, 1}
        assert one.texts[0].split()[:-1] == other.texts[0].split()[:-1]
    for (text,), label in examples:
        words = text.split()
        singular_verb, singular_noun = words[-1].endswith("s"), not words[1].endswith("s")
        assert label == (singular_verb == singular_noun)
        if len(words) > 3:
            neighbors[label, (not words[4].endswith("s")) == singular_verb] += 1
    # The noun beside the verb says nothing.
    assert min(neighbors.values()) > 0.8 * max(neighbors.values())


def test_a_hypothesis_follows_where_it_holds_in_every_order_that_the_premise_allows() -> None:
    labels = Counter()
    for (premise, hypothesis), label in of("entailment"):
        facts, (asked,) = facts_of(premise), facts_of(hypothesis)
        people = {name for fact in (*facts, asked) for name in fact} | {PEOPLE[0], PEOPLE[1]}
        holds = {order.index(asked[0]) < order.index(asked[1]) for order in orders(facts, people)}
        assert label == {(True,): 0, (False, True): 1, (False,): 2}[tuple(sorted(holds))]
        labels[label] += 1
    assert min(labels.values()) > 70


def test_a_score_counts_the_things_that_both_lists_have() -> None:
    scores = Counter()
    for (one, other), score in of("similarity"):
        lists = [text.split(" and ") for text in (one, other)]
        assert [len(each) for each in lists] == [len(set(each)) for each in lists] == [4, 4]
        assert score == len(set(lists[0]) & set(lists[1]))
        scores[score] += 1
    assert set(scores) == {0.0, 1.0, 2.0, 3.0, 4.0}


def test_the_right_answer_is_at_its_end_of_the_one_order_that_the_facts_allow() -> None:
    places = Counter()
    for (context, *answers), label in of("choice"):
        facts, _, question = context.partition(" . ")
        (order,) = orders(facts_of(facts), set(answers))
        assert answers[int(label)] == (order[0] if question == "who is tallest" else order[-1])
        places[label] += 1
    assert set(places) == {0, 1, 2}
    assert min(places.values()) > 70


@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_set_is_a_function_of_its_name_and_its_splits_differ(problem: str) -> None:
    made = generate_grammar_examples(f"{problem}/{SIZES}")
    assert made == generate_grammar_examples(f"{problem}/{SIZES}")
    assert made["train"] != generate_grammar_examples(f"{problem}/{SIZES},seed=1")["train"]
    assert made["validation"] != made["test"]
    assert all(len(each.texts) == PROBLEMS[problem].num_texts for each in made["train"])


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("entails", "'grammar/entails' is unknown: did you mean 'entailment'?"),
        ("choice/train=many", "must give a whole number"),
        ("choice/train=0", "grammar/choice.train=0 must be at least 1"),
        ("choice/long=3", "long"),
    ],
)
def test_a_name_that_cannot_be_is_refused(name: str, says: str) -> None:
    with pytest.raises(UserError) as told:
        generate_grammar_examples(name)
    assert says in str(told.value)
