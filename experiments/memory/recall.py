"""Associative recall: shown an item again, the Neural Turing Machine says the one behind it (Graves et al. 2014).

    python -m launch.train --config=experiments/memory/recall.py --workdir=runs/turing_recall

Takes seven minutes on one core of two. After 4,000 steps one run of two had 5 % of the bits wrong at 6 items, the most
of its training, and 40 % at 12, which the paper's machine recalls: experiments/results/turing_recall.md.
"""

from ml_collections import ConfigDict

from experiments.memory import copy


def get_config() -> ConfigDict:
    """6,000 steps of 16 sequences; as copy.py, with the paper's controller of 256 and four heads of each kind."""
    config = copy.get_config()
    config.name = "turing_recall"
    config.steps = 6000
    config.task = ConfigDict(
        {
            "name": "algorithms",
            "problem": "associative_recall",
            "shortest": 2,
            "longest": 6,
            "lengths": (16, 24, 32),
            "evaluated": (6, 8, 10, 12, 15, 20),
        }
    )
    config.model = ConfigDict(
        {"family": "turing", "width": 256, "read_heads": 4, "write_heads": 4, "beginning": "constant"}
    )
    return config
