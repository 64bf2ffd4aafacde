"""XLNet in miniature: characters of the documentation inside Python, predicted in random permutation orders.

    python -m launch.train --config=experiments/language_modeling/configs/xlnet.py --workdir=runs/permutations

Every segment of 64 characters attends to a memory of 64; the last sixth of its order is predicted, given the others and
those already predicted. Takes ten minutes on one core. Expect 1.16 nats per predicted character of the validation text
and 1.20 without the memory, 1.06 and 1.11 of the test text (`loss` and `loss_without_memory` of the evaluation
`permuted`): results/segments.md.

`python -m launch.maps --workdir=runs/permutations` shows both streams: a content row attends to its own column, a query
row never does, and the memory's columns come first. `--config.task.max_span_length=5` predicts spans of up to five
characters, as XLNet large does, and `--config.task.context_attention=permuted` is the exact objective of the paper, in
which characters that are not predicted are also ordered.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """Build the config: 2 layers of width 64 with a memory of 64 characters; 4,000 steps."""
    return ConfigDict(
        {
            "name": "permutations",
            "seed": 1,
            "steps": 4000,
            "log_every": 100,
            "eval_every": 1000,
            "checkpoint_every": 1000,
            "task": {
                "name": "permutation_lm",
                "tokenizer": "characters",
                "context_length": 64,
                "num_probe_examples": 3,
                "probe_length": 32,
            },
            "model": {
                "family": "xlnet",
                "layers": 2,
                "width": 64,
                "heads": 4,
                "feed_forward": 256,
                "dropout": 0.0,
                "attention_dropout": 0.0,
                "norm_placement": "pre",
                "initialization": "gpt2",
                "memory_length": 64,
            },
            "optimizer": {
                "algorithm": "adamw",
                "learning_rate": 2e-3,
                "schedule": "cosine",
                "warmup_steps": 200,
                "weight_decay": 0.01,
                "clip_norm": 1.0,
            },
            "topology": "cpu:1",
        }
    )
