"""Folders of data: what is read, what is left out and said, what is refused, and what stands in two splits."""

import io
import os
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from experiments.few_shot.data import open_character_set
from experiments.speech.data import open_spoken_digits
from experiments.speech.wav import encode_wav
from tests.data.test_image_datasets import png, write_omniglot
from transformer.config import UserError
from transformer.data.datasets.image_datasets import ImageDataset, open_image_dataset
from transformer.data.datasets.local_files import HeldOutFiles, canonical_split_names, split_from_file_name
from transformer.data.datasets.text import TextDataset, open_text_dataset
from transformer.data.datasets.text_classification import open_labeled_texts
from transformer.data.datasets.translation import open_translation_dataset
from transformer.tasks.registry import build_task, task_config

BOOK = "".join(f"line {number} of the book\n" for number in range(100))


def write(root: Path, files: Mapping[str, str | bytes]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def texts(root: Path, held_out: HeldOutFiles | None = None) -> TextDataset:
    return open_text_dataset(
        "books", data_dir=str(root), prepared_dir=str(root / "none"), held_out=held_out or HeldOutFiles()
    )


def refused(act: Callable[[], object], says: str) -> None:
    with pytest.raises(UserError, match=says) as told:
        act()
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("stem", "split"),
    [
        *((name, "train") for name in ("train", "Training", "TRAIN", "train-00001", "train_1", "train2", "trainset")),
        *((name, "validation") for name in ("validation", "valid", "Val", "dev", "development", "dev.01", "devset")),
        *((name, "test") for name in ("test", "testing", "TEST", "test-00000-of-00003", "test_data", "wiki.test")),
        *((name, None) for name in ("book", "contest", "trainer", "Training day", "a test of time", "latest", "00001")),
    ],
)
def test_splits_are_known_by_their_common_spellings(stem: str, split: str | None) -> None:
    assert split_from_file_name(stem) == split


def test_splits_that_spell_the_same_one_keep_their_names() -> None:
    assert canonical_split_names(("train", "dev", "extra")) == {"train": "train", "dev": "validation", "extra": "extra"}
    assert canonical_split_names(("val", "dev", "test")) == {"val": "val", "dev": "dev", "test": "test"}
    assert canonical_split_names(("validation", "valid")) == {"validation": "validation", "valid": "valid"}


def test_names_cannot_steer_a_terminal(tmp_path: Path) -> None:
    write(tmp_path / "books", {"book.txt": BOOK, ".\x1b[2J\n": BOOK})
    assert texts(tmp_path).split_note.endswith(r"not read: .\x1b[2J\n")


def test_a_name_of_two_splits_is_refused() -> None:
    refused(lambda: split_from_file_name("train_test"), "'train_test' names the splits test and train: call it by one")


def test_hidden_copies_of_texts_are_not_read_and_said(tmp_path: Path) -> None:
    copies = (".ipynb_checkpoints/book-checkpoint.txt", ".git/x.txt", ".book.txt", "more/.DS_Store", "desktop.ini")
    write(tmp_path / "books", {"book.txt": BOOK, "README.md": "about", **dict.fromkeys(copies, BOOK)})
    opened = texts(tmp_path)
    assert "".join(text for split in opened.splits.values() for text in split) == BOOK
    assert opened.split_note == (
        "train, validation, test cut by position, 90, 5 and 5% of the characters; "
        "not read: .book.txt, .git, .ipynb_checkpoints and 3 more"
    )


def test_endings_in_capital_letters_are_read(tmp_path: Path) -> None:
    write(tmp_path / "books", {"A.TXT": "a\n" * 50, "B.Jsonl": '{"text": "b"}\n' * 50})
    read = texts(tmp_path).splits
    assert "".join(text for split in ("train", "validation", "test") for text in read[split]) == "a\n" * 50 + "b" * 50


