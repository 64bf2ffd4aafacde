"""The corpora: every answer found another way, what rules without attention get, and why one head is not enough."""

import itertools
import re

import numpy as np
import pytest
from scipy.optimize import linprog

from experiments.attention_probes.probe_corpus import FrequencyBaselines, baseline_accuracies
from experiments.attention_probes.sentence_corpora import BY_CLUE, BY_PRONOUN, NOUNS
from experiments.attention_probes.task import CORPORA, open_corpus
from transformer.config import UserError

TEXTS = 60
Answers = dict[int, tuple[str, list[set[int]]]]


def of_antecedents(words: list[str], *, clue: bool) -> Answers:
    """From the end of the text backwards."""
    position, kind_of_cue = (len(words) - 3, words[-1]) if clue else (len(words) - 1, words[-1])
    nouns = next(nouns for nouns, telling in (BY_CLUE if clue else BY_PRONOUN).values() if kind_of_cue in telling)
    at = next(at for at in range(position - 1, -1, -1) if words[at] in nouns)
    return {position: (words[at], [{at}])}


def of_agreement(words: list[str]) -> Answers:
    """By regular expression: the comma, if there is one, and all nouns behind it."""
    plural = {noun for _, noun in NOUNS}
    nouns = [match.start() for match in re.finditer("n", "".join(_letter(word) for word in words))]
    nouns = [at for at in nouns if "," not in words[at:]]
    verb = "are" if words[nouns[0]] in plural else "is"
    return {at: (verb, [{nouns[0]}]) for at in nouns[1:]}


def _letter(word: str) -> str:
    return "n" if any(word in pair for pair in NOUNS) else "-"


def of_two_places(words: list[str]) -> Answers:
    """Stretch by stretch."""
    answers, start = {}, 0
    for stretch in " ".join(words).removesuffix("?").split("?"):
        items = stretch.split()
        start += len(items)
        answers[start] = (f"{items[-1].split('-')[0]}-{items[-4].split('-')[1]}", [{start - 1}, {start - 4}])
        start += 1
    return answers


def of_retrieval(words: list[str]) -> Answers:
    """By a dictionary."""
    shown, *asked = " ".join(words).split(" ? ")
    max_pairs = [tuple(pair.split("=")) for pair in shown.split()]
    keys, value_of = [key for key, _ in max_pairs], dict(max_pairs)
    return {len(max_pairs) + 1 + 2 * number: (value_of[key], [{keys.index(key)}]) for number, key in enumerate(asked)}


def of_sorting(words: list[str]) -> Answers:
    """By sorting."""
    given = words[: words.index(":")]
    return {len(given) + rank: (letter, [{given.index(letter)}]) for rank, letter in enumerate(sorted(given))}


def of_brackets(words: list[str]) -> Answers:
    """What is left of each beginning when all closed pairs are taken out of it, again and again."""
    answers: Answers = {}
    for position, word in enumerate(words):
        if word in "([{<":
            continue
        left = [*enumerate(words[: position + 1])]
        while True:
            text = "".join(word for _, word in left)
            pair = re.search(r"\(\)|\[\]|\{\}|<>", text)
            if pair is None:
                break
            del left[pair.start() : pair.end()]
        if left:
            answers[position] = ({"(": ")", "[": "]", "{": "}", "<": ">"}[left[-1][1]], [{left[-1][0]}])
    return answers


def of_motifs(words: list[str]) -> Answers:
    """What the same letter was followed by at its first place; asked where it comes again within the motif."""
    text, answers = "".join(words), {}
    for position, letter in enumerate(text):
        first = text.index(letter)
        if first < position and text[first + 1] == (
            text[position + 1] if position + 1 < len(text) else text[first + 1]
        ):
            others = [match.end() for match in re.finditer(letter, text[:position])]
            answers[position] = (text[first + 1], [set(others)])
    return answers


OTHERWISE = {
    "coreference": lambda words: of_antecedents(words, clue=False),
    "coreference_from_clue": lambda words: of_antecedents(words, clue=True),
    "agreement": of_agreement,
    "two_offset_copy": of_two_places,
    "retrieval": of_retrieval,
    "sorting": of_sorting,
    "brackets": of_brackets,
    "motifs": of_motifs,
}


@pytest.mark.parametrize("name", CORPORA)
def test_every_answer_and_its_sources_are_those_found_another_way(name: str) -> None:
    corpus, random = open_corpus(name), np.random.default_rng(0)
    known, lengths = set(corpus.vocabulary), set()
    assert len(known) == len(corpus.vocabulary)
    for _ in range(TEXTS):
        words = corpus.sample(random)
        questions_found = corpus.find_questions(words)
        found = {
            question.position: (question.answer, [set(positions) for positions in question.attended_positions])
            for question in questions_found
        }
        assert found == OTHERWISE[name](words), " ".join(words)
        assert questions_found
        assert {*words, *(question.answer for question in questions_found)} <= known
        assert all(
            len(question.attended_positions) == len(corpus.attended_position_descriptions)
            for question in questions_found
        )
        # What has to be read stands before, so that a causal head can.
        assert all(
            at <= question.position
            for question in questions_found
            for positions in question.attended_positions
            for at in positions
        )
        lengths.add(len(words))
    assert max(lengths) <= corpus.max_length
    assert corpus.needs_future == (name == "coreference_from_clue")


def test_a_pronoun_means_the_last_noun_that_agrees_with_it() -> None:
    text = "the queen passed the dog . the goat left the boy near the children . then"
    meant = {"he": "boy", "she": "queen", "it": "goat", "they": "children"}
    for pronoun, answer in meant.items():
        (question,) = open_corpus("coreference").find_questions([*text.split(), pronoun])
        assert (question.answer, question.attended_positions) == (answer, ((text.split().index(answer),),))
    famous = ["the", "dog", "left", "the", "street", "because", "it", "was", "tired"]
    (question,) = open_corpus("coreference_from_clue").find_questions(famous)
    assert (famous[question.position], question.answer) == ("it", "dog")
    assert not open_corpus("coreference").find_questions(["the", "dog", "passed", "the", "queen", ".", "then", "he"])


