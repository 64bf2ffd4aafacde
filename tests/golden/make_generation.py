"""Record how transformers chooses tokens: greedy texts under constraints, and what sampling keeps of logits.

Recorded with Python 3.11, torch 2.13.0 (CPU), transformers 5.24.0 and numpy 2.4.6, from the root of the checkout:

    golden/bin/python tests/golden/make_generation.py

It writes tests/golden/generation.json: for each model and each set of options the texts of the prompts, and for each
set of sampling options the tokens that are left of random logits, with their probabilities.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from cases import CASES
from make_families import load
from transformers.generation import logits_process

FILE = Path(__file__).with_name("generation.json")
MODELS = ("gpt2", "llama", "bloom", "mistral", "gptj")
LENGTHS, NEW_TOKENS, VOCABULARY = (2, 5, 7, 3, 9, 4, 6, 8), 12, 53
OPTIONS: list[dict[str, Any]] = [
    {"no_repeat_ngram_size": 1},
    {"no_repeat_ngram_size": 2},
    {"no_repeat_ngram_size": 3, "repetition_penalty": 1.3},
    {"repetition_penalty": 1.8},
    {"bad_words_ids": [[7], [9, 11], [20, 21, 22]]},
    {"eos_token_id": list(range(20)), "min_new_tokens": 6},
    {"suppress_tokens": list(range(0, 53, 3)), "forced_eos_token_id": 5},
]
KEPT: list[dict[str, float]] = [
    {"min_p": 0.2},
    {"temperature": 0.7, "min_p": 0.05},
    {"typical_p": 0.3},
    {"typical_p": 0.9},
    {"top_k": 12, "top_p": 0.8, "typical_p": 0.6},
    {"temperature": 1.5, "top_p": 0.9, "min_p": 0.1, "typical_p": 0.5},
    {"temperature": 0.4},
    {"top_k": 7},
    {"top_k": 99},
    {"top_p": 0.6},
    {"top_p": 0.01},
    {"min_p": 1.0},
    {"typical_p": 0.01},
    {"temperature": 2.5, "top_k": 30, "top_p": 0.95, "min_p": 0.02, "typical_p": 0.95},
]
WARPERS = {
    "temperature": logits_process.TemperatureLogitsWarper,
    "top_k": logits_process.TopKLogitsWarper,
    "top_p": logits_process.TopPLogitsWarper,
    "min_p": logits_process.MinPLogitsWarper,
    "typical_p": logits_process.TypicalLogitsWarper,
}


def prompts() -> list[list[int]]:
    generator = np.random.default_rng(5)
    return [generator.integers(6, 52, length).tolist() for length in LENGTHS]


def banned_pairs(model: Any) -> list[list[int]]:
    """Pairs that the model would write: a ban of others would change nothing."""
    texts = [continued(model, prompt, {}) for prompt in prompts()[:3]]
    return [text[1:3] for text in texts] + [[texts[0][4]]]


def continued(model: Any, prompt: list[int], options: dict[str, Any]) -> list[int]:
    ids = torch.tensor([prompt])
    settings = {"eos_token_id": None, **options}
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=NEW_TOKENS,
        pad_token_id=0,
        **settings,
    )
    return output[0, len(prompt) :].tolist()


def main() -> None:
    transformers.utils.logging.set_verbosity_error()
    greedy = []
    for name in MODELS:
        model, _, _ = load(CASES[name])
        model.generation_config.eos_token_id = None
        for options in [*OPTIONS, {"bad_words_ids": banned_pairs(model)}]:
            texts = [continued(model, prompt, options) for prompt in prompts()]
            greedy.append({"model": name, "options": options, "texts": texts})
    generator = np.random.default_rng(6)
    logits = np.round(3 * generator.normal(size=(16, VOCABULARY)), 4)
    kept = []
    for options in KEPT:
        scores = torch.tensor(logits)
        for name, value in options.items():
            scores = WARPERS[name](value)(None, scores)
        tokens = [np.flatnonzero(row).tolist() for row in torch.isfinite(scores)]
        probabilities = torch.softmax(scores, -1).numpy()
        rounded = [
            np.round(row[kept_by_row], 5).tolist() for row, kept_by_row in zip(probabilities, tokens, strict=True)
        ]
        kept.append({"options": options, "kept": tokens, "probabilities": rounded})
    content = {"prompts": prompts(), "greedy": greedy, "logits": logits.tolist(), "sampling": kept}
    FILE.write_text(json.dumps(content, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
