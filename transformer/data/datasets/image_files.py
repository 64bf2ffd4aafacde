"""Images in files: a folder or a tar archive for each split, with one folder for each class."""

import concurrent.futures
import dataclasses
import enum
import io
import pathlib
import tarfile
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import UInt8

from transformer.config import Config, PositiveInt, UserError, suggest_nearest
from transformer.data.datasets.local_files import (
    check_folder_entry,
    describe_left_out,
    is_hidden,
    is_readme_or_license,
    join_notes,
    refuse_unknown_files,
    split_from_file_name,
)
from transformer.data.images import LabeledImages
from transformer.data.png import SIGNATURE

_ARCHIVES = (".tar.gz", ".tgz", ".tar")
_ENDINGS = (".jpg", ".jpeg", ".png")
# No data set has larger images; decoding larger files could exhaust memory.
MAX_IMAGE_BYTES = 64 * 2**20
_THREADS = 4


class _File(NamedTuple):
    """An image file: its class, its name in the split, and its content."""

    label: str
    name: str
    content: bytes


class ResampleFilter(enum.Enum):
    """The filters of Pillow for resizing images."""

    NEAREST = "nearest"
    BOX = "box"
    BILINEAR = "bilinear"
    HAMMING = "hamming"
    BICUBIC = "bicubic"
    LANCZOS = "lanczos"


@dataclasses.dataclass(frozen=True)
class Resizing(Config, path="config.task"):
    """How images in files are resized.

    Attributes:
        image_size: The side of the resized images in pixels. None does not resize.
        resize_side: If set, images are resized to this side, and the middle `image_size` x `image_size` pixels are
            cropped.
        resample: The filter.

    Raises:
        UserError: If a value is out of range.
    """

    image_size: PositiveInt | None = None
    resize_side: int | None = None
    resample: ResampleFilter = ResampleFilter.BILINEAR

    def _check(self) -> None:
        if self.resize_side is not None and (self.image_size is None or self.resize_side < self.image_size):
            raise UserError(
                f"config.task.resize_side={self.resize_side} must be at least "
                f"config.task.image_size={self.image_size}, which is "
                "cut from its middle"
            )

    def __call__(self, image: Any) -> Any:
        """Resize a Pillow image."""
        from PIL import Image

        if self.image_size is None:
            return image
        resized = self.resize_side or self.image_size
        image = image.resize((resized, resized), Image.Resampling[self.resample.name])
        first = (resized - self.image_size) // 2
        return image.crop((first, first, first + self.image_size, first + self.image_size))


NO_RESIZING = Resizing()


class ImageSources(NamedTuple):
    """The path of each split, and the names of files that are not read."""

    splits: dict[str, pathlib.Path]
    left_out: tuple[str, ...]


def find_image_splits(path: pathlib.Path) -> ImageSources:
    """Find the splits of a folder: a folder SPLIT, or an archive SPLIT.tar.gz, SPLIT.tgz or SPLIT.tar.

    Raises:
        UserError: If there are none, one split twice, or other files.
    """
    splits: dict[str, pathlib.Path] = {}
    left_out: list[str] = []
    unknown: list[str] = []
    for entry in _entries(path, left_out):
        ending = next((ending for ending in _ARCHIVES if entry.name.lower().endswith(ending)), "")
        if not entry.is_dir() and not ending:
            (left_out if is_readme_or_license(entry.name) else unknown).append(entry.name)
            continue
        stem = entry.name[: len(entry.name) - len(ending)]
        split = split_from_file_name(stem) or stem
        if split in splits:
            raise UserError(f"{path} has both {splits[split].name} and {entry.name} for {split}: remove one of them")
        splits[split] = entry
    refuse_unknown_files(path, unknown, _ARCHIVES)
    if not splits:
        raise UserError(f"{path} holds no split: put folders such as train/CLASS/*.jpg or train.tar.gz into it")
    return ImageSources(splits, tuple(left_out))


class ImageSplit(NamedTuple):
    """The images of a split, its classes, and notes about its files."""

    images: LabeledImages
    classes: tuple[str, ...]
    note: str


