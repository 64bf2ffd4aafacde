"""The notebooks of docs/tutorials: each runs with small sizes, in this process."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.markdown import ROOT
from transformer.training import build
from transformer.training.partitioning import single_device_placement

NOTEBOOKS = {path.stem: path for path in sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))}
# What replaces the values of the cell with the tag "parameters".
SMALL: dict[str, dict[str, Any]] = {
    "attention_from_scratch": {},
    "induction_heads": {"STEPS": 4, "EVERY": 2},
    "lecture_0_attention_as_retrieval": {"STEPS": 2, "LENGTHS": (4, 8), "FEATURES": 8, "DISTANCES": (2, 4)},
    "lecture_1_from_recurrent_to_transformer": {"STEPS": 2},
    "lecture_2_alignment_and_self_attention": {"STEPS": 2},
    "lecture_3_sets_masks_and_heads": {"STEPS": 2, "LAYERS": 2, "WIDTH": 16},
    "lecture_4_kinds_of_attention": {"STEPS": 2},
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


def run(name: str, *, slow: bool = True) -> dict[str, Any]:
    """Run the code of a notebook in the current folder, with small values for its parameters; return its variables.

    Without `slow`, the cells with that tag are left out: those that train, and those that read what was trained.
    """
    names: dict[str, Any] = {}
    for cell in cells(name):
        source, tags = "".join(cell["source"]), cell["metadata"].get("tags", ())
        if cell["cell_type"] != "code" or ("slow" in tags and not slow):
            continue
        written = re.fullmatch(r"%%writefile (\S+)\n(.*)", source, re.DOTALL)
        if written:
            Path(written[1]).parent.mkdir(exist_ok=True)
            Path(written[1]).write_text(written[2] + "\n", encoding="utf-8")
            continue
        exec(compile(source, name, "exec"), names)
        if "parameters" in tags:
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


def test_attention_as_retrieval(folder: Path) -> None:
    names = run("lecture_0_attention_as_retrieval", slow=False)
    # Logits 0.2, 0.9 and 0.1, divided by the temperature; the prices are 3, 2 and 5.
    for temperature, price in names["read"].items():
        weights = np.exp(np.array([0.2, 0.9, 0.1]) / temperature)
        assert price == pytest.approx(weights @ [3, 2, 5] / weights.sum(), rel=1e-5)
    assert names["mean_errors"]["attention"] < 0.25 < names["mean_errors"]["average"]
    assert names["general_difference"] < 1e-5
    assert names["both"][1][0].tolist() == [1, 0, 0, 0, 0]
    assert names["table"]["attention"] == (12_000_000_000, 1, 1)
    assert names["table"]["lstm"] == (16_000_000_000, 1000, 1000)
    assert list(names["parameters"].values()) == [116_534_784, 1_557_611_200, 174_604_259_328]


def test_from_a_recurrent_decoder_to_the_transformer(folder: Path) -> None:
    names = run("lecture_1_from_recurrent_to_transformer", slow=False)
    assert max(names["loop_difference"], names["prefix_difference"]) < 1e-5
    assert names["same_word"][0] < 1e-5 < 0.05 < names["same_word"][1]
    assert names["features_read"] == {"projected": 64, "cut": 8}
    assert names["scores"].tolist() == [[112, 96]]
    assert names["scaled"].tolist() == [[14, 12]]
    for weights in (names["softmaxed"][0], names["total"], names["with_attend"][0]):
        assert np.asarray(weights) == pytest.approx([0.880797, 0.119203], abs=1e-6)
    assert names["flops"] == {
        "products of the map": 4e9,
        "vanilla": 4e9,
        "gru": 1.2e10,
        "lstm": 1.6e10,
        "convolution": 6e9,
        "attention": 1.2e10,
    }
    assert names["ratios"][-1].tolist() == [0.5625, 0.75, 1, 1.5]
    base, big = names["cost_ratios"]["base"], names["cost_ratios"]["big"]
    assert (round(base["convs2s"], 1), round(base["moe"], 1), round(base["gnmt-rl"], 1)) == (2.9, 6.1, 7.0)
    assert big["gnmt-rl"] == 1 > big["convs2s"]
    assert names["moved"]["relative"] < 1e-5 < 0.1 < names["moved"]["absolute"]


def test_alignment_and_self_attention(folder: Path) -> None:
    names = run("lecture_2_alignment_and_self_attention", slow=False)
    assert max(names["average_difference"], names["loop_difference"]) < 1e-5
    assert names["shrunk"] == pytest.approx(6, rel=1e-4)
    assert names["bags"]["without"] < 1e-5 < 0.1 < names["bags"]["with"]
    assert names["distances"].min() > 0.5
    assert np.flatnonzero(names["change"]).tolist() == [0, 1, 2, 3]
    assert (names["change_mixed"] > 0).all()
    assert names["products"] == {"vanilla": 1, "gru": 3, "lstm": 4}
    shares = names["shares"]
    assert shares["chosen"] == pytest.approx(0.15, abs=1e-6)
    # Of 960 tokens: four standard deviations of a share of 0.8 are 0.05. A random token is the same in 1 of 90 cases.
    assert shares["as [MASK]"] == pytest.approx(0.8, abs=0.05)
    assert shares["unchanged"] == pytest.approx(0.1, abs=0.04)
    assert (names["causal"][0] == np.tril(names["causal"][0])).all()
    assert names["exact"]["bert-large"] == 335_141_888


def test_sets_masks_and_heads(folder: Path) -> None:
    names = run("lecture_3_sets_masks_and_heads", slow=False)
    differences = list(names["equivariance"].values())
    assert differences[0] < 1e-5
    assert min(differences[1:]) > 0.1
    assert names["variances"] == pytest.approx(names["sizes"], rel=0.15)
    assert (np.diff(names["largest"][0]) > 0).all()
    assert names["largest"][1].max() < 0.2
    network, attention, causal = names["gradients"].values()
    assert (network == np.diag(np.diag(network))).all()
    assert (attention > 0).all()
    assert (causal == np.tril(causal)).all()
    assert names["seen"][1] < 1e-6 < 0.1 < names["seen"][2]
    assert (names["base"].encoder_layers, names["base"].decoder_layers, names["base"].heads) == (6, 6, 8)
    assert max(names["rotation_error"], names["concatenation_error"]) < 1e-12
    assert np.isnan(names["normalized"][0.0])
    assert names["normalized"][1e-6] == 0


def test_kinds_of_attention(folder: Path) -> None:
    names = run("lecture_4_kinds_of_attention", slow=False)
    assert [name for name, follows in names["follows"].items() if not follows] == ["location"]
    gradients = names["gradients"]
    assert gradients["hard"] == 0
    assert gradients["straight_through"] == pytest.approx(gradients["softmax"], rel=1e-4)
    assert max(names["errors"].values()) < 0.1
    assert names["estimator_variances"]["baseline"] < names["estimator_variances"]["plain"] / 2
    assert np.asarray(names["visible"].sum(axis=1)).tolist() == [3, 4, 5, 5, 5, 5, 4, 3]
    assert names["local_p"].sum(axis=1).max() < 1
    assert names["past"].sum(axis=1) == pytest.approx([0] + 7 * [1], abs=1e-5)
    assert int(names["content"].argmax()) == 2
    assert int(names["sharpened"].argmax()) == 3
    assert names["visited"] == [0, 1, 2, 3, 4, 5, 6, 7, 0, 1]
    assert names["reach"][1].tolist() == [1, 3, 7, 15, 31, 63]
    assert names["changes"][0.0] == 0 < names["changes"][0.5]


# What the slow cells of a lecture's notebook leave behind.
SLOW: dict[str, Callable[[dict[str, Any]], bool]] = {
    "lecture_0_attention_as_retrieval": lambda names: (
        names["milliseconds"].shape == (2, 5) and len(names["answers"]) == 3 and names["last"].shape == (4, 5)
    ),
    "lecture_1_from_recurrent_to_transformer": lambda names: names["last"].shape == (4, 14) and bool(names["answer"]),
    "lecture_2_alignment_and_self_attention": lambda names: set(names["accuracy"]) == {"attention", "last"},
    "lecture_3_sets_masks_and_heads": lambda names: (
        names["norms"]["post"].shape == (2,) and names["by_cell"].sum(axis=1) == pytest.approx(1, abs=0.01)
    ),
    "lecture_4_kinds_of_attention": lambda names: (names["run"].path / "metrics.jsonl").exists(),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_a_notebook_of_a_lecture_trains(name: str, folder: Path) -> None:
    assert SLOW[name](run(name))
