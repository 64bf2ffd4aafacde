r"""Learning rate and warm-up: where each placement of the norm trains well, and where it diverges.

    python -m launch.ablate --config=experiments/ablations/configs/norm_placement_by_learning_rate.py \
        --workdir=runs/norm_map --num_workers=2

180 runs (five arms x four learning rates x three warm-ups x three seeds) of 200 steps without clipping: about an hour
on two cores. One run alone:

    python -m launch.train --config=experiments/ablations/configs/norm_placement_by_learning_rate.py --workdir=runs/one

Expect pre-norm, sandwich and parallel blocks to train over the whole map, post-norm to need warm-up at 1e-2 and to
learn nothing at 3e-2, and DeepNorm to do no better than post-norm in so few steps:
results/norm_placement_by_learning_rate.md.
"""

from ml_collections import ConfigDict

from experiments.ablations.configs import base
from experiments.ablations.configs.norm_placement import ARMS


def get_config() -> ConfigDict:
    """Build the config: 3+3 layers, half the steps, a constant rate, and no clipping, which would hide divergence."""
    config = base.get_config()
    config.name = "norm_placement_by_learning_rate"
    config.steps = 200
    config.maps_every = 200
    config.model.encoder_layers = 3
    config.model.decoder_layers = 3
    config.optimizer.schedule = "constant"
    config.optimizer.clip_norm = 0.0
    return config


def get_ablation(ablation):
    """Build five arms with two tuned keys, which the page draws as a map."""
    return ablation(
        question="At which learning rates and warm-ups does each placement of the norm train?",
        arms=ARMS,
        reference="post",
        tuning_grid={"optimizer.learning_rate": (1e-3, 3e-3, 1e-2, 3e-2), "optimizer.warmup_steps": (0, 30, 100)},
        seeds=(1, 2, 3),
        learned_threshold=4.5,
        smallest_effect_of_interest=0.1,
    )
