"""The onset of induction: two layers of two heads learn to copy what followed the same symbol before.

    python -m launch.train --config=experiments/language/induction.py --workdir=runs/induction

Takes about 2 minutes on two cores. For the first third of a run little happens; then, within about 75 steps, heads of
layer 0 turn to the symbol before, heads of layer 1 to the symbol behind the last occurrence of their own (the induction
score on random tokens passes 0.5), and the loss falls from 3.9 to 2 nats, as Olsson et al. 2022 describe:
experiments/results/induction.md. `python -m launch.maps --workdir=runs/induction` shows it.
"""

from ml_collections import ConfigDict

from experiments import data_parallel

LENGTH = 64


def get_config() -> ConfigDict:
    """1,000 steps of 32 rows, each of a random segment that repeats; width 64, rotary positions."""
    return ConfigDict(
        {
            "name": "induction",
            "seed": 1,
            "steps": 1000,
            "accumulate": 1,
            "log_every": 25,
            "eval_every": 50,
            "maps_every": 25,
            "heads_every": 0,
            "checkpoint_every": 500,
            "keep": 2,
            "task": {
                "name": "language_modelling",
                "dataset": f"repeated/symbols=64,shortest=12,longest=32,length={LENGTH}",
                "data_dir": None,
                "tokenizer": "characters",
                "batching": "packed",
                "context": LENGTH,
                "rows": 32,
                "validation": "validation",
                "test": "test",
                "probed": 2,
                "probed_length": 48,
                "repeated": 1,
            },
            "model": {
                "family": "decoder",
                "layers": 2,
                "width": 64,
                "heads": 2,
                "feed_forward": 128,
                "activation": "gelu",
                "biases": "all",
                "norm_placement": "pre",
                "initialisation": "gpt2",
                "positions": "rotary",
                "longest": LENGTH,
                "dropout": 0.0,
                "attention_dropout": 0.0,
                "unroll": 2,
                "remat": "none",
            },
            "optimizer": {
                "algorithm": "adamw",
                "learning_rate": 3e-3,
                "schedule": "cosine",
                "warmup": 100,
                "final": 0.1,
                "beta2": 0.99,
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
