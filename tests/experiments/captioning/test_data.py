"""Captions of scenes: their words in reading order, and descriptions read back."""

import numpy as np
import pytest

from experiments.captioning.data import (
    caption_vocabulary,
    max_caption_length,
    noun_positions,
    parse_scene,
    write_caption,
)
from transformer.data.synthetic_scenes import SceneGenerator, SceneItem

KIND = SceneGenerator()
ITEMS = (SceneItem(8, "star", "blue"), SceneItem(0, "circle", "red"))


def test_a_caption_names_the_items_in_reading_order() -> None:
    said = write_caption(KIND, ITEMS)
    assert " ".join(said) == "red circle top left , blue star bottom right"
    assert [(said[step], cell) for step, cell in noun_positions(ITEMS)] == [("circle", 0), ("star", 8)]


def test_every_word_of_a_caption_is_known_and_it_has_no_more_than_the_longest() -> None:
    random, known = np.random.default_rng(0), caption_vocabulary(KIND)
    assert len(set(known)) == len(known)
    lengths, used = set(), set()
    for _ in range(300):
        items = KIND.draw(random)
        said = write_caption(KIND, items)
        lengths.add(len(said))
        used |= set(said)
        assert parse_scene(KIND, " ".join(said)) == items
    assert used == set(known)
    assert lengths == {9, max_caption_length(KIND)}


def test_a_description_may_be_in_any_order() -> None:
    assert parse_scene(KIND, "blue star bottom right, red circle top left") == tuple(sorted(ITEMS))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "'' is no item: say its color, shape, row and column"),
        ("red circle top left", "it has 1 items, and scenes have 2 to 3"),
        ("red circle top, blue star bottom right", "'red circle top' is no item"),
        ("red circle top left, mauve star bottom right", "'mauve' is no color: they are red, green"),
        ("red circle top left, blue house bottom right", "'house' is no shape: they are circle"),
        ("red circle left top, blue star bottom right", "'left' is no row: they are top, middle, bottom"),
        ("red circle top left, blue star top left", "two of its items are of one cell"),
        ("red circle top left, red circle top right", "two of its items are of one kind"),
    ],
)
def test_what_describes_no_scene_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_scene(KIND, text)
