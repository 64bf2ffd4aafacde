r"""A small Transformer on a corpus that asks one thing of attention: coreference, or the one that is named.

    python -m launch.train --config=experiments/attention_probes/configs/single_probe.py --workdir=runs/coreference
    python -m launch.train --config=experiments/attention_probes/configs/single_probe.py:retrieval \
        --workdir=runs/retrieval
    python -m launch.maps --workdir=runs/coreference

Takes two minutes on one core. By name: coreference, agreement, two_places, retrieval, sorting, brackets, motifs. Expect
all answers right but one of a hundred brackets, and a head that reads the antecedent from every pronoun, where the
nearest noun is right in 32 of 100: results/one_thing.md.

The first layer sees no letter of motifs but the last two. If it sees all, both its heads carry letters some places on,
and the second layer reads there: all answers are right, and no head reads what followed in the motif before.
"""

from ml_collections import ConfigDict


def get_config(dataset: str = "") -> ConfigDict:
    """Two layers of two heads, width 64, rotary positions; 64 texts a step."""
    config = ConfigDict(
        {
            "name": dataset or "coreference",
            "seed": 1,
            "steps": 1500,
            "eval_every": 250,
            "maps_every": 100,
            "task": {"name": "experiments.attention_probes.task", **({"dataset": dataset} if dataset else {})},
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
                "warmup_steps": 100,
                "final_lr_fraction": 0.1,
                "beta2": 0.99,
                "weight_decay": 0.01,
                "clip_norm": 1.0,
            },
            "pod": "cpu:1",
        }
    )
    if dataset.startswith("motifs"):
        config.model.update({"windows": (1, 0), "unroll": 1})
    return config
