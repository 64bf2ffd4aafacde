r"""Learned positions against sinusoidal ones (Vaswani et al. 2017, table 3, row E).

    python -m launch.ablate --config=experiments/ablations/configs/learned_positions.py --workdir=runs/learned \
        --num_workers=2

10 runs of half a minute: about 3 minutes on two cores. One run alone:

    python -m launch.train --config=experiments/ablations/configs/learned_positions.py --workdir=runs/one

There the two were nearly alike (25.7 against 25.8 BLEU after 100,000 steps). In 400 steps expect the table, in which
nothing says at first which positions are neighbors, to be behind.
"""

from ml_collections import ConfigDict

from experiments.ablations.configs import base


def get_config() -> ConfigDict:
    """The base."""
    config = base.get_config()
    config.name = "learned_positions"
    return config


def get_ablation(ablation):
    """Two arms."""
    return ablation(
        question="Do learned positions do as well as sinusoidal ones?",
        arms={kind: {"model.positions": kind} for kind in ("sinusoidal", "learned")},
        reference="sinusoidal",
        smallest_effect_of_interest=0.05,
    )
