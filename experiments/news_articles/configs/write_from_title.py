r"""News from a title: a language model of titles and articles writes an article (Brown et al. 2020, section 3.9.4).

    python -m launch.train --config=experiments/news_articles/configs/write_from_title.py --workdir=runs/news
    python -m launch.generate --workdir=runs/news --text='storm closes 4 schools in Norby'

Needs no data. Takes four minutes on one CPU core; `:small` and `:tiny` are smaller models, a minute each. Expect 0.88,
0.14 and 0.00 of the articles without an error, by large, small and tiny models: results/write_from_title.md.
"""

from typing import Literal

from ml_collections import ConfigDict

# Layers, width and heads.
SIZES = {"tiny": (1, 16, 2), "small": (2, 32, 2), "large": (3, 96, 4)}


def get_config(size: Literal["tiny", "small", "large"] = "large") -> ConfigDict:
    """Build the config: 2,000 batches of 32 articles."""
    layers, width, heads = SIZES[size]
    return ConfigDict(
        {
            "name": f"news_{size}",
            "seed": 1,
            "steps": 2000,
            "maps_every": 100,
            "task": {"name": "experiments.news_articles.task"},
            "model": {
                "family": "decoder",
                "layers": layers,
                "width": width,
                "heads": heads,
                "feed_forward": 4 * width,
                "activation": "gelu",
                "positions": "rotary",
                "max_length": 56,
                "scan_unroll": layers,
            },
            "optimizer": {
                "algorithm": "adamw",
                "learning_rate": 3e-3,
                "schedule": "cosine",
                "warmup_steps": 100,
                "final_lr_fraction": 0.1,
                "weight_decay": 0.01,
                "clip_norm": 1.0,
            },
            "topology": "cpu:1",
        }
    )
