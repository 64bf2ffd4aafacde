"""`look`: a page of one sentence, a file outside of notebooks and a closed frame inside, and faces of what it reads."""

import html
import html.parser
import json
import re
import sys
import types
from pathlib import Path

import pytest

import transformer
from transformer.config import UserError
from transformer.interpret.load import LoadedModel
from transformer.interpret.show import AttentionPage, in_notebook


@pytest.fixture(scope="module")
def model(folders: dict[str, Path]) -> LoadedModel:
    return transformer.load(folders["gpt2"])


def data_of(page: str) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_a_look_is_a_file_whose_path_is_told(
    model: LoadedModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    looked = model.show_attention("the qu", page=tmp_path / "page.html")
    assert capsys.readouterr().out == f"Open this page in a browser: {tmp_path / 'page.html'}\n"
    assert looked.path == tmp_path / "page.html"
    page = looked.path.read_text()
    assert page == looked.html
    data = data_of(page)
    assert (data["title"], data["titles"], data["tokens"]) == ("tiny-gpt2", ["the qu"], {"tokens": [["the", "▁qu"]]})
    # Nothing of any training.
    assert data["singleText"]
    assert (data["curves"], data["samples"], data["history"]["roles"], data["steps"]) == ({}, [], [], [0])
    assert [site["tables"] for site in data["history"]["sites"]] == [[]]
    assert ["n_layer", "2"] in data["config"]


def test_a_page_without_a_name_is_a_new_file_and_one_that_cannot_be_written_is_refused(
    model: LoadedModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    looked = AttentionPage("title", "page")
    path = looked.save().path
    assert path is not None
    assert path.read_text() == "page"
    assert path != looked.save().path
    with pytest.raises(UserError, match=r"page=.*absent.* cannot be written: No such file"):
        looked.save(tmp_path / "absent" / "page.html")
    # Two texts are two examples; their pages have no room in a thousand bytes.
    with pytest.raises(UserError, match="budget=1000 bytes is too small"):
        model.show_attention(["the", "qu"], page=tmp_path / "page.html", budget=1000)
    assert not list(tmp_path.iterdir())


def test_in_a_notebook_the_page_is_shown_in_a_frame(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not in_notebook()
    shell = types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))  # type: ignore[misc]
    assert in_notebook()
    looked = model.show_attention("the <b>qu")
    assert (looked.path, capsys.readouterr().out) == (None, "")
    frame = looked._repr_html_()
    attributes = 'srcdoc="([^"]*)" sandbox="([^"]*)" title="([^"]*)" style="[^"]*" onload="[^"]*"'
    found = re.fullmatch(f"<iframe {attributes}></iframe>", frame)
    assert found is not None
    assert html.unescape(found[1]) == looked.html
    # The frame reaches neither the notebook nor its server.
    assert found[2].split() == ["allow-scripts", "allow-downloads"]
    assert found[3] == "the &lt;b&gt;qu"
    del shell.kernel
    assert not in_notebook()


def test_what_is_loaded_and_captured_has_a_face(model: LoadedModel) -> None:
    assert repr(model).startswith("LoadedModel('tiny-gpt2': decoder, ")
    assert "4 heads at decoder/self" in repr(model)
    maps = model.run_with_maps("the <i>qu")
    site = maps["decoder/self"]
    for face, words in (
        (model._repr_html_(), "tiny-gpt2"),
        (maps._repr_html_(), "decoder/self"),
        (site._repr_html_(), "a row a layer"),
        (site[1]._repr_html_(), "layer 1"),
    ):
        html.parser.HTMLParser().feed(face)
        assert words in face
        assert "<i>" not in face
    assert "&lt;" in maps._repr_html_()
    assert site._repr_html_().count("data:image/png;base64,") == 1
    assert repr(maps) == "AttentionMaps(SiteMaps('decoder/self', layers=('0', '1'), each (1, 2, 7, 7)))"
    assert repr(site[0]) == "LayerMaps('decoder/self', layer='0', shape=(1, 2, 7, 7))"
