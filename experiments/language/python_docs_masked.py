"""A small BERT on the English documentation inside Python: hidden characters from those around them.

    python -m launch.train --config=experiments/language/python_docs_masked.py --workdir=runs/masked

Needs no data. Takes 10 to 20 minutes on two cores. Expect an accuracy on hidden characters of the held-out topics far
above both baselines that every evaluation reports, the most frequent character and the one most often behind the last:
experiments/results/python_docs_masked.md.
"""

from ml_collections import ConfigDict

from experiments import data_parallel


def get_config() -> ConfigDict:
    """4 layers, width 128; rotary positions, with which so small a text suffices to learn what stands where."""
    return ConfigDict(
        {
            "name": "python_docs_masked",
            "seed": 1,
            "steps": 2000,
            "accumulate": 1,
            "log_every": 50,
            "eval_every": 500,
            "maps_every": 500,
            "heads_every": 0,
            "checkpoint_every": 500,
            "keep": 2,
            "task": {
                "name": "masked_language_modelling",
                "dataset": "python_docs",
                "tokenizer": "characters",
                "context": 64,
                "rows": 32,
                "masked": 0.15,
                "whole_words": False,
                "validation": "validation",
                "test": "test",
                "probed": 4,
                "probed_length": 48,
            },
            "model": {
                "family": "encoder",
                "layers": 4,
                "width": 128,
                "heads": 4,
                "feed_forward": 512,
                "activation": "gelu",
                "norm_placement": "pre",
                "initialisation": "bert",
                "positions": "rotary",
                "longest": 64,
                "types": 0,
                "dropout": 0.0,
                "attention_dropout": 0.0,
                "unroll": 4,
                "remat": "none",
            },
            "optimizer": {
                "algorithm": "adamw",
                "learning_rate": 2e-3,
                "schedule": "linear",
                "warmup": 300,
                "weight_decay": 0.01,
                "clip": 1.0,
            },
            "averages": {},
            "precision": {"parameters": "float32", "compute": "float32"},
            "maps": {"megabytes": 500.0, "rows": 8, "top": 8},
            "pod": "cpu:1",
            "sharding": data_parallel(),
        }
    )
