"""Meta-learned tabular MDPs: SNAIL imitates the optimal policy of each of many small Markov decision processes.

    python -m launch.train --config=experiments/meta_rl/configs/tabular_mdps.py --workdir=runs/decision_processes

Needs no data. Takes a few minutes on one CPU core. Four states, three actions, five episodes of six steps in each MDP.
Expected mean return in test MDPs: 18.7 (`greedy_return`), compared with 16.8 of posterior sampling, 15.1 of a random
policy and 22.8 of the optimal policy of a known MDP. See results/bandits.md.
"""

from ml_collections import ConfigDict

from experiments.meta_rl.configs import bandits


def get_config() -> ConfigDict:
    """Build the config: 2,000 batches of 64 MDPs."""
    config = bandits.get_config()
    config.name = "tabular_mdps"
    config.task = {
        "name": "experiments.meta_rl.task",
        "num_states": 4,
        "num_actions": 3,
        "horizon": 6,
        "num_episodes": 5,
        "teacher": "oracle",
        "num_eval_examples": 1000,
    }
    return config
