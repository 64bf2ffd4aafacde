"""Record texts and scores of transformers' beam search: length penalty, early stopping, and limits on tokens.

Recorded with Python 3.13, torch 2.13.0 (CPU), transformers 5.24.0 and numpy 2.4.6, from the root of the checkout:

    golden/bin/python tests/golden/make_beam_texts.py

It writes tests/golden/beam_texts.json: the prompts; for each model, which is a case of make_families.py, and each set
of options the texts of the prompts without prompt and padding, and their scores.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from cases import CASES
from make_families import load

FILE = Path(__file__).with_name("beam_texts.json")
MODELS = ("llama", "bart", "t5")
LENGTHS, NEW_TOKENS = (2, 5, 7, 3, 9, 4), 10
# Many tokens end a text, so that hypotheses of all lengths finish.
ENDS = list(range(10, 22))
OPTIONS: list[dict[str, Any]] = [
    {},
    {"length_penalty": 0.0, "early_stopping": True},
    {"length_penalty": 0.4, "early_stopping": "never"},
    {"length_penalty": 2.0},
    {"length_penalty": 2.0, "early_stopping": True},
    {"length_penalty": 2.0, "early_stopping": "never"},
    {"length_penalty": -1.0, "early_stopping": "never"},
    {"repetition_penalty": 1.7},
    {"repetition_penalty": 0.6, "length_penalty": 0.7},
    {"no_repeat_ngram_size": 1, "length_penalty": 1.5, "min_new_tokens": 4},
]


def prompts() -> list[list[int]]:
    generator = np.random.default_rng(9)
    return [generator.integers(22, 52, length).tolist() for length in LENGTHS]


def search(model: Any, prompt: list[int], pad: int, options: dict[str, Any]) -> tuple[list[int], float]:
    ids = torch.tensor([prompt])
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        num_beams=4,
        max_new_tokens=NEW_TOKENS,
        pad_token_id=pad,
        eos_token_id=ENDS,
        suppress_tokens=[pad],
        forced_eos_token_id=None,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )
    start = 1 if model.config.is_encoder_decoder else len(prompt)
    return [token for token in output.sequences[0, start:].tolist() if token != pad], float(output.sequences_scores[0])


def main() -> None:
    transformers.utils.logging.set_verbosity_error()
    searches = []
    for name in MODELS:
        model, config, _ = load(CASES[name])
        pad = config.get("pad_token_id") or 0
        for options in OPTIONS:
            with torch.no_grad():
                results = [search(model, prompt, pad, options) for prompt in prompts()]
            texts, scores = zip(*results, strict=True)
            print(name, options, [len(text) for text in texts], flush=True)
            searches.append({"model": name, "options": options, "texts": texts, "scores": scores})
    content = {"prompts": prompts(), "end_ids": ENDS, "num_beams": 4, "new_tokens": NEW_TOKENS, "searches": searches}
    FILE.write_text(json.dumps(content, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
