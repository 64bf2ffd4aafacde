r"""Meta-learned bandits: SNAIL imitates the Bayes-optimal policy of five-armed bandits with ten pulls.

    python -m launch.train --config=experiments/meta_rl/configs/bandits.py --workdir=runs/bandits
    python -m launch.train --config=experiments/meta_rl/configs/bandits.py:transformer \
        --workdir=runs/bandits_transformer

Needs no data. Takes two minutes on one CPU core. Expected mean return: 6.66 (`expected_greedy_return`, exact
over all bandits), which equals the optimum (`bayes_optimal_return`); chance is 5.0, Gittins indices and the paper's
SNAIL reach 6.6 (Mishra et al. 2018, table 3). `greedy_return` is the return in 2,000 test bandits. `:transformer` is a
Transformer decoder, with the same result. See results/bandits.md.
"""

from typing import Literal

from ml_collections import ConfigDict

SNAIL = {
    "family": "snail",
    "embedding_width": 32,
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
    """Build the config: 2,000 batches of 64 bandits."""
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
            "topology": "cpu:1",
        }
    )
