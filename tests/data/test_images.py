"""Images in files and as drawn, what is done to those that train, and batches of them."""

import io
import os
import shutil
import struct
import tarfile
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from transformer.config import UserError
from transformer.data.datasets import image_files
from transformer.data.datasets.image_datasets import open_image_dataset, placeholder_image_dataset
from transformer.data.datasets.image_files import ResampleFilter, ResizeShape, Resizing, decode_image
from transformer.data.images import (
    Augmentation,
    ImageBatches,
    ImageSpec,
    LabeledImages,
    Normalization,
    augment,
    scale_pixels,
    shuffle_patches,
)

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 8, 10, 3)).astype(np.uint8)


def changed(seed: int = 0, **how: float) -> np.ndarray:
    return augment(PIXELS, Augmentation(**how), np.random.default_rng(seed)).images


def test_nothing_is_done_by_default() -> None:
    mixed = augment(PIXELS, Augmentation(), np.random.default_rng(0))
    np.testing.assert_allclose(mixed.images, PIXELS / 127.5 - 1, atol=1e-6)
    np.testing.assert_array_equal(mixed.images, scale_pixels(PIXELS))
    assert mixed.shares.tolist() == [1] * 6


def test_normalization_is_by_channel() -> None:
    how = Normalization(mean=(0.4, 0.5, 0.6), deviation=(0.2,))
    np.testing.assert_allclose(how(PIXELS), (PIXELS / 255 - [0.4, 0.5, 0.6]) / 0.2, atol=1e-5)
    with pytest.raises(UserError, match="has 2 numbers, the images have 3 channels"):
        Normalization(mean=(0.4, 0.5))(PIXELS)
    with pytest.raises(UserError, match=r"deviation\[0\]=0.0 must be above 0"):
        Normalization(deviation=(0.0,))


def test_a_run_keeps_what_its_images_are(tmp_path: Path) -> None:
    facts = ImageSpec((8, 10, 3), ("cat", "dog"))
    facts.save(tmp_path)
    assert ImageSpec.load(tmp_path) == facts
    (tmp_path / "images.json").write_text('{"shape": [8, 10], "classes": ["cat"]}')
    with pytest.raises(UserError, match="does not say the shape"):
        ImageSpec.load(tmp_path)


def test_a_crop_is_a_window_of_the_image_among_gray() -> None:
    around = np.pad(PIXELS, ((0, 0), (2, 2), (2, 2), (0, 0)), constant_values=128)
    places = set()
    for seed in range(12):
        for number, cropped in enumerate(changed(seed, crop=2)):
            windows = [
                (top, left)
                for top in range(5)
                for left in range(5)
                if np.array_equal(scale_pixels(around[number, top : top + 8, left : left + 10]), cropped)
            ]
            assert windows
            places.update(windows)
    assert len(places) > 20


def test_flips_mirror_left_and_right_in_their_share() -> None:
    counts = 0
    for seed in range(50):
        for before, after in zip(scale_pixels(PIXELS), changed(seed, flip=0.3), strict=True):
            flipped = np.array_equal(after, before[:, ::-1])
            assert flipped or np.array_equal(after, before)
            counts += flipped
    assert 60 < counts < 120


