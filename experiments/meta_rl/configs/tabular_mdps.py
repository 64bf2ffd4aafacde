"""Small Markov decision processes that are learned while they are lived in: SNAIL imitates who knows each of them.

    python -m launch.train --config=experiments/meta_rl/configs/tabular_mdps.py --workdir=runs/decision_processes

Needs no data. A few minutes on one core. Four states, three actions, five episodes of six steps in each world. Expect
the likeliest actions to earn more than posterior sampling, which knows the prior: `greedy` 18.7 beside
`posterior_sampling` 16.8 in the test's worlds, chance 15.1, who knows each world 22.8: results/bandits.md.
"""

from ml_collections import ConfigDict

from experiments.meta_rl.configs import bandits


def get_config() -> ConfigDict:
    """2,000 batches of 64 worlds."""
    config = bandits.get_config()
    config.name = "tabular_mdps"
    config.task = {
        "name": "experiments.meta_rl.task",
        "states": 4,
        "actions": 3,
        "horizon": 6,
        "episodes": 5,
        "teacher": "knowing",
        "num_eval_examples": 1000,
    }
    return config
