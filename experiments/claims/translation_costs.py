"""Costs and BLEU of translation: table 2 of Vaswani et al. 2017, and this project's runs on Multi30k."""

import bisect
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.claims.claim import Figures

PAIRS = {"en-de": "English-German", "en-fr": "English-French"}
PUBLISHED = {
    "bytenet": "ByteNet",
    "deep-att-posunk": "Deep-Att + PosUnk",
    "gnmt-rl": "GNMT + RL",
    "convs2s": "ConvS2S",
    "moe": "MoE",
    "deep-att-posunk-ensemble": "Deep-Att + PosUnk, ensemble",
    "gnmt-rl-ensemble": "GNMT + RL, ensemble",
    "convs2s-ensemble": "ConvS2S, ensemble",
    "transformer-base": "Transformer, base",
    "transformer-big": "Transformer, big",
}
OWN = {"transformer": "Transformer", "recurrent": "GRU with attention", "convs2s": "ConvS2S"}
FILES = (
    "translation/results/multi30k_cpu.jsonl",
    "translation/results/recurrent_multi30k_attention.jsonl",
    "translation/results/convolutional_multi30k.jsonl",
)
PAGE = "translation/results/convolutional_multi30k.md"


def read(records: Sequence[Any]) -> Figures:
    """Take the published rows, and of each run the operations and the validation loss on the way, and its test BLEU."""
    from transformer.costs.training_cost import PUBLISHED_TRAININGS

    published: dict[str, dict[str, dict[str, float | None]]] = {}
    for run in PUBLISHED_TRAININGS:
        system, _, pair = run.name.rpartition(" ")
        if system in PUBLISHED:
            published.setdefault(system, {})[pair] = {"bleu": run.bleu, "flops": run.published_flops}
    own = {}
    for name, rows in zip(OWN, records, strict=True):
        steps, flops = [0], [0.0]
        for row in rows:
            if "flops_per_step" in row:
                flops.append(flops[-1] + (row["step"] - steps[-1]) * row["flops_per_step"])
                steps.append(row["step"])
        validation = [row for row in rows if row["split"] == "validation" and "cross_entropy" in row]
        (test,) = [row["bleu"] for row in rows if row["split"].startswith("test") and "bleu" in row]
        own[name] = {
            "flops": [flops[steps.index(row["step"])] for row in validation],
            "loss": [row["cross_entropy"] for row in validation],
            "bleu": test,
        }
    return {"published": published, "own": own}


def flops_to_loss(run: Mapping[str, Any], loss: float) -> float | None:
    """Return the operations until a validation loss, between two evaluations by interpolation; None if not reached."""
    losses, flops = run["loss"], run["flops"]
    number = bisect.bisect_left([-value for value in losses], -loss)
    if number == len(losses):
        return None
    if number == 0:
        return flops[0]
    share = (losses[number - 1] - loss) / (losses[number - 1] - losses[number])
    return flops[number - 1] + share * (flops[number] - flops[number - 1])


def single_systems(figures: Figures, pair: str) -> dict[str, Mapping[str, float]]:
    """Return the published single systems before the Transformer whose BLEU and cost are known for a language pair."""
    rows = {name: by_pair[pair] for name, by_pair in figures["published"].items() if pair in by_pair}
    return {
        name: row
        for name, row in rows.items()
        if not name.startswith("transformer") and not name.endswith("ensemble") and row["flops"] is not None
    }
