"""Canvases whose two digits must be the same, made by a generator against a discriminator, with self-attention or not.

python -m launch.train --config=experiments/sagan/configs/sagan.py:judge --workdir=runs/judge
python -m launch.train --config=experiments/sagan/configs/sagan.py --workdir=runs/sagan \
    --config.initialize_from.run=runs/judge
python -m launch.train --config=experiments/sagan/configs/sagan.py:convolutions --workdir=runs/sagan_convolutions \
    --config.initialize_from.run=runs/judge

The judge is a classifier of single digits, trained first and in a run of its own: half a minute on a core, all of 1,000
test images right. An arm takes a quarter of an hour on a core. Expect 0.91 of the samples consistent with attention
and 0.75 without, the means of three seeds, and a generator that loses digits, without attention all but 1 and 7:
results/sagan.md.
"""

from typing import Literal

from ml_collections import ConfigDict

# The rows of the grids within which both players attend.
ARMS = {"attention": (4, 8), "convolutions": ()}
JUDGE = (16, 32, 64)


def get_config(arm: Literal["attention", "convolutions", "judge"] = "attention") -> ConfigDict:
    """Canvases of 16 x 32 pixels; sagan.py:convolutions is without attention, sagan.py:judge trains the classifier."""
    if arm == "judge":
        return ConfigDict(
            {
                "name": "sagan_judge",
                "seed": 1,
                "steps": 400,
                "eval_every": 100,
                "task": {"name": "image_classification", "dataset": "digits/size=16", "augmentation": {"crop": 1}},
                "model": {"family": "convolutional_classifier", "encoder": {"channels": JUDGE}},
                "optimizer": {"learning_rate": 2e-3, "schedule": "cosine", "warmup_steps": 50, "clip_norm": 1.0},
                "pod": "cpu:1",
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
            # Of another run the judge takes all; the players begin anew.
            "initialize_from": {"rules": ("judge/* = *", "* = fresh")},
            "task": {
                "name": "experiments.sagan.task",
                "digits": "0147",
                "batch_size": 32,
                "eval_parameters": "smooth",
            },
            "model": {
                "family": "experiments.sagan.model",
                "channels": (16, 32, 64),
                "attention": ARMS[arm],
                "judge": JUDGE,
            },
            # Adam and two time scales as the paper has them; its rates, 1e-4 and 4e-4, are for longer runs.
            "optimizer": {"learning_rate": 1e-3, "schedule": "constant", "warmup_steps": 0, "beta1": 0.0, "beta2": 0.9},
            "optimizers": {"generator": {"learning_rate": 2.5e-4}},
            "pod": "cpu:1",
        }
    )
