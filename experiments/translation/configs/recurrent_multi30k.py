r"""Multi30k English-German by one recurrent layer of width 256 on each side, with attention or through one vector.

    python -m launch.train --config=experiments/translation/configs/recurrent_multi30k.py --data_dir=DIR \
        --workdir=runs/attention
    python -m launch.train --config=experiments/translation/configs/recurrent_multi30k.py:last --data_dir=DIR \
        --workdir=runs/last

The data, batches and steps of multi30k_cpu.py in the same folder. `:last` gives the decoder the encoder's last state at
every step instead of the attended context; all else is equal. BLEU is also reported by source length, in quarters of
the validation sentences. Takes half an hour on two shared cores. Expect 35.6 BLEU with attention and 23.9 without, 32.1
and 18.1 on the longest quarter: results/recurrent_multi30k.md.
"""

from typing import Literal

from ml_collections import ConfigDict

from experiments.translation.configs import multi30k_cpu


def get_config(
    context: Literal["attention", "last"] = "attention",
) -> ConfigDict:
    """Build the config: a bidirectional GRU of width 256, with attention or with the last state as `context`."""
    config = multi30k_cpu.get_config()
    config.name = f"recurrent_multi30k_{context}"
    config.model = ConfigDict({"family": "recurrent_encoder_decoder", "dropout": 0.2})
    if context != "attention":
        config.model.context_vector = context
    config.task.length_bounds = (10, 13, 15)
    config.optimizer.learning_rate = 1e-3
    config.optimizer.clip_norm = 1.0
    return config
