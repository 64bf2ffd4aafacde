r"""Associative recall: given an item again, the Neural Turing Machine recalls the next one (Graves et al. 2014).

    python -m launch.train --config=experiments/neural_turing_machine/configs/associative_recall.py \
        --workdir=runs/turing_recall

Takes a quarter of an hour on one core of two. By step 1,000 nearly all answers with 12 items are right, twice the
maximum in training; at the end all are, with 15 items too: results/turing_recall.md. The slots have a constant
initialization; with a learned one (`--config.model.memory_init=learned`) the model does not get there.
"""

from ml_collections import ConfigDict

from experiments.neural_turing_machine.configs import copy


def get_config() -> ConfigDict:
    """Build the config: 6,000 steps of 16 sequences; the paper's controller of 256, four heads of each kind."""
    config = copy.get_config()
    config.name = "turing_recall"
    config.steps = 6000
    config.task = ConfigDict(
        {
            "name": "experiments.neural_turing_machine.task",
            "problem": "associative_recall",
            "min_size": 2,
            "max_size": 6,
            "bucket_lengths": (16, 24, 32),
            "eval_sizes": (6, 8, 10, 12, 15, 20),
        }
    )
    config.model = ConfigDict(
        {
            "family": "experiments.neural_turing_machine.ntm",
            "width": 256,
            "read_heads": 4,
            "write_heads": 4,
            "memory_init": "constant",
        }
    )
    return config