@pytest.mark.parametrize("side", [1, 3, 4])
def test_cutout_empties_a_square_that_may_reach_over_the_edge(side: int) -> None:
    sizes = []
    for seed in range(20):
        for before, after in zip(scale_pixels(PIXELS), changed(seed, cutout=side), strict=True):
            gray = np.all(after == 0, axis=-1)
            np.testing.assert_array_equal(after[~gray], before[~gray])
            rows, columns = np.flatnonzero(gray.any(1)), np.flatnonzero(gray.any(0))
            assert gray.sum() == len(rows) * len(columns)
            sizes.append((len(rows), len(columns)))
    assert max(sizes) == (side, side)
    assert min(sizes)[0] == -(-side // 2)


def test_mixup_mixes_images_with_their_partners_by_shares_of_beta() -> None:
    shares = []
    for seed in range(200):
        mixed = augment(PIXELS, Augmentation(mixup=0.4), np.random.default_rng(seed))
        share = mixed.shares[:, None, None, None]
        expected = share * scale_pixels(PIXELS) + (1 - share) * scale_pixels(PIXELS)[mixed.partners]
        np.testing.assert_allclose(mixed.images, expected, atol=1e-6)
        shares.extend(mixed.shares)
    assert np.mean(shares) == pytest.approx(0.5, abs=0.03)
    # Beta(a, a) has the variance 1 / (4 (2 a + 1)).
    assert np.var(shares) == pytest.approx(1 / (4 * 1.8), abs=0.01)


def test_shuffling_exchanges_squares_in_all_images_alike() -> None:
    numbered = np.repeat(np.repeat(np.arange(20, dtype=np.uint8).reshape(1, 4, 5, 1), 2, 1), 2, 2)
    first, second = shuffle_patches(np.concatenate([numbered, numbered + 100]), 2)
    np.testing.assert_array_equal(second, first + 100)
    squares = first.reshape(4, 2, 5, 2).swapaxes(1, 2).reshape(20, 4)
    assert np.all(squares == squares[:, :1])
    assert sorted(squares[:, 0]) == list(range(20))
    assert not np.array_equal(squares[:, 0], np.arange(20))
    np.testing.assert_array_equal(shuffle_patches(numbered, 0), numbered)
    with pytest.raises(UserError, match=r"config\.task\.shuffled_patch_size=3 does not divide"):
        shuffle_patches(numbered, 3)


def test_squares_are_exchanged_behind_augmentation() -> None:
    """Cropped and mirrored images are those of a run without the exchange, square by square."""
    images, how = (
        LabeledImages(PIXELS, np.arange(len(PIXELS), dtype=np.int32)),
        Augmentation(crop=2, flip=0.5, cutout=3),
    )
    plain, exchanged = (
        ImageBatches(images, rows=2, seed=3, augmentation=how, shuffled_by=patch)[1]["image"] for patch in (0, 2)
    )
    assert not np.array_equal(exchanged, plain)
    np.testing.assert_array_equal(exchanged, shuffle_patches(plain, 2))


@pytest.mark.parametrize("wrong", [{"crop": -1}, {"cutout": -1}, {"mixup": -0.1}, {"flip": 1.5}])
def test_unfit_augmentation_is_refused(wrong: dict) -> None:
    with pytest.raises(UserError, match=f"config.task.augmentation.{next(iter(wrong))}"):
        Augmentation(**wrong)


def test_an_epoch_has_every_image_once_and_a_batch_is_that_of_its_step() -> None:
    images = LabeledImages(PIXELS, np.arange(6, dtype=np.int32) % 2)
    how = Augmentation(crop=1, mixup=0.2)
    batches = ImageBatches(images, rows=4, seed=3, augmentation=how)
    epoch = [batches[step] for step in range(batches.batches_per_epoch)]
    assert sorted(np.concatenate([batch["index"] for batch in epoch])) == [-1, -1, 0, 1, 2, 3, 4, 5]
    again = ImageBatches(images, rows=4, seed=3, augmentation=how)[1]
    for name, values in epoch[1].items():
        np.testing.assert_array_equal(again[name], values)
    plain = ImageBatches(images, rows=4, seed=None, augmentation=how)
    np.testing.assert_array_equal(plain[0]["image"], scale_pixels(PIXELS[:4]))
    np.testing.assert_array_equal(plain[1]["index"], [4, 5, -1, -1])


def test_a_mixed_image_has_the_labels_of_both_of_its_images() -> None:
    # Images of one color each tell whose parts they have, and labels are the images' numbers.
    pixels = np.broadcast_to(np.arange(6, dtype=np.uint8)[:, None, None, None] * 40, (6, 4, 4, 1)).copy()
    images = LabeledImages(pixels, np.arange(6, dtype=np.int32))
    batch = ImageBatches(images, rows=6, seed=3, augmentation=Augmentation(mixup=1.0))[0]
    own, other, share = batch["labels"], batch["others"], batch["share"]
    color = (batch["image"][:, 0, 0, 0] + 1) * 127.5
    np.testing.assert_allclose(color, 40 * (share * own + (1 - share) * other), atol=1e-3)
    assert (own != other).any()


def test_an_image_is_augmented_anew_in_every_epoch() -> None:
    batches = ImageBatches(
        LabeledImages(PIXELS[:1], np.zeros(1, np.int32)), rows=1, seed=3, augmentation=Augmentation(crop=2, flip=0.5)
    )
    assert batches.batches_per_epoch == 1
    assert len({batches[step]["image"].tobytes() for step in range(12)}) > 4


def test_drawn_digits_are_the_same_each_time_and_differ_between_splits() -> None:
    opened = open_image_dataset("digits/size=12,train=30,validation=10,test=10")
    again = open_image_dataset("digits/size=12,train=30,validation=10,test=10")
    assert opened.classes == tuple("0123456789")
    train, test = opened.split("train"), opened.split("test")
    assert train.pixels.shape == (30, 12, 12, 1)
    np.testing.assert_array_equal(train.pixels, again.split("train").pixels)
    np.testing.assert_array_equal(train.labels, np.arange(30) % 10)
    assert not np.array_equal(train.pixels[:10], test.pixels)
    assert placeholder_image_dataset("digits/size=12", 4).split("train").pixels.shape == (4, 12, 12, 1)
    assert placeholder_image_dataset("any", 4, resizing=Resizing(20)).split("train").pixels.shape == (4, 20, 20, 3)


def png_of(pixels: np.ndarray) -> bytes:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    stream = io.BytesIO()
    image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def write(root: Path, split: str, count: int, first: int = 0) -> None:
    for label in ("cat", "dog"):
        (root / split / label).mkdir(parents=True)
        for number in range(count):
            pixels = np.full((6, 6, 3), first + number + (100 if label == "dog" else 0), np.uint8)
            (root / split / label / f"{number:03}.png").write_bytes(png_of(pixels))


@pytest.mark.parametrize(
    ("counts", "held", "note"),
    [
        ({"cat": 5, "dog": 5}, {"cat": [4], "dog": [4]}, "the last training image of a class validates"),
        (
            {"cat": 100, "dog": 19, "cow": 2},
            {"cat": [19, 39, 59, 79, 99], "cow": [1], "dog": [18]},
            "every 20th training image of a class validates, and the last of a class that has fewer",
        ),
        ({"cat": 20, "dog": 39}, {"cat": [19], "dog": [19]}, "every 20th training image of a class validates"),
    ],
)
def test_every_class_validates(counts: dict[str, int], held: dict[str, list[int]], note: str, tmp_path: Path) -> None:
    for label, count in counts.items():
        (tmp_path / "pets" / "train" / label).mkdir(parents=True)
        for number in range(count):
            pixels = np.full((2, 2, 3), (number, label.encode()[0], label.encode()[2]), np.uint8)
            (tmp_path / "pets" / "train" / label / f"{number:03}.png").write_bytes(png_of(pixels))
    opened = open_image_dataset("pets", data_dir=str(tmp_path))
    validation = opened.split("validation")
    found = {label: [] for label in opened.classes}
    for pixels, number in zip(validation.pixels, validation.labels, strict=True):
        found[opened.classes[number]].append(int(pixels[0, 0, 0]))
    assert found == held
    assert opened.split_note == note
    assert len(opened.split("train").labels) == sum(counts.values()) - sum(map(len, held.values()))


def test_a_class_of_one_image_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "pets", "train", 1)
    with pytest.raises(UserError, match=r"pets has one training image of 'cat', which cannot train and validate"):
        open_image_dataset("pets", data_dir=str(tmp_path))