def test_files_whose_names_say_splits_are_those_splits(tmp_path: Path) -> None:
    files = {"book.txt": "book\n", "test.txt": "test\n", "Valid.TXT": "valid\n"}
    opened = texts(write(tmp_path / "one", {f"books/{name}": text for name, text in files.items()}))
    assert opened.splits == {"train": ["book\n"], "validation": ["valid\n"], "test": ["test\n"]}
    assert opened.split_note == "validation, test by the names of files and folders"
    shards = {f"train-0000{number}-of-00002.txt": f"{number}\n" for number in range(2)} | {"dev_1.txt": "dev\n"}
    opened = texts(write(tmp_path / "two", {f"books/{name}": text for name, text in shards.items()}))
    assert opened.splits == {"train": ["0\n", "1\n"], "validation": ["dev\n"]}
    folders = {"train/test of time.txt": "a\n", "train/more/b.txt": "b\n", "val/c.txt": "c\n", "test/train.txt": "d\n"}
    opened = texts(write(tmp_path / "three", {f"books/{name}": text for name, text in folders.items()}))
    assert opened.splits == {"train": ["b\n", "a\n"], "validation": ["c\n"], "test": ["d\n"]}
    # Of what is not named to train a split without files is cut.
    opened = texts(write(tmp_path / "five", {"books/book.txt": BOOK, "books/test.txt": "test\n"}))
    assert opened.splits["test"] == ["test\n"]
    assert "".join([*opened.splits["train"], *opened.splits["validation"]]) == BOOK
    assert opened.split_note == (
        "train, validation cut by position, 90, 5 and 5% of the characters; test by the names of files and folders"
    )
    # Shards of training alone are cut as any texts are.
    opened = texts(write(tmp_path / "four", {"books/train-1.txt": BOOK, "books/train-2.txt": BOOK}))
    assert set(opened.splits) == {"train", "validation", "test"}


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (("book.md", "scan.pdf", "page.pdf"), r"books holds 3 files of other kinds .*\(1 .md, 2 .pdf\): book.md, page"),
        (("book", "a.txt"), r"books holds 1 file of other kinds than .txt, .jsonl \(1 no ending\): book; convert or"),
        (
            ("train.txt", "extra.txt", "b.txt"),
            "has train.txt, and beside it b.txt and 1 more, whose names say no",
        ),
        (("test.txt", "valid.txt"), "has texts for validation, test alone: add a train.txt"),
    ],
)
def test_what_would_be_left_out_of_texts_is_refused(files: tuple[str, ...], says: str, tmp_path: Path) -> None:
    write(tmp_path / "books", dict.fromkeys(files, BOOK))
    refused(lambda: texts(tmp_path), says)


def test_what_is_no_file_of_the_folder_is_refused(tmp_path: Path) -> None:
    books = write(tmp_path / "books", {"a.txt": BOOK, "more/b.txt": BOOK})
    (books / "again").symlink_to(books / "more")
    refused(lambda: texts(tmp_path), "again is a link to a folder, which would be read twice")
    (books / "again").unlink()
    (books / "loop.txt").symlink_to("loop.txt")
    refused(lambda: texts(tmp_path), "loop.txt (is neither a file nor a folder|leads nowhere)")
    (books / "loop.txt").unlink()
    os.mkfifo(books / "c.txt")
    refused(lambda: texts(tmp_path), "c.txt is neither a file nor a folder: remove it")


def test_a_split_with_files_twice_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {"books/book.txt": BOOK, "books/valid.txt": BOOK, "dev.txt": BOOK})
    refused(
        lambda: texts(tmp_path, HeldOutFiles("dev.txt")),
        "has valid.txt, but config.task.validation_files names others: remove one of the two",
    )


LONG = "a line of text that is too long to stand twice by chance, number {}\n"
TEXT_TASK = {
    "name": "language_modeling",
    "tokenizer": "bytes",
    "context_length": 8,
    "batch_size": 2,
    "num_probe_examples": 1,
}


