"""The page of weights that were computed elsewhere: its maps, its roles, and what is refused."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.markdown import ROOT
from transformer.config import UserError
from transformer.interpret.show_weights import show_weights
from transformer.maps.role_rules import Role

TOKENS = ["the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", "again"]
SIZE = len(TOKENS)


def previous_token_and_uniform() -> np.ndarray:
    """One layer of two causal heads: one attends to the token before, one to all visible tokens alike."""
    uniform = np.tril(np.ones((SIZE, SIZE)))
    previous = np.eye(SIZE, k=-1)
    previous[0, 0] = 1
    return np.stack([previous, uniform / uniform.sum(axis=-1, keepdims=True)])[None]


def test_the_page_names_the_roles_of_the_heads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = show_weights(previous_token_and_uniform(), TOKENS, causal=True, title="mine", page=tmp_path / "a.html")
    assert shown.path == tmp_path / "a.html"
    assert f"Open this page in a browser: {tmp_path / 'a.html'}" in capsys.readouterr().out
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert "mine" in page
    assert "quick" in page
    assert Role.PREVIOUS_TOKEN.value in page


def test_cross_attention_has_keys_of_its_own(tmp_path: Path) -> None:
    weights = np.full((2, 3, 2, 4), 0.25)
    page = show_weights(weights, ["das", "Haus"], ["the", "house", "is", "red"], page=tmp_path / "a.html").html
    assert all(word in page for word in ("Haus", "red", "queries", "keys"))


@pytest.mark.parametrize(
    ("weights", "causal", "says"),
    [
        (np.ones((1, 1, 2, 3)), False, r"shape \(1, 1, 2, 3\); with 2 queries and 2 keys"),
        (np.ones((2, 2)), False, r"must be \[layer, head, 2, 2\]"),
        (np.full((1, 1, 2, 2), -1.0), False, "at least 0: give them after the softmax"),
        (np.full((1, 1, 2, 2), np.nan), False, "must be finite"),
        (np.ones((1, 1, 2, 2)), False, r"sums to 2\.000"),
        (np.full((1, 1, 2, 2), 0.5), True, "causal=True, but a query has weight on a later key"),
    ],
)
def test_weights_that_are_none_are_refused(weights: np.ndarray, causal: bool, says: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=says):
        show_weights(weights, ["a", "b"], causal=causal, page=tmp_path / "a.html")
    assert not list(tmp_path.iterdir())


def test_the_code_of_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "guides" / "interpret.md").read_text(encoding="utf-8")
    section = page.partition("\n## Weights of a model outside Headwise\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)
    assert (tmp_path / "fox.html").is_file()
    (role,) = names["roles"]
    assert (role.role, role.plays, role.evidence[0].score) == (Role.PREVIOUS_TOKEN, True, 1.0)
