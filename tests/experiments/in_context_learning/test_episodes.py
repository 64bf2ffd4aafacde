"""Episodes of word maps: letters for letters as training never has, words of which none repeats."""

import itertools

import numpy as np
import pytest

from experiments.in_context_learning.data import (
    Episode,
    Pair,
    WordTranslation,
    check_translation_sizes,
    check_word_sizes,
    format_pairs,
    is_held_out,
    parse_prompt,
    sample_words,
    shots_by_character,
)
from transformer.config import UserError

PAIRS = (Pair("ab", "XYZ"), Pair("c", ""), Pair("dd", "Q"))


def drawn(count: int, *, unseen: bool, pairs: int = 5, seed: int = 0) -> list[Episode]:
    random = np.random.default_rng(seed)
    return [WordTranslation(8, 6, 2, 4).sample(random, pairs, unseen=unseen) for _ in range(count)]


def table_of(episode: Episode) -> dict[str, str]:
    letters, image = episode.rule_name.split(" to ")
    return dict(zip(letters, image, strict=True))


def test_an_episode_is_told_with_its_shots() -> None:
    assert format_pairs(PAIRS) == "ab>XYZ;c>;dd>Q;"
    said = list(zip(format_pairs(PAIRS), shots_by_character(PAIRS), strict=True))
    assert [(character, shot) for character, shot in said if shot >= 0] == [
        *[(character, 0) for character in "XYZ;"],
        (";", 1),
        *[(character, 2) for character in "Q;"],
    ]


def test_a_prompt_may_be_written_as_people_write_it() -> None:
    assert parse_prompt("ab => XY ; ba=>YX;b =>") == parse_prompt(" ab => XY \nba => YX;\nb =>\n") == "ab>XY;ba>YX;b>"
    assert parse_prompt("\nab => XY\n\nba => YX;\n \nb =>") == "ab>XY;ba>YX;b>"


@pytest.mark.parametrize("unseen", [False, True])
def test_answers_are_those_of_one_map_and_unseen_ones_are_held_out(unseen: bool) -> None:
    for episode in drawn(60, unseen=unseen):
        table = table_of(episode)
        assert len(set(table)) == len(set(table.values())) == 6
        assert set("".join(table).upper() + "".join(table.values())) <= set("ABCDEFGH")
        assert is_held_out(episode.rule_name) == unseen
        for source, target in episode.pairs:
            assert [table[letter] for letter in source] == list(target)


def test_no_answer_is_in_its_prompt() -> None:
    for episode in drawn(200, unseen=True):
        sources = [source for source, _ in episode.pairs]
        assert len(set(sources)) == len(sources)
        for number, (source, target) in enumerate(episode.pairs):
            assert f">{target};" not in format_pairs(episode.pairs[:number]) + source


def test_lengths_letters_and_images_are_equally_likely() -> None:
    episodes = drawn(1500, unseen=False)
    sources = [source for episode in episodes for source, _ in episode.pairs]
    lengths = np.bincount([len(source) for source in sources])[2:] / len(sources)
    # Of the shortest words some are drawn twice, and then not taken.
    np.testing.assert_allclose(lengths, 1 / 3, atol=0.035)
    letters = np.bincount([ord(letter) - ord("a") for source in sources for letter in source])
    np.testing.assert_allclose(letters / letters.sum(), 1 / 8, atol=0.01)
    images = np.zeros((8, 8))
    for episode in episodes:
        for letter, image in table_of(episode).items():
            images["abcdefgh".index(letter), "ABCDEFGH".index(image)] += 1
    np.testing.assert_allclose(images / len(episodes), 6 / 8 / 8, atol=0.04)


def test_what_is_bayes_optimal_is_the_share_of_all_maps_that_fit() -> None:
    random, maps = np.random.default_rng(3), WordTranslation(5, 4, 2, 3)
    seen = set()
    for _ in range(12):
        episode = maps.sample(random, 4, unseen=False)
        for known in range(4):
            asked, target = episode.pairs[known]
            fitting = []
            for image in itertools.permutations("ABCDE", 4):
                table = str.maketrans(episode.rule_name.split(" to ")[0], "".join(image))
                if all(source.translate(table) == made for source, made in episode.pairs[:known]):
                    fitting.append(asked.translate(table))
            share = fitting.count(target) / len(fitting)
            assert share == max(fitting.count(answer) for answer in fitting) / len(fitting)
            assert maps.bayes_optimal_accuracy(episode, known) == pytest.approx(share)
            # The order of what is shown says nothing.
            turned = Episode((*episode.pairs[:known][::-1], episode.pairs[known]), episode.rule_name)
            assert maps.bayes_optimal_accuracy(turned, known) == pytest.approx(share)
            seen.add(share)
    assert len(seen) > 3
    assert max(seen) == 1


def test_words_are_different_and_held_out_where_that_is_asked() -> None:
    for unseen in (False, True):
        words = sample_words(np.random.default_rng(0), 40, "abcdefgh", 3, 4, unseen=unseen)
        assert len(set(words)) == 40
        assert {is_held_out(word) for word in words} == {unseen}


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ((1, 1, 3, 3), "num_letters=1"),
        ((5, 6, 3, 3), "alphabet_size=5"),
        ((8, 8, 1, 3), "min_word_length=1"),
        ((4, 4, 2, 3), "too few"),
    ],
)
def test_what_has_too_few_words_is_refused(sizes: tuple[int, int, int, int], says: str) -> None:
    with pytest.raises(UserError, match=says):
        check_word_sizes(*sizes, min_length=2, words=100)


@pytest.mark.parametrize("sizes", [*itertools.combinations_with_replacement((2, 3, 4), 2)])
def test_every_map_that_is_not_refused_has_unseen_ones(sizes: tuple[int, int]) -> None:
    letters, alphabet_size = sizes
    chosen = itertools.combinations("abcd"[:alphabet_size], letters)
    images = itertools.permutations("ABCD"[:alphabet_size], letters)
    rules = [f"{''.join(source)} to {''.join(image)}" for source, image in itertools.product(chosen, images)]
    if {is_held_out(rule) for rule in rules} == {False, True}:
        check_translation_sizes(alphabet_size, letters)
    else:
        with pytest.raises(
            UserError, match=rf"num_letters={letters} of alphabet_size={alphabet_size} have {len(rules)} maps, too few"
        ):
            check_translation_sizes(alphabet_size, letters)
