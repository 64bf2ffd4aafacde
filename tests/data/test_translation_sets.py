"""One way to open every translation set: phrases, TFDS sets by name, prepared folders; what goes wrong."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grain
import numpy as np
import pytest
import tensorflow_datasets as tfds

from transformer.config import UserError
from transformer.data.datasets.translation import SentencePair, open_translation_dataset
from transformer.data.phrases.generate import sample_phrases, write_phrase

SMALL = "phrases/train=40,validation=5,test=10,seed=3"


class TinyTranslate(tfds.core.GeneratorBasedBuilder):
    """Five pairs of numbers in words, with the features of TFDS's own translation sets."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self) -> tfds.core.DatasetInfo:
        features = tfds.features.Translation(languages=("de", "en"))
        return tfds.core.DatasetInfo(builder=self, features=features, supervised_keys=("de", "en"))

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        return {"train": self._generate_examples(5), "test": self._generate_examples(2)}

    def _generate_examples(self, count: int) -> Iterator[tuple[int, dict[str, str]]]:
        for index in range(count):
            yield index, {"de": f"Grüße {index}", "en": f"greetings {index}"}


class UnreachableTranslate(TinyTranslate):
    """A set whose download fails, as every download does where there is no network."""

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        raise ConnectionError("no route\nto host")


class MonolingualTranslate(TinyTranslate):
    """A set with one text alone."""

    def _info(self) -> tfds.core.DatasetInfo:
        features = tfds.features.FeaturesDict({"en": tfds.features.Text(), "label": tfds.features.Scalar(np.int64)})
        return tfds.core.DatasetInfo(builder=self, features=features)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("prepared")
    open_translation_dataset("tiny_translate", prepared_dir=str(root))
    return root


def fails(name: str, **arguments: Any) -> str:
    with pytest.raises(UserError) as caught:
        open_translation_dataset(name, **arguments)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_phrases_are_those_that_are_drawn_in_every_language_in_turn() -> None:
    phrases = open_translation_dataset(SMALL, prepared_dir="unused")
    assert phrases.languages == ("en", "de", "fr")
    assert phrases.splits == ("train", "validation", "test")
    for split, size in (("train", 40), ("validation", 5), ("test", 10)):
        expected = []
        for item in sample_phrases(split, size, seed=3):
            for language in ("de", "fr"):
                source, target, links = write_phrase(item, language)
                expected.append(SentencePair(source, target, language, item.kind, links))
        assert list(phrases.split(split)) == expected
    assert set(Counter((p.language, p.kind) for p in phrases.split("test")).values()) == {2}


def test_phrases_in_one_language() -> None:
    opened = open_translation_dataset(
        "phrases/train=6,validation=5,test=5", prepared_dir="unused", languages=("en", "fr")
    )
    assert opened.languages == ("en", "fr")
    assert {pair.language for pair in opened.split("train")} == {"fr"}
    assert len(opened.split("train")) == 6


def test_pairs_of_a_folder_are_a_sequence_and_a_grain_source(prepared: Path) -> None:
    train = open_translation_dataset("tiny_translate", prepared_dir=str(prepared)).split("train")
    pairs = list(train)
    assert len(train) == len(pairs) == 5
    assert train[3] == pairs[3]
    assert train[-1] == pairs[-1]
    assert train[1:4] == pairs[1:4]
    with pytest.raises(IndexError):
        train[5]
    dataset = grain.MapDataset.source(train).shuffle(seed=1).map(lambda pair: pair.source)
    assert sorted(dataset[index] for index in range(len(dataset))) == sorted(pair.source for pair in pairs)


def test_preparing_happens_once(prepared: Path) -> None:
    [info] = prepared.glob("tiny_translate/1.0.0/dataset_info.json")
    before = info.stat().st_mtime_ns
    open_translation_dataset("tiny_translate", prepared_dir=str(prepared))
    assert info.stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("languages", "source", "target"),
    [
        (None, "Grüße", "greetings"),
        (("de", "en"), "Grüße", "greetings"),
        (("en", "de"), "greetings", "Grüße"),
    ],
)
def test_a_prepared_folder_opens_in_either_direction(
    prepared: Path, languages: tuple[str, str] | None, source: str, target: str
) -> None:
    for folder in (prepared / "tiny_translate" / "1.0.0", prepared / "tiny_translate"):
        opened = open_translation_dataset(str(folder), prepared_dir=str(prepared / "unused"), languages=languages)
        assert opened.languages == (languages or ("de", "en"))
        assert opened.splits == ("train", "test")
        pairs = list(opened.split("train"))
        assert sorted(pairs) == [
            SentencePair(f"{source} {index}", f"{target} {index}", opened.languages[1]) for index in range(5)
        ]
    assert not (prepared / "unused").exists()


