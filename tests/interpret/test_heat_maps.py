"""Pictures of tables of values: what their cells say and show, and what is refused."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

import transformer
from transformer.config import UserError
from transformer.interpret import direct_logit_attribution, heat_map, logit_lens, logit_lens_heat_map
from transformer.interpret.heat_maps import HeatMap
from transformer.interpret.load import LoadedModel

SVG = "{http://www.w3.org/2000/svg}"
VALUES = np.array([[0.3, -0.6], [0.0, 1.2], [np.nan, -1.2]])


@pytest.fixture(scope="module")
def model(folders: dict[str, Path]) -> LoadedModel:
    return transformer.load(folders["gpt2"])


def cells(figure: HeatMap) -> list[tuple[str, str, tuple[int, ...]]]:
    """The hint, the text and the color of every cell, row by row."""
    groups = ElementTree.fromstring(figure.svg).findall(f"{SVG}g")
    shown = []
    for group in groups:
        rect, title = group.find(f"{SVG}rect"), group.find(f"{SVG}title")
        assert rect is not None
        assert title is not None
        color = tuple(int(part) for part in rect.attrib["fill"].strip("rgb()").split(","))
        shown.append((str(title.text), group.findtext(f"{SVG}text", ""), color))
    return shown


def test_every_cell_names_its_row_column_and_value_and_darkens_with_its_size() -> None:
    hints, texts, colors = zip(*cells(heat_map(VALUES)), strict=True)
    assert hints[:4] == ("layer 0, head 0: 0.3", "layer 0, head 1: −0.6", "layer 1, head 0: 0", "layer 1, head 1: 1.2")
    assert texts == ("0.3", "−0.6", "0", "1.2", "", "−1.2")
    darkness = [255 * 3 - sum(color) for color in colors]
    full_blue, full_orange = darkness[3], darkness[5]
    np.testing.assert_allclose(darkness[0] / full_blue, 0.25, atol=0.01)
    np.testing.assert_allclose(darkness[1] / full_orange, 0.5, atol=0.01)
    assert darkness[2] == darkness[4] == 0
    assert colors[3][2] > colors[3][0]  # blue above 0
    assert colors[5][0] > colors[5][2]  # orange below


def test_a_picture_of_zeros_is_white_and_one_of_many_cells_writes_none_of_its_values() -> None:
    assert {color for _, _, color in cells(heat_map(np.zeros((2, 2))))} == {(255, 255, 255)}
    large = cells(heat_map(np.ones((30, 40))))
    assert {text for _, text, _ in large} == {""}
    assert large[-1][0] == "layer 29, head 39: 1"


def test_the_scale_names_both_ends_and_begins_at_0_without_negative_values() -> None:
    ends = [list(ElementTree.fromstring(heat_map(v).svg))[-2:] for v in (VALUES, abs(VALUES), VALUES * np.nan)]
    assert [[text.text for text in pair] for pair in ends] == [["−1.2", "1.2"], ["0", "1.2"], ["0", "1"]]


def test_words_and_names_are_shown_as_text_whatever_they_are() -> None:
    figure = heat_map([[0.5]], ["<b>"], ["a&b"], title="<script>", words=[["</svg>"]])
    assert cells(figure)[0][:2] == ("<b>, a&b: </svg>, 0.5", "</svg>")
    assert "<script>" not in figure.svg


def test_long_names_are_shortened_and_stay_inside_of_the_picture() -> None:
    figure = heat_map(np.ones((1, 2)), ["r" * 200], ["c" * 200, "d"], title="t" * 20)
    root = ElementTree.fromstring(figure.svg)
    assert float(root.attrib["width"]) < 600
    assert float(root.attrib["height"]) < 400
    assert cells(figure)[0][0].startswith("r" * 200)


def test_a_picture_is_written_as_svg(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = heat_map(VALUES, title="heads").save(tmp_path / "heads.svg")
    assert path.read_text(encoding="utf-8").startswith("<svg")
    assert f"Open this picture in a browser: {path}" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"must end in \.svg"):
        heat_map(VALUES).save(tmp_path / "heads.png")
    with pytest.raises(UserError, match="cannot be written"):
        heat_map(VALUES).save(tmp_path / "missing" / "heads.svg")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.zeros(3),), r"values of shape \(3,\) are no table"),
        ((np.zeros((0, 3)),), r"values of shape \(0, 3\) are no table"),
        ((np.zeros((2, 2)), ["a"]), "rows=1 and columns=2 names do not fit values of shape"),
        ((np.zeros((1, 1)), ["a"], ["b", "c"]), "rows=1 and columns=2 names do not fit values of shape"),
    ],
)
def test_what_does_not_fit_is_refused(arguments: tuple, message: str) -> None:
    with pytest.raises(UserError, match=message):
        heat_map(*arguments)


def test_words_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UserError, match="one word for each value"):
        heat_map(np.zeros((1, 2)), words=[["a"]])


def test_the_lens_shows_the_most_probable_token_of_each_layer_the_last_on_top(model: LoadedModel) -> None:
    text = "the quick fox"
    figure = logit_lens_heat_map(model, text)
    logits = np.asarray(logit_lens(model, text), np.float64)[:, 0, :, : model.tokenizer.vocab_size]
    probabilities = np.exp(logits - logits.max(-1, keepdims=True))
    probabilities /= probabilities.sum(-1, keepdims=True)
    assert figure.rows == ("layer 1", "layer 0")
    assert figure.columns == model.tokens(text) == tuple(model.tokenizer.labels(model.tokenizer.encode([text])[0]))
    np.testing.assert_allclose(figure.values_RxC, probabilities.max(-1)[::-1], atol=1e-5)
    assert figure.words is not None
    assert figure.words[0] == tuple(model.tokenizer.labels(logits[-1].argmax(-1).tolist()))
    assert figure.words[0][-1] == model.top_tokens(text, 1)[0][0]


def test_the_parts_of_a_logit_are_drawn_by_layer(model: LoadedModel) -> None:
    parts = direct_logit_attribution(model, "the quick fox", " the")
    figure = parts.heat_map()
    assert figure.columns == ("head 0", "head 1", "feed-forward")
    np.testing.assert_array_equal(figure.values_RxC[:, :2], np.asarray(parts.heads_LxH))
    np.testing.assert_array_equal(figure.values_RxC[:, 2], np.asarray(parts.feed_forward_L))


def test_tokens_are_those_that_a_stack_reads(folders: dict[str, Path]) -> None:
    bert = transformer.load(folders["bert"])
    assert bert.tokens("the fox") == ("[CLS]", "▁the", "▁fox", "[SEP]")
    with pytest.raises(UserError, match="stack='decoder' has no attention"):
        bert.tokens("the fox", stack="decoder")


def test_tokens_of_an_encoder_decoder_are_those_of_its_output_unless_the_encoder_is_named(
    folders: dict[str, Path],
) -> None:
    t5 = transformer.load(folders["t5"])
    source, target = t5.tokens("the fox", "der", stack="encoder"), t5.tokens("the fox", "der")
    assert source[:2] == ("▁the", "▁fox")
    assert "▁fox" not in target
    assert "▁der" in target
