"""easy-VQA from its archive or its folders: splits, kinds, images, and files that are not as published."""

import collections
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.visual_question_answering.data import question_only_accuracy
from experiments.visual_question_answering.easy_vqa_data import (
    QUESTION_VOCABULARY,
    make_placeholder_questions,
    open_easy_vqa,
)
from transformer.config import UserError

REAL = Path(__file__).parents[3].parent / "shared/data/easy-vqa"
COLORS = {"red": (255, 0, 0), "blue": (0, 0, 255)}


def write(folder: Path, images: int = 10) -> Path:
    """Images of one color, and two questions about each."""
    image = pytest.importorskip("PIL.Image")
    for split, count in (("train", images), ("test", 2)):
        (folder / split / "images").mkdir(parents=True)
        rows: list[Any] = []
        for number in range(count):
            color = ("red", "blue")[number % 2]
            image.new("RGB", (64, 64), COLORS[color]).save(folder / split / "images" / f"{number}.png")
            rows += [["What color is the shape?", color, number], ["is there a red shape?", "yes", number]]
        (folder / split / "questions.json").write_text(json.dumps(rows))
    return folder


def test_a_tenth_of_the_images_validates_with_all_that_is_asked_about_them(tmp_path: Path) -> None:
    opened = open_easy_vqa(str(write(tmp_path)))
    sizes = {name: (len(split.questions), len(split.images)) for name, split in opened.splits.items()}
    assert sizes == {"train": (18, 9), "validation": (2, 1), "test": (4, 2)}
    assert "18 train, 2 validation, 4 test questions" in opened.description
    (batch,) = opened.held_out_batches("validation", 4)
    assert batch["image"].shape == (4, 64, 64, 3)
    np.testing.assert_array_equal(batch["image"][0, 0, 0], [-1, -1, 1])  # the tenth image is blue
    assert [QUESTION_VOCABULARY.answers[label] for label in batch["labels"][:2]] == ["blue", "yes"]
    assert [QUESTION_VOCABULARY.kinds[kind] for kind in batch["kinds"][:2]] == ["color", "yes_no"]
    assert batch["index"].tolist() == [0, 1, -1, -1]
    epoch = [opened.training_batches(6, 0)[step] for step in range(3)]
    for each in epoch:
        for image, label in zip(each["image"], each["labels"], strict=True):
            if (color := COLORS.get(QUESTION_VOCABULARY.answers[label])) is not None:
                np.testing.assert_array_equal(image[5, 5], np.array(color) / np.float32(127.5) - 1)
    orders = {
        (seed, part): opened.training_batches(6, seed)[part]["tokens"].tobytes() for seed in range(2) for part in (0, 3)
    }
    assert len(set(orders.values())) == 4, "every seed and every epoch has an order of its own"
    answers = collections.Counter(QUESTION_VOCABULARY.answers[label] for each in epoch for label in each["labels"])
    assert answers == {"yes": 9, "red": 5, "blue": 4}
    np.testing.assert_array_equal(opened.test_image(1)[0, 0], COLORS["blue"])
    with pytest.raises(UserError, match="images 0 to 1"):
        opened.test_image(2)


def test_an_archive_holds_what_folders_hold(tmp_path: Path) -> None:
    of_folders = open_easy_vqa(str(write(tmp_path / "folders")))
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
        for file in sorted((tmp_path / "folders").rglob("*.*")):
            archive.write(file, file.relative_to(tmp_path / "folders"))
    assert open_easy_vqa(str(tmp_path)).fingerprint() == of_folders.fingerprint()


def damaged(folder: Path, what: str) -> str | None:
    questions, image = folder / "test/questions.json", folder / "test/images/1.png"
    match what:
        case "no folder":
            return None
        case "no questions":
            questions.unlink()
        case "no json":
            questions.write_text("{")
        case "a number":
            questions.write_text("[[1, 2, 3]]")
        case "another answer":
            questions.write_text(json.dumps([["what color is the shape?", "mauve", 0]]))
        case "another word":
            questions.write_text(json.dumps([["what colr is the shape?", "red", 0]]))
        case "no image":
            image.unlink()
        case "half an image":
            image.write_bytes(image.read_bytes()[:60])
        case "a large image":
            pytest.importorskip("PIL.Image").new("RGB", (65, 64)).save(image)
        case "a far image":
            questions.write_text(json.dumps([["what color is the shape?", "red", 10**9]]))
        case "no archive":
            (folder / "data.zip").write_bytes(b"none")
    return str(folder)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("no folder", "give the folder that holds easy-VQA's data.zip"),
        ("no questions", "no file .*test/questions.json"),
        ("no json", "is not a list of"),
        ("a number", "is not a list of"),
        ("another answer", "'mauve' is no answer"),
        ("another word", "did you mean 'color'"),
        ("no image", "no file .*1.png"),
        ("half an image", "1.png is no JPEG or PNG image that can be read"),
        ("a large image", "65 x 64 pixels, not 64 x 64"),
        ("a far image", "names image"),
        ("no archive", "data.zip cannot be read as an archive"),
    ],
)
def test_files_that_are_not_as_published_are_refused(tmp_path: Path, what: str, message: str) -> None:
    given = damaged(write(tmp_path, 2), what)
    with pytest.raises(UserError, match=message):
        open_easy_vqa(given)


def test_the_made_up_set_has_the_shapes_of_the_real_one(tmp_path: Path) -> None:
    real, made = (
        open_easy_vqa(str(write(tmp_path))).training_batches(4, 0)[0],
        make_placeholder_questions().training_batches(4, 0)[0],
    )
    assert {name: (values.shape, values.dtype) for name, values in real.items()} == {
        name: (values.shape, values.dtype) for name, values in made.items()
    }


@pytest.mark.slow
@pytest.mark.skipif(not REAL.is_dir(), reason="easy-VQA is not beside the checkout")
def test_the_published_set_has_the_published_numbers() -> None:
    opened = open_easy_vqa(str(REAL))
    assert len(opened.split_questions("train")) + len(opened.split_questions("validation")) == 38_575
    assert len(opened.split_questions("test")) == 9_673
    words = {word for split in opened.splits.values() for each in split.questions for word in each.words}
    assert words == set(QUESTION_VOCABULARY.words)
    assert {each.answer for each in opened.split_questions("train")} == set(QUESTION_VOCABULARY.answers)
    everything = [*opened.split_questions("train"), *opened.split_questions("validation")]
    assert question_only_accuracy(everything, opened.split_questions("test"))[""] == pytest.approx(0.670, abs=0.005)
