"""Summaries of drawn articles by attention alone, by a pointer-generator, and with coverage (See et al. 2017)."""

from ml_collections import ConfigDict


def get_config(arm: str = "coverage") -> ConfigDict:
    """Fresh batches of 32 articles of one to four facts; tested with four and with six."""
    config = ConfigDict(
        {
            "name": f"articles_{arm}",
            "seed": 1,
            "steps": 3000,
            "eval_every": 1000,
            "maps_every": 100,
            "checkpoint_every": 1000,
            "task": {"name": "summaries", "rows": 32},
            "model": {"family": "pointer_generator", "width": 80, "embedding": 40},
            "optimizer": {
                "learning_rate": 3e-3,
                "schedule": "cosine",
                "warmup": 100,
                "final": 0.01,
                "beta2": 0.999,
                "clip_norm": 2.0,
            },
            "pod": "cpu:1",
        }
    )
    if arm == "plain":
        config.task.unseen = "unknown"
    if arm == "coverage":
        config.model.coverage = 1.0
    return config
