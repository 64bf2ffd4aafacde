"""Sets of images by name: what TFDS has prepared, read without TensorFlow, and Omniglot's archives."""

import io
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds
from array_record.python.array_record_module import ArrayRecordWriter
from PIL import Image
from tensorflow_datasets.proto import tf_example_pb2

from transformer.config import UserError
from transformer.data.datasets.image_datasets import open_image_dataset, placeholder_image_dataset
from transformer.data.datasets.image_files import Resizing


def png(pixels: np.ndarray) -> bytes:
    written = io.BytesIO()
    Image.fromarray(pixels).save(written, "PNG")
    return written.getvalue()


def gray(value: int) -> np.ndarray:
    return np.full((6, 8), value, np.uint8)


def prepare(root: Path, splits: dict[str, Sequence[tuple[bytes, int]]], *, names: Sequence[str] | None) -> None:
    """What `tfds build` writes: features by TFDS itself, and records as it stores images and classes."""
    folder = root / "tiny" / "1.0.0"
    folder.mkdir(parents=True)
    label = tfds.features.ClassLabel(names=list(names)) if names else tfds.features.ClassLabel(num_classes=2)
    tfds.features.FeaturesDict(
        {"id": tfds.features.Text(), "image": tfds.features.Image(shape=(6, 8, 1)), "label": label}
    ).save_config(str(folder))
    described = []
    for split, records in splits.items():
        writer = ArrayRecordWriter(str(folder / f"tiny-{split}.array_record-00000-of-00001"), "group_size:1")
        for content, number in records:
            example = tf_example_pb2.Example()
            example.features.feature["image"].bytes_list.value.append(content)
            example.features.feature["label"].int64_list.value.append(number)
            writer.write(example.SerializeToString())
        writer.close()
        described.append({"name": split, "shardLengths": [str(len(records))]})
    keys = {"tuple": {"items": [{"featureKey": "image"}, {"featureKey": "label"}]}}
    info = {
        "name": "tiny",
        "version": "1.0.0",
        "fileFormat": "array_record",
        "splits": described,
        "supervisedKeys": keys,
    }
    (folder / "dataset_info.json").write_text(json.dumps(info))


def test_a_set_of_tfds_is_read_as_it_was_prepared(tmp_path: Path) -> None:
    train = [(png(gray(value)), value % 2) for value in range(40)]
    prepare(tmp_path, {"train": train, "test": [(png(gray(200)), 1)]}, names=("nought", "cross"))
    opened = open_image_dataset("tfds/tiny", data_dir=str(tmp_path))
    assert opened.classes == ("nought", "cross")
    assert opened.facts.shape == (6, 8, 1)
    assert opened.split_note == "every 20th training image of a class validates"
    kept, held = opened.split("train"), opened.split("validation")
    assert held.pixels[:, 0, 0, 0].tolist() == [38, 39]
    assert sorted(kept.pixels[:, 5, 7, 0].tolist()) == list(range(38))
    np.testing.assert_array_equal(kept.labels, kept.pixels[:, 0, 0, 0] % 2)
    assert opened.split("test").labels.tolist() == [1]
    assert open_image_dataset("tfds/tiny", data_dir=str(tmp_path), resizing=Resizing(4)).facts.shape == (4, 4, 1)


def test_splits_of_tfds_are_known_by_their_common_spellings(tmp_path: Path) -> None:
    images = [(png(gray(value)), value % 2) for value in range(4)]
    prepare(tmp_path, {"train": images[:2], "valid": images[2:], "extra": images[:1]}, names=("a", "b"))
    opened = open_image_dataset("tfds/tiny", data_dir=str(tmp_path))
    assert {split: len(each.labels) for split, each in opened.splits.items()} == {
        "train": 2,
        "validation": 2,
        "extra": 1,
    }
    assert opened.split_note == "1 of 1 extra images are in train as well"


