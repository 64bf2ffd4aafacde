"""Log-likelihoods and continuations of texts, against the tensors of a published folder in NumPy."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import transformer
from launch.lm_eval import continue_request, harness_model
from transformer.config import UserError
from transformer.interpret.text_scoring import TextScorer


@pytest.fixture(scope="module")
def scorer(folders: dict[str, Path]) -> TextScorer:
    return TextScorer(transformer.load(folders["gpt2"]), batch_size=3)


def normed(x: np.ndarray, tensors: dict[str, np.ndarray], name: str) -> np.ndarray:
    centered = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return centered * tensors[f"{name}.weight"] + tensors[f"{name}.bias"]


def log_probs_of(folder: Path, ids: list[int]) -> np.ndarray:
    """GPT-2 of one row, [T, V], in float64."""
    file = load_file(folder / "model.safetensors")
    tensors = {name.removeprefix("transformer."): array.astype(np.float64) for name, array in file.items()}
    length, heads = len(ids), 2
    x = tensors["wte.weight"][ids] + tensors["wpe.weight"][:length]

    def linear(y: np.ndarray, name: str) -> np.ndarray:
        return y @ tensors[f"{name}.weight"] + tensors[f"{name}.bias"]

    for layer in range(sum(name.endswith("ln_1.weight") for name in tensors)):
        block = f"h.{layer}"
        parts = np.split(linear(normed(x, tensors, f"{block}.ln_1"), f"{block}.attn.c_attn"), 3, -1)
        q, k, v = (part.reshape(length, heads, -1).transpose(1, 0, 2) for part in parts)
        logits = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
        logits[:, np.triu(np.ones((length, length), bool), 1)] = -np.inf
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        read = (weights / weights.sum(-1, keepdims=True) @ v).transpose(1, 0, 2).reshape(length, -1)
        x = x + linear(read, f"{block}.attn.c_proj")
        hidden = linear(normed(x, tensors, f"{block}.ln_2"), f"{block}.mlp.c_fc")
        hidden = hidden * (1 + np.tanh(np.sqrt(2 / np.pi) * (hidden + 0.044715 * hidden**3))) / 2
        x = x + linear(hidden, f"{block}.mlp.c_proj")
    logits = normed(x, tensors, "ln_f") @ tensors["wte.weight"].T
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def test_log_likelihoods_are_those_of_the_tensors(scorer: TextScorer, folders: dict[str, Path]) -> None:
    rows = scorer.tokenizer.encode(["the quick the", "the", "the the the qu"])
    pairs = [(row[:cut], row[cut:]) for row in rows for cut in range(1, len(row))]
    assert len(pairs) > 2 * scorer.batch_size
    for (context, continuation), found in zip(pairs, scorer.log_likelihoods(pairs), strict=True):
        log_probs = log_probs_of(folders["gpt2"], [*context, *continuation])[len(context) - 1 : -1]
        expected = log_probs[np.arange(len(continuation)), continuation].sum()
        assert found.value == pytest.approx(expected, abs=1e-4)
        assert found.is_greedy == (log_probs.argmax(-1) == continuation).all()
    best = int(log_probs_of(folders["gpt2"], rows[0])[-1].argmax())
    assert scorer.log_likelihoods([(rows[0], [best])])[0].is_greedy


def test_a_text_longer_than_the_model_is_read_in_windows(scorer: TextScorer, folders: dict[str, Path]) -> None:
    text = "the quick " * 14
    (tokens,) = scorer.tokenizer.encode([text])
    length = scorer.max_length
    assert length < len(tokens) < 3 * length, "two or three windows"
    expected = 0.0
    for start in range(0, len(tokens), length):
        end = min(start + length, len(tokens))
        row = [scorer.prefix_id, *tokens[:end]] if start == 0 else list(tokens[end - length - 1 : end])
        log_probs = log_probs_of(folders["gpt2"], row[:-1])
        expected += log_probs[np.arange(len(row) - 1), row[1:]][start - end :].sum()
    assert scorer.text_log_likelihood(text) == pytest.approx(expected, rel=1e-5)


def test_a_text_goes_on_up_to_what_ends_it(scorer: TextScorer, folders: dict[str, Path]) -> None:
    (tokens,) = scorer.tokenizer.encode(["the quick"])
    new: list[int] = []
    for _ in range(6):
        new.append(int(log_probs_of(folders["gpt2"], [*tokens, *new])[-1].argmax()))
    expected = scorer.tokenizer.continuation(tokens, new)
    assert continue_request(scorer, "the quick", {"max_gen_toks": 6, "temperature": 0.0}) == expected
    stop = expected[2:4]
    # Without a temperature, a task that samples draws from the distribution itself.
    sampled = continue_request(scorer, "the quick", {"max_gen_toks": 6, "do_sample": True})
    assert sampled == continue_request(scorer, "the quick", {"max_gen_toks": 6, "do_sample": True, "temperature": 1.0})
    assert sampled == scorer.continue_text("the quick", 6, [], temperature=1.0) != expected
    cut = continue_request(scorer, "the quick", {"until": ["", stop], "max_gen_toks": 6})
    assert cut == expected[: expected.index(stop)]
    # A text that is too long loses its beginning.
    assert continue_request(scorer, "the quick " * 40, {"max_gen_toks": 2}) is not None
    with pytest.raises(UserError, match="leaves no room"):
        continue_request(scorer, "the", {"max_gen_toks": 10_000})


def test_a_model_that_predicts_no_next_token_is_refused(folders: dict[str, Path]) -> None:
    with pytest.raises(UserError, match="predicts no next tokens: name a language model"):
        TextScorer(transformer.load(folders["bert"]))


def test_the_harness_scores_with_it(scorer: TextScorer) -> None:
    pytest.importorskip("lm_eval", reason="needs lm-evaluation-harness: pip install 'headwise[lm-eval]'")
    from lm_eval.api.instance import Instance

    def request(kind: Any, *arguments: Any) -> Instance:
        return Instance(kind, {}, arguments, 0)

    model = harness_model(scorer)
    (score,) = model.loglikelihood([request("loglikelihood", "the ", "quick")], disable_tqdm=True)
    context, whole = scorer.tokenizer.encode(["the", "the quick"])
    assert score == tuple(scorer.log_likelihoods([(context, whole[len(context) :])])[0])
    (rolling,) = model.loglikelihood_rolling([request("loglikelihood_rolling", "the quick")])
    assert rolling == scorer.text_log_likelihood("the quick")
