r"""Linear functions learned in context, beside least squares (Garg et al. 2022).

    python -m launch.train --config=experiments/in_context_learning/configs/linear_regression.py \
        --workdir=runs/linear_functions

Needs no data. Ten to twenty minutes on one core. Every row is another function of 5 dimensions, shown by examples whose
values have an error of deviation 1; the next value is predicted, and nothing is learned at the test but by reading.
Expect an error behind 10 examples of 0.90 of that of least squares on the same examples (`of_least_squares`) and 1.33
of the least possible: results/linear_functions.md. Functions of fewer dimensions among the training ones show the way,
where all of 5 alone leave the loss where it is for thousands of steps.
"""

from ml_collections import ConfigDict

DIMENSIONS = 5


def get_config() -> ConfigDict:
    """6,000 batches of 64 functions; 4 layers, width 64, positions for 2 x 5 + 1 points and their values."""
    return ConfigDict(
        {
            "name": "linear_regression",
            "seed": 1,
            "steps": 6000,
            "log_every": 100,
            "checkpoint_every": 1000,
            "task": {
                "name": "experiments.in_context_learning.linear_regression_task",
                "dimensions": DIMENSIONS,
                "fewest": 1,
            },
            "model": {"family": "regression_decoder", "max_length": 4 * DIMENSIONS + 2, "scan_unroll": 4},
            "optimizer": {
                "learning_rate": 1e-3,
                "schedule": "cosine",
                "warmup_steps": 200,
                "final_lr_fraction": 0.02,
                "beta2": 0.99,
                "clip_norm": 1.0,
            },
            "pod": "cpu:1",
        }
    )
