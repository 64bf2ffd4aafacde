r"""A bandit that is learned while it is played: SNAIL imitates who knows no more than it, but knows what to make of it.

    python -m launch.train --config=experiments/meta_rl/configs/bandits.py --workdir=runs/bandits
    python -m launch.train --config=experiments/meta_rl/configs/bandits.py:transformer \
        --workdir=runs/bandits_transformer

Needs no data. Two minutes on one core. Five arms, each of which wins with a probability of its own, and ten pulls:
expect 6.66 wins (`greedy_exact`, the mean over all bandits, by every row of wins that there may be), which is the most
that can be had (`bayes`); 5.0 is chance and 6.6 what Gittins indices and the paper's SNAIL come to (Mishra et al. 2018,
table 3): results/bandits.md. `greedy` is what was won in 2,000 bandits of the test. The second is a Transformer decoder
that is taught the same, and comes to the same.
"""

from typing import Literal

from ml_collections import ConfigDict

SNAIL = {
    "family": "snail",
    "embedding": 32,
    "blocks": ("convolutions", "convolutions", "attention"),
    "key_sizes": (32,),
    "value_sizes": (32,),
    "filters": (32, 32),
}
MODELS = {
    "snail": SNAIL,
    "transformer": {"family": "regression_decoder", "layers": 2, "width": 64, "feed_forward": 128, "max_length": 10},
}


def get_config(model: Literal["snail", "transformer"] = "snail") -> ConfigDict:
    """2,000 batches of 64 bandits."""
    return ConfigDict(
        {
            "name": f"bandits_{model}",
            "seed": 1,
            "steps": 2000,
            "task": {"name": "experiments.meta_rl.task"},
            "model": MODELS[model],
            "optimizer": {
                "learning_rate": 2e-3,
                "schedule": "cosine",
                "warmup_steps": 100,
                "final_lr_fraction": 0.02,
                "beta2": 0.99,
                "clip_norm": 1.0,
            },
            "pod": "cpu:1",
        }
    )
