"""Open any data set of labeled images."""

import dataclasses
import pathlib
from collections.abc import Mapping
from hashlib import sha256
from typing import Annotated

import numpy as np
from jaxtyping import Bool, Int

from transformer.config import Config, PositiveInt, Range, UserError, from_config, suggest_nearest
from transformer.data.datasets.dataset_name_options import parse_int_options
from transformer.data.datasets.image_files import (
    NO_RESIZING,
    Resizing,
    decode_image,
    find_image_splits,
    read_split,
    stack_labeled_images,
)
from transformer.data.datasets.local_files import canonical_split_names, describe_left_out, join_notes, locate_file
from transformer.data.datasets.omniglot import read_omniglot
from transformer.data.datasets.split_overlap import describe_overlap
from transformer.data.datasets.synthetic_symbols import SPLITS
from transformer.data.datasets.tfds_preparation import DatasetKind, find_prepared_folder, parse_tfds_name
from transformer.data.datasets.tfds_records import TfdsFeatures, open_prepared_folder, read_encoded_image_and_label
from transformer.data.images import ImageSpec, LabeledImages
from transformer.data.synthetic_glyphs import DIGITS, GLYPHS, draw_glyphs

_KIND = DatasetKind("set of images", "tfds/NAME, such as tfds/mnist", ())
OMNIGLOT, TFDS = "omniglot", "tfds"
_VALIDATION_STEP = 20  # One in this many training images of a class is for validation, if the files have no such split.
_GLYPHS = {"digits": tuple(DIGITS), "glyphs": tuple(GLYPHS)}
_KNOWN = (*_GLYPHS, OMNIGLOT, f"{TFDS}/NAME")


@dataclasses.dataclass(frozen=True)
class ImageDataset:
    """A data set of images of one size.

    Attributes:
        name: Its name.
        classes: The names of its classes, by number.
        splits: Its images by split.
        split_note: How the splits were cut and read.
    """

    name: str
    classes: tuple[str, ...]
    splits: Mapping[str, LabeledImages]
    split_note: str = ""

    @property
    def facts(self) -> ImageSpec:
        """The shape and the classes of the images."""
        height, width, channels = next(iter(self.splits.values())).pixels.shape[1:]
        return ImageSpec((height, width, channels), self.classes)

    def split(self, name: str) -> LabeledImages:
        """Return the images of a split.

        Raises:
            UserError: If the data set does not have it.
        """
        if name not in self.splits:
            raise UserError(f"{self.name} has no split {name!r}: {suggest_nearest(name, self.splits)}")
        return self.splits[name]


@dataclasses.dataclass(frozen=True)
class SyntheticGlyphsDatasetConfig(Config):
    """Gray images of one glyph each, with classes in turn.

    Attributes:
        size: The side of an image in pixels.
        train: The number of training images.
        validation: The number of validation images.
        test: The number of test images.
        seed: The seed; a split is drawn from seed and split.
    """

    size: Annotated[int, Range(8)] = 28
    train: PositiveInt = 6000
    validation: PositiveInt = 500
    test: PositiveInt = 1000
    seed: int = 0

    def draw(self, split: str, classes: tuple[str, ...]) -> LabeledImages:
        """Draw the images of a split."""
        random = np.random.default_rng((self.seed, SPLITS.index(split)))
        labels = np.arange(getattr(self, split)) % len(classes)
        parts = [
            draw_glyphs([classes[label] for label in labels[start : start + 256]], self.size, random)
            for start in range(0, len(labels), 256)
        ]
        noisy = 0.9 * np.concatenate(parts) + random.normal(0.05, 0.04, (len(labels), self.size, self.size))
        return LabeledImages((255 * np.clip(noisy, 0, 1)).astype(np.uint8)[..., None], labels.astype(np.int32))