def test_what_tfds_has_not_prepared_is_refused(tmp_path: Path) -> None:
    prepare(tmp_path / "numbers", {"train": [(png(gray(1)), 0), (png(gray(2)), 1)] * 20}, names=None)
    assert open_image_dataset("tfds/tiny", data_dir=str(tmp_path / "numbers")).classes == ("0", "1")
    prepare(tmp_path / "high", {"train": [(png(gray(1)), 2)]}, names=("a", "b"))
    prepare(tmp_path / "text", {"train": [(b"no image", 0)]}, names=("a", "b"))
    prepare(tmp_path / "sizes", {"train": [(png(gray(1)), 0), (png(gray(1).T), 1)]}, names=("a", "b"))
    prepare(tmp_path / "lines", {"train": [(png(gray(1)), 0)]}, names=("a", "b"))
    (tmp_path / "lines" / "tiny" / "1.0.0" / "label.labels.txt").write_text("a\n")
    prepare(tmp_path / "more", {"train": [(png(gray(1)), 0)]}, names=("a", "b"))
    (tmp_path / "more" / "tiny" / "1.0.0" / "tiny-train.array_record-00001-of-00002").write_bytes(b"")
    for name, folder, says in (
        ("tfds/mnist", None, "mnist is not prepared where config.task.data_dir says: run `tfds build mnist"),
        ("tfds/tiny", "empty", "is not prepared in"),
        ("tfds/../tiny", "high", "is no set of images"),
        ("tfds/tiny", "high", "has the class 2 in train; its classes are 0 to 1"),
        ("tfds/tiny", "text", "is no JPEG or PNG image"),
        ("tfds/tiny", "sizes", "give config.task.image_size"),
        ("tfds/tiny", "lines", "label.labels.txt has 1 lines for 2 classes"),
        ("tfds/tiny", "more", "holds 1 files of records that its dataset_info.json does not name, such as tiny-train"),
        ("minst", None, "is unknown"),
    ):
        with pytest.raises(UserError) as caught:
            open_image_dataset(name, data_dir=folder and str(tmp_path / folder))
        assert says in str(caught.value)
        assert "\n" not in str(caught.value)


def test_made_up_images_of_files_need_none() -> None:
    assert placeholder_image_dataset("tfds/mnist", 3, resizing=Resizing(8)).split("train").pixels.shape == (3, 8, 8, 3)
    assert placeholder_image_dataset("omniglot", 2).split("train").pixels.shape == (2, 32, 32, 3)


def write_omniglot(path: Path, alphabet: str, characters: int) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for character in range(1, characters + 1):
            for drawer in range(1, 21):
                name = f"{path.stem}/{alphabet}/character{character:02d}/{character:04d}_{drawer:02d}.png"
                archive.writestr(name, png(gray(10 * character + drawer)))
        archive.writestr(f"{path.stem}/{alphabet}/notes.txt", "no drawing")


def test_omniglot_is_divided_by_who_drew(tmp_path: Path) -> None:
    write_omniglot(tmp_path / "images_background_small1.zip", "Greek", 2)
    write_omniglot(tmp_path / "images_background_small2.zip", "Greek", 3)
    opened = open_image_dataset("omniglot", data_dir=str(tmp_path))
    assert opened.classes == ("Greek/character01", "Greek/character02", "Greek/character03")
    drawers = {"train": range(1, 17), "validation": range(17, 19), "test": range(19, 21)}
    for split, who in drawers.items():
        images = opened.split(split)
        assert images.labels.tolist() == [number for number in range(3) for _ in who]
        values = [10 * (number + 1) + drawer for number in range(3) for drawer in who]
        assert images.pixels[:, 0, 0, 0].tolist() == values
    with pytest.raises(UserError, match=r"has no images_background\*.zip"):
        open_image_dataset("omniglot", data_dir=str(tmp_path / "images_background_small1"))
    (tmp_path / "images_background_small2.zip").write_bytes(b"PK broken")
    with pytest.raises(UserError, match="cannot be read as an archive"):
        open_image_dataset("omniglot", data_dir=str(tmp_path))


def test_the_archives_of_omniglot(shared_data: Path) -> None:
    opened = open_image_dataset("omniglot", data_dir=str(shared_data / "omniglot"), resizing=Resizing(12))
    assert len(opened.classes) == 242
    assert [len(opened.split(split).labels) for split in ("train", "validation", "test")] == [3872, 484, 484]
    train = opened.split("train").pixels
    assert np.median(train) == 255  # ink is dark on white
    assert train.min() < 130