def read_split(source: pathlib.Path, resizing: Resizing, classes: tuple[str, ...] | None) -> ImageSplit:
    """Read the images of a split in color, sorted by class and name.

    Args:
        source: The folder or archive.
        resizing: How images are resized.
        classes: The classes of the training split; None takes those of this split.

    Raises:
        UserError: If a class is not among `classes`, there are fewer than two, one has no images, images differ in
            size, a file is not an image, or an image is not in the folder of a class.
    """
    left_out: list[str] = []
    files = sorted(_archived(source, left_out) if source.is_file() else _in_folder(source, left_out))
    found = tuple(sorted({file.label for file in files}))
    if not files:
        raise UserError(f"{source} holds no images: put CLASS/*.jpg or .png into it")
    if classes is None and len(found) < 2:
        raise UserError(f"{source} has images of {len(found)} classes: it needs a folder for each of at least two")
    classes = found if classes is None else classes
    if strangers := [label for label in found if label not in classes]:
        raise UserError(
            f"{source} has the class {strangers[0]!r}, which train has not: {suggest_nearest(strangers[0], classes)}"
        )
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        pixels = list(pool.map(lambda file: decode_image(file.content, f"{source}: {file.name}", resizing), files))
    numbers = {label: number for number, label in enumerate(classes)}
    images = stack_labeled_images(str(source), pixels, [numbers[file.label] for file in files])
    wide = sum(_has_16_bits(file.content) for file in files)
    depth = f"of {wide:,} images of 16 bits a channel in {source.name} the upper eight are kept" if wide else ""
    return ImageSplit(
        images, classes, join_notes((depth, describe_left_out([f"{source.name}/{name}" for name in left_out])))
    )


def _has_16_bits(content: bytes) -> bool:
    """Whether a PNG file has 16 bits per channel, by its header."""
    return content[:8] == SIGNATURE and content[24:25] == b"\x10"


def stack_labeled_images(
    source: str, pixels: Sequence[UInt8[np.ndarray, "height width C"]], labels: Sequence[int]
) -> LabeledImages:
    """Stack images of one size.

    Args:
        source: The name of their source, for the message.
        pixels: The images.
        labels: Their classes.

    Raises:
        UserError: If sizes differ.
    """
    sizes = {one.shape for one in pixels}
    if len(sizes) > 1:
        first, second = sorted(sizes)[:2]
        raise UserError(
            f"{source} has images of {first[1]} x {first[0]} and of {second[1]} x {second[0]} pixels: give "
            "config.task.image_size, to which all are resized"
        )
    return LabeledImages(np.stack(pixels), np.array(labels, np.int32))


def decode_image(
    content: bytes, name: str, resizing: Resizing = NO_RESIZING, *, gray: bool = False
) -> UInt8[np.ndarray, "height width C"]:
    """Decode a JPEG or PNG file, apply its EXIF orientation, and resize it.

    Of 16 bits per channel the upper eight are kept; transparency is dropped.

    Args:
        content: The content of the file.
        name: The name of the file, for messages.
        resizing: How it is resized.
        gray: Whether to convert it to one channel.

    Raises:
        UserError: If the file is not a JPEG or PNG image or is too large, or Pillow is not installed.
    """
    try:
        from PIL import Image, ImageOps
    except ModuleNotFoundError:
        raise UserError("images in files are read by Pillow, which is not installed: pip install pillow") from None
    if len(content) > MAX_IMAGE_BYTES:
        raise UserError(f"{name} has {len(content):,} bytes, more than {MAX_IMAGE_BYTES:,}: make it smaller")
    try:
        # Only these formats: a stranger's file must not choose another of Pillow's decoders.
        with Image.open(io.BytesIO(content), formats=("JPEG", "PNG")) as opened:
            upright = ImageOps.exif_transpose(opened)
            if upright.mode.startswith("I"):
                # Pillow would clip gray values above 255, while for color it keeps the upper eight bits.
                upright = Image.fromarray((np.asarray(upright) >> 8).astype(np.uint8))
            converted = upright.convert("L" if gray else "RGB")
            resized = resizing(converted)
            return np.asarray(resized, np.uint8).reshape(resized.height, resized.width, -1)
    except Exception as error:
        raise UserError(f"{name} is no JPEG or PNG image that can be read: {error}") from error


