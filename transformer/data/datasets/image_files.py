"""Images in files: a folder or a tar archive for each split, with one folder for each class."""

import collections
import concurrent.futures
import contextlib
import dataclasses
import enum
import io
import itertools
import lzma
import pathlib
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Self

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
from transformer.storage.json_reading import read_regular_file

_ARCHIVES = (".tar.gz", ".tgz", ".tar")
_ENDINGS = (".jpg", ".jpeg", ".png")
# No data set has larger images; reading and decoding larger files could exhaust memory.
MAX_IMAGE_BYTES = 64 * 2**20
MAX_IMAGE_PIXELS = 2**26  # of the image as it is stored
_MAX_SPLIT_BYTES = 2**36
_MAX_MEMBERS = 2**21  # of an archive
_MAX_HEADER_BYTES = 2**20  # of a long name in an archive
# Of headers with absurd numbers, and of thousands that announce one another.
_OTHER_ERRORS_OF_TARFILE = (ValueError, ArithmeticError, RecursionError)
_THREADS = 4
_CHUNK_BYTES, _CHUNK_FILES = 2**22, 128  # about what a thread decodes at once


class _File(NamedTuple):
    """An image file: its class, its name in the split, and its number among those of its folder or archive."""

    label: str
    name: str
    number: int


class ResampleFilter(enum.Enum):
    """The filters of Pillow for resizing images."""

    NEAREST = "nearest"
    BOX = "box"
    BILINEAR = "bilinear"
    HAMMING = "hamming"
    BICUBIC = "bicubic"
    LANCZOS = "lanczos"


class ResizeShape(enum.Enum):
    """The shape to which images are resized, before the middle is cropped.

    Attributes:
        SQUARE: A square of the given side, whatever the proportions.
        PROPORTIONAL: The shorter edge gets that side, and the other one keeps the proportions.
    """

    SQUARE = "square"
    PROPORTIONAL = "proportional"