def test_text_in_two_splits_is_told(tmp_path: Path) -> None:
    once = [LONG.format(number) for number in range(20)]
    files = {"train.txt": "".join(once), "valid.txt": "".join(once[15:]) + "new\n", "test.txt": once[0] + "short\n"}
    write(tmp_path, {f"books/{name}": text for name, text in files.items()})
    (tmp_path / "run").mkdir()
    values = {**TEXT_TASK, "probe_length": 4, "dataset": "books", "data_dir": str(tmp_path)}
    (said,) = build_task(task_config(values), tmp_path / "run").data_summary
    assert said.endswith(
        "; train, validation, test by the names of files and folders; 5 of 5 validation lines of 40 letters and more "
        "are in train as well; 1 of 1 test lines of 40 letters and more are in train as well"
    )


def test_examples_in_two_splits_are_told(tmp_path: Path) -> None:
    rows = [f"text {number}\t{'ab'[number % 2]}" for number in range(100)]
    write(tmp_path, {"x.tsv": "\n".join(rows), "dev.tsv": "\n".join([*rows[:3], "new\ta"])})
    (tmp_path / "run").mkdir()
    values = {"dataset": "x.tsv", "data_dir": str(tmp_path), "validation_files": "dev.tsv"}
    labeled = {"name": "classification", "classes": ("a", "b"), "tokenizer": "bytes"}
    for of_task, what in ((labeled, "texts"), ({"name": "translation", "vocab_size": 60}, "sources")):
        said = "; ".join(build_task(task_config({**of_task, **values}), tmp_path / "run").data_summary)
        assert f"3 of 4 validation {what} are in train as well" in said
        for file in (tmp_path / "run").iterdir():
            file.unlink()


@pytest.mark.parametrize("sequence_format", ["gpt", "bert"])
def test_swapped_pairs_and_answers_in_two_splits_are_told(sequence_format: str, tmp_path: Path) -> None:
    pairs = [f"one {number}\tother {number}\t1" for number in range(100)]
    swapped = [f"other  {number}\tone {number}\t1" for number in range(3)]
    choices = [f"story {number}\tgood {number}\tbad {number}\ta" for number in range(100)]
    reordered = [f"story {number}\tbad {number}\tgood {number}\tb" for number in range(3)]
    for problem, header, rows, dev in (
        ("similarity", "first\tsecond\tlabel", pairs, [*swapped, "one 0\tone 1\t1"]),
        ("choice", "context\ta\tb\tlabel", choices, [*reordered, "story 0\tgood 0\tgood 1\ta"]),
    ):
        write(tmp_path, {"x.tsv": "\n".join([header, *rows]), "dev.tsv": "\n".join([header, *dev])})
        values = {"dataset": "x.tsv", "data_dir": str(tmp_path), "validation_files": "dev.tsv", "problem": problem}
        values |= {"name": "fine_tuning", "sequence_format": sequence_format, "auxiliary": 0.0, "vocab_size": 300}
        values |= {"classes": ("a", "b")} if problem == "choice" else {}
        (tmp_path / problem).mkdir()
        said = "; ".join(build_task(task_config(values), tmp_path / problem).data_summary)
        assert "3 of 4 validation examples (" in said


PLAIN = {(split, label): 10 * number for number, (split, label) in enumerate((s, c) for s in "tv" for c in "ab")}


def images(root: Path, *changes: Mapping[str, str | bytes]) -> ImageDataset:
    """A set of two classes in two splits, and what else is put into its folder."""
    for split, name in (("t", "train"), ("v", "val")):
        for label in "ab":
            values = [PLAIN[split, label] + number for number in range(3)]
            write(root / "pets" / name / label, {f"{v}.png": png(np.full((4, 4), v, np.uint8)) for v in values})
    for files in changes:
        write(root / "pets", files)
    return open_image_dataset("pets", data_dir=str(root))


IMAGE = png(np.full((4, 4), 200, np.uint8))


def test_hidden_files_and_folders_are_no_classes(tmp_path: Path) -> None:
    files = (".ipynb_checkpoints/a/0.png", "train/.ipynb_checkpoints/0.png", "train/a/._0.png", "val/Thumbs.db")
    opened = images(tmp_path, dict.fromkeys((*files, "train/README", "LICENSE"), IMAGE))
    assert opened.classes == ("a", "b")
    assert {split: len(each.labels) for split, each in opened.splits.items()} == {"train": 6, "validation": 6}
    assert opened.split_note == (
        "not read: .ipynb_checkpoints, LICENSE; not read: train/.ipynb_checkpoints, train/README, train/a/._0.png; "
        "not read: val/Thumbs.db"
    )


