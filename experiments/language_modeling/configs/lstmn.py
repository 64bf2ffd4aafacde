r"""A memory-network of one LSTM on tiny-shakespeare, which attends to all of its past states, beside a plain LSTM.

    python -m launch.train --config=experiments/language_modeling/configs/lstmn.py --workdir=runs/tape \
        --data_dir=DIRECTORY
    python -m launch.train --config=experiments/language_modeling/configs/lstmn.py:state --workdir=runs/state \
        --data_dir=DIRECTORY

The data, batches and steps of shakespeare.py. `:state` is an LSTM that is wider, to have as many parameters. They take
three minutes and one on one core. Expect 1.99 to 2.02 nats a character with the tape and 1.87 without: the
memory-network is the worse one, see results/lstmn.md.
"""

from typing import Literal

from ml_collections import ConfigDict

from experiments.language_modeling.configs import shakespeare

# Widths at which both have as many parameters, within one per cent.
WIDTHS = {"tape": 128, "state": 144}


def get_config(memory: Literal["tape", "state"] = "tape") -> ConfigDict:
    """One layer; `memory`: tape (Cheng et al. 2016) or state."""
    config = shakespeare.get_config()
    config.name = f"shakespeare_{memory}"
    config.model = ConfigDict(
        {
            "family": "recurrent_decoder",
            "memory": memory,
            "width": WIDTHS[memory],
            "embedding": 128,
            "attention_hidden_width": 64,
        }
    )
    return config
