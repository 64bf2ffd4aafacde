r"""Dynamic N-grams: the Neural Turing Machine counts what followed each context, compared with the Bayes-optimal loss.

    python -m launch.train --config=experiments/neural_turing_machine/configs/dynamic_ngrams.py \
        --workdir=runs/turing_ngrams

Takes seven minutes on one core of two. Expect a final loss 31 % above the Bayes-optimal one, between those of counting
with two and with three bits of context, and still falling: results/turing_ngrams.md.
"""

from ml_collections import ConfigDict

from experiments.neural_turing_machine.configs import copy


def get_config() -> ConfigDict:
    """Build the config: copy.py with 3,000 steps of 16 sequences of 200 bits and an LSTM controller."""
    config = copy.get_config()
    config.name = "turing_ngrams"
    config.task = ConfigDict(
        {
            "name": "experiments.neural_turing_machine.task",
            "problem": "n_grams",
            "min_size": 200,
            "max_size": 200,
            "eval_sizes": (200,),
            "num_eval_examples": 256,
        }
    )
    config.model = ConfigDict(
        {"family": "experiments.neural_turing_machine.ntm", "controller": "lstm", "memory_init": "constant"}
    )
    return config