def test_images_in_two_splits_are_told(tmp_path: Path) -> None:
    opened = images(tmp_path, {"test/a/x.png": IMAGE, "val/a/y.png": IMAGE, "test/b/z.PNG": IMAGE})
    assert opened.split_note == "2 of 2 test images are in validation as well"


def test_further_splits_are_told(tmp_path: Path) -> None:
    images(tmp_path, {"test/a/0.png": IMAGE, "extra/b/0.png": png(np.full((4, 4), 9, np.uint8))})
    (tmp_path / "run").mkdir()
    values = {"name": "image_classification", "dataset": "pets", "data_dir": str(tmp_path)}
    assert build_task(task_config(values), tmp_path / "run").data_summary == (
        "data pets: 6 train, 6 validation, 1 test images; splits that are not used: extra",
    )


@pytest.mark.parametrize(
    ("file", "says"),
    [
        ("train/a/0.webp", r"train holds 1 file of other kinds than .jpg, .jpeg, .png \(1 .webp\): a/0.webp; convert"),
        ("train/a/0.txt", r"train holds 1 file of other kinds"),
        ("train/a/more/0.png", "more is a folder within that of a class: put its images into"),
        ("train/0.png", "0.png lies in no folder of a class: put it into .*train/CLASS"),
        ("train/c/README.md", "c holds no images: put .jpg or .png files into it, or remove it"),
        ("test.zip", r"pets holds 1 file of other kinds than .tar.gz, .tgz, .tar \(1 .zip\): test.zip"),
        ("labels.csv", r"pets holds 1 file of other kinds"),
        ("validation/a/0.png", "pets has both val and validation for validation: remove one of them"),
        ("val.tgz", "has both val and val.tgz for validation"),
    ],
)
def test_what_would_be_left_out_of_images_is_refused(file: str, says: str, tmp_path: Path) -> None:
    write(tmp_path / "pets", {"train/c/x": b""} if file.startswith("train/c") else {})
    (tmp_path / "pets" / "train" / "c" / "x").unlink(missing_ok=True)
    refused(lambda: images(tmp_path, {file: b"" if file.startswith("train/c") else IMAGE}), says)


def packed(root: Path, names: Mapping[str, bytes | None]) -> ImageDataset:
    """A set whose training images are in an archive: files, and folders where there is no content."""
    (root / "pets").mkdir()
    with tarfile.open(root / "pets" / "train.tar.gz", "w:gz") as archive:
        for name, content in names.items():
            member = tarfile.TarInfo(name)
            if content is None:
                member.type = tarfile.DIRTYPE
                archive.addfile(member)
            elif content == b"link":
                member.type, member.linkname = tarfile.SYMTYPE, "0.png"
                archive.addfile(member)
            else:
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return open_image_dataset("pets", data_dir=str(root))


TWO = {f"set/{label}/{number}.png": IMAGE for label in "ab" for number in range(20)}


def test_what_is_hidden_in_an_archive_is_not_read_and_said(tmp_path: Path) -> None:
    opened = packed(tmp_path, {**TWO, "__MACOSX/set/a/._0.png": IMAGE, "set/README": b"about", "set/a": None})
    assert opened.classes == ("a", "b")
    assert "; not read: train.tar.gz/__MACOSX/set/a/._0.png, train.tar.gz/set/README" in opened.split_note


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ({"set/a/0.webp": IMAGE}, r"train.tar.gz holds 1 file of other kinds .*\(1 .webp\): set/a/0.webp"),
        ({"0.png": IMAGE}, "0.png lies in no folder of a class: put it into CLASS/0.png"),
        (
            {"set/a/more/0.png": IMAGE},
            "has set/a/0.png and set/a/more/0.png: let the folders of all classes stand in",
        ),
        ({"test/a/0.png": IMAGE}, "has set/a/0.png and test/a/0.png"),
        ({"set/c": None}, "set/c holds no images"),
        ({"set/a/l.png": b"link"}, "set/a/l.png is a link or a device"),
    ],
)
def test_what_would_be_left_out_of_an_archive_is_refused(names: dict, says: str, tmp_path: Path) -> None:
    refused(lambda: packed(tmp_path, {**TWO, **names}), says)


