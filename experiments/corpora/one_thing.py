"""A small Transformer on a corpus that asks one thing of attention: coreference, or the one that is named.

    python -m launch.train --config=experiments/corpora/one_thing.py --workdir=runs/coreference
    python -m launch.train --config=experiments/corpora/one_thing.py:retrieval --workdir=runs/retrieval
    python -m launch.maps --workdir=runs/coreference

Takes minutes on one core. By name: coreference, agreement, two_places, retrieval, sorting, brackets, motifs. Expect all
test answers of coreference right from step 500 on, where the nearest noun is in 30 of 100, and a head of layer 0 that
reads the antecedent every time (seen after 800 steps of a run of as many); of brackets 99 of 100 (after 1,000), where
the last opening bracket is in 25, by a head that reads the open one in 90. The others are not yet measured.
"""

from ml_collections import ConfigDict


def get_config(dataset: str = "") -> ConfigDict:
    """Two layers of two heads, width 64, rotary positions; 64 texts a step."""
    return ConfigDict(
        {
            "name": dataset or "coreference",
            "seed": 1,
            "steps": 1500,
            "eval_every": 250,
            "maps_every": 100,
            "task": {"name": "marked_texts", **({"dataset": dataset} if dataset else {})},
            "model": {
                "family": "decoder",
                "layers": 2,
                "width": 64,
                "heads": 2,
                "feed_forward": 128,
                "activation": "gelu",
                "positions": "rotary",
                "max_length": 64,
                "unroll": 2,
            },
            "optimizer": {
                "algorithm": "adamw",
                "learning_rate": 3e-3,
                "schedule": "cosine",
                "warmup": 100,
                "final": 0.1,
                "beta2": 0.99,
                "weight_decay": 0.01,
                "clip_norm": 1.0,
            },
            "pod": "cpu:1",
        }
    )
