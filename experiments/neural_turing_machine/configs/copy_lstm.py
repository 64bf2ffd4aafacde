"""The copy task by an LSTM without memory, which copies nothing longer than in training (Graves et al. 2014).

    python -m launch.train --config=experiments/neural_turing_machine/configs/copy_lstm.py --workdir=runs/lstm_copy

Takes six minutes on one core of two. After 1,000 steps, two minutes, 47 % of the bits are wrong at 50 vectors; chance
is 50 %: results/turing_copy.md.
"""

from ml_collections import ConfigDict

from experiments.neural_turing_machine.configs import copy


def get_config() -> ConfigDict:
    """Build the config: copy.py with the paper's three layers of width 256 and no memory."""
    config = copy.get_config()
    config.name = "lstm_copy"
    config.model = ConfigDict({"family": "experiments.neural_turing_machine.lstm_controller"})
    return config
