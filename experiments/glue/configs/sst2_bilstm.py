"""Sentiment classification of sentences (SST-2) by a bidirectional LSTM whose attention shows the decisive words.

    python -m launch.train --config=experiments/glue/configs/sst2_bilstm.py --workdir=runs/sentiment --data_dir=DIR

DIR holds SST-2/train.tsv, dev.tsv and test.tsv, where test.tsv is GLUE's labeled development set and the other two are
its training set. Takes six minutes on one shared core. Expect 0.83 of the 872 test sentences right:
results/sentiment.md.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """Build the config: word pieces, both directions of width 128, pooled by additive attention; about four epochs."""
    return ConfigDict(
        {
            "name": "sst2_bilstm",
            "seed": 1,
            "steps": 4000,
            "log_every": 100,
            "task": {"name": "classification", "dataset": "glue/SST-2", "batch_size": 64, "num_probe_examples": 6},
            "model": {"family": "recurrent_classifier", "dropout": 0.5},
            "optimizer": {
                "learning_rate": 2e-3,
                "schedule": "cosine",
                "warmup_steps": 100,
                "clip_norm": 1.0,
            },
            "topology": "cpu:1",
        }
    )