def test_archives_of_sounds_and_drawings_say_what_is_not_read(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "recordings.zip", "w") as archive:
        archive.writestr("README.md", "about")
        archive.writestr("__MACOSX/._7_ann_0.wav", "")
        for digit in range(10):
            for take in range(9):
                sound = np.full(100, 0.5 if take in (0, 8) else (10 * digit + take) / 200, np.float32)
                archive.writestr(f"recordings/{digit}_ann_{take}.wav", encode_wav(sound))
    said = open_spoken_digits("fsdd", data_dir=str(tmp_path)).split_note
    assert "not read: recordings.zip/README.md, recordings.zip/__MACOSX/._7_ann_0.wav" in said
    assert "10 of 50 test recordings are in train as well" in said
    with zipfile.ZipFile(tmp_path / "recordings.zip", "a") as archive:
        archive.writestr("recordings/seven.WAV", encode_wav(np.zeros(10, np.float32)))
    refused(
        lambda: open_spoken_digits("fsdd", data_dir=str(tmp_path)),
        "seven.WAV is not named as .wav files of this set are",
    )
    path = tmp_path / "images_background.zip"
    write_omniglot(path, "Greek", 2)
    assert (
        "not read: images_background.zip/images_background/Greek/notes.txt"
        in open_image_dataset("omniglot", data_dir=str(tmp_path)).split_note
    )
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("images_background/Greek/alpha.png", IMAGE)
    for act in (
        lambda: open_image_dataset("omniglot", data_dir=str(tmp_path)),
        lambda: open_character_set("omniglot_characters/validation=1,test=1", data_dir=str(tmp_path), image_size=4),
    ):
        refused(act, "alpha.png is not named as .png files of this set are")


def test_files_are_taken_as_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labeled = BOOK.replace("\n", "\tx\n") + "b\ty\n"
    pairs = {"pairs/train.en": BOOK, "pairs/train.de": BOOK, "labeled/a.tsv": labeled}
    write(tmp_path, pairs)
    for folder, name in (
        (str(tmp_path), "pairs/train.en,pairs/train.de"),
        (str(tmp_path / "pairs"), "train.en,train.de"),
    ):
        opened = open_translation_dataset(name, data_dir=folder, prepared_dir="none")
        assert (opened.languages, sum(len(opened.split(split)) for split in opened.splits)) == (("en", "de"), 100)
    monkeypatch.chdir(tmp_path)
    assert open_translation_dataset("pairs/train.en,pairs/train.de", prepared_dir="none").languages == ("en", "de")
    assert sum(map(len, open_labeled_texts("labeled/a.tsv", classes=("x", "y")).splits.values())) == 101
    # What asks whether a run's config names files sees the same names.
    refused(
        lambda: open_translation_dataset("pairs/train.en, pairs/train.de", prepared_dir="none"),
        "no file  pairs/train.de",
    )
    images(tmp_path / "folder")
    assert open_image_dataset("folder/pets").classes == ("a", "b")


def test_data_in_a_bucket_are_refused_with_how_to_mount_it(tmp_path: Path) -> None:
    config = task_config({"name": "translation", "dataset": "copy", "data_dir": "gs://bucket/data"})
    refused(
        lambda: build_task(config, tmp_path),
        r"--data_dir=gs://bucket/data is in a bucket, .*launch/clusters/jobset.yaml",
    )


def test_a_folder_of_data_that_is_missing_is_refused(tmp_path: Path) -> None:
    for values in ({"name": "translation", "dataset": "copy"}, {"name": "image_classification"}):
        config = task_config({**values, "data_dir": str(tmp_path / "missing")})
        refused(
            lambda config=config: build_task(config, tmp_path),
            r"missing \(--data_dir\) is no folder: name the one that",
        )
