"""A small encoder learns what "it" refers to in "the dog left the street because it was tired".

    python -m launch.train --config=experiments/attention_probes/configs/coreference_from_clue.py --workdir=runs/famous
    python -m launch.maps --workdir=runs/famous

Takes minutes on one core. The clue comes after "it", so that only a bidirectional model can know. Accuracy and the
accuracy of the head that attends from "it" to its antecedent are not yet measured: any word may gather the answer and
pass it on, so the second need not rise with the first.
"""

from ml_collections import ConfigDict

from experiments.attention_probes.configs import single_probe


def get_config() -> ConfigDict:
    """Build the config: two layers of two heads, bidirectional."""
    config = single_probe.get_config()
    config.name = "coreference_from_clue"
    config.task.dataset = "coreference_from_clue"
    config.task.direction = "bidirectional"
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
            "num_token_types": 0,
            "max_length": 64,
            "scan_unroll": 2,
        }
    )
    return config
