"""The famous sentence: what "it" stands for in "the dog left the street because it was tired", by a small encoder.

    python -m launch.train --config=experiments/attention_probes/configs/coreference_by_clue.py --workdir=runs/famous
    python -m launch.maps --workdir=runs/famous

Takes minutes on one core. What tells stands behind "it", so that only a model that reads both ways can know. Accuracy
and the share of the head that reads the antecedent from "it" are not yet measured: as any word may do the reading and
pass it on, the latter need not rise with the former.
"""

from ml_collections import ConfigDict

from experiments.attention_probes.configs import single_probe


def get_config() -> ConfigDict:
    """Two layers of two heads that see every word."""
    config = single_probe.get_config("coreference_by_clue")
    config.name = "coreference_by_clue"
    config.task.reads = "whole"
    config.model = ConfigDict(
        {
            "family": "encoder",
            "layers": 2,
            "width": 64,
            "heads": 2,
            "feed_forward": 128,
            "norm_placement": "pre",
            "dropout": 0.0,
            "attention_dropout": 0.0,
            "embedding_norm": False,
            "types": 0,
            "max_length": 64,
            "unroll": 2,
        }
    )
    return config
