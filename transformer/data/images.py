"""Labeled images in memory, and batches of them with augmentation."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
from jaxtyping import Float, Int, Shaped, UInt8

from transformer.config import Config, Fraction, NonNegativeFloat, NonNegativeInt, PositiveFloat, TupleLimits, UserError
from transformer.data.batches import Batch, Bucket, BucketPlan
from transformer.storage.json_reading import read_json_object
from transformer.storage.paths import storage_of

_MIDDLE, _WHITE = 127.5, 255
IMAGE_SPEC_FILE = "images.json"
"""The file of a run directory with the shape and classes of its images (`ImageSpec`)."""


class LabeledImages(NamedTuple):
    """Images of one size and the numbers of their classes."""

    pixels: UInt8[np.ndarray, "N height width channels"]
    labels: Int[np.ndarray, " N"]


@dataclasses.dataclass(frozen=True)
class Augmentation(Config, path="config.task.augmentation"):
    """The augmentation of training images; each field is independent, and the defaults do nothing.

    Attributes:
        crop: Pixels of middle gray added around an image, of which a part of the original size is cropped at random.
        flip: The probability of mirroring an image left to right.
        cutout: The side of a square at a random position that is set to zero in normalized pixels (DeVries and Taylor
            2017). At the edge less of it lies in the image.
        mixup: Alpha of the weights Beta(alpha, alpha) with which an image and its label are mixed with another of the
            batch (Zhang et al. 2018).

    Raises:
        UserError: If a value is out of range.
    """

    crop: NonNegativeInt = 0
    flip: Fraction = 0.0
    cutout: NonNegativeInt = 0
    mixup: NonNegativeFloat = 0.0


NO_AUGMENTATION = Augmentation()


@dataclasses.dataclass(frozen=True)
class Normalization(Config, path="config.task.normalization"):
    """Pixels from 0 to 1, minus `mean`, divided by `deviation`: one number each, or one for every channel.

    The defaults map pixels to -1 ... 1.

    Raises:
        UserError: If a deviation is not above 0.
    """

    mean: Annotated[tuple[float, ...], TupleLimits(min_length=1)] = (0.5,)
    deviation: Annotated[tuple[PositiveFloat, ...], TupleLimits(min_length=1)] = (0.5,)

    def __call__(self, pixels: UInt8[np.ndarray, "*B C"]) -> Float[np.ndarray, "*B C"]:
        """Normalize pixels.

        Args:
            pixels: Pixels from 0 to 255.

        Raises:
            UserError: If the mean or the deviation has neither one number nor one for every channel.
        """
        for name, numbers in (("mean", self.mean), ("deviation", self.deviation)):
            if len(numbers) not in (1, pixels.shape[-1]):
                raise UserError(
                    f"config.task.normalization.{name}={numbers} has {len(numbers)} numbers, the images have "
                    f"{pixels.shape[-1]} channels: give one, or as many"
                )
        mean, deviation = np.asarray(self.mean, np.float32), np.asarray(self.deviation, np.float32)
        return pixels / (_WHITE * deviation) - mean / deviation


NORMALIZATION = Normalization()


def scale_pixels(pixels: UInt8[np.ndarray, "*B C"]) -> Float[np.ndarray, "*B C"]:
    """Map pixels from 0 ... 255 to -1 ... 1."""
    return NORMALIZATION(pixels)


def unscale_pixels(images: Float[np.ndarray, "*B"]) -> UInt8[np.ndarray, "*B"]:
    """Map values from -1 ... 1 back to pixels from 0 to 255: the inverse of `scale_pixels`."""
    return np.clip(np.round((images + 1) * _MIDDLE), 0, _WHITE).astype(np.uint8)


class ImageSpec(NamedTuple):
    """The shape and the classes of a run's images, as its directory keeps them.

    Attributes:
        shape: The shape of an image, [height, width, channels].
        classes: The names of the classes.
    """

    shape: tuple[int, int, int]
    classes: tuple[str, ...]

    def save(self, directory: Path) -> None:
        """Write it into a run directory."""
        content = json.dumps({"shape": self.shape, "classes": self.classes}, indent=2)
        storage_of(directory).replace(directory / IMAGE_SPEC_FILE, f"{content}\n".encode())

    @classmethod
    def load(cls, directory: Path) -> "ImageSpec":
        """Read it from a run directory.

        Raises:
            UserError: If the file is missing or malformed.
        """
        spec = read_json_object(directory / IMAGE_SPEC_FILE)
        shape, classes = spec.get("shape"), spec.get("classes")
        sizes = [size for size in shape if type(size) is int and size > 0] if isinstance(shape, list) else []
        names = [name for name in classes if isinstance(name, str)] if isinstance(classes, list) else []
        if len(sizes) != 3 or sizes != shape or not names or names != classes:
            raise UserError(
                f"{directory / IMAGE_SPEC_FILE} does not say the shape of three sizes and the classes of the images"
            )
        height, width, channels = sizes
        return cls((height, width, channels), tuple(names))


class MixedImages(NamedTuple):
    """Normalized images after augmentation.

    Attributes:
        images: The images.
        partners: The row of the batch that each image is mixed with.
        shares: The weight of the row's own image.
    """

    images: Float[np.ndarray, "B height width channels"]
    partners: Int[np.ndarray, " B"]
    shares: Float[np.ndarray, " B"]


def augment(
    pixels_BxYxXxC: UInt8[np.ndarray, "B Y X C"],
    how: Augmentation,
    random: np.random.Generator,
    normalize: Normalization = NORMALIZATION,
) -> MixedImages:
    """Crop, flip, normalize, cut out and mix images, in this order.

    Args:
        pixels_BxYxXxC: Pixels from 0 to 255.
        how: The augmentation.
        random: The random generator.
        normalize: The normalization.
    """
    count, height, width, _ = pixels_BxYxXxC.shape
    if how.crop:
        padding = ((0, 0), (how.crop, how.crop), (how.crop, how.crop), (0, 0))
        padded = np.pad(pixels_BxYxXxC, padding, constant_values=round(_MIDDLE))
        corner_2xB = random.integers(0, 2 * how.crop + 1, (2, count))
        rows_BxY = corner_2xB[0][:, None] + np.arange(height)
        columns_BxX = corner_2xB[1][:, None] + np.arange(width)
        pixels_BxYxXxC = padded[np.arange(count)[:, None, None], rows_BxY[:, :, None], columns_BxX[:, None, :]]
    if how.flip:
        flipped_B = np.less(random.random(count), how.flip)
        mirrored = pixels_BxYxXxC[:, :, ::-1]
        pixels_BxYxXxC = np.where(flipped_B[:, None, None, None], mirrored, pixels_BxYxXxC)
    images = normalize(pixels_BxYxXxC)
    if how.cutout:
        first_Bx2 = random.integers(0, (height, width), (count, 2)) - how.cutout // 2
        offset_y, offset_x = np.arange(height) - first_Bx2[:, :1], np.arange(width) - first_Bx2[:, 1:]
        inside_y, inside_x = ((offset >= 0) & (offset < how.cutout) for offset in (offset_y, offset_x))
        images[inside_y[:, :, None] & inside_x[:, None, :]] = 0
    partners_B, shares_B = np.arange(count), np.ones(count, np.float32)
    if how.mixup:
        partners_B = random.permutation(count)
        shares_B = np.asarray(random.beta(how.mixup, how.mixup, count), np.float32)
        shares = shares_B[:, None, None, None]
        images = shares * images + (1 - shares) * images[partners_B]
    return MixedImages(images, partners_B, shares_B)


class ImageBatches:
    """Endless batches of images, epoch after epoch; their augmentation is a function of (seed, step).

    An epoch has every image once. Patches are shuffled last (`shuffle_patches`). Rows that fill up the last batch have
    `index` -1.

    Each batch has `image` [B, height, width, channels], normalized, `labels` [B], `index` [B], the number of the image,
    and `others` [B] and `share` [B]: the label of a row is `labels` with weight `share` and `others` with the rest.

    Args:
        images: The images.
        rows: Images in a batch.
        seed: The seed; the order is drawn from (seed, epoch). None keeps the order of the data and does not augment.
        augmentation: The augmentation.
        normalize: The normalization.
        shuffled_by: The side of shuffled patches; 0 does not shuffle.
    """

    def __init__(
        self,
        images: LabeledImages,
        *,
        rows: int,
        seed: int | None,
        augmentation: Augmentation = NO_AUGMENTATION,
        normalize: Normalization = NORMALIZATION,
        shuffled_by: int = 0,
    ):
        self._images, self._seed, self._augmentation, self._normalize = images, seed, augmentation, normalize
        self._shuffled_by = shuffled_by
        bucket = Bucket(1, rows, np.arange(len(images.labels)))
        self._plan = BucketPlan([bucket], seed)
        self.batches_per_epoch = self._plan.batches_per_epoch

    def __getitem__(self, step: int) -> Batch:
        """Return the batch of one step."""
        bucket, example_indices = self._plan[step]
        index = np.full(bucket.batch_size, -1, np.int32)
        index[: len(example_indices)] = example_indices
        # Padding rows repeat the first image of the batch and do not count.
        image_indices = np.where(index < 0, example_indices[0], index)
        labels = self._images.labels[image_indices].astype(np.int32)
        how = NO_AUGMENTATION if self._seed is None else self._augmentation
        # The order of an epoch is drawn from (seed, epoch); a third number makes this stream different.
        random = np.random.default_rng((self._seed or 0, step, 1))
        mixed = augment(self._images.pixels[image_indices], how, random, self._normalize)
        return {
            "image": shuffle_patches(mixed.images, self._shuffled_by),
            "labels": labels,
            "others": labels[mixed.partners],
            "share": mixed.shares,
            "index": index,
        }


def shuffle_patches(pixels: Shaped[np.ndarray, "N Y X C"], patch: int) -> Shaped[np.ndarray, "N Y X C"]:
    """Permute the square patches of images, in the same way for all images.

    Args:
        pixels: The images.
        patch: The side of a patch in pixels; 0 returns the images unchanged.

    Raises:
        UserError: If patches do not divide the images.
    """
    if not patch:
        return pixels
    count, height, width, channels = pixels.shape
    if height % patch or width % patch:
        raise UserError(
            f"config.task.shuffled_patch_size={patch} does not divide the images of {height} x {width} pixels into "
            "squares"
        )
    rows, columns = height // patch, width // patch
    cut = pixels.reshape(count, rows, patch, columns, patch, channels).swapaxes(2, 3)
    order = np.random.default_rng(0).permutation(rows * columns)
    moved = cut.reshape(count, rows * columns, patch, patch, channels)[:, order]
    return moved.reshape(count, rows, columns, patch, patch, channels).swapaxes(2, 3).reshape(pixels.shape)