def test_folders_and_archives_hold_the_same_images(tmp_path: Path) -> None:
    write(tmp_path / "pets", "train", 40)
    write(tmp_path / "pets", "test", 2, first=50)
    packed = tmp_path / "packed"
    packed.mkdir()
    for split in ("train", "test"):
        with tarfile.open(packed / f"{split}.tar.gz", "w:gz") as archive:
            archive.add(tmp_path / "pets" / split, split)
    plain, archived = (open_image_dataset(f"{name}", data_dir=str(tmp_path)) for name in ("pets", "packed"))
    assert plain.classes == archived.classes == ("cat", "dog")
    assert plain.split_note == "every 20th training image of a class validates"
    for split, count in (("train", 76), ("validation", 4), ("test", 4)):
        assert len(plain.split(split).labels) == count
        for one, other in zip(plain.split(split), archived.split(split), strict=True):
            np.testing.assert_array_equal(one, other)
    held = plain.split("validation")
    assert held.pixels[:, 0, 0, 0].tolist() == [19, 39, 119, 139]
    assert held.labels.tolist() == [0, 0, 1, 1]
    assert open_image_dataset("pets", data_dir=str(tmp_path), resizing=Resizing(4)).split("test").pixels.shape == (
        4,
        4,
        4,
        3,
    )