@dataclasses.dataclass(frozen=True)
class Resizing(Config, path="config.task"):
    """How images in files are resized.

    Attributes:
        image_size: The side of the resized images in pixels. None does not resize.
        resize_side: If set, images are resized to this side, and the middle `image_size` x `image_size` pixels are
            cropped.
        resample: The filter.
        resize_shape: What of an image gets that side.

    Raises:
        UserError: If a value is out of range.
    """

    image_size: PositiveInt | None = None
    resize_side: int | None = None
    resample: ResampleFilter = ResampleFilter.BILINEAR
    resize_shape: ResizeShape = ResizeShape.SQUARE

    def _check(self) -> None:
        if self.resize_side is not None and (self.image_size is None or self.resize_side < self.image_size):
            raise UserError(
                f"config.task.resize_side={self.resize_side} must be at least "
                f"config.task.image_size={self.image_size}, which is "
                "cut from its middle"
            )
        if self.resize_shape is ResizeShape.PROPORTIONAL and self.image_size is None:
            raise UserError(
                "config.task.resize_shape=proportional leaves images of all proportions, from whose middle "
                "config.task.image_size pixels are cut: set it"
            )

    def __call__(self, image: Any) -> Any:
        """Resize a Pillow image."""
        from PIL import Image

        if self.image_size is None:
            return image
        resized = self.resize_side or self.image_size
        width, height = resized, resized
        if self.resize_shape is ResizeShape.PROPORTIONAL:
            width, height = (resized * edge // min(image.size) for edge in image.size)
            if width * height > MAX_IMAGE_PIXELS:
                raise UserError(
                    f"an image of {image.width:,} x {image.height:,} pixels becomes one of {width:,} x {height:,}: "
                    f"more than {MAX_IMAGE_PIXELS:,} pixels: crop it, or say config.task.resize_shape=square"
                )
        image = image.resize((width, height), Image.Resampling[self.resample.name])
        left, top = (width - self.image_size) // 2, (height - self.image_size) // 2
        return image.crop((left, top, left + self.image_size, top + self.image_size))


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
    for entry in _list_entries(path, left_out):
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
    listed = _list_archive(source, left_out) if source.is_file() else _list_folder(source, left_out)
    files = sorted(listed)
    file_classes = tuple(sorted({file.label for file in files}))
    if not files:
        raise UserError(f"{source} holds no images: put CLASS/*.jpg or .png into it")
    if classes is None and len(file_classes) < 2:
        raise UserError(
            f"{source} has images of {len(file_classes)} classes: it needs a folder for each of at least two"
        )
    classes = file_classes if classes is None else classes
    if strangers := [label for label in file_classes if label not in classes]:
        raise UserError(
            f"{source} has the class {strangers[0]!r}, which train has not: {suggest_nearest(strangers[0], classes)}"
        )
    contents = _read_archive(source, listed) if source.is_file() else _read_folder(source, files)
    pixels, num_wide = _decode_all(source, files, contents, resizing)
    numbers = {label: number for number, label in enumerate(classes)}
    images = LabeledImages(pixels, np.array([numbers[file.label] for file in files], np.int32))
    depth = f"of {num_wide:,} images of 16 bits a channel in {source.name} the upper eight are kept" if num_wide else ""
    return ImageSplit(
        images, classes, join_notes((depth, describe_left_out([f"{source.name}/{name}" for name in left_out])))
    )


def _decode_all(
    source: pathlib.Path, files: Sequence[_File], contents: Iterator[tuple[_File, bytes]], resizing: Resizing
) -> tuple[UInt8[np.ndarray, "N height width C"], int]:
    """Decode images as they are read, so that memory holds the pixels and few files.

    Args:
        source: The folder or archive, for messages.
        files: The files in the order of the images.
        contents: The files with their contents, in any order.
        resizing: How images are resized.

    Returns:
        The images, and how many have 16 bits per channel.

    Raises:
        UserError: If an image cannot be read, images differ in size, or all together are too large.
    """
    places = {file: place for place, file in enumerate(files)}
    file, content = next(contents)
    first = decode_image(content, f"{source}: {file.name}", resizing)
    if len(files) * first.nbytes > _MAX_SPLIT_BYTES:
        raise UserError(
            f"{source} has {len(files):,} images of {first.shape[1]} x {first.shape[0]} pixels, "
            f"{len(files) * first.nbytes:,} bytes in memory: give a smaller config.task.image_size"
        )
    pixels = np.empty((len(files), *first.shape), np.uint8)

    def store(chunk: Sequence[tuple[_File, bytes]]) -> int:
        for file, content in chunk:
            image = decode_image(content, f"{source}: {file.name}", resizing)
            _check_sizes_equal(str(source), first.shape, image.shape)
            pixels[places[file]] = image
        return sum(_has_16_bits(content) for _, content in chunk)

    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        chunks = _group_files(itertools.chain([(file, content)], contents))
        return pixels, sum(_map_ahead(pool, store, chunks, 2 * _THREADS))


def _group_files(contents: Iterable[tuple[_File, bytes]]) -> Iterator[list[tuple[_File, bytes]]]:
    """Group files, so that starting a thread costs little beside decoding small ones."""
    chunk: list[tuple[_File, bytes]] = []
    size = 0
    for file, content in contents:
        chunk.append((file, content))
        size += len(content)
        if size >= _CHUNK_BYTES or len(chunk) >= _CHUNK_FILES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _map_ahead[S, T](
    pool: concurrent.futures.Executor, function: Callable[[S], T], items: Iterable[S], num_ahead: int
) -> Iterator[T]:
    """Yield the results of a function in order, of which a pool makes a few ahead."""
    pending: collections.deque[concurrent.futures.Future[T]] = collections.deque()
    for item in items:
        pending.append(pool.submit(function, item))
        if len(pending) >= num_ahead:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


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
    for one in pixels:
        _check_sizes_equal(source, pixels[0].shape, one.shape)
    return LabeledImages(np.stack(pixels), np.array(labels, np.int32))


def _check_sizes_equal(source: str, one: Sequence[int], other: Sequence[int]) -> None:
    if tuple(one) != tuple(other):
        first, second = sorted((tuple(one), tuple(other)))
        raise UserError(
            f"{source} has images of {first[1]} x {first[0]} and of {second[1]} x {second[0]} pixels: give "
            "config.task.image_size, to which all are resized"
        )


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
            # Only the header has been read.
            if opened.width * opened.height > MAX_IMAGE_PIXELS:
                raise UserError(
                    f"{name} has {opened.width:,} x {opened.height:,} pixels, more than {MAX_IMAGE_PIXELS:,}: make it "
                    "smaller"
                )
            upright = ImageOps.exif_transpose(opened)
            if upright.mode.startswith("I"):
                # Pillow would clip gray values above 255, while for color it keeps the upper eight bits.
                upright = Image.fromarray((np.asarray(upright) >> 8).astype(np.uint8))
            converted = upright.convert("L" if gray else "RGB")
            resized = resizing(converted)
            return np.asarray(resized, np.uint8).reshape(resized.height, resized.width, -1)
    except UserError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{name} is no JPEG or PNG image that can be read: {reason}") from error


def _list_entries(folder: pathlib.Path, left_out: list[str], beneath: str = "") -> Iterator[pathlib.Path]:
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


def _list_folder(folder: pathlib.Path, left_out: list[str]) -> list[_File]:
    """List the images of a folder at CLASS/NAME."""
    files: list[_File] = []
    unknown: list[str] = []
    for class_folder in _list_entries(folder, left_out):
        if not class_folder.is_dir():
            if class_folder.suffix.lower() in _ENDINGS:
                raise UserError(f"{class_folder} lies in no folder of a class: put it into {folder}/CLASS")
            (left_out if is_readme_or_license(class_folder.name) else unknown).append(class_folder.name)
            continue
        before = len(files) + len(unknown)
        for path in _list_entries(class_folder, left_out, f"{class_folder.name}/"):
            name = f"{class_folder.name}/{path.name}"
            if path.is_dir():
                raise UserError(f"{path} is a folder within that of a class: put its images into {class_folder}")
            if path.suffix.lower() in _ENDINGS:
                files.append(_File(class_folder.name, name, len(files)))
            else:
                (left_out if is_readme_or_license(path.name) else unknown).append(name)
        if len(files) + len(unknown) == before:
            raise UserError(f"{class_folder} holds no images: put .jpg or .png files into it, or remove it")
    refuse_unknown_files(folder, unknown, _ENDINGS)
    return files


def _read_folder(folder: pathlib.Path, files: Sequence[_File]) -> Iterator[tuple[_File, bytes]]:
    for file in files:
        path = folder / file.name
        try:
            yield file, read_regular_file(path, MAX_IMAGE_BYTES)
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error}") from error


