r"""SAGAN (Zhang et al. 2019) on images whose two halves show the same digit, with or without attention.

    python -m launch.train --config=experiments/sagan/configs/sagan.py:classifier --workdir=runs/classifier
    python -m launch.train --config=experiments/sagan/configs/sagan.py --workdir=runs/sagan \
        --config.initialize_from.run=runs/classifier
    python -m launch.train --config=experiments/sagan/configs/sagan.py:convolutions \
        --workdir=runs/sagan_convolutions --config.initialize_from.run=runs/classifier

The classifier of single digits scores the samples. It is trained first, in its own run: half a minute on one CPU core,
test accuracy 1.0. A GAN takes a quarter of an hour on one core. Expected consistency of the samples: 0.91 with
attention and 0.75 without (means of three seeds). The generator loses digits; without attention all but 1 and 7. See
results/sagan.md.
"""

from typing import Literal

from ml_collections import ConfigDict

# The rows of the grids within which both players attend.
ARMS = {"attention": (4, 8), "convolutions": ()}
CLASSIFIER_CHANNELS = (16, 32, 64)


def get_config(arm: Literal["attention", "convolutions", "classifier"] = "attention") -> ConfigDict:
    """Build the config: images of 16 x 32 pixels; `:convolutions` has no attention, `:classifier` is the classifier."""
    if arm == "classifier":
        return ConfigDict(
            {
                "name": "sagan_classifier",
                "seed": 1,
                "steps": 400,
                "eval_every": 100,
                "task": {"name": "image_classification", "dataset": "digits/size=16", "augmentation": {"crop": 1}},
                "model": {"family": "convolutional_classifier", "encoder": {"channels": CLASSIFIER_CHANNELS}},
                "optimizer": {"learning_rate": 2e-3, "schedule": "cosine", "warmup_steps": 50, "clip_norm": 1.0},
                "topology": "cpu:1",
            }
        )
    return ConfigDict(
        {
            "name": f"sagan_{arm}",
            "seed": 1,
            "steps": 10_000,
            "log_every": 100,
            "eval_every": 1000,
            "maps_every": 1000,
            "parameter_averages": {"smooth": {"kind": "exponential", "patterns": ("generator/*",)}},
            # Of another run the classifier takes all; the players begin anew.
            "initialize_from": {"rules": ("classifier/* = *", "* = fresh")},
            "task": {
                "name": "experiments.sagan.task",
                "digits": "0147",
                "batch_size": 32,
                "eval_parameters": "smooth",
            },
            "model": {
                "family": "experiments.sagan.model",
                "channels": (16, 32, 64),
                "attention_grids": ARMS[arm],
                "classifier_channels": CLASSIFIER_CHANNELS,
            },
            # Adam and two time scales as the paper has them; its rates, 1e-4 and 4e-4, are for longer runs.
            "optimizer": {"learning_rate": 1e-3, "schedule": "constant", "warmup_steps": 0, "beta1": 0.0, "beta2": 0.9},
            "optimizers": {"generator": {"learning_rate": 2.5e-4}},
            "topology": "cpu:1",
        }
    )