def test_rules_that_do_not_read_what_should_be_read_are_wrong_about_as_often_as_they_guess() -> None:
    """By hand on one text, and on many: half of the verbs, one bracket in four, one color or shape in four."""
    agreement = open_corpus("agreement")
    words = "near the boys , the old key to the doors".replace("to", "beside").split()
    (question,) = agreement.find_questions(words)
    assert agreement.baseline_answers(words, question.position) == {
        "nearest_noun": "are",
        "first_noun": "are",
        "most_nouns": "are",
    }
    assert question.answer == "is"
    bounds = {
        "agreement": {"nearest_noun": (0.4, 0.6), "majority": (0.4, 0.6)},
        "brackets": {"nearest_opening": (0.17, 0.35), "again": (0.17, 0.35)},
        "two_offset_copy": {"near_item": (0.17, 0.35), "far_item": (0.17, 0.35)},
        "coreference": {"nearest_noun": (0.2, 0.45), "bigram": (0.05, 0.3)},
    }
    for name, rules in bounds.items():
        corpus, random = open_corpus(name), np.random.default_rng(1)
        texts = [corpus.sample(random) for _ in range(200)]
        measured = baseline_accuracies(corpus, FrequencyBaselines.fit(corpus, texts[:100]), texts[100:])
        for rule, (least, most) in rules.items():
            assert least < measured[rule] < most, (name, rule)


def test_counting_knows_the_most_frequent_answer_of_all_and_behind_each_word() -> None:
    corpus = open_corpus("retrieval")
    texts = [text.split() for text in ("a=1 b=2 ? a ? a", "a=3 b=2 ? b ? b ? b", "c=1 d=4 ? d")]
    counted = FrequencyBaselines.fit(corpus, texts)
    assert counted.baseline_answers(["x", "a"], 1) == {"majority": "2", "bigram": "1"}
    assert counted.baseline_answers(["x", "z"], 1) == {"majority": "2", "bigram": "2"}
    shares = baseline_accuracies(corpus, counted, [["a=1", "b=2", "c=2", "?", "a", "?", "b"]])
    assert shares == {"majority": 0.5, "bigram": 1.0, "last_value": 0.5, "most_values": 0.5}


Pairs = list[tuple[tuple[int, int], tuple[int, int]]]


def answerable(near: float, far: float, *, heads: int, max_pairs: Pairs) -> bool:
    """Whether scores b_near E(a) + b_far E'(b) + k can be right by a margin; of one head E' is E. A linear program."""
    items = list(itertools.product(range(2), range(2)))
    numbers = np.arange(4 * 4 * heads + 4)
    scores, constants = numbers[:-4].reshape(heads, 4, 4), numbers[-4:]
    rows = []
    for a, b in max_pairs:
        right = items.index((a[0], b[1]))
        for wrong in {0, 1, 2, 3} - {right}:
            row = np.zeros(len(numbers))
            for answer, sign in ((right, -1), (wrong, 1)):
                row[scores[0, answer, items.index(a)]] += sign * near
                row[scores[-1, answer, items.index(b)]] += sign * far
                row[constants[answer]] += sign
            rows.append(row)
    found = linprog(np.zeros(len(numbers)), A_ub=np.array(rows), b_ub=-np.ones(len(rows)), bounds=(None, None))
    return found.status == 0


def test_one_head_answers_one_of_four_texts_wrong_however_it_weighs_two_places_and_two_heads_none() -> None:
    """The fours of `TwoPlaces`: both items of one color if the nearer weighs as much or more, else of one shape."""
    items = list(itertools.product(range(2), range(2)))
    assert answerable(1.0, 1.0, heads=2, max_pairs=list(itertools.product(items, repeat=2)))
    for near, same in ((1.0, 0), (1.1, 0), (2.0, 0), (10.0, 0), (1.0, 1), (0.9, 1), (0.5, 1), (0.1, 1), (0.0, 1)):
        for kind in range(2):
            four: Pairs = list(itertools.product([item for item in items if item[same] == kind], repeat=2))
            assert len(four) == 4
            assert not answerable(near, 1.0, heads=1, max_pairs=four)
    # All but one text of each four can be right: 14 of 16.
    wrong = (((0, 0), (0, 1)), ((1, 0), (1, 1)))
    assert answerable(
        1.3, 1.0, heads=1, max_pairs=[pair for pair in itertools.product(items, repeat=2) if pair not in wrong]
    )


@pytest.mark.parametrize(
    ("dataset", "kind_of_cue"),
    [
        ("coreferences", "did you mean 'coreference'"),
        ("brackets/num_kinds=9", "brackets.num_kinds=9 must be at most 4"),
        ("two_offset_copy/near_offset=4", "two_offset_copy.far_offset=4 must be above near_offset=4"),
        ("coreference/sentences=1", "sentences=1 must be at least 2"),
        ("agreement/max_attractors=0", "max_attractors=0"),
        ("motifs/max_gap=40", "max_gap=40 must be at most 12"),
        ("sorting/num_letters=two", "as in sorting/num_letters=10"),
        ("sorting/vocabulary=2", "unknown key sorting.vocabulary"),
    ],
)
def test_what_is_no_corpus_is_refused(dataset: str, kind_of_cue: str) -> None:
    with pytest.raises(UserError, match=re.escape(kind_of_cue)):
        open_corpus(dataset)