class _TarInfo(tarfile.TarInfo):
    """A member of an archive that is whole and whose name is no longer than a name can be."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        # At a damaged header, and where an archive is cut off, the library ends as if nothing followed.
        try:
            return super().frombuf(buf, encoding, errors)
        except (tarfile.EmptyHeaderError, tarfile.TruncatedHeaderError, tarfile.InvalidHeaderError) as error:  # type: ignore[attr-defined]
            raise tarfile.ReadError(f"it is cut off or damaged: {error}") from error

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        # These are read whole before they are parsed.
        kinds = (
            *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
            *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
        )
        if self.type in kinds and self.size > _MAX_HEADER_BYTES:
            raise tarfile.ReadError(f"it has a header of {self.size:,} bytes")
        return super()._proc_member(archive)  # type: ignore[misc]


@contextlib.contextmanager
def _open_archive(path: pathlib.Path) -> Iterator[tarfile.TarFile]:
    """Open an archive.

    Raises:
        UserError: If it cannot be read, then or later, or changes while it is read.
    """
    try:
        with tarfile.open(path, tarinfo=_TarInfo) as archive:
            yield archive
    except UserError:
        raise
    except (OSError, EOFError, tarfile.TarError, zlib.error, lzma.LZMAError, *_OTHER_ERRORS_OF_TARFILE) as error:
        raise UserError(f"{path} cannot be read as an archive: {' '.join(str(error).split())}") from error


def _iterate_members(archive: tarfile.TarFile, path: pathlib.Path) -> Iterator[tarfile.TarInfo]:
    """Yield the members of an archive, which then forgets them."""
    for number, member in enumerate(archive):
        if number >= _MAX_MEMBERS:
            raise UserError(f"{path} has more than {_MAX_MEMBERS:,} files: divide it")
        yield member
        archive.members.clear()  # type: ignore[attr-defined]


def _is_image_member(member: tarfile.TarInfo) -> bool:
    *folders, name = pathlib.PurePosixPath(member.name).parts or (".",)
    hidden = any(map(is_hidden, (*folders, name)))
    return member.isfile() and not hidden and name.lower().endswith(_ENDINGS)


def _list_archive(path: pathlib.Path, left_out: list[str]) -> list[_File]:
    """List the images of an archive at .../CLASS/NAME; nothing is written to disk."""
    files: list[_File] = []
    unknown: list[str] = []
    # Keyed by parent folders: `above` has an example image, `folder_names` the archive's name of the folder itself.
    above: dict[tuple[str, ...], str] = {}
    folder_names: dict[tuple[str, ...], str] = {}
    with _open_archive(path) as archive:
        for member in _iterate_members(archive, path):
            *folders, name = pathlib.PurePosixPath(member.name).parts or (".",)
            if any(map(is_hidden, (*folders, name))):
                left_out.append(member.name)
            elif member.isdir():
                folder_names[(*folders, name)] = member.name
            elif not member.isfile():
                raise UserError(f"{path}: {member.name} is a link or a device: put the file itself there")
            elif not _is_image_member(member):
                (left_out if is_readme_or_license(name) else unknown).append(member.name)
            elif not folders:
                raise UserError(f"{path}: {name} lies in no folder of a class: put it into CLASS/{name}")
            elif member.size > MAX_IMAGE_BYTES:
                raise UserError(f"{path}: {member.name} has {member.size:,} bytes: make it smaller")
            else:
                above.setdefault(tuple(folders[:-1]), member.name)
                files.append(_File(folders[-1], f"{folders[-1]}/{name}", len(files)))
    refuse_unknown_files(path, unknown, _ENDINGS)
    if len(above) > 1:
        first, second, *_ = above.values()
        raise UserError(f"{path} has {first} and {second}: let the folders of all classes stand in one folder")
    labels = {file.label for file in files}
    for folder, name in folder_names.items():
        if folder[:-1] in above and folder[-1] not in labels:
            raise UserError(f"{path}: {name} holds no images: put .jpg or .png files into it, or remove it")
    return files


def _read_archive(path: pathlib.Path, files: Sequence[_File]) -> Iterator[tuple[_File, bytes]]:
    """Read the images that `_list_archive` lists, in its order."""
    with _open_archive(path) as archive:
        images = (member for member in _iterate_members(archive, path) if _is_image_member(member))
        for file, member in zip(files, images, strict=True):
            content = archive.extractfile(member)
            assert content is not None
            yield file, content.read(MAX_IMAGE_BYTES + 1)
