"""Word translation learned in context: languages that map letters to letters, new in every episode.

    python -m launch.train --config=experiments/in_context_learning/configs/word_translation.py --workdir=runs/word_maps

`:small` is a smaller model. Needs no data; takes six and four minutes on a CPU core. Every row has its own map of six
letters, shown by words and their translations; the model is trained on next-token prediction only. Expected accuracy on
held-out maps (`unseen_accuracy_k`) after 0, 1 and 8 pairs: 0.00, 0.08 and 0.39; 0.00, 0.07 and 0.28 with `:small`; 0.60
after 8 pairs if the larger model trains for 10,000 steps. `unseen_bayes_optimal_accuracy_k` is the upper bound. See
results/word_maps.md. Two layers of width 32 only learn which letters a language has.
`python -m launch.maps --workdir=runs/word_maps` shows what each head attends to, and would name one that attends to the
translations of the queried letter: none does so sharply.

    python -m launch.generate --workdir=runs/word_maps --text='abc => QXR ; cab => RQX ; bca =>'
"""

from typing import Literal

from ml_collections import ConfigDict

# Layers, width, heads and learning rate.
SIZES = {"small": (2, 64, 2, 3e-3), "large": (3, 96, 4, 2e-3)}


def get_config(size: Literal["small", "large"] = "large") -> ConfigDict:
    """Build the config: 3,000 batches of 32 episodes of nine pairs; 221,000 or 66,000 parameters in the blocks."""
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
            "topology": "cpu:1",
        }
    )
