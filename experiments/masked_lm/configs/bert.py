r"""Train a published encoder, chosen by name, from scratch on any text.

    python -m launch.train --config=experiments/masked_lm/configs/bert.py --workdir=runs/bert \
        --config.model.size=bert-large --config.task.dataset=DIRECTORY

`python -m launch.model_sizes` lists the names. The size fixes the architecture; everything else is a key of this file.
Masks are sampled anew at every step and there is no second task, as in Liu et al. 2019; meant for accelerators.
"""

from ml_collections import ConfigDict

from experiments.language_modeling.configs import gpt


def get_config() -> ConfigDict:
    """Build the config: BERT base on the documentation inside Python, in bfloat16."""
    config = gpt.get_config()
    config.name = "bert"
    config.task = ConfigDict(
        {
            "name": "masked_lm",
            "vocab_size": 30_522,
            "context_length": 512,
            "batch_size": 256,
            "probe_length": 64,
        }
    )
    config.model.update({"size": "bert-base", "vocab_size": 30_522})
    config.optimizer.update(
        {"learning_rate": 1e-4, "schedule": "linear", "warmup_steps": 10_000, "final_lr_fraction": 0.0}
    )
    config.optimizer.update({"beta2": 0.999, "epsilon": 1e-6, "weight_decay": 0.01})
    return config