def _entries(folder: pathlib.Path, left_out: list[str], beneath: str = "") -> Iterator[pathlib.Path]:
    """Yield the entries of a folder sorted by name; the names of hidden ones go to `left_out`.

    Raises:
        UserError: If the folder cannot be read, or an entry is a link to a folder or out of it, or neither file nor
            folder.
    """
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise UserError(f"{folder} cannot be read: {error}") from error
    for entry in entries:
        if is_hidden(entry.name):
            left_out.append(beneath + entry.name)
        else:
            check_folder_entry(entry, folder)
            yield entry


def _in_folder(folder: pathlib.Path, left_out: list[str]) -> list[_File]:
    files: list[_File] = []
    unknown: list[str] = []
    for of_class in _entries(folder, left_out):
        if not of_class.is_dir():
            if of_class.suffix.lower() in _ENDINGS:
                raise UserError(f"{of_class} lies in no folder of a class: put it into {folder}/CLASS")
            (left_out if is_readme_or_license(of_class.name) else unknown).append(of_class.name)
            continue
        before = len(files) + len(unknown)
        for path in _entries(of_class, left_out, f"{of_class.name}/"):
            name = f"{of_class.name}/{path.name}"
            if path.is_dir():
                raise UserError(f"{path} is a folder within that of a class: put its images into {of_class}")
            if path.suffix.lower() in _ENDINGS:
                try:
                    files.append(_File(of_class.name, name, path.read_bytes()))
                except OSError as error:
                    raise UserError(f"{path} cannot be read: {error}") from error
            else:
                (left_out if is_readme_or_license(path.name) else unknown).append(name)
        if len(files) + len(unknown) == before:
            raise UserError(f"{of_class} holds no images: put .jpg or .png files into it, or remove it")
    refuse_unknown_files(folder, unknown, _ENDINGS)
    return files


def _archived(path: pathlib.Path, left_out: list[str]) -> list[_File]:
    """Read the images of an archive at .../CLASS/NAME; nothing is written to disk."""
    files: list[_File] = []
    unknown: list[str] = []
    # Keyed by parent folders: `above` has an example image, `named` the archive's name of the folder itself.
    above: dict[tuple[str, ...], str] = {}
    named: dict[tuple[str, ...], str] = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                *folders, name = pathlib.PurePosixPath(member.name).parts or (".",)
                if any(map(is_hidden, (*folders, name))):
                    left_out.append(member.name)
                elif member.isdir():
                    named[(*folders, name)] = member.name
                elif not member.isfile():
                    raise UserError(f"{path}: {member.name} is a link or a device: put the file itself there")
                elif not name.lower().endswith(_ENDINGS):
                    (left_out if is_readme_or_license(name) else unknown).append(member.name)
                elif not folders:
                    raise UserError(f"{path}: {name} lies in no folder of a class: put it into CLASS/{name}")
                elif member.size > MAX_IMAGE_BYTES:
                    raise UserError(f"{path}: {member.name} has {member.size:,} bytes: make it smaller")
                else:
                    content = archive.extractfile(member)
                    assert content is not None
                    above.setdefault(tuple(folders[:-1]), member.name)
                    files.append(_File(folders[-1], f"{folders[-1]}/{name}", content.read()))
    except (OSError, EOFError, tarfile.TarError) as error:
        raise UserError(f"{path} cannot be read as an archive: {' '.join(str(error).split())}") from error
    refuse_unknown_files(path, unknown, _ENDINGS)
    if len(above) > 1:
        one, other, *_ = above.values()
        raise UserError(f"{path} has {one} and {other}: let the folders of all classes stand in one folder")
    labels = {file.label for file in files}
    for folder, name in named.items():
        if folder[:-1] in above and folder[-1] not in labels:
            raise UserError(f"{path}: {name} holds no images: put .jpg or .png files into it, or remove it")
    return files
