"""Record greedy and beam texts of encoder-decoders with forced tokens by transformers.

Recorded with Python 3.13, torch 2.13.0 (CPU), transformers 5.24.0 and numpy 2.4.6, from the root of the checkout:

    golden/bin/python tests/golden/make_forced_texts.py

It writes tests/golden/forced_texts.json: the sources; for each model architecture, config.json, shapes and seed of its
weights, as in make_families.py; and for each set of options of generation the texts, without the start token and
without padding. No padding is generated. Without a length penalty, a beam search is the same here and there, but for
limits that forbid many tokens: there, the probabilities of the others then do not sum to one.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from cases import BART, Case
from make_families import load

FILE = Path(__file__).with_name("forced_texts.json")
LENGTHS, NEW_TOKENS, LONGEST = (2, 5, 7, 3, 9, 4, 6, 8, 5, 9), 32, 40
END, FORCED = 2, {"forced_bos_token_id": 7, "forced_eos_token_id": 2}
BEAMS = {"num_beams": 4, "length_penalty": 0.0, "early_stopping": False}
GREEDY: list[dict[str, Any]] = [{}, FORCED]
WITH_BEAMS = [*GREEDY, FORCED | BEAMS]
DEEP = BART | {"decoder_layers": 4, "max_position_embeddings": LONGEST}
MODELS: dict[str, tuple[Case, list[dict[str, Any]]]] = {
    "bart": (Case("BartForConditionalGeneration", DEEP, "encoder_decoder", seed=7), WITH_BEAMS),
    "mbart": (
        Case("MBartForConditionalGeneration", DEEP | {"decoder_start_token_id": 2}, "encoder_decoder", seed=10),
        GREEDY,
    ),
    "pegasus": (Case("PegasusForConditionalGeneration", DEEP, "encoder_decoder", seed=11), GREEDY),
    "blenderbot": (Case("BlenderbotForConditionalGeneration", DEEP, "encoder_decoder", seed=11), GREEDY),
    "m2m_100": (
        Case("M2M100ForConditionalGeneration", DEEP | {"scale_embedding": False}, "encoder_decoder", seed=7),
        WITH_BEAMS,
    ),
}


def sources() -> list[list[int]]:
    generator = np.random.default_rng(5)
    return [generator.integers(8, 52, length).tolist() for length in LENGTHS]


def text_of(model: Any, source: list[int], options: dict[str, Any]) -> list[int]:
    """The generated tokens up to the first end behind the forced ones."""
    ids, settings = torch.tensor([source]), model.generation_config
    pad, start = settings.pad_token_id, settings.decoder_start_token_id
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=NEW_TOKENS,
        suppress_tokens=sorted({pad, start} - {settings.eos_token_id}),
        **({"forced_eos_token_id": None, "encoder_no_repeat_ngram_size": 0} | options),
    )
    tokens = output[0, 1:].tolist()
    return [token for token in tokens if token != pad]


def record(case: Case, settings: list[dict[str, Any]]) -> dict[str, Any]:
    """What the file says of a model."""
    model, config, shapes = load(case)
    with torch.no_grad():
        texts = [[text_of(model, source, options) for source in sources()] for options in settings]
    about = {"architecture": case.architecture, "config": config, "shapes": shapes, "seed": case.seed}
    return about | {"options": settings, "texts": texts}


def main() -> None:
    transformers.utils.logging.set_verbosity_error()
    found = {}
    for name, (case, settings) in MODELS.items():
        found[name] = record(case, settings)
        variety = np.mean([len(set(text)) for texts in found[name]["texts"] for text in texts])
        lengths = [[len(text) for text in texts] for texts in found[name]["texts"]]
        print(name, f"{variety:.1f} unlike tokens a text, lengths {lengths}", flush=True)
    FILE.write_text(json.dumps({"sources": sources(), "models": found}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