def test_unfit_files_are_refused_in_one_line(tmp_path: Path) -> None:
    root = tmp_path / "pets"
    write(root, "train", 3)

    def refused(message: str, name: str = "pets", **given: Any) -> None:
        with pytest.raises(UserError, match=message) as caught:
            open_image_dataset(name, data_dir=str(tmp_path), **given)
        assert "\n" not in str(caught.value)

    refused("there is no folder .*nothing: give one that holds train/CLASS", "nothing")
    refused("is unknown", "digit")
    refused("size=4 must be at least 8", "digits/size=4")
    refused("say the size of drawn images by digits/size=20", "digits", resizing=Resizing(20))
    (root / "train" / "dog" / "000.png").write_bytes(png_of(np.zeros((7, 6, 3), np.uint8)))
    refused("has images of 6 x 6 and of 6 x 7 pixels: give config.task.image_size")
    (root / "train" / "dog" / "000.png").write_bytes(b"GIF89a")
    refused("dog/000.png is no JPEG or PNG image")
    (root / "train" / "dog" / "000.png").unlink()
    os.symlink("/etc", root / "outside")
    refused("leads out of")
    (root / "outside").unlink()
    (root / "test" / "fox").mkdir(parents=True)
    (root / "test" / "fox" / "0.png").write_bytes(png_of(np.zeros((6, 6, 3), np.uint8)))
    refused("has the class 'fox', which train has not")
    shutil.rmtree(root / "test")
    (root / "validation.tar.gz").write_bytes(b"no archive")
    refused("cannot be read as an archive")


def png_of_16_bits(samples: np.ndarray) -> bytes:
    """A PNG file (ISO/IEC 15948) of 16 bits a sample, gray or in color, written here: filter 0."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    height, width = samples.shape[:2]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in samples)
    header = struct.pack(">IIBBBBB", width, height, 16, 0 if samples.ndim == 2 else 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@pytest.mark.parametrize("gray", [False, True])
def test_16_bits_a_sample_keep_their_levels(gray: bool) -> None:
    levels = np.arange(64, dtype=np.uint16).reshape(8, 8) * 1040
    read = decode_image(png_of_16_bits(levels), "x.png", gray=gray)
    np.testing.assert_array_equal(read, np.repeat((levels // 256)[..., None], 1 if gray else 3, axis=-1))
    colored = decode_image(png_of_16_bits(np.stack([levels, levels[::-1], levels.T], axis=-1)), "x.png")
    np.testing.assert_array_equal(colored, np.stack([levels, levels[::-1], levels.T], axis=-1) // 256)


# EXIF's orientations, 1 to 8: how the stored rows and columns become those to be seen (CIPA DC-008, 4.6.4).
UPRIGHT: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    1: lambda stored: stored,
    2: lambda stored: stored[:, ::-1],
    3: lambda stored: stored[::-1, ::-1],
    4: lambda stored: stored[::-1],
    5: lambda stored: stored.swapaxes(0, 1),
    6: lambda stored: stored[::-1].swapaxes(0, 1),
    7: lambda stored: stored[::-1, ::-1].swapaxes(0, 1),
    8: lambda stored: stored[:, ::-1].swapaxes(0, 1),
}


@pytest.mark.parametrize("orientation", UPRIGHT)
@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_a_image_is_turned_as_its_exif_data_say(orientation: int, kind: str) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    stored, exif = np.random.default_rng(0).integers(0, 256, (16, 8, 3)).astype(np.uint8), image.Exif()
    exif[0x0112] = orientation
    plain, turned = io.BytesIO(), io.BytesIO()
    image.fromarray(stored).save(plain, kind)
    image.fromarray(stored).save(turned, kind, exif=exif)
    as_stored = decode_image(plain.getvalue(), "x")
    np.testing.assert_array_equal(decode_image(turned.getvalue(), "x"), UPRIGHT[orientation](as_stored))


def test_the_middle_of_a_resized_image_is_kept() -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    pixels = np.random.default_rng(0).integers(0, 256, (30, 40, 3)).astype(np.uint8)
    whole = np.asarray(image.fromarray(pixels).resize((16, 16), 3))
    read = decode_image(png_of(pixels), "x", Resizing(12, 16, ResampleFilter.BICUBIC))
    np.testing.assert_array_equal(read, whole[2:14, 2:14])
    for values in ({"image_size": 0}, {"resize_side": 8}, {"image_size": 8, "resize_side": 7}):
        with pytest.raises(UserError, match="must be at least"):
            Resizing(**values)


@pytest.mark.parametrize("size", [(30, 40), (40, 30), (30, 31)])
def test_the_shorter_edge_gets_the_side_and_the_middle_is_kept(size: tuple[int, int]) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    pixels = np.random.default_rng(0).integers(0, 256, (*size, 3)).astype(np.uint8)
    height, width = (edge * 16 // 30 for edge in size)
    whole = np.asarray(image.fromarray(pixels).resize((width, height), 3))
    read = decode_image(png_of(pixels), "x", Resizing(12, 16, ResampleFilter.BICUBIC, ResizeShape.PROPORTIONAL))
    top, left = (height - 12) // 2, (width - 12) // 2
    np.testing.assert_array_equal(read, whole[top : top + 12, left : left + 12])
    with pytest.raises(UserError, match=": more than 67,108,864 pixels: crop it"):
        decode_image(
            png_of(np.zeros((1, 2000, 3), np.uint8)), "x", Resizing(224, resize_shape=ResizeShape.PROPORTIONAL)
        )
    with pytest.raises(UserError, match="resize_shape=proportional leaves images of all proportions"):
        Resizing(resize_shape=ResizeShape.PROPORTIONAL)


def png_header(width: int, height: int) -> bytes:
    """A PNG file whose header says a size, and which has no pixels."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    return b"\x89PNG\r\n\x1a\n" + chunk + struct.pack(">I", 0) + b"IDAT" + struct.pack(">I", zlib.crc32(b"IDAT"))


