r"""A small Transformer on one probe corpus: coreference by default, or the one that the argument names.

    python -m launch.train --config=experiments/attention_probes/configs/single_probe.py --workdir=runs/coreference
    python -m launch.train --config=experiments/attention_probes/configs/single_probe.py:retrieval \
        --workdir=runs/retrieval
    python -m launch.maps --workdir=runs/coreference

Arguments: coreference, agreement, two_offset_copy, retrieval, sorting, brackets, motifs. A run takes two minutes on one
CPU core. Expected accuracy: 1.0, on brackets 0.99. Expect a head that attends from every pronoun to its antecedent,
where the nearest noun is right in 32 of 100: results/one_thing.md.

On motifs the first layer attends only to the last two letters. If it attends to all, its heads can carry letters
several positions forward for the second layer to read: all answers are then right, but no head attends to what followed
in the previous motif.
"""

from typing import Literal

from ml_collections import ConfigDict


def get_config(
    dataset: Literal[
        "coreference", "agreement", "two_offset_copy", "retrieval", "sorting", "brackets", "motifs"
    ] = "coreference",
) -> ConfigDict:
    """Build the config: two layers of two heads, width 64, rotary positions; 64 texts a step."""
    config = ConfigDict(
        {
            "name": dataset,
            "seed": 1,
            "steps": 1500,
            "eval_every": 250,
            "maps_every": 100,
            "task": {"name": "experiments.attention_probes.task"},
            "model": {
                "family": "decoder",
                "layers": 2,
                "width": 64,
                "heads": 2,
                "feed_forward": 128,
                "activation": "gelu",
                "positions": "rotary",
                "max_length": 64,
                "scan_unroll": 2,
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
            "topology": "cpu:1",
        }
    )
    if dataset != "coreference":
        config.task.dataset = dataset
    if dataset == "motifs":
        config.model.update({"attention_windows": (1, 0), "scan_unroll": 1})
    return config
