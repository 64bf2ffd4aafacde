"""Norms, queries and keys as a page holds them: in half precision, cut to each text, and never too many."""

import base64
import gzip
from pathlib import Path

import numpy as np
import pytest

import transformer
from tests.interpret.conftest import folders  # noqa: F401  fixture
from transformer.attention.capture import Capture
from transformer.config import UserError
from transformer.maps.report import projections as module
from transformer.maps.report.payload import DataBlock
from transformer.maps.report.projections import encode_projections
from transformer.tasks.base_task import make_capture_function


def numbers(blocks: list[DataBlock], name: str) -> np.ndarray:
    (text,) = (block.text for block in blocks if block.name == name)
    return np.frombuffer(gzip.decompress(base64.b64decode(text)), "<f2").astype(np.float64)


def test_the_pages_query_key_vectors_give_the_models_logits_within_half_precision(
    folders: dict[str, Path],  # noqa: F811
) -> None:
    model = transformer.load(folders["gpt2"])
    reading, _ = model._encode_texts(["the qu the qu the", "the qu"], None, None)
    capture = Capture(("decoder/self",), value_norms=True, query_key_vectors=True)
    captured = make_capture_function(model.view(), reading.inputs, method=reading.method)(capture)
    (facts,), blocks = encode_projections(
        model.sites, reading.labels.with_axis_names(model.sites), captured, query_key_vectors=True
    )
    assert facts == {
        "valueNorms": True,
        "vectorsRequested": True,
        "queryKeyVectors": {"depth": 8, "groups": 2, "scale": pytest.approx(8**-0.5), "whole": True},
    }
    weights, norms = (
        np.asarray(each) for each in (captured["decoder/self"].weights, captured["decoder/self"].value_norms)
    )
    for example, tokens in enumerate((5, 2)):
        held = numbers(blocks, f"norms-0-{example}").reshape(2, 2, tokens)
        np.testing.assert_allclose(held, norms[:, example, :, :tokens], rtol=2**-11)
        for layer in range(2):
            q, k = numbers(blocks, f"vectors-0-{example}-{layer}").reshape(2, 2, tokens, 8)
            products = q[:, :, None] * k[:, None]
            # Of the model's own logits the differences to that of the first key are known: by the logarithm of weights.
            seen = np.log(weights[layer, example, :, :tokens, :tokens], where=np.tri(tokens, dtype=bool), out=None)
            own = seen - seen[..., :1]
            ours = 8**-0.5 * products.sum(-1)
            ours -= ours[..., :1]
            # Either factor is off by one part in 2^11 at most, and float32 by a little.
            bound = 2 * 8**-0.5 * 2.01 * 2**-11 * np.abs(products).sum(-1).max() + 1e-5
            below = np.tri(tokens, dtype=bool)
            assert np.abs(ours - own)[:, below].max() <= bound
            assert np.abs(own[:, below]).max() > 20 * bound


def test_of_each_site_it_is_known_whether_its_logits_are_the_products_alone(
    folders: dict[str, Path],  # noqa: F811
) -> None:
    model = transformer.load(folders["t5"])
    reading, _ = model._encode_texts("the fox", "der Fuchs", None)
    capture = Capture(tuple(site.name for site in model.sites), maps=False, value_norms=True, query_key_vectors=True)
    captured = make_capture_function(model.view(), reading.inputs, method=reading.method)(capture)
    facts, _ = encode_projections(
        model.sites, reading.labels.with_axis_names(model.sites), captured, query_key_vectors=True
    )
    whole = {site.name: each["queryKeyVectors"]["whole"] for site, each in zip(model.sites, facts, strict=True)}
    assert whole == {"encoder/self": False, "decoder/self": False, "decoder/cross": True}


def test_more_query_key_vectors_than_a_page_holds_are_refused_in_one_line(
    folders: dict[str, Path],  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = transformer.load(folders["gpt2"])
    # 2 bytes of each of 2 layers x 2 tokens x 2 heads x 8 components, of queries and of keys.
    monkeypatch.setattr(module, "LARGEST", 255)
    says = (
        r"query_key_vectors=True would put queries and keys of 0 MB .* "
        r"\(2 layers x \d+ tokens x 2 heads x 8 components\)"
    )
    with pytest.raises(UserError, match=says):
        model.show_attention("the qu", page=tmp_path / "page.html", query_key_vectors=True)
    assert not list(tmp_path.iterdir())
    model.show_attention("the qu", page=tmp_path / "page.html")
    monkeypatch.setattr(module, "LARGEST", 256)
    model.show_attention("the qu", page=tmp_path / "page.html", query_key_vectors=True)
