r"""A small GPT on tiny-shakespeare, character by character: 4 layers, 4 heads, width 128, context 64.

    python -m launch.train --config=experiments/language_modeling/configs/shakespeare.py --workdir=runs/shakespeare \
        --data_dir=DIRECTORY

The sizes are those of nanoGPT's setting for CPUs, which reports a validation loss of 1.88 nats on sampled batches.
Takes one to two minutes on two cores. Expect 1.79 nats per character over the whole validation text; the goal is 1.90:
results/shakespeare.md.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """Build the config: 2,000 steps of 12 windows of 64 characters, no dropout."""
    return ConfigDict(
        {
            "name": "shakespeare",
            "seed": 1,
            "steps": 2000,
            "task": {
                "name": "language_modeling",
                "dataset": "tinyshakespeare",
                "tokenizer": "characters",
                "context_length": 64,
                "batch_size": 12,
                "test_split": "",
                "prompts": ("ROMEO:",),
                "max_new_tokens": 58,
            },
            "model": {
                "family": "decoder",
                "layers": 4,
                "width": 128,
                "heads": 4,
                "feed_forward": 512,
                "activation": "gelu",
                "biases": "none",
                "max_length": 64,
                "scan_unroll": 4,
            },
            "optimizer": {
                "algorithm": "adamw",
                "learning_rate": 3e-3,
                "schedule": "cosine",
                "warmup_steps": 100,
                "beta2": 0.99,
                "weight_decay": 0.1,
                "clip_norm": 1.0,
            },
            "topology": "cpu:1",
        }
    )
