r"""In-context linear regression compared with least squares (Garg et al. 2022).

    python -m launch.train --config=experiments/in_context_learning/configs/linear_regression.py \
        --workdir=runs/linear_functions

Needs no data. Takes 10 to 20 minutes on one CPU core. Every row is another function of 5 dimensions, shown by examples
with noise of standard deviation 1; the model predicts the next value, and at test time learns only from its input.
Expected squared error after 10 examples: 0.90 of that of least squares (`error_over_least_squares`), 1.33 of the
Bayes-optimal error. See results/linear_functions.md. Training functions of fewer dimensions (`min_dimensions`) help
learning start: with all of 5 dimensions the loss stays flat for thousands of steps.
"""

from ml_collections import ConfigDict

DIMENSIONS = 5


def get_config() -> ConfigDict:
    """Build the config: 6,000 batches of 64 functions; 4 layers, width 64, 2 x 5 + 1 points and their values."""
    return ConfigDict(
        {
            "name": "linear_regression",
            "seed": 1,
            "steps": 6000,
            "log_every": 100,
            "checkpoint_every": 1000,
            "task": {
                "name": "experiments.in_context_learning.linear_regression_task",
                "num_dimensions": DIMENSIONS,
                "min_dimensions": 1,
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
            "topology": "cpu:1",
        }
    )
