"""Prepared folders are plain data: what their files name is never imported, and no file outside them is read."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.greetings import prepare
from transformer.config import UserError
from transformer.data.datasets.text import open_text_dataset
from transformer.data.datasets.tfds_preparation import restrict_downloads
from transformer.data.datasets.translation import open_translation_dataset

Change = Callable[[dict[str, Any], dict[str, Any]], None]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare(tmp_path_factory.mktemp("prepared"))


@pytest.fixture
def changed(prepared: Path, tmp_path: Path) -> Callable[[Change], Path]:
    def make(change: Change) -> Path:
        folder = tmp_path / "changed"
        shutil.copytree(prepared, folder)
        info, features = (json.loads((folder / f"{name}.json").read_text()) for name in ("dataset_info", "features"))
        change(info, features)
        for name, content in (("dataset_info", info), ("features", features)):
            (folder / f"{name}.json").write_text(json.dumps(content))
        return folder

    return make


def _names(where: str) -> Change:
    def change(info: dict[str, Any], features: dict[str, Any]) -> None:
        info["moduleName"] = "canary"
        of = features if where == "top" else features["featuresDict"]["features"][where]
        of["pythonClassName"] = "canary.Feature"

    return change


@pytest.mark.parametrize("where", ["top", "note"])
@pytest.mark.parametrize("opener", [open_translation_dataset, open_text_dataset])
def test_no_name_in_a_folder_is_imported(
    changed: Callable[[Change], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, opener: Any
) -> None:
    (tmp_path / "canary.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\nclass Feature: pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    opened = opener(str(changed(_names(where))), prepared_dir=str(tmp_path / "unused"))
    assert len(opened.split("train")) == 64
    assert not (tmp_path / "executed").exists()
    assert "canary" not in sys.modules


def _template(text: str) -> Change:
    return lambda info, features: info["splits"][0].update(filepathTemplate=text)


def _lengths(*lengths: Any) -> Change:
    return lambda info, features: info["splits"][0].update(shardLengths=list(lengths))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_template("../{SPLIT}"), "is no plain name"),
        (_template("/etc/passwd"), "is no plain name"),
        (_template("{DATASET}-{SPLIT}.{HOME}"), "KeyError"),
        (_template("no-such-file"), "has no file no-such-file"),
        (_lengths("-1"), "is no number of records"),
        (_lengths(str(10**30)), "is no number of records"),
        (_lengths("x"), "ValueError"),
        (_lengths("1" * 5000), "ValueError"),
        (lambda info, features: info.update(splits=[[]]), "cannot be opened"),
        (lambda info, features: info.update(name="../x"), "is no plain name"),
        (lambda info, features: info.update(fileFormat=["array_record"]), "is no text"),
        (lambda info, features: features.update(featuresDict=[]), "cannot be opened"),
        (lambda info, features: features.clear(), "KeyError: 'pythonClassName'"),
        (lambda info, features: info.update(supervisedKeys={"tuple": {"items": 3}}), "cannot be opened"),
    ],
)
def test_a_folder_that_describes_no_set_is_refused(
    changed: Callable[[Change], Path], change: Change, says: str
) -> None:
    with pytest.raises(UserError) as caught:
        list(open_translation_dataset(str(changed(change)), prepared_dir="unused").split("train"))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_records_that_are_missing_or_damaged_are_said_to_be(changed: Callable[[Change], Path]) -> None:
    folder = changed(_lengths("1000"))
    opened = open_translation_dataset(str(folder), prepared_dir="unused")
    with pytest.raises(UserError, match="prepare it again"):
        list(opened.split("train"))
    for file in folder.glob("*test.array_record*"):
        file.write_bytes(b"\xff" * 1000)
    with pytest.raises(UserError, match="prepare it again"):
        list(opened.split("test"))


@pytest.mark.parametrize(
    "name", ["huggingface:stas/openwebtext", "someone:set", "https://example.org/x", "a/b/c", "gs://a/b"]
)
@pytest.mark.parametrize("opener", [open_translation_dataset, open_text_dataset])
def test_no_other_host_is_asked(tmp_path: Path, name: str, opener: Any) -> None:
    with pytest.raises(UserError, match=r"another host|is no (text|translation) set"):
        opener(name, prepared_dir=str(tmp_path))


def test_a_download_needs_somebody_who_asked_for_it(tmp_path: Path) -> None:
    with (
        restrict_downloads(["lm1b"]),
        pytest.raises(UserError, match=r"is not prepared here, .*--trust=wmt14_"),
    ):
        open_translation_dataset("wmt14_translate/de-en", prepared_dir=str(tmp_path))
    with restrict_downloads(["wmt14_translate/xx-en"]), pytest.raises(UserError, match="TFDS cannot build"):
        open_translation_dataset("wmt14_translate/xx-en", prepared_dir=str(tmp_path))