def open_image_dataset(name: str, *, data_dir: str | None = None, resizing: Resizing = NO_RESIZING) -> ImageDataset:
    """Open a data set of labeled images.

    Args:
        name: One of: "digits" or "glyphs", generated images, with options as in "digits/size=20,train=2000"; a folder
            of JPEG and PNG files by split and class (transformer.data.datasets.image_files); "omniglot", whose archives
            are in `data_dir`; "tfds/NAME", a data set that TFDS has prepared in `data_dir`.
        data_dir: The folder of the data; None resolves names relative to here.
        resizing: How images in files are resized.

    Raises:
        UserError: If the name is unknown, or files are missing or malformed.
    """
    kind, _, tfds_name = name.partition("/")
    if kind in _GLYPHS:
        glyph_config, classes = _parse_glyph_config(name, resizing)
        return ImageDataset(name, classes, {split: glyph_config.draw(split, classes) for split in SPLITS})
    if kind == TFDS and tfds_name:
        return _make_dataset(name, *read_prepared_images(tfds_name, data_dir, resizing))
    if name == OMNIGLOT:
        return _make_dataset(name, *read_omniglot(data_dir, resizing))
    if not (path := locate_file(name, data_dir)).is_dir():
        raise UserError(
            f"config.task.dataset={name!r} is unknown ({suggest_nearest(name, _KNOWN)}), and there is no folder "
            f"{path}: give "
            "one that holds train/CLASS/*.jpg or .png, or train.tar.gz with these"
        )
    return _make_dataset(name, *_read_folder(name, path, resizing))


def placeholder_image_dataset(name: str, count: int, *, resizing: Resizing = NO_RESIZING) -> ImageDataset:
    """Return gray training images of the size of a data set's images, without reading or drawing anything.

    The classes of files are unknown: the placeholder has two classes and color images, of 32 pixels a side if not
    resized.

    Args:
        name: The name of the data set.
        count: The number of images.
        resizing: How images in files are resized.

    Raises:
        UserError: If options of a generated data set are invalid.
    """
    kind, _, _ = name.partition("/")
    shape: tuple[int, ...] = (resizing.image_size or 32, resizing.image_size or 32, 3)
    classes: tuple[str, ...] = ("one", "other")
    if kind in _GLYPHS:
        glyph_config, classes = _parse_glyph_config(name, resizing)
        shape = (glyph_config.size, glyph_config.size, 1)
    labels = np.arange(count, dtype=np.int32) % len(classes)
    return ImageDataset(name, classes, {"train": LabeledImages(np.full((count, *shape), 127, np.uint8), labels)})


def _parse_glyph_config(name: str, resizing: Resizing) -> tuple[SyntheticGlyphsDatasetConfig, tuple[str, ...]]:
    """Return the config of a generated data set's images, and its classes."""
    kind, _, options = name.partition("/")
    if resizing != NO_RESIZING:
        keys = "config.task.image_size, resize_side, resample and resize_shape"
        raise UserError(
            f"{keys} are for files: say the size of drawn images by {kind}/size={resizing.image_size or 20}"
        )
    return from_config(
        SyntheticGlyphsDatasetConfig, parse_int_options(kind, options, "size=20,train=2000"), kind
    ), _GLYPHS[kind]


def read_prepared_images(
    name: str, data_dir: str | None, resizing: Resizing
) -> tuple[Mapping[str, LabeledImages], tuple[str, ...]]:
    """Read all splits of a data set that `tfds build NAME` has prepared in `data_dir`, and the names of its classes.

    Image and class are those of the supervised keys, else the first of each.

    Args:
        name: The TFDS name.
        data_dir: The folder in which it is prepared.
        resizing: How images are resized.

    Raises:
        UserError: If the data set is not prepared (TFDS cannot write images without TensorFlow), has no images or
            classes, or files cannot be read.
    """
    parse_tfds_name(name, _KIND)
    folder = find_prepared_folder(name, data_dir)
    if folder is None:
        where = f"in {data_dir}" if data_dir else "where config.task.data_dir says"
        raise UserError(
            f"{name} is not prepared {where}: run `tfds build {name} --file_format=array_record` where TensorFlow is "
            "installed, and give the folder that it wrote to by --data_dir"
        )
    prepared = open_prepared_folder(folder)
    image, label = _find_feature_names(name, prepared.features)
    gray, classes = prepared.features.image_channels[image] == 1, prepared.features.class_names[label]
    splits = {}
    for split, canonical_split in canonical_split_names(prepared.splits).items():
        records = prepared.records(split)
        read = [read_encoded_image_and_label(record, image, label) for record in records]
        if not read:
            raise UserError(f"{folder} has no record in its split {split!r}: prepare it again")
        if strangers := [number for _, number in read if not 0 <= number < len(classes)]:
            raise UserError(
                f"{folder} has the class {strangers[0]} in {split}; its classes are 0 to {len(classes) - 1}"
            )
        pixels = [decode_image(content, f"{folder}: {split}", resizing, gray=gray) for content, _ in read]
        splits[canonical_split] = stack_labeled_images(f"{name}, {split},", pixels, [number for _, number in read])
    return splits, classes


