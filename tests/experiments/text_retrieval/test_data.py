"""Number words and their twins, and pools without duplicates."""

from pathlib import Path

import pytest
from num2words import num2words

from experiments.text_retrieval.data import (
    TextPair,
    distinct_pairs,
    generate_number_words,
    number_pair,
    open_pairs,
)
from transformer.config import UserError


def test_a_number_is_what_num2words_says() -> None:
    for thousands, rest in ((305, 210), (100, 999), (999, 100), (212, 121)):
        pair, number = number_pair(thousands, rest), 1000 * thousands + rest
        assert pair.source == num2words(number, lang="en").replace(",", "")
        assert pair.target == num2words(number, lang="de").replace(" ", "")


def test_twins_have_the_same_english_words_and_no_number_is_in_two_splits() -> None:
    splits = generate_number_words("train=400,validation=40,test=60")
    assert {name: len(pairs) for name, pairs in splits.items()} == {"train": 400, "validation": 40, "test": 60}
    everything = [pair for pairs in splits.values() for pair in pairs]
    assert len({pair.source for pair in everything}) == len({pair.target for pair in everything}) == len(everything)
    for first, second in zip(everything[::2], everything[1::2], strict=True):
        assert sorted(first.source.split()) == sorted(second.source.split())
    assert splits == generate_number_words("train=400,validation=40,test=60,seed=0")
    assert splits != generate_number_words("train=400,validation=40,test=60,seed=1")


@pytest.mark.parametrize(
    ("options", "message"),
    [("train=5", "train=5 must be even"), ("tests=4", "tests"), ("test=0", "test=0"), ("test=x", "whole number")],
)
def test_unfit_options_are_refused(options: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        generate_number_words(options)


def test_translations_are_groups_of_one(tmp_path: Path) -> None:
    twins = open_pairs("number_words/train=4,validation=2,test=2", tmp_path, data_dir=None, languages=())
    assert twins.group_size == 2
    phrases = open_pairs("phrases/train=3,validation=2,test=2", tmp_path, data_dir=None, languages=("en", "de"))
    assert (phrases.group_size, len(phrases.splits["train"])) == (1, 3)
    with pytest.raises(UserError, match="has no split 'test_2016'"):
        open_pairs(
            "phrases/train=3,validation=2,test=2",
            tmp_path,
            data_dir=None,
            languages=("en", "de"),
            test_split="test_2016",
        )


def test_a_pool_has_no_text_twice() -> None:
    pairs = [TextPair(*pair) for pair in (("a", "x"), ("b", "x"), ("a", "y"), ("c", "z"), ("b", "w"), ("d", "v"))]
    assert distinct_pairs(pairs, 9) == [0, 3, 5]
    assert distinct_pairs(pairs, 2) == [0, 3]