def test_a_large_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    write(tmp_path / "pets", "train", 2)
    with (tmp_path / "pets" / "train" / "cat" / "large.jpg").open("wb") as file:
        file.truncate((64 << 20) + 1)
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match=r"cat/large\.jpg has 67108865 bytes; at most 67108864 are read"):
            open_image_dataset("pets", data_dir=str(tmp_path))
        assert tracemalloc.get_traced_memory()[1] < 1 << 24
    finally:
        tracemalloc.stop()


def test_an_image_of_many_pixels_is_refused_by_its_header() -> None:
    with pytest.raises(UserError, match=r"^x has 8,193 x 8,192 pixels, more than 67,108,864: make it smaller$"):
        decode_image(png_header(8193, 8192), "x")
    with pytest.raises(UserError, match="x is no JPEG or PNG image that can be read"):
        decode_image(png_header(4, 4), "x")


def test_images_that_would_fill_memory_are_refused_at_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "pets", "train", 2)
    monkeypatch.setattr(image_files, "_MAX_SPLIT_BYTES", 400)
    with pytest.raises(UserError, match=r"has 4 images of 6 x 6 pixels, 432 bytes in memory: give a smaller config"):
        open_image_dataset("pets", data_dir=str(tmp_path))


@pytest.mark.parametrize("kind", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_a_name_that_would_fill_memory_is_refused(kind: int, tmp_path: Path) -> None:
    write(tmp_path / "pets", "train", 2)
    with tarfile.open(tmp_path / "pets" / "test.tgz", "w:gz", format=kind) as archive:
        archive.addfile(tarfile.TarInfo("cat/" + "x" * (2 << 20) + ".png"))
    with pytest.raises(
        UserError, match=r"test\.tgz cannot be read as an archive: .*it has a header of 2,097,\d+ bytes"
    ):
        open_image_dataset("pets", data_dir=str(tmp_path))


def test_an_archive_that_is_cut_off_or_damaged_between_files_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "pets", "train", 3)
    with tarfile.open(tmp_path / "train.tar", "w") as archive:
        archive.add(tmp_path / "pets" / "train", "train")
        # Of the last file, by which time every class has its images.
        last = archive.getmembers()[-1].offset
    shutil.rmtree(tmp_path / "pets" / "train")
    content = (tmp_path / "train.tar").read_bytes()
    assert open_with(tmp_path, content) == 6
    damaged = bytearray(content)
    damaged[last] ^= 1
    headers = b"".join([content[:last], *[_long_name_header()] * 3000, content[last:]])
    for broken in (content[:last], content[: last + 100], bytes(damaged), headers):
        with pytest.raises(UserError, match=r"train\.tar cannot be read as an archive") as caught:
            open_with(tmp_path, broken)
        assert "\n" not in str(caught.value)


def open_with(root: Path, archive: bytes) -> int:
    """The number of images of a data set whose training images are in an archive."""
    (root / "pets" / "train.tar").write_bytes(archive)
    return sum(len(split.labels) for split in open_image_dataset("pets", data_dir=str(root)).splits.values())


def _long_name_header() -> bytes:
    member = tarfile.TarInfo("././@LongLink")
    member.type, member.size = tarfile.GNUTYPE_LONGNAME, 1
    return member.tobuf(tarfile.GNU_FORMAT)[:512] + b"a".ljust(512, b"\0")
