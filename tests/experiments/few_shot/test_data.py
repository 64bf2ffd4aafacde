"""Episodes of few shots: what is drawn, what turns make, which alphabets are held out, characters made here."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from experiments.few_shot.data import (
    RotationAugmentation,
    make_placeholder_characters,
    open_character_set,
    render_characters,
    sample_episodes,
)
from transformer.config import UserError

# The drawing of hand h of character c has pixels of 16 c + h, but one of 255 in a corner.
DRAWINGS = np.tile((16 * np.arange(7)[:, None] + np.arange(6))[:, :, None, None], (1, 1, 3, 3)).astype(np.uint8)
DRAWINGS[:, :, 0, 0] = 255


def write_alphabet(path: Path, alphabet: str, characters: int, num_drawers: int = 3) -> None:
    mode = "a" if path.exists() else "w"
    with zipfile.ZipFile(path, mode) as archive:
        for character in range(1, characters + 1):
            for hand in range(1, num_drawers + 1):
                content = io.BytesIO()
                Image.fromarray(np.full((4, 4), 20 * character + hand, np.uint8)).save(content, "PNG")
                name = f"images/{alphabet}/character{character:02}/0{character}_{hand:02}.png"
                archive.writestr(name, content.getvalue())


@pytest.mark.parametrize("shots", [1, 3])
def test_an_episode_shows_each_class_as_often_and_asks_for_a_hand_that_it_has_not_shown(shots: int) -> None:
    images, classes = sample_episodes(np.random.default_rng(0), DRAWINGS, 200, 4, shots)
    assert images.shape == (200, 4 * shots + 1, 3, 3)
    characters, num_drawers = images[:, :, 1, 1] // 16, images[:, :, 1, 1] % 16
    for row in range(200):
        assert sorted(classes[row, :-1]) == sorted([*range(4)] * shots)
        of_class = {int(one): set(characters[row][classes[row] == one].tolist()) for one in range(4)}
        assert all(len(each) == 1 for each in of_class.values())
        assert len(set.union(*of_class.values())) == 4
        drawn = list(zip(characters[row].tolist(), num_drawers[row].tolist(), strict=True))
        assert len(set(drawn)) == len(drawn)
    # Every class is asked for, every character and every hand drawn, and orders differ.
    assert set(classes[:, -1]) == set(range(4))
    assert set(characters.flat) == set(range(7))
    assert set(num_drawers.flat) == set(range(6))
    assert len({tuple(row) for row in classes[:, :-1].tolist()}) > 10


def test_turned_characters_are_new_ones_behind_the_others() -> None:
    assert RotationAugmentation.NONE(DRAWINGS) is DRAWINGS
    rotated, reflected = RotationAugmentation.ROTATIONS(DRAWINGS), RotationAugmentation.REFLECTIONS(DRAWINGS)
    assert (len(rotated), len(reflected)) == (28, 56)
    np.testing.assert_array_equal(rotated[:7], DRAWINGS)
    corners = [np.argwhere(rotated[7 * turn, 0] == 255)[0].tolist() for turn in range(4)]
    assert sorted(corners) == [[0, 0], [0, 2], [2, 0], [2, 2]]
    one = np.zeros((1, 1, 3, 3), np.uint8)
    one[0, 0, 0, :2] = 1, 2
    assert len({each.tobytes() for each in RotationAugmentation.REFLECTIONS(one)}) == 8


def test_alphabets_are_held_out_whole(tmp_path: Path) -> None:
    background = tmp_path / "images_background.zip"
    for number, alphabet in enumerate(("Aa", "Bb", "Cc", "Dd", "Ee"), 1):
        write_alphabet(background, alphabet, number)
    opened = open_character_set("omniglot", data_dir=str(tmp_path), image_size=2)
    assert {split: each.shape for split, each in opened.splits.items()} == {
        "train": (3, 3, 2, 2),
        "validation": (3, 3, 2, 2),
        "test": (9, 3, 2, 2),
    }
    assert opened.split_note == "train: Aa, Bb; validation: Cc; test: Dd, Ee"
    # Ink is bright: the paper was.
    np.testing.assert_array_equal(opened.splits["train"][1, :, 0, 0], 255 - 20 - np.arange(1, 4))
    write_alphabet(tmp_path / "images_evaluation.zip", "Zz", 2)
    opened = open_character_set("omniglot/validation=2", data_dir=str(tmp_path), image_size=2)
    assert opened.split_note == "train: Aa, Bb, Cc; validation: Dd, Ee; test: Zz"
    with pytest.raises(UserError, match="leaves no alphabet to train on"):
        open_character_set("omniglot/validation=5", data_dir=str(tmp_path), image_size=2)
    write_alphabet(background, "Ff", 1, num_drawers=2)
    with pytest.raises(UserError, match="from 2 to 3 drawings"):
        open_character_set("omniglot", data_dir=str(tmp_path), image_size=2)


def test_characters_are_held_out_of_all_alphabets(tmp_path: Path) -> None:
    for archive, alphabet, count in (("background", "Aa", 5), ("background", "Bb", 4), ("evaluation", "Aa", 3)):
        write_alphabet(tmp_path / f"images_{archive}.zip", alphabet, count)
    name = "omniglot_characters/validation=2,test=4"
    opened = open_character_set(name, data_dir=str(tmp_path), image_size=2)
    assert [len(opened.splits[split]) for split in ("train", "validation", "test")] == [6, 2, 4]
    every = np.concatenate([255 - opened.splits[split][:, 0, 0, 0] for split in opened.splits])
    assert sorted(every) == sorted(20 * np.array([1, 2, 3, 4, 5, 1, 2, 3, 4, 1, 2, 3]) + 1)
    again = open_character_set(name, data_dir=str(tmp_path), image_size=2)
    np.testing.assert_array_equal(opened.splits["test"], again.splits["test"])
    other = open_character_set(name + ",seed=1", data_dir=str(tmp_path), image_size=2)
    assert (other.splits["test"] != opened.splits["test"]).any()
    with pytest.raises(UserError, match="leaves none of 12 characters to train on"):
        open_character_set("omniglot_characters/test=10,validation=2", data_dir=str(tmp_path), image_size=2)


def test_characters_drawn_here_are_told_apart_by_what_their_hands_share() -> None:
    drawings = render_characters(np.random.default_rng(0), 6, 4, 14)
    assert (drawings.shape, drawings.dtype) == ((6, 4, 14, 14), np.uint8)
    np.testing.assert_array_equal(drawings, render_characters(np.random.default_rng(0), 6, 4, 14))
    flat = drawings.reshape(24, -1) / 255
    far = np.linalg.norm(flat[:, None] - flat[None], axis=-1)
    assert (far[~np.eye(24, dtype=bool)] > 0.5).all()
    same = np.kron(np.eye(6, dtype=bool), np.ones((4, 4), bool))
    assert far[same & ~np.eye(24, dtype=bool)].mean() < 0.8 * far[~same].mean()
    opened = open_character_set("strokes/train=3,validation=2,test=1,num_drawers=2", data_dir=None, image_size=9)
    assert [len(opened.splits[split]) for split in ("train", "validation", "test")] == [3, 2, 1]
    assert len({each.tobytes() for split in opened.splits.values() for each in split}) == 6


@pytest.mark.parametrize(
    ("name", "data_dir", "told"),
    [
        ("stroke", None, "dataset='stroke' is unknown"),
        ("strokes/train=0", None, "train=0"),
        ("strokes/num_drawers=1", None, "num_drawers=1"),
        ("strokes", "somewhere", "data_dir='somewhere' is for omniglot"),
        ("omniglot/test=0", ".", "test=0"),
        ("omniglot_characters/validation=0", ".", "validation=0"),
        ("omniglot", "nowhere", r"has no images_background\*.zip"),
    ],
)
def test_unfit_names_are_refused(name: str, data_dir: str | None, told: str) -> None:
    with pytest.raises(UserError, match=told):
        open_character_set(name, data_dir=data_dir, image_size=8)


def test_made_up_characters_have_the_shapes_asked_for() -> None:
    assert make_placeholder_characters("omniglot", classes=5, num_drawers=2, image_size=7).splits["test"].shape == (
        5,
        2,
        7,
        7,
    )
    with pytest.raises(UserError, match="is unknown"):
        make_placeholder_characters("glyphs", classes=5, num_drawers=2, image_size=7)


@pytest.mark.slow
def test_the_archives_of_omniglot(shared_data: Path) -> None:
    opened = open_character_set("omniglot", data_dir=str(shared_data / "omniglot"), image_size=14)
    assert [each.shape[:2] for each in opened.splits.values()] == [(157, 20), (26, 20), (59, 20)]
    opened = open_character_set("omniglot_characters", data_dir=str(shared_data / "omniglot"), image_size=14)
    assert [each.shape[:2] for each in opened.splits.values()] == [(162, 20), (20, 20), (60, 20)]
