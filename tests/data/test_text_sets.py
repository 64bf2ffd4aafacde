"""Texts by name: Python's documentation, files, and TFDS sets; what is missing is named."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow_datasets as tfds

from transformer.config import UserError
from transformer.data.datasets.text import TextDataset, open_text_dataset


class TinyText(tfds.core.GeneratorBasedBuilder):
    """Forty numbered texts, without a validation split."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self) -> tfds.core.DatasetInfo:
        features = tfds.features.FeaturesDict({"id": tfds.features.Text(), "text": tfds.features.Text()})
        return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        return {"train": self._generate_examples(40), "test": self._generate_examples(3)}

    def _generate_examples(self, count: int) -> Iterator[tuple[int, dict[str, str]]]:
        for index in range(count):
            yield index, {"id": str(index), "text": f"schöner Text {index}"}


def opened(name: str, path: Path, data_dir: Path | None = None) -> TextDataset:
    return open_text_dataset(name, data_dir=data_dir and str(data_dir), prepared_dir=str(path / "prepared"))


def test_of_text_beside_files_of_a_split_nothing_is_cut_for_that_split(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "novel.txt").write_text("x\n" * 1000)
    (folder / "test.txt").write_text("y\n")
    text = opened(str(folder), tmp_path)
    sizes = {name: sum(map(len, text.split(name))) for name in ("train", "validation", "test")}
    assert sizes == {"train": 1900, "validation": 100, "test": 2}


def test_pythons_documentation_is_there_for_everyone(tmp_path: Path) -> None:
    docs = opened("python_docs", tmp_path)
    assert docs.source_description.startswith("Python 3.")
    parts = {name: [docs.split(name)[n] for n in range(len(docs.split(name)))] for name in docs.splits}
    assert set(parts) == {"train", "validation", "test"}
    every = [text for part in parts.values() for text in part]
    assert len(set(every)) == len(every) >= 60
    sizes = {name: sum(map(len, part)) / sum(map(len, every)) for name, part in parts.items()}
    assert 0.8 < sizes["train"] < 0.9
    assert min(sizes.values()) > 0.04
    assert opened("python_docs", tmp_path).splits == docs.splits


def test_tiny_shakespeare_is_cut_at_nine_tenths(shared_data: Path, tmp_path: Path) -> None:
    text = opened("tinyshakespeare", tmp_path, shared_data / "tinyshakespeare")
    assert {name: [len(one) for one in part] for name, part in text.splits.items()} == {
        "train": [1_003_854],
        "validation": [111_540],
    }
    with pytest.raises(UserError, match="has no split 'test'"):
        text.split("test")


def test_wikitext_has_its_articles_and_says_what_is_missing(shared_data: Path, tmp_path: Path) -> None:
    text = opened("wikitext-2", tmp_path, shared_data / "wikitext-2")
    assert {name: len(part) for name, part in text.splits.items()} == {"validation": 60, "test": 60}
    assert all(one.lstrip().startswith("= ") for part in text.splits.values() for one in part)
    whole = (shared_data / "wikitext-2" / "valid.txt").read_text()
    assert "".join(text.split("validation")) == whole
    assert len(whole.split()) + whole.count("\n") == 217_646
    with pytest.raises(UserError, match=r"no split 'train'.*put train.txt into its folder"):
        text.split("train")


def test_a_text_file_is_cut_at_line_ends(tmp_path: Path) -> None:
    text = "".join(f"line {n}\n" for n in range(400))
    (tmp_path / "book.txt").write_text(text)
    splits = opened(str(tmp_path / "book.txt"), tmp_path).splits
    assert "".join(one for name in ("train", "validation", "test") for one in splits[name]) == text
    assert all(one.endswith("\n") for part in splits.values() for one in part)
    assert 0.89 < len(splits["train"][0]) / len(text) < 0.91


def test_a_folder_of_texts(tmp_path: Path) -> None:
    for n in range(10):
        (tmp_path / f"{n}.txt").write_text(f"{n}\n" * 100)
    splits = opened(str(tmp_path), tmp_path).splits
    assert splits["train"] == [f"{n}\n" * 100 for n in range(9)]
    assert (splits["validation"], splits["test"]) == (["9\n" * 50], ["9\n" * 50])
    (tmp_path / "train.txt").write_text("a")
    (tmp_path / "valid.txt").write_text("b")
    with pytest.raises(UserError, match=r"has train.txt, and beside it 0.txt and 9 more, whose names say no split"):
        opened(str(tmp_path), tmp_path)
    for n in range(10):
        (tmp_path / f"{n}.txt").unlink()
    assert opened(str(tmp_path), tmp_path).splits == {"train": ["a"], "validation": ["b"]}


def test_a_tfds_set_holds_out_validation(tmp_path: Path) -> None:
    text = opened("tiny_text", tmp_path)
    train, validation, test = (text.split(name) for name in ("train", "validation", "test"))
    assert (len(train), len(validation), len(test)) == (38, 2, 3)
    assert sorted([*train, *validation]) == sorted(f"schöner Text {n}" for n in range(40))
    assert [train[n] for n in range(38)] == list(train) == train[:]
    assert train[-1] == train[37] != validation[0]
    with pytest.raises(IndexError):
        train[38]
    folder = opened(str(tmp_path / "prepared" / "tiny_text"), tmp_path)
    assert list(folder.split("test")) == list(test)


def test_what_cannot_be_opened_says_why(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "latin.txt").write_bytes(b"\xe9\n")
    (tmp_path / "short.txt").write_text("one line")
    for name, says in {
        "no_such_text": "is no text set: write python_docs",
        "tinyshakespeare": "needs its files",
        str(tmp_path / "absent.txt"): "does not exist",
        str(tmp_path / "empty"): "holds no .txt file",
        str(tmp_path / "latin.txt"): "as UTF-8 text",
        str(tmp_path / "short.txt"): "short.txt has too few lines",
    }.items():
        with pytest.raises(UserError) as caught:
            opened(name, tmp_path)
        assert says in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match=r"no file .*input.txt"):
        opened("tinyshakespeare", tmp_path, tmp_path / "empty")
    with pytest.raises(UserError, match=r"has no train.txt, valid.txt or test.txt"):
        opened("wikitext-2", tmp_path, tmp_path / "empty")
