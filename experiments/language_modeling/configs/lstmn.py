r"""LSTMN (Cheng et al. 2016) on tiny-shakespeare, compared with an LSTM of equal size.

    python -m launch.train --config=experiments/language_modeling/configs/lstmn.py --workdir=runs/lstmn \
        --data_dir=DIRECTORY
    python -m launch.train --config=experiments/language_modeling/configs/lstmn.py:lstm --workdir=runs/state \
        --data_dir=DIRECTORY

The LSTMN attends to all of its past states. Data, batches and steps are those of shakespeare.py; `:lstm` is a wider
LSTM with as many parameters. The runs take three minutes and one minute on one CPU core. Expected validation loss:
1.99 to 2.02 nats a character with the LSTMN and 1.87 with the LSTM, which is better. See results/lstmn.md.
"""

from typing import Literal

from ml_collections import ConfigDict

from experiments.language_modeling.configs import shakespeare

# The memory of each, and the width at which both have as many parameters, within one per cent.
MEMORIES = {"lstmn": ("state_history", 128), "lstm": ("state", 144)}


def get_config(cell: Literal["lstmn", "lstm"] = "lstmn") -> ConfigDict:
    """Build the config: one layer."""
    memory, width = MEMORIES[cell]
    config = shakespeare.get_config()
    config.name = f"shakespeare_{cell}"
    config.model = ConfigDict(
        {
            "family": "recurrent_decoder",
            "memory": memory,
            "width": width,
            "embedding_width": 128,
            "attention_hidden_width": 64,
        }
    )
    return config
