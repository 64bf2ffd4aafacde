"""Words of languages that no parameter knows, translated by the examples in the prompt; `:small` is a smaller model.

    python -m launch.train --config=experiments/in_context_learning/configs/word_translation.py --workdir=runs/word_maps

Needs no data. Every row is another map of six letters to others, shown by words and their translations, and what comes
next is predicted: nothing else. Expect, of maps that training never has, more whole words right behind more pairs,
unseen_accuracy_0 < _1 < _8, and the larger model to gain more by them; unseen_best_k is what can be had behind k pairs.
Expect 0.00, 0.08 and 0.39 on the test maps, and 0.00, 0.07 and 0.28 by the small model, in six and four minutes; the
larger has 0.60 behind eight pairs if it trains for 10,000 steps: results/word_maps.md. Two layers of width 32 only
learn which letters a language has. `python -m launch.maps --workdir=runs/word_maps` shows what each head reads, and
would name one that reads the translations of the letter that is asked for: none does so sharply.

    python -m launch.generate --workdir=runs/word_maps --text='abc => QXR ; cab => RQX ; bca =>'
"""

from typing import Literal

from ml_collections import ConfigDict

# Layers, width, heads and learning rate.
SIZES = {"small": (2, 64, 2, 3e-3), "large": (3, 96, 4, 2e-3)}


def get_config(size: Literal["small", "large"] = "large") -> ConfigDict:
    """3,000 batches of 32 episodes of nine pairs, by a decoder of 221,000 or 66,000 parameters in its blocks."""
    layers, width, heads, rate = SIZES[size]
    return ConfigDict(
        {
            "name": f"word_maps_{size}",
            "seed": 1,
            "steps": 3000,
            "log_every": 100,
            "eval_every": 250,
            "maps_every": 100,
            "task": {"name": "experiments.in_context_learning.task"},
            "model": {
                "family": "decoder",
                "layers": layers,
                "width": width,
                "heads": heads,
                "feed_forward": 2 * width,
                "activation": "gelu",
                "positions": "rotary",
                "max_length": 72,
                "scan_unroll": layers,
            },
            "optimizer": {
                "algorithm": "adamw",
                "learning_rate": rate,
                "schedule": "cosine",
                "warmup_steps": 100,
                "final_lr_fraction": 0.1,
                "beta2": 0.99,
                "weight_decay": 0.01,
                "clip_norm": 1.0,
            },
            "pod": "cpu:1",
        }
    )
