r"""A sweep over the demo: six learning rates, for pre-norm and post-norm.

    python -m launch.sweep --config=experiments/translation/configs/demo_learning_rate_sweep.py \
        --workdir=runs/sweep --num_workers=2

Twelve trials of a small model, about 15 minutes on two cores. Expect a table with the best first, in which the two
placements tolerate different learning rates; a trial that diverges is a result. One run of the config alone:

    python -m launch.train --config=experiments/translation/configs/demo_learning_rate_sweep.py --workdir=runs/one
"""

from ml_collections import ConfigDict

from experiments import demo


def get_config() -> ConfigDict:
    """Build the demo with a model of width 64, for 300 steps of larger batches, without dropout."""
    config = demo.get_config()
    config.name = "demo_learning_rate_sweep"
    config.steps = 300
    config.eval_every = 100
    config.maps_every = 0
    config.head_statistics_every = 0
    config.checkpoint_every = 150
    config.task.tokens_per_batch = 3072
    config.model.width = 64
    config.model.feed_forward = 128
    config.model.attention_dropout = 0.0
    return config


def get_sweep(sweep):
    """Build two placements of the norm by six learning rates, each twice the one before."""
    return sweep.product(
        sweep.choice("model.norm_placement", ["pre", "post"]),
        sweep.choice("optimizer.learning_rate", [5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2]),
    )
