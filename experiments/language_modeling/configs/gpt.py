r"""Train a published decoder, chosen by name, from scratch on any text.

    python -m launch.train --config=experiments/language_modeling/configs/gpt.py --workdir=runs/gpt2 \
        --config.model.size=gpt2 --config.task.dataset=wikitext-2 --data_dir=DIRECTORY

`python -m launch.model_sizes` lists the names. The size fixes the architecture; everything else is a key of this file.
The schedule is GPT-3's (Brown et al. 2020, appendix B), for 500,000 tokens an update; meant for accelerators.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """Build the config: GPT-2 small on the documentation inside Python, in bfloat16."""
    return ConfigDict(
        {
            "name": "gpt",
            "seed": 1,
            "steps": 100_000,
            "eval_every": 1000,
            "maps_every": 1000,
            "head_statistics_every": 100,
            "checkpoint_every": 1000,
            "task": {
                "name": "language_modeling",
                "vocab_size": 50_257,
                "batching": "packed",
                "context_length": 1024,
                "batch_size": 512,
                "probe_length": 64,
            },
            "model": {
                "size": "gpt2",
                "vocab_size": 50_257,
                "remat": "dots",
            },
            "optimizer": {
                "algorithm": "adamw",
                "learning_rate": 6e-4,
                "schedule": "cosine",
                "warmup_steps": 750,
                "final_lr_fraction": 0.1,
                "beta2": 0.95,
                "epsilon": 1e-8,
                "weight_decay": 0.1,
                "clip_norm": 1.0,
            },
            "precision": {"compute": "bfloat16"},
            "topology": "v5e:4x4",
        }
    )
