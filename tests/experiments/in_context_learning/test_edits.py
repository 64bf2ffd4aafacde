"""Edits of words: what each does, which are held out, and what an answer can be known from."""

import numpy as np
import pytest

from experiments.in_context_learning.data import (
    EDITS,
    Episode,
    Pair,
    StringEdits,
    edit_programs,
    edit_word,
    is_held_out,
)


@pytest.mark.parametrize(
    ("names", "made"),
    [
        (("capitalize",), "Abcd"),
        (("shout",), "ABCD"),
        (("reverse",), "dcba"),
        (("swap ends",), "dbca"),
        (("delete the first",), "bcd"),
        (("double the last",), "abcdd"),
        (("rotate",), "bcda"),
        (("capitalize", "reverse"), "dcbA"),
        (("reverse", "capitalize"), "Dcba"),
        (("delete the first", "double the last"), "bcdd"),
    ],
)
def test_an_edit_does_what_it_says(names: tuple[str, ...], made: str) -> None:
    assert edit_word(names, "abcd") == made


@pytest.mark.parametrize("lengths", [(3, 3), (3, 4), (3, 6), (4, 9)])
def test_unseen_programs_do_what_no_seen_one_does_to_words_of_these_lengths(lengths: tuple[int, int]) -> None:
    words = tuple("mnopqrstu"[:length] for length in range(lengths[0], lengths[1] + 1))
    of_splits = edit_programs(*lengths)
    does = {
        unseen: {tuple(edit_word(names, word) for word in words): names for names in of_split}
        for unseen, of_split in of_splits.items()
    }
    assert not set(does[False]) & set(does[True])
    # Each pair is another, and none leaves words as they are.
    assert len(does[True]) == len(of_splits[True]) > 5
    pairs = [names for names in of_splits[False] if len(names) == 2]
    assert len({tuple(edit_word(names, word) for word in words) for names in pairs}) == len(pairs)
    assert words not in does[False] | does[True]
    assert {(name,) for name in EDITS} <= set(of_splits[False])
    assert {len(names) for names in of_splits[True]} == {2}
    # Every edit of an unseen program is known from others.
    assert {name for names in of_splits[True] for name in names} <= set(EDITS)


@pytest.mark.parametrize("unseen", [False, True])
def test_episodes_are_of_their_split(unseen: bool) -> None:
    random, edits, rules = np.random.default_rng(0), StringEdits(8, 3, 4), set()
    for _ in range(80):
        episode = edits.sample(random, 4, unseen=unseen)
        rules.add(episode.rule_name)
        assert tuple(episode.rule_name.split(", ")) in edit_programs(3, 4)[unseen]
        assert len({source for source, _ in episode.pairs}) == 4
        for source, target in episode.pairs:
            assert target == edit_word(tuple(episode.rule_name.split(", ")), source)
            assert is_held_out(source) == unseen
            assert set(target) <= set(edits.alphabet)
            assert len(source) + len(target) + 2 <= edits.max_pair_length
    assert len(rules) > len(edit_programs(3, 4)[unseen]) / 2


def test_the_bayes_optimal_answer_is_known_once_one_program_is_left() -> None:
    edits = StringEdits(8, 3, 4)
    shown = (Pair("abcd", "dcba"), Pair("bad", "dab"))
    asked = Pair("cafe", "efac")
    for order in (shown, shown[::-1]):
        assert edits.bayes_optimal_accuracy(Episode((*order, asked), "reverse"), 2) == 1
        assert edits.bayes_optimal_accuracy(Episode((*order, Pair("cafe", "eafc")), "swap ends"), 2) == 0
    # bad: swapping ends and reversing are one edit of three letters, and more programs swap than reverse or fewer.
    alone = [edits.bayes_optimal_accuracy(Episode((shown[1], Pair("cafe", made)), ""), 1) for made in ("efac", "eafc")]
    assert sorted(alone) == [0, 1]
