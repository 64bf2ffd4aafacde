"""Pictures as people have them: a folder or a tar archive for each split, in it one folder for each class."""

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

from transformer.config import UserError, nearest
from transformer.data.datasets.own_files import check_inside, located
from transformer.data.pictures import Pictures

_ARCHIVES = (".tar.gz", ".tgz", ".tar")
_ENDINGS = (".jpg", ".jpeg", ".png")
# No set has pictures of more bytes than this; decoding what is larger could fill the memory.
MOST_BYTES = 64 * 2**20
_THREADS = 4


class _File(NamedTuple):
    """A picture's class, its name within its split, and its bytes."""

    label: str
    name: str
    content: bytes


class Resample(enum.Enum):
    """Pillow's filters, by which pictures are resized."""

    NEAREST = "nearest"
    BOX = "box"
    BILINEAR = "bilinear"
    HAMMING = "hamming"
    BICUBIC = "bicubic"
    LANCZOS = "lanczos"


@dataclasses.dataclass(frozen=True)
class Resizing:
    """Pictures become `side` x `side` pixels, where that is given, by the filter `resample`.

    With a `resize_side` they are resized to that first, and their middle `side` x `side` pixels are kept.

    Errors: UserError for values out of range.
    """

    side: int | None = None
    resize_side: int | None = None
    resample: Resample = Resample.BILINEAR

    def __post_init__(self) -> None:
        if self.side is not None and self.side < 1:
            raise UserError(f"config.task.side={self.side} must be at least 1 pixel, or None")
        if self.resize_side is not None and (self.side is None or self.resize_side < self.side):
            raise UserError(
                f"config.task.resize_side={self.resize_side} must be at least config.task.side={self.side}, which is "
                "cut from its middle"
            )

    def __call__(self, picture: Any) -> Any:
        """A picture of Pillow's, resized."""
        from PIL import Image

        if self.side is None:
            return picture
        resized = self.resize_side or self.side
        picture = picture.resize((resized, resized), Image.Resampling[self.resample.name])
        first = (resized - self.side) // 2
        return picture.crop((first, first, first + self.side, first + self.side))


UNCHANGED = Resizing()


def splits_in(folder: str, data_dir: str | None) -> dict[str, pathlib.Path]:
    """The splits of a folder, each a folder SPLIT or an archive SPLIT.tar.gz, SPLIT.tgz or SPLIT.tar.

    Errors: UserError for a folder that does not exist or holds none.
    """
    path = located(folder, data_dir)
    if not path.is_dir():
        raise UserError(
            f"{path} is no folder: give one that holds train/CLASS/*.jpg or .png, or train.tar.gz with these"
        )
    splits = {}
    for entry in sorted(path.iterdir()):
        ending = next((ending for ending in _ARCHIVES if entry.name.endswith(ending)), "")
        if entry.is_dir() or ending:
            check_inside(entry, path)
            splits[entry.name.removesuffix(ending)] = entry
    if not splits:
        raise UserError(f"{path} holds no split: put folders such as train/CLASS/*.jpg or train.tar.gz into it")
    return splits


def read_split(
    source: pathlib.Path, resizing: Resizing, classes: tuple[str, ...] | None
) -> tuple[Pictures, tuple[str, ...]]:
    """The pictures of a split in colour, sorted by class and name, and its classes.

    Errors: UserError for a class that is not among `classes` where these are given, fewer than two classes, pictures
    of several sizes that are not resized, and files that are no pictures.
    """
    files = sorted(_archived(source) if source.is_file() else _in_folder(source))
    found = tuple(sorted({file.label for file in files}))
    if classes is None and len(found) < 2:
        raise UserError(f"{source} has pictures of {len(found)} classes: it needs a folder for each of at least two")
    classes = found if classes is None else classes
    if strangers := [label for label in found if label not in classes]:
        raise UserError(
            f"{source} has the class {strangers[0]!r}, which train has not: {nearest(strangers[0], classes)}"
        )
    if not files:
        raise UserError(f"{source} holds no pictures: put CLASS/*.jpg or .png into it")
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        pixels = list(pool.map(lambda file: decode(file.content, f"{source}: {file.name}", resizing), files))
    numbers = {label: number for number, label in enumerate(classes)}
    return stacked(str(source), pixels, [numbers[file.label] for file in files]), classes


def stacked(source: str, pixels: Sequence[UInt8[np.ndarray, "height width C"]], labels: Sequence[int]) -> Pictures:
    """Pictures of one size with their classes.

    Errors: UserError for pictures of several sizes.
    """
    sizes = {one.shape for one in pixels}
    if len(sizes) > 1:
        first, second = sorted(sizes)[:2]
        raise UserError(
            f"{source} has pictures of {first[1]} x {first[0]} and of {second[1]} x {second[0]} pixels: give "
            "config.task.side, to which all are resized"
        )
    return Pictures(np.stack(pixels), np.array(labels, np.int32))


def decode(
    content: bytes, name: str, resizing: Resizing = UNCHANGED, *, grey: bool = False
) -> UInt8[np.ndarray, "height width C"]:
    """The pixels of a JPEG or PNG file as it is meant to be seen, in colour or in one channel, and resized.

    It is turned as its EXIF orientation says. Of 16 bits a channel the upper eight are kept; transparency is not.

    Errors: UserError for other files, and where Pillow is not installed.
    """
    try:
        from PIL import Image, ImageOps
    except ModuleNotFoundError:
        raise UserError("pictures in files are read by Pillow, which is not installed: pip install pillow") from None
    if len(content) > MOST_BYTES:
        raise UserError(f"{name} has {len(content):,} bytes, more than {MOST_BYTES:,}: make it smaller")
    try:
        # No other format of Pillow's is ever tried: a stranger's file chooses none of its decoders.
        with Image.open(io.BytesIO(content), formats=("JPEG", "PNG")) as opened:
            upright = ImageOps.exif_transpose(opened)
            if upright.mode.startswith("I"):
                # Pillow would cut off what is above 255, and keeps the upper eight bits where there is a colour.
                upright = Image.fromarray((np.asarray(upright) >> 8).astype(np.uint8))
            converted = upright.convert("L" if grey else "RGB")
            resized = resizing(converted)
            return np.asarray(resized, np.uint8).reshape(resized.height, resized.width, -1)
    except Exception as error:
        raise UserError(f"{name} is no JPEG or PNG picture that can be read: {error}") from error


def _in_folder(folder: pathlib.Path) -> Iterator[_File]:
    for of_class in sorted(folder.iterdir()):
        if of_class.is_dir():
            for path in sorted(of_class.iterdir()):
                if path.suffix.lower() in _ENDINGS:
                    check_inside(path, folder)
                    yield _File(of_class.name, f"{of_class.name}/{path.name}", path.read_bytes())


def _archived(path: pathlib.Path) -> Iterator[_File]:
    """What an archive holds at .../CLASS/NAME; members are read where they lie, and nothing is written."""
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                parts = pathlib.PurePosixPath(member.name).parts
                if member.isfile() and len(parts) > 1 and parts[-1].lower().endswith(_ENDINGS):
                    if member.size > MOST_BYTES:
                        raise UserError(f"{path}: {member.name} has {member.size:,} bytes: make it smaller")
                    content = archive.extractfile(member)
                    assert content is not None
                    yield _File(parts[-2], "/".join(parts[-2:]), content.read())
    except (OSError, EOFError, tarfile.TarError) as error:
        raise UserError(f"{path} cannot be read as an archive: {error}") from error
