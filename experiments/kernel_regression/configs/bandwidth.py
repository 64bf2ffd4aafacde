r"""Nadaraya-Watson kernel regression, its bandwidth learned by gradient descent on the leave-one-out error.

    python -m launch.train --config=experiments/kernel_regression/configs/bandwidth.py --workdir=runs/bandwidth
    python -m launch.train --config=experiments/kernel_regression/configs/bandwidth.py:features --workdir=runs/features
    python -m launch.sweep --config=experiments/kernel_regression/configs/bandwidth.py --workdir=runs/kernels \
        --metric=validation/squared_error

The second command has points with two features that do not matter, and a bandwidth per feature. The third trains all
kernels on five data sets. A run takes ten seconds on one core, the sweep five minutes.
"""

from typing import Literal

from ml_collections import ConfigDict


def get_config(data: Literal["curve", "features"] = "curve") -> ConfigDict:
    """Build the config: 50 points of a curve, or 100 points of which only the first of three features matters."""
    config = ConfigDict(
        {
            "name": f"kernel_regression_{data}",
            "seed": 1,
            "steps": 300,
            "log_every": 20,
            "eval_every": 100,
            "maps_every": 100,
            "task": {"name": "experiments.kernel_regression.task"},
            "model": {"family": "experiments.kernel_regression.model"},
            "optimizer": {"learning_rate": 0.05, "schedule": "cosine", "warmup_steps": 0},
            "topology": "cpu:1",
        }
    )
    if data == "features":
        config.task.num_points = 100
        config.task.num_features = 3
        config.model.learned_bandwidth = "per_feature"
    return config


def get_sweep(sweep):
    """Build the sweep: five data sets times average pooling, fixed kernels and learned bandwidths."""
    fixed = {"family": "experiments.kernel_regression.model", "learned_bandwidth": "none"}
    learned = {"family": "experiments.kernel_regression.model"}
    models = [
        {**fixed, "kernel": "uniform"},
        *({**fixed, "bandwidth": bandwidth} for bandwidth in (0.1, 0.3, 1.0)),
        {**fixed, "kernel": "boxcar", "bandwidth": 0.3},
        *({**learned, "kernel": kernel} for kernel in ("gaussian", "epanechnikov", "biweight")),
        {**learned, "learned_bandwidth": "per_feature"},
    ]
    return sweep.product(sweep.choice("task.data_seed", [1, 2, 3, 4, 5]), sweep.choice("model", models))
