"""Dynamic N-grams: the Neural Turing Machine counts what followed each context, beside the best that there is.

    python -m launch.train --config=experiments/memory/ngrams.py --workdir=runs/turing_ngrams

Takes a quarter of an hour on one core of two. After 1,000 steps it was still 38 % above the best, between those that
count behind one and two bits of context: experiments/results/turing_ngrams.md. All 3,000 have not been measured.
"""

from ml_collections import ConfigDict

from experiments.memory import copy


def get_config() -> ConfigDict:
    """3,000 steps of 16 sequences of 200 bits, each with a table of its own; as copy.py, but an LSTM controller."""
    config = copy.get_config()
    config.name = "turing_ngrams"
    config.task = ConfigDict(
        {
            "name": "algorithms",
            "problem": "n_grams",
            "shortest": 200,
            "longest": 200,
            "evaluated": (200,),
            "sequences": 256,
        }
    )
    config.model = ConfigDict({"family": "turing", "controller": "lstm"})
    return config
