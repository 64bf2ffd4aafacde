"""The notebooks of docs/tutorials: each runs with small sizes, in this process."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.markdown import ROOT
from transformer.training import build
from transformer.training.partitioning import single_device_placement

NOTEBOOKS = {path.stem: path for path in sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))}
# What replaces the values of the cell with the tag "parameters".
SMALL: dict[str, dict[str, Any]] = {
    "attention_from_scratch": {},
    "induction_heads": {"STEPS": 4, "EVERY": 2},
    "pre_norm_vs_post_norm": {
        "STEPS": 2,
        "SEEDS": (1, 2),
        "LEARNING_RATES": (1e-3,),
        "LAYERS": 2,
    },
    "your_own_model_and_task": {"STEPS": 10},
}


def cells(name: str) -> list[dict[str, Any]]:
    """The cells of a notebook."""
    return json.loads(NOTEBOOKS[name].read_text(encoding="utf-8"))["cells"]


def run(name: str) -> dict[str, Any]:
    """Run the code of a notebook in the current folder, with small values for its parameters; return its variables."""
    names: dict[str, Any] = {}
    for cell in cells(name):
        source = "".join(cell["source"])
        if cell["cell_type"] != "code":
            continue
        written = re.fullmatch(r"%%writefile (\S+)\n(.*)", source, re.DOTALL)
        if written:
            Path(written[1]).parent.mkdir(exist_ok=True)
            Path(written[1]).write_text(written[2] + "\n", encoding="utf-8")
            continue
        exec(compile(source, name, "exec"), names)
        if "parameters" in cell["metadata"].get("tags", ()):
            assert set(SMALL[name]) <= set(names)
            names.update(SMALL[name])
    return names


@pytest.fixture(scope="module", autouse=True)
def one_device() -> Iterator[None]:
    """Train on one device: sharding has its tests, and makes these slow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "make_placement", lambda config: single_device_placement())
        yield


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, from which modules are imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_small_and_has_no_output(name: str) -> None:
    text = NOTEBOOKS[name].read_text(encoding="utf-8")
    notebook = json.loads(text)
    assert (notebook["nbformat"], len(text) < 20_000) == (4, True)
    assert all(not cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code")
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    assert f"({name}.ipynb)" in (ROOT / "docs" / "tutorials" / "index.md").read_text(encoding="utf-8")


def test_every_notebook_is_run() -> None:
    assert set(NOTEBOOKS) == {*SMALL, "gpt2_heads"}  # tests/interpret/test_documented.py runs that one


def test_attention_from_scratch_agrees_with_attend(folder: Path) -> None:
    names = run("attention_from_scratch")
    assert float(abs(names["grouped"] - names["repeated"]).max()) < 1e-6
    assert float(abs(names["attention"](names["q"], names["k"], names["v"])[0]).max()) > 0
    assert names["difference"] < 1e-5
    assert names["changes"]["none"] < 1e-5 < 0.1 < names["changes"]["alibi"]
    assert names["maps"].shape == (2, 4, 6, 6)


@pytest.mark.slow
def test_induction_heads_measures_every_head(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = run("induction_heads")
    assert names["scores"]["induction"].shape == (len(names["maps"].steps), 2, 2)
    assert names["maps"].steps[-1] == 4
    out = capsys.readouterr().out
    assert "onset: step None; largest induction score at the end: 0." in out
    assert names["weights"].shape == (2, 32, 2, 27, 27)
    assert names["restored"].shape == (27,)
    assert re.search(r"^steered to '\w', behind which comes '\w': \[\('", out, re.MULTILINE)


@pytest.mark.slow
def test_pre_norm_and_post_norm_are_compared_in_pairs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = run("pre_norm_vs_post_norm")
    assert len(names["losses"]) == 4
    assert re.search(r"^pre - post: [-+]\d\.\d{3} \(95% interval ", capsys.readouterr().out, re.MULTILINE)


def test_a_model_and_a_task_of_ones_own_train(folder: Path) -> None:
    names = run("your_own_model_and_task")
    assert names["previous"].shape == (len(names["maps"].steps),)
    shutil.rmtree(folder / "lab")
