r"""A small GPT on tiny-shakespeare, character by character: 4 layers, 4 heads, width 128, context 64.

    python -m launch.train --config=experiments/language/shakespeare.py --workdir=runs/shakespeare \
        --data_dir=DIRECTORY

The sizes are those of nanoGPT's setting for CPUs, which reports a validation loss of 1.88 nats from sampled batches.
Takes 5 to 9 minutes on two cores. Expect 1.79 nats a character over the whole validation text, where 1.90 is wanted:
experiments/results/shakespeare.md.
"""

from ml_collections import ConfigDict

from experiments import data_parallel


def get_config() -> ConfigDict:
    """2,000 steps of 12 windows of 64 characters, no dropout."""
    return ConfigDict(
        {
            "name": "shakespeare",
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
                "name": "language_modelling",
                "dataset": "tinyshakespeare",
                "data_dir": None,
                "tokenizer": "characters",
                "batching": "windows",
                "context": 64,
                "rows": 12,
                "validation": "validation",
                "test": "",
                "prompts": ("ROMEO:",),
                "continued": 58,
                "probed": 4,
                "probed_length": 48,
                "repeated": 1,
            },
            "model": {
                "family": "decoder",
                "layers": 4,
                "width": 128,
                "heads": 4,
                "feed_forward": 512,
                "activation": "gelu",
                "biases": "none",
                "norm_placement": "pre",
                "initialisation": "gpt2",
                "positions": "learned",
                "longest": 64,
                "dropout": 0.0,
                "attention_dropout": 0.0,
                "unroll": 4,
                "remat": "none",
            },
            "optimizer": {
                "algorithm": "adamw",
                "learning_rate": 3e-3,
                "schedule": "cosine",
                "warmup": 100,
                "final": 0.0,
                "beta2": 0.99,
                "weight_decay": 0.1,
                "clip": 1.0,
            },
            "averages": {},
            "precision": {"parameters": "float32", "compute": "float32"},
            "maps": {"megabytes": 500.0, "rows": 8, "top": 8},
            "pod": "cpu:1",
            "sharding": data_parallel(),
        }
    )
