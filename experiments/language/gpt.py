r"""A published decoder by its name, from scratch on any text.

    python -m launch.train --config=experiments/language/gpt.py --workdir=runs/gpt2 \
        --config.model.size=gpt2 --config.task.dataset=wikitext-2 --data_dir=DIRECTORY

`python -m launch.sizes` lists the names. The size fixes the architecture; everything else is a key of this file. The
schedule is GPT-3's (Brown et al. 2020, appendix B), for 500,000 tokens an update; meant for accelerators.
"""

from ml_collections import ConfigDict

from experiments import data_parallel


def get_config() -> ConfigDict:
    """GPT-2 small on the documentation inside Python, in bfloat16."""
    return ConfigDict(
        {
            "name": "gpt",
            "seed": 1,
            "steps": 100_000,
            "accumulate": 1,
            "log_every": 50,
            "eval_every": 1000,
            "maps_every": 1000,
            "heads_every": 100,
            "checkpoint_every": 1000,
            "keep": 2,
            "task": {
                "name": "language_modelling",
                "dataset": "python_docs",
                "data_dir": None,
                "tokenizer": "bpe",
                "vocabulary": 50_257,
                "batching": "packed",
                "context": 1024,
                "rows": 512,
                "validation": "validation",
                "test": "test",
                "prompts": (),
                "probed": 4,
                "probed_length": 64,
                "repeated": 1,
            },
            "model": {
                "family": "decoder",
                "size": "gpt2",
                "embedding_rows": 50_257,
                "dropout": 0.0,
                "attention_dropout": 0.0,
                "remat": "dots",
                "unroll": 1,
                "backend": "auto",
            },
            "optimizer": {
                "algorithm": "adamw",
                "learning_rate": 6e-4,
                "schedule": "cosine",
                "warmup": 750,
                "final": 0.1,
                "beta2": 0.95,
                "epsilon": 1e-8,
                "weight_decay": 0.1,
                "clip": 1.0,
            },
            "averages": {},
            "precision": {"parameters": "float32", "compute": "bfloat16"},
            "maps": {"megabytes": 500.0, "rows": 8, "top": 8},
            "pod": "v5e:4x4",
            "sharding": data_parallel(),
        }
    )
