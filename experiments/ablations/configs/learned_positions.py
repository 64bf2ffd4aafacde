r"""Learned positions against sinusoidal ones (Vaswani et al. 2017, table 3, row E).

    python -m launch.ablate --config=experiments/ablations/configs/learned_positions.py --workdir=runs/learned \
        --num_workers=2

10 runs of half a minute: about 3 minutes on two cores. One run alone:

    python -m launch.train --config=experiments/ablations/configs/learned_positions.py --workdir=runs/one

In the paper the two were nearly equal (25.7 against 25.8 BLEU after 100,000 steps). In 400 steps expect the learned
table, which knows nothing of neighboring positions at first, to be worse.
"""

from ml_collections import ConfigDict

from experiments.ablations.configs import base


def get_config() -> ConfigDict:
    """Build the base config."""
    config = base.get_config()
    config.name = "learned_positions"
    return config


def get_ablation(ablation):
    """Build the two arms."""
    return ablation(
        question="Do learned positions do as well as sinusoidal ones?",
        arms={kind: {"model.positions": kind} for kind in ("sinusoidal", "learned")},
        reference="sinusoidal",
        smallest_effect_of_interest=0.05,
    )
