"""ELMo in miniature: a bidirectional language model of SST-2, whose frozen layers are features of a classifier.

    mkdir -p runs/sst
    tail -n +2 DIR/SST-2/train.tsv | cut -f1 > runs/sst/train.txt
    tail -n +2 DIR/SST-2/dev.tsv | cut -f1 > runs/sst/validation.txt
    python -m launch.train --config=experiments/glue/configs/elmo.py --workdir=runs/bilm --config.task.dataset=runs/sst
    python -m launch.train --config=experiments/glue/configs/elmo.py:classifier --workdir=runs/elmo --data_dir=DIR \
        --config.initialize_from.run=runs/bilm

DIR is that of sst2_bilstm.py. The runs take six and ten minutes on one shared core. Expect 0.82 of the 872 test
sentences right; the same classifier without the features reaches 0.81: results/sentiment.md.
"""

from typing import Literal

from ml_collections import ConfigDict

from experiments.glue.configs import sst2_bilstm

WIDTH, LAYERS = 128, 2


def get_config(part: Literal["language_model", "classifier"] = "language_model") -> ConfigDict:
    """Build the config of the bidirectional language model, or of the classifier that reads its features."""
    if part == "classifier":
        return classifier()
    return ConfigDict(
        {
            "name": "bidirectional_language_model",
            "seed": 1,
            "steps": 1000,
            "log_every": 50,
            "maps_every": 0,
            "task": {
                "name": "language_modeling",
                # Its folder is the user's: --config.task.dataset.
                "dataset": "runs/sst",
                "context_length": 32,
                "batch_size": 32,
                "test_split": "",
            },
            "model": {"family": "bidirectional_language_model", "width": WIDTH, "dropout": 0.1},
            "optimizer": {"learning_rate": 3e-3, "schedule": "cosine", "warmup_steps": 50, "clip_norm": 1.0},
            "topology": "cpu:1",
        }
    )


def classifier() -> ConfigDict:
    """Build the classifier of sst2_bilstm.py on the frozen language model's features, mixed by learned weights."""
    config = sst2_bilstm.get_config()
    config.name = "elmo"
    config.task.tokenizer = "existing"
    config.optimizer.frozen = ("elmo/pretrained/*",)
    config.model.elmo = {"layers": LAYERS, "width": WIDTH}
    config.initialize_from = {
        "copy_tokenizer": True,
        "rules": (
            "elmo/pretrained/embedding/* = embedding/*",
            "elmo/pretrained/forward/* = *",
            "elmo/pretrained/backward/* = backward/*",
            "* = fresh",
        ),
    }
    return config
