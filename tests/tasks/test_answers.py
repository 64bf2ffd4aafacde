"""What a run says to texts: continued, filled in, by the choices of decoding, and the refusals."""

from typing import Any

import numpy as np
import pytest

from transformer.attention.capture import Capture
from transformer.config import UserError
from transformer.decoding.beam import BeamSearch
from transformer.decoding.greedy import GreedySearch
from transformer.decoding.sampling import Sampling
from transformer.tasks.decoding_config import DecodingConfig
from transformer.tasks.mask_filling import fill_masks
from transformer.tasks.task import PredictionRequest, StateView


def test_the_choices_name_the_chooser() -> None:
    assert DecodingConfig().strategy == GreedySearch()
    assert DecodingConfig(num_beams=3).strategy == BeamSearch(3, 0.6)
    assert DecodingConfig(top_k=5, num_samples=2).strategy == Sampling(1.0, 5, 1.0, num_beams=2)
    assert DecodingConfig(temperature=0.5, top_p=0.9).strategy == Sampling(0.5, 0, 0.9)
    for values, message in (
        ({"num_beams": 2, "top_k": 3}, "num_beams=2 searches and top_k samples"),
        ({"num_samples": 2}, "num_samples=2 needs sampling"),
        ({"max_new_tokens": 0}, "max_new_tokens=0"),
    ):
        with pytest.raises(UserError, match=message):
            DecodingConfig(**values)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"^--replace_unknown=copy is for runs that translate sentences$"):
        DecodingConfig.with_request({"replace_unknown": "copy"})


@pytest.mark.slow
def test_samples_are_reproducible_and_differ_by_seed(language_task: Any, language_view: StateView) -> None:
    def said(seed: int) -> list[str]:
        decoding = {"temperature": 1.0, "num_samples": 2, "max_new_tokens": 8, "seed": seed}
        return language_task.predict(language_view, PredictionRequest(["The ", "dogs, "], decoding=decoding)).lines

    first = said(0)
    assert len(first) == 4
    assert first[0].startswith("The ")
    assert first[2].startswith("dogs, ")
    assert said(0) == first
    assert said(1) != first


@pytest.mark.slow
def test_a_stop_string_cuts_and_other_rows_go_on(language_task: Any, language_view: StateView) -> None:
    whole = language_task.predict(language_view, PredictionRequest(["The "], decoding={"max_new_tokens": 12})).lines[0]
    said = whole.removeprefix("The ")
    stop = said[3:5]
    decoding = {"max_new_tokens": 12, "stop_sequences": (stop,)}
    cut = language_task.predict(language_view, PredictionRequest(["The "], decoding=decoding)).lines[0]
    assert cut == "The " + said[: said.find(stop)]


def test_maps_are_those_of_what_was_said(language_task: Any, language_view: StateView) -> None:
    answers = language_task.predict(language_view, PredictionRequest(["The fox "], decoding={"max_new_tokens": 5}))
    weights = answers.capture_maps(Capture(("decoder/self",)))["decoder/self"].weights
    tokens = len(answers.lines[0].encode())
    assert weights.shape == (2, 1, 2, tokens, tokens)
    assert len(answers.labels.tokens["tokens"][0]) == tokens
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)


def test_hidden_places_are_filled_with_ordinary_tokens(masked_task: Any, masked_view: StateView) -> None:
    (line,) = masked_task.predict(masked_view, PredictionRequest(["The f<mask>x sleep<mask>."], decoding={})).lines
    assert line.startswith("The f")
    assert "x sleep" in line
    assert line.endswith(".")
    assert "<mask>" not in line


def test_words_are_weighed_at_hidden_places_by_the_models_own_probabilities(
    masked_task: Any, masked_view: StateView, language_task: Any, language_view: StateView
) -> None:
    text, words = "The f<mask>x<mask>", ("o", " ")
    (filled,) = fill_masks(masked_view, masked_task.tokenizer, [text], 64, words)
    tokenizer = masked_task.tokenizer
    tokens = np.int32([[*b"The f", tokenizer.mask_id, *b"x", tokenizer.mask_id]])
    logits = np.asarray(masked_view.model.apply(masked_view.variables, {"tokens": tokens}, train=False)[0], np.float64)
    ordinary = np.exp(logits[0, [5, 7]][:, :256])
    expected = ordinary[:, list(b"o ")] / ordinary.sum(1, keepdims=True)
    np.testing.assert_allclose(filled.probabilities, expected, rtol=1e-4)
    (line,) = masked_task.predict(masked_view, PredictionRequest([text], decoding={"score_words": words})).lines
    assert line.endswith("".join(f" | o {o:.3g},   {space:.3g}" for o, space in filled.probabilities))
    with pytest.raises(UserError, match="--score_words names ''"):
        masked_task.predict(masked_view, PredictionRequest([text], decoding={"score_words": ("o", "")}))
    with pytest.raises(UserError, match="--score_words names 'ox'"):
        masked_task.predict(masked_view, PredictionRequest([text], decoding={"score_words": ("ox",)}))
    with pytest.raises(UserError, match="--score_words=o is for runs that fill in hidden tokens"):
        language_task.predict(language_view, PredictionRequest(["The"], decoding={"score_words": ("o",)}))


def test_what_a_task_cannot_do_is_refused(
    language_task: Any, language_view: StateView, masked_task: Any, masked_view: StateView
) -> None:
    with pytest.raises(UserError, match="hides nothing: write <mask>"):
        masked_task.predict(masked_view, PredictionRequest(["The fox"], decoding={}))
    with pytest.raises(UserError, match="--num_beams is for runs that generate"):
        masked_task.predict(masked_view, PredictionRequest(["The <mask>"], decoding={"num_beams": 2}))
    with pytest.raises(UserError, match="--target_language=de is for runs that translate"):
        language_task.predict(language_view, PredictionRequest(["The fox"], "de", {}))
    with pytest.raises(UserError, match=r"has 8 tokens: with 64 more .* --max_new_tokens=56"):
        language_task.predict(language_view, PredictionRequest(["The foxe"], decoding={"max_new_tokens": 64}))
    with pytest.raises(UserError, match=r"has 65 tokens: with 1 more .*; shorten it$"):
        language_task.predict(language_view, PredictionRequest([65 * "a"], decoding={}))
    with pytest.raises(UserError, match="no text to continue"):
        language_task.predict(language_view, PredictionRequest([""], decoding={"max_new_tokens": 3}))
