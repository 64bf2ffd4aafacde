"""Named arrays of a run's maps against the store, and images that hold no live markup."""

import html.parser

import numpy as np
import pytest

import transformer.maps
from transformer.config import UserError
from transformer.maps import run_maps
from transformer.maps.store import MapStore


@pytest.fixture(scope="module")
def opened(run):
    return transformer.maps.open(run.directory)


def test_weights_have_the_names_of_their_axes_and_tokens(run, opened):
    store = MapStore.open_existing(run.directory / "maps")
    weights = opened.weights("decoder/cross", example=2)
    assert weights.dims == ("step", "layer", "head", "query", "key")
    assert tuple(weights.step.values) == store.steps == opened.steps
    assert list(weights.query_token.values) == list(run.labels.tokens["target"][2])
    assert list(weights.key_token.values) == list(run.labels.tokens["source"][2])
    queries, keys = weights.shape[-2:]
    one = weights.sel(step=400, layer=1, head=2)
    np.testing.assert_array_equal(one, store.read("decoder/cross", 400)[2, 1, 2, :queries, :keys])
    np.testing.assert_allclose(weights.sum("key"), 1, atol=0.01)
    assert opened.weights("encoder/self", steps=(100,)).shape[0] == 1


def test_layers_and_heads_are_numbers_unless_they_have_other_names():
    assert run_maps.coordinate(("0", "1", "10")) == [0, 1, 10]
    assert run_maps.coordinate(("read", "write")) == ["read", "write"]
    assert run_maps.coordinate(("0", "01")) == ["0", "01"]
    assert run_maps.coordinate(("0", "top")) == ["0", "top"]


def test_statistics_have_theirs(opened):
    found = opened.statistics("decoder/cross")
    assert found.dims == ("statistic", "step", "example", "layer", "head")
    names, values = opened.store.statistics("decoder/cross")
    assert list(found.statistic.values) == list(names)
    np.testing.assert_array_equal(found.sel(statistic="entropy"), values[..., names.index("entropy")])


def test_a_image_has_a_slider_over_the_steps(opened, monkeypatch):
    treescope = pytest.importorskip("treescope")
    given = {}
    draw = treescope.render_array
    monkeypatch.setattr(
        treescope, "render_array", lambda array, **how: given.update(how, array=array) or draw(array, **how)
    )
    assert "treescope" in opened.show("decoder/cross", example=2)._repr_html_()
    names = given["axis_item_labels"]
    assert names[0][-1] == "step 1600"
    assert "▁acht" in names[3]
    assert given["sliders"] == (0,)
    assert given["array"].shape == tuple(len(names[axis]) for axis in range(5))


def test_of_many_steps_some_are_shown_the_last_among_them(opened, monkeypatch):
    monkeypatch.setattr(run_maps, "SHOWN_STEPS", 3)
    treescope = pytest.importorskip("treescope")
    monkeypatch.setattr(treescope, "render_array", lambda array, **how: how["axis_item_labels"][0])
    assert opened.show("encoder/self") == ["step 200", "step 800", "step 1600"]


def test_the_summary_names_the_sites_and_escapes_them(opened):
    text = opened._repr_html_()
    html.parser.HTMLParser().feed(text)
    assert all(site in text for site in opened.sites)
    assert run_maps._table_cell("<img onerror=x>") == "<td>&lt;img onerror=x&gt;</td>"
    assert "decoder/cross" in repr(opened)


def test_what_is_not_there_is_named(run, opened, tmp_path):
    with pytest.raises(UserError, match="example=99"):
        opened.weights("decoder/cross", example=99)
    with pytest.raises(UserError, match="site='nowhere'"):
        opened.weights("nowhere")
    with pytest.raises(UserError, match="step=7"):
        opened.weights("decoder/cross", steps=(7,))
    with pytest.raises(UserError, match="no steps"):
        opened.weights("decoder/cross", steps=())
    with pytest.raises(UserError, match="no map store"):
        transformer.maps.open(tmp_path)


def test_without_xarray_it_says_what_to_install(opened, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "xarray", None)
    with pytest.raises(UserError, match=r"pip install xarray"):
        opened.weights("decoder/cross")
