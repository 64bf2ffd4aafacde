"""The head dimension at a fixed number of heads (after Vaswani et al. 2017, table 3, rows B).

    python -m launch.ablate --config=experiments/ablations/configs/head_dim.py --workdir=runs/key_depth --num_workers=2

60 runs of half a minute (four arms x three learning rates x five seeds): about 15 minutes on two cores. One run alone:

    python -m launch.train --config=experiments/ablations/configs/head_dim.py --workdir=runs/one

The paper narrows only the keys, which costs 0.4 to 0.7 BLEU; here `head_dim` narrows keys and values together, so that
the loss of a narrow head may come from either. The page shows by how much the arms' parameters differ.
Expect narrow heads to be worse: a test loss of 1.51, 1.39, 1.32 and 1.35 at 4, 8, 16 and 32, each best at 1e-2:
results/head_dim.md.
"""

from ml_collections import ConfigDict

from experiments.ablations.configs import base


def get_config() -> ConfigDict:
    """Build the base config with an explicit head dimension, width / heads."""
    config = base.get_config()
    config.name = "head_dim"
    config.model.head_dim = 16
    return config


def get_ablation(ablation):
    """Build arms with a quarter, a half, all and twice of the usual head dimension."""
    return ablation(
        question="How deep must a head be?",
        arms={str(depth): {"model.head_dim": depth} for depth in (4, 8, 16, 32)},
        reference="16",
        tuning_grid={"optimizer.learning_rate": (3e-3, 1e-2, 3e-2)},
        smallest_effect_of_interest=0.05,
    )
