"""Does the best learning rate of a narrow model suit a wide one? Two parametrizations of a small GPT.

    python -m launch.sweep --config=experiments/language_modeling/configs/width_transfer.py --workdir=runs/widths

36 runs: two parametrizations of a small GPT, three widths, six learning rates (Yang et al. 2022, figure 1). Takes nine
minutes with --num_workers=2 on two cores. Expect best rates of 1.6e-2, 8e-3 and 2e-3 in the standard parametrization,
and 1.6e-2 at every width in the other: results/width_transfer.md. One run alone, of the narrowest model:

    python -m launch.train --config=experiments/language_modeling/configs/width_transfer.py --workdir=runs/one
"""

from ml_collections import ConfigDict

from experiments.language_modeling.configs import model_size_sweep

BASE_WIDTH = 32


def get_config() -> ConfigDict:
    """Build the narrowest model, on 200 batches of 16 texts of 64 characters."""
    config = model_size_sweep.get_config()
    config.name = "width_transfer"
    config.steps = 200
    config.eval_every = 200
    config.maps_every = 0
    config.task.batch_size = 16
    config.model.update(
        {"layers": 2, "width": BASE_WIDTH, "heads": 1, "feed_forward": 4 * BASE_WIDTH, "scan_unroll": 2}
    )
    # By the fan-in, so that the narrowest model begins well: GPT-2's 0.02 is made for a width of 768.
    config.model.initialization = "xavier"
    config.optimizer.update({"algorithm": "adam", "warmup_steps": 20, "weight_decay": 0.0})
    return config


def get_sweep(sweep):
    """Build both parametrizations of each width; heads stay 32 wide."""
    return sweep.product(
        sweep.choice("model.base_width", [None, BASE_WIDTH]),
        sweep.zip(
            sweep.choice("model.width", [32, 96, 288]),
            sweep.choice("model.heads", [1, 3, 9]),
            sweep.choice("model.feed_forward", [128, 384, 1152]),
        ),
        sweep.choice("optimizer.learning_rate", [1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2]),
    )
