"""docs/tutorials/gpt2_heads.ipynb and the code of docs/guides/interpret.md and activations.md run as they stand."""

import json
import re
import shutil
from pathlib import Path

import pytest

from transformer.models.activation_names import KINDS


@pytest.fixture
def beside(folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, in which a model lies under the name that the documents say."""
    shutil.copytree(folders["gpt2"], tmp_path / "gpt2")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_notebook_runs_and_is_small(root: Path, beside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (root / "docs" / "tutorials" / "gpt2_heads.ipynb").read_text(encoding="utf-8")
    notebook = json.loads(text)
    assert (notebook["nbformat"], len(text) < 10_000) == (4, True)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(not cell["outputs"] for cell in cells)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    names: dict = {}
    for cell in cells:
        exec("".join(cell["source"]), names)
    said = capsys.readouterr().out
    assert "Open this page in a browser: " in said
    assert re.search(r"^layer [01], head [01]: 0\.\d\d$", said, re.MULTILINE)
    assert names["layer"].queries[0][0] == "the"


@pytest.mark.slow
def test_the_page_of_the_documentation_runs(root: Path, beside: Path) -> None:
    page = (root / "docs" / "guides" / "interpret.md").read_text()
    block, *_ = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    names: dict = {}
    exec(block, names)
    assert names["maps"]["decoder/self"][0].shape[:2] == (1, 2)


def test_the_page_of_activations_runs(root: Path, beside: Path) -> None:
    page = (root / "docs" / "guides" / "activations.md").read_text()
    names: dict = {}
    for block in re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        if 'load("runs/demo")' not in block:  # what a translator reads and writes: tests/interpret/test_families.py
            exec(block, names)
    assert names["lens"].shape[0] == 2
    assert names["by_head"](names["jnp"].arange(2), names["jnp"].arange(2)).shape == (2, 2)


def test_the_page_of_activations_names_all(root: Path) -> None:
    page = (root / "docs" / "guides" / "activations.md").read_text()
    assert [kind for kind in KINDS if kind.rpartition("/")[2] not in page] == []