def _find_feature_names(name: str, features: TfdsFeatures) -> tuple[str, str]:
    """Return the names of the features of the image and of the class."""
    feature_names = []
    for candidates, what in ((features.image_channels, "image"), (features.class_names, "class")):
        if not candidates:
            raise UserError(f"{name} has no {what}: its features are {', '.join(features.feature_names)}")
        feature_names.append(
            next((key for key in features.supervised_keys if key in candidates), next(iter(candidates)))
        )
    image, label = feature_names
    return image, label


def _read_folder(
    name: str, path: pathlib.Path, resizing: Resizing
) -> tuple[Mapping[str, LabeledImages], tuple[str, ...], str]:
    sources, left_out = find_image_splits(path)
    if "train" not in sources:
        raise UserError(f"{name} has the splits {', '.join(sources)} but no train: call one of them so")
    train = read_split(sources.pop("train"), resizing, None)
    other_splits = {split: read_split(source, resizing, train.classes) for split, source in sources.items()}
    notes = join_notes(
        (describe_left_out(left_out), train.note, *(image_split.note for image_split in other_splits.values()))
    )
    return (
        {"train": train.images} | {split: image_split.images for split, image_split in other_splits.items()},
        train.classes,
        notes,
    )


def _make_dataset(
    name: str, read: Mapping[str, LabeledImages], classes: tuple[str, ...], notes: str = ""
) -> ImageDataset:
    """Return the data set of all splits; without a validation split, part of training is held out."""
    if "train" not in read:
        raise UserError(f"{name} has the splits {', '.join(read)} but no train")
    train, splits, split_note = read["train"], {split: images for split, images in read.items() if split != "train"}, ""
    if "validation" not in splits:
        counts = np.bincount(train.labels)
        if (single := np.flatnonzero(counts == 1)).size:
            raise UserError(
                f"{name} has one training image of {classes[single[0]]!r}, which cannot train and validate: give more, "
                "or a split validation"
            )
        is_validation = _mark_last_of_every(train, _VALIDATION_STEP)
        splits["validation"] = LabeledImages(train.pixels[is_validation], train.labels[is_validation])
        train = LabeledImages(train.pixels[~is_validation], train.labels[~is_validation])
        split_note = _describe_held_out(counts[counts > 0])
    for split, images in splits.items():
        if images.pixels.shape[1:] != train.pixels.shape[1:]:
            sizes = " x ".join(map(str, images.pixels.shape[1:])), " x ".join(map(str, train.pixels.shape[1:]))
            raise UserError(
                f"{name} has images of {sizes[0]} in {split}, of {sizes[1]} in train: give config.task.image_size"
            )
    splits = {"train": train, **splits}
    in_order = sorted(splits, key=lambda split: SPLITS.index(split) if split in SPLITS else len(SPLITS))
    digests = {split: [sha256(one.tobytes()).digest() for one in splits[split].pixels] for split in in_order}
    overlap = describe_overlap(digests, "images")
    return ImageDataset(name, classes, splits, join_notes((split_note, notes, overlap)))


def _describe_held_out(counts: Int[np.ndarray, " C"]) -> str:
    """Describe which training images validate, by the number of images of each class."""
    if max(counts) < _VALIDATION_STEP:
        return "the last training image of a class validates"
    fewer = ", and the last of a class that has fewer" if min(counts) < _VALIDATION_STEP else ""
    return f"every {_VALIDATION_STEP}th training image of a class validates{fewer}"


def _mark_last_of_every(images: LabeledImages, step: int) -> Bool[np.ndarray, " N"]:
    """Return which images are the last of every `step` images of their class; of a class of fewer, its last."""
    is_last = np.zeros(len(images.labels), bool)
    for label in np.unique(images.labels):
        members = np.flatnonzero(images.labels == label)
        is_last[members[min(step, len(members)) - 1 :: step]] = True
    return is_last