def test_a_set_is_found_by_name_under_either_folder(prepared: Path, tmp_path: Path) -> None:
    for arguments in ({"prepared_dir": prepared}, {"data_dir": prepared, "prepared_dir": tmp_path}):
        opened = open_translation_dataset("tiny_translate", **{key: str(path) for key, path in arguments.items()})
        assert len(opened.split("test")) == 2
    assert not list(tmp_path.iterdir())


def test_a_set_that_cannot_be_downloaded(tmp_path: Path) -> None:
    message = fails("unreachable_translate", prepared_dir=str(tmp_path))
    for part in ("could not be downloaded (ConnectionError: no route to host)", "tfds build", "--data_dir"):
        assert part in message


def test_older_builders_are_found_without_tensorflow(tmp_path: Path) -> None:
    # Refused for its languages, which are asked before anything is downloaded: hence found.
    message = fails("wmt14_translate/de-en", prepared_dir=str(tmp_path), languages=("en", "fr"))
    assert "wmt14_translate/de-en has de, en" in message
    assert "wmt14_translate" in fails("wmt14_translate/xx-en", prepared_dir=str(tmp_path))


def test_what_cannot_be_opened_says_why(prepared: Path, tmp_path: Path) -> None:
    folder = str(prepared / "tiny_translate")
    arguments = {"prepared_dir": str(prepared)}
    assert "is no translation set" in fails("no_such_set/at_all", **arguments)
    assert "no text in two languages" in fails("monolingual_translate", **arguments)
    assert "is no prepared set" in fails(str(tmp_path / "absent"), **arguments)
    assert "is no prepared set" in fails(str(tmp_path), **arguments)
    assert "has de, en" in fails(folder, languages=("en", "fr"), **arguments)
    assert "has de, en" in fails(folder, languages=("en", "en"), **arguments)
    assert "did you mean 'train'" in fails("phrases/tain=3", **arguments)
    assert "whole number" in fails("phrases/train=many", **arguments)
    assert "train=0" in fails("phrases/train=0", **arguments)
    assert "'en' comes first" in fails("phrases", languages=("de", "en"), **arguments)
    assert "must be some of de, fr" in fails("phrases", languages=("en", "it"), **arguments)
    with pytest.raises(UserError, match="did you mean 'train'"):
        open_translation_dataset(folder, **arguments).split("trian")


def test_a_damaged_folder_is_refused(prepared: Path, tmp_path: Path) -> None:
    info = json.loads((prepared / "tiny_translate" / "1.0.0" / "dataset_info.json").read_text())
    folder = tmp_path / "1.0.0"
    folder.mkdir()
    (folder / "dataset_info.json").write_text("{ not json")
    assert "is not JSON" in fails(str(folder), prepared_dir=str(tmp_path))
    info["fileFormat"] = "tfrecord"
    (folder / "dataset_info.json").write_text(json.dumps(info))
    (folder / "features.json").write_bytes((prepared / "tiny_translate" / "1.0.0" / "features.json").read_bytes())
    with pytest.raises(UserError, match="stored as tfrecord, which has no random access"):
        open_translation_dataset(str(folder), prepared_dir=str(tmp_path)).split("train")


def test_a_set_that_another_process_prepared_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generate = TinyTranslate._split_generators

    def overtaken(self: Any, dl_manager: Any) -> dict[str, Any]:
        monkeypatch.setattr(TinyTranslate, "_split_generators", generate)
        TinyTranslate(data_dir=tmp_path, file_format="array_record").download_and_prepare()
        return generate(self, dl_manager)

    monkeypatch.setattr(TinyTranslate, "_split_generators", overtaken)
    assert len(open_translation_dataset("tiny_translate", prepared_dir=str(tmp_path)).split("train")) == 5


def test_no_tensorflow_no_noise_and_a_cheap_import(root: Path, tmp_path: Path) -> None:
    script = f"""
import sys
from transformer.data.datasets.translation import open_translation_dataset
assert "tensorflow_datasets" not in sys.modules and "jax" not in sys.modules
opened = open_translation_dataset({SMALL!r}, prepared_dir={str(tmp_path)!r})
assert len(list(opened.split("train"))) == 80
assert not {{"tensorflow", "torch"}} & set(sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
