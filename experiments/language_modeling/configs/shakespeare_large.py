r"""nanoGPT's larger setting on tiny-shakespeare: 6 layers, 6 heads, width 384, context 256.

    python -m launch.train --config=experiments/language_modeling/configs/shakespeare_large.py \
        --workdir=runs/shakespeare_large \
        --data_dir=DIRECTORY
    python -m launch.train --config=experiments/language_modeling/configs/shakespeare_large.py:cpu \
        --workdir=runs/shakespeare_cpu \
        --data_dir=DIRECTORY

The first, with dropout 0.2, is for an accelerator: minutes there, most of a day on two cores. nanoGPT reports a best
validation loss of 1.4697 nats per character; expect at most 1.47 at the best evaluation, which is not measured. `:cpu`
is the same model within an hour on one core of an Intel Xeon: 4 million characters, four times the text, instead of 82
million. Expect 1.60: results/shakespeare.md.
"""

from typing import Literal

from ml_collections import ConfigDict

from experiments.language_modeling.configs import shakespeare


def get_config(budget: Literal["accelerator", "cpu"] = "accelerator") -> ConfigDict:
    """Build the config: 5,000 steps of 64 windows of 256 characters; on "cpu" 2,000 steps of 8, no dropout."""
    steps, eval_every, rows, dropout, unroll, topology = {
        "accelerator": (5000, 250, 64, 0.2, 1, "v5e:1x1"),
        "cpu": (2000, 500, 8, 0.0, 6, "cpu:1"),
    }[budget]
    config = shakespeare.get_config()
    config.name = "shakespeare_large_cpu" if budget == "cpu" else "shakespeare_large"
    config.steps, config.eval_every, config.maps_every, config.checkpoint_every = steps, eval_every, 1000, 1000
    config.task.context_length, config.task.batch_size, config.task.max_new_tokens = 256, rows, 200
    config.model.update({"layers": 6, "width": 384, "heads": 6, "feed_forward": 1536, "max_length": 256})
    config.model.update({"dropout": dropout, "attention_dropout": dropout, "scan_unroll": unroll})
    config.optimizer.update({"learning_rate": 1e-3, "final_lr_fraction": 0.1})
    config.topology = topology
    return config
