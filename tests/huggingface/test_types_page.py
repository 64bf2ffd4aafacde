"""The generated page of Hugging Face types: every type and class, recorded differences, and keys that are refused."""

import functools
import json
import re
from typing import Any

import numpy as np
import pytest

from docs.generate import DOCS, generated_pages
from docs.hugging_face_page import DIFFERENCES, MODELS, class_families, class_rows, refused_rows
from tests.golden.make_differences import case_names, measure
from tests.golden.recordings import EXCHANGED
from transformer.config import UserError
from transformer.huggingface.convert import CONVERSIONS

PAGE = DOCS / "models" / "hugging_face.md"
RECORDED = json.loads(DIFFERENCES.read_text(encoding="utf-8"))


@functools.cache
def page() -> str:
    return PAGE.read_text(encoding="utf-8")


def test_the_page_is_the_one_that_the_command_writes() -> None:
    assert generated_pages()["models/hugging_face.md"] == page(), "docs/models/hugging_face.md is old: run make docs"


def test_every_type_and_every_class_has_a_row() -> None:
    assert MODELS.keys() == CONVERSIONS.keys()
    types, _, classes = page().partition("## Classes")
    rows = re.findall(r"^\| [^|]+ \| `([\w-]+)` \| `(\w+)` \|", types, re.MULTILINE)
    assert dict(rows) == {name: spec.model_family for name, spec in CONVERSIONS.items()}
    assert re.findall(r"^\| `([\w-]+)` \| `(\w+)` \|", classes.partition("## Keys")[0], re.MULTILINE) == [
        (name, architecture) for name in CONVERSIONS for architecture in class_families(name)
    ]
    assert class_families("t5")["T5EncoderModel"] == class_families("t5")["T5ForTokenClassification"] == "encoder"
    assert class_families("t5")["T5ForSequenceClassification"] == "encoder_decoder"


def test_every_recorded_model_has_a_difference_below_the_bound() -> None:
    assert list(RECORDED) == list(case_names()), "run tests.golden.make_differences"
    assert {name.partition("/")[2] for name in RECORDED if name.startswith("families/")} == set(EXCHANGED)
    assert all(0 < result["difference"] <= 1e-4 for result in RECORDED.values())
    # Every type is recorded with a class that computes logits or states of its own.
    assert {result["model_type"] for result in RECORDED.values()} == CONVERSIONS.keys()


def test_a_row_has_the_largest_difference_of_its_class_and_all_of_its_exports() -> None:
    cases = [
        {"model_type": "gpt2", "read": "GPT2Model", "written": "GPT2LMHeadModel", "difference": 2e-6},
        {"model_type": "gpt2", "read": "GPT2Model", "written": "GPT2Model", "difference": 3e-6},
        {"model_type": "llama", "read": "LlamaModel", "written": "LlamaModel", "difference": 9e-6},
    ]
    rows = {row[1]: row[2:] for row in class_rows(cases)}
    assert rows["`GPT2Model`"] == ("`decoder`", "`GPT2LMHeadModel` or `GPT2Model`", "3.0e-06")
    assert rows["`GPT2LMHeadModel`"] == ("`decoder`", "-", "-")


@pytest.mark.parametrize("name", ["heads/gpt2/classes", "images/vit"])
def test_a_difference_is_measured_again(name: str) -> None:
    result = measure(name)
    assert {**result, "difference": 0} == {**RECORDED[name], "difference": 0}
    # Another processor sums in another order.
    np.testing.assert_allclose(result["difference"], RECORDED[name]["difference"], rtol=4, atol=2e-6)


def other_value(values: tuple[Any, ...]) -> Any:
    """A value of the same kind that is none of these."""
    first = values[0]
    if first is None or isinstance(first, dict):
        return {"kind": 1}
    return not first if isinstance(first, bool) else f"{first}x" if isinstance(first, str) else first + 1


@pytest.mark.parametrize("model_type", CONVERSIONS)
def test_every_key_with_few_values_is_refused_with_another(model_type: str) -> None:
    spec = CONVERSIONS[model_type]
    for key, values in spec.limited_keys.items():
        with pytest.raises(UserError, match=rf"\b{key}\b"):
            spec.convert_config({"model_type": model_type, key: other_value(values)}, frozenset())


def test_types_with_the_same_values_share_a_row() -> None:
    specs = {name: CONVERSIONS[name] for name in ("gpt2", "llama", "qwen2")}
    rows = {row[:2]: row[2] for row in refused_rows(specs)}
    assert rows["`per_layer_config`", "`null`"] == "every type"
    assert rows["`sliding_window`", "`null`"] == "all but `qwen2`"
    assert rows["`scale_attn_weights`", "`true`"] == "`gpt2`"
    # A bool that both values are read of is no row.
    assert "attention_bias" not in CONVERSIONS["qwen3"].limited_keys
