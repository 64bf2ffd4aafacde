"""Multi30k from local files: content, order, directions, and what is said when files are amiss."""

import gzip
from pathlib import Path

import pytest

from transformer.config import UserError
from transformer.data.datasets import multi30k
from transformer.data.datasets.translation import SentencePair, open_translation_dataset

STEMS = ("train", "val", "test_2016_flickr", "test_2017_flickr")
SPLITS = ("train", "validation", "test_2016_flickr", "test_2017_flickr")


def write_files(folder: Path, lines: int = 3) -> None:
    (folder / "raw").mkdir(parents=True, exist_ok=True)
    (folder / "tok").mkdir(exist_ok=True)
    for stem in STEMS:
        for language in ("en", "de", "fr"):
            texts = [f"{stem} Zeile\N{LINE SEPARATOR}é {language} {index}" for index in range(lines)]
            content = ("\n".join(texts) + "\n").encode()
            (folder / "raw" / f"{stem}.{language}.gz").write_bytes(gzip.compress(content))
            (folder / "tok" / f"{stem}.lc.norm.tok.{language}").write_bytes(content.lower())


@pytest.fixture
def files(tmp_path: Path) -> Path:
    write_files(tmp_path / "multi30k")
    return tmp_path / "multi30k"


@pytest.mark.parametrize("text", ["raw", "tokenized"])
@pytest.mark.parametrize(("source", "target"), [("en", "de"), ("fr", "en")])
def test_pairs_in_the_order_of_their_lines(text: str, source: str, target: str, files: Path, tmp_path: Path) -> None:
    opened = open_translation_dataset(
        f"multi30k/{text}/{source}-{target}", data_dir=str(files), prepared_dir=str(tmp_path / "prepared")
    )
    assert opened.splits == SPLITS
    assert opened.languages == (source, target)
    for stem, split in zip(STEMS, SPLITS, strict=True):
        line = f"{stem} Zeile\N{LINE SEPARATOR}é " if text == "raw" else f"{stem} zeile\N{LINE SEPARATOR}é "
        expected = [SentencePair(f"{line}{source} {i}", f"{line}{target} {i}", target) for i in range(3)]
        assert list(opened.split(split)) == expected


def test_changed_files_are_prepared_anew(files: Path, tmp_path: Path) -> None:
    def count() -> int:
        opened = open_translation_dataset(
            "multi30k/raw/en-de", data_dir=str(files), prepared_dir=str(tmp_path / "prepared")
        )
        return len(opened.split("train"))

    assert count() == 3
    write_files(files, lines=5)
    assert count() == 5


def fails(name: str, data_dir: Path | None, tmp_path: Path) -> str:
    with pytest.raises(UserError) as caught:
        open_translation_dataset(
            name,
            data_dir=None if data_dir is None else str(data_dir),
            prepared_dir=str(tmp_path / "prepared"),
        )
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_missing_files_say_how_to_get_them(files: Path, tmp_path: Path) -> None:
    message = fails("multi30k/raw/en-de", None, tmp_path)
    for part in ("task 1 of the multi30k project", "--data_dir", "raw/<split>.<language>.gz", "tok/<split>"):
        assert part in message
    assert "--data_dir" in fails("multi30k/raw/en-de", tmp_path / "absent", tmp_path)
    (files / "raw" / "val.de.gz").unlink()
    assert "val.de.gz" in fails("multi30k/raw/en-de", files, tmp_path)
    assert not (tmp_path / "prepared").exists()


def test_files_that_are_not_parallel_are_refused(files: Path, tmp_path: Path) -> None:
    (files / "tok" / "val.lc.norm.tok.de").write_text("one\ntwo\n")
    message = fails("multi30k/tokenized/en-de", files, tmp_path)
    assert "has 3 lines" in message
    assert "has 2: " in message or "has 2 " in message
    # Nothing half-prepared is taken for the set afterwards.
    assert "has 3 lines" in fails("multi30k/tokenized/en-de", files, tmp_path)


def test_damaged_files_are_refused(files: Path, tmp_path: Path) -> None:
    path = files / "raw" / "train.en.gz"
    path.write_bytes(path.read_bytes()[:-12])
    assert "cannot read" in fails("multi30k/raw/en-de", files, tmp_path)
    (files / "tok" / "train.lc.norm.tok.en").write_bytes(b"\xff\xfe\n")
    assert "cannot read" in fails("multi30k/tokenized/en-de", files, tmp_path)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("multi30k/row/en-de", "raw/en-de"), ("multi30k/raw/de-fr", "raw/"), ("multi30k", "raw/")],
)
def test_unknown_names_are_refused(name: str, nearest: str, files: Path, tmp_path: Path) -> None:
    assert nearest in fails(name, files, tmp_path)


def test_the_direction_is_said_once(files: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="contradicts"):
        open_translation_dataset(
            "multi30k/raw/en-de", data_dir=str(files), prepared_dir=str(tmp_path), languages=("de", "en")
        )


@pytest.mark.parametrize("text", multi30k.TEXTS)
def test_the_real_files_have_their_published_sizes(shared_data: Path, text: str) -> None:
    folder = shared_data / "multi30k"
    for split, count in zip(SPLITS, (29_000, 1_014, 1_000, 1_000), strict=True):
        for language in ("en", "de", "fr"):
            assert len(multi30k.read_lines(multi30k.locate_split_file(folder, text, split, language))) == count
