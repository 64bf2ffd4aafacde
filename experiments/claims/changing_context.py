"""C-46: a decoder with attention reads another context at each step."""

import contextlib
import dataclasses
import os
import statistics
import tempfile
from collections.abc import Sequence
from typing import Any

from experiments.claims.claim import Claim, Figures, Finding, Measurement, Verdict
from experiments.claims.exhibits import HeatMap, Table

# The base of the ablations of the Transformer, with fewer evaluations.
CONFIG = {
    "name": "changing_context",
    "seed": 1,
    "steps": 400,
    "eval_every": 400,
    "maps_every": 0,
    "head_statistics_every": 0,
    "checkpoint_every": 400,
    "task": {
        "name": "translation",
        "dataset": "phrases/train=6000,validation=100,test=250",
        "vocab_size": 800,
        "bucket_lengths": (24,),
        "tokens_per_batch": 768,
        "label_smoothing": 0.1,
        "num_beams": 1,
    },
    "model": {
        "family": "encoder_decoder",
        "encoder_layers": 2,
        "decoder_layers": 2,
        "width": 64,
        "heads": 4,
        "feed_forward": 128,
        "dropout": 0.1,
        "norm_placement": "pre",
        "max_length": 64,
    },
    "optimizer": {"learning_rate": 1e-2, "schedule": "linear", "warmup_steps": 50, "clip_norm": 1.0},
    "topology": "cpu:1",
}
# Phrases of the kinds that the data have, and their translations.
PHRASES = {
    "on Sunday at quarter past two in the afternoon": "am Sonntag um Viertel nach zwei nachmittags",
    "before the eighth of April nineteen oh seven": "vor dem achten April neunzehnhundertsieben",
    "until twelve thirty-three in the afternoon": "bis zwölf Uhr dreiunddreißig",
    "since the thirtieth of April seventeen seventy-seven": "seit dem dreißigsten April "
    "siebzehnhundertsiebenundsiebzig",
    "three hundred and forty-two": "dreihundertzweiundvierzig",
    "seven euros": "sieben Euro",
}
# Of the divergence, in multiples of an untrained model's; and of the steps.
LEAST_RATIO, LEAST_CHANGES = 5, 0.5


def measure() -> Figures:
    """Train a small translation model, and measure how successive rows of its cross-attention differ."""
    import jax
    import numpy as np

    import transformer

    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as quiet, contextlib.redirect_stdout(quiet):
        transformer.train(CONFIG, f"{folder}/run")
        trained = transformer.load(f"{folder}/run")
    untrained = dataclasses.replace(trained, variables=trained.model.init(jax.random.key(0)))
    texts = list(PHRASES)
    targets = list(PHRASES.values())

    def summarize(maps: Any) -> dict[str, Any]:
        divergence, changes = [], []
        for layer in maps["decoder/cross"]:
            for example, (queries, keys) in enumerate(zip(layer.queries, layer.keys, strict=True)):
                weights_HxQxK = np.maximum(layer[example, :, : len(queries), : len(keys)], 1e-9)
                now, following = weights_HxQxK[:, :-1], weights_HxQxK[:, 1:]
                divergence.append((now * np.log(now / following)).sum(-1).mean(-1))
                changes.append((now.argmax(-1) != following.argmax(-1)).mean(-1))
        heads = len(divergence[0])
        by_layer = [np.array(rows).reshape(-1, len(texts), heads).mean(1) for rows in (divergence, changes)]
        return {"divergence": by_layer[0].tolist(), "changes": by_layer[1].tolist()}

    maps = {"trained": trained.run_with_maps(texts, targets, language="de")}
    maps["untrained"] = untrained.run_with_maps(texts, targets, language="de")
    last = maps["trained"]["decoder/cross"][-1]
    queries, keys = last.queries[0], last.keys[0]
    return {
        "phrases": len(texts),
        "steps": CONFIG["steps"],
        **{name: summarize(value) for name, value in maps.items()},
        "map": {
            "weights": last[0, :, : len(queries), : len(keys)].mean(0).tolist(),
            "queries": list(queries),
            "keys": list(keys),
        },
    }


def mean(by_head: Sequence[Sequence[float]]) -> float:
    """Return the mean over layers and heads."""
    return statistics.mean(value for layer_values in by_head for value in layer_values)


def judge(figures: Figures) -> Finding:
    """Successive alignments must differ, by divergence and by the word with the largest weight."""
    divergence, changes = mean(figures["trained"]["divergence"]), mean(figures["trained"]["changes"])
    untrained = mean(figures["untrained"]["divergence"])
    heads = [value for layer_values in figures["trained"]["divergence"] for value in layer_values]
    reason = (
        f"From one written token to the next, cross-attention changes by {divergence:.2f} nats of KL divergence "
        f"({min(heads):.2f} to {max(heads):.2f} by head; untrained: {untrained:.2f}), and its largest weight moves in "
        f"{changes:.0%} of the steps ({figures['phrases']} phrases, one seed, {figures['steps']} training steps)."
    )
    holds = divergence >= LEAST_RATIO * untrained and changes >= LEAST_CHANGES
    return Finding(Verdict.HOLDS if holds else Verdict.FAILS, reason)


def exhibits(figures: Figures) -> tuple[HeatMap | Table, ...]:
    """Show the alignment of a phrase, and the divergence by head."""
    alignment = figures["map"]
    heat_map = HeatMap(
        caption="Cross-attention of the last layer, mean of its heads",
        values=alignment["weights"],
        row_labels=alignment["queries"],
        column_labels=alignment["keys"],
        row_axis="written so far",
        column_axis="source",
    )
    table = Table(
        caption="KL divergence of successive rows, in nats, and steps at which the largest weight moves",
        columns=("layer", "head", "divergence", "untrained", "moves"),
        rows=[
            (
                str(layer),
                str(head),
                f"{figures['trained']['divergence'][layer][head]:.3f}",
                f"{figures['untrained']['divergence'][layer][head]:.4f}",
                f"{figures['trained']['changes'][layer][head]:.2f}",
            )
            for layer, layer_values in enumerate(figures["trained"]["divergence"])
            for head in range(len(layer_values))
        ],
    )
    return heat_map, table


CLAIM = Claim(
    number=46,
    title="The decoder reads another context at each step",
    sentence="With attention, a decoder has a context of its own at each step, not one vector for the whole sentence.",
    lectures=("S3",),
    source="Bahdanau et al. 2015, section 3.1",
    refutation="The mean KL divergence of successive alignments is less than five times an untrained model's, or the "
    "word with the largest weight changes at less than half of the steps.",
    evidence=Measurement(measure=measure, seconds=40),
    judge=judge,
    exhibits=exhibits,
    revision="An untrained model passed the first rule. The threshold is now five times the divergence of an "
    "untrained model.",
)
