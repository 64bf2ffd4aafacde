"""The number of heads at a fixed width (Vaswani et al. 2017, table 3, rows A).

    python -m launch.ablate --config=experiments/ablations/configs/num_heads.py --workdir=runs/heads --num_workers=2

75 runs of half a minute (five arms x three learning rates x five seeds): about 20 minutes on two cores. One run alone:

    python -m launch.train --config=experiments/ablations/configs/num_heads.py --workdir=runs/one

The heads share the width, so that parameters and FLOPs stay the same. In the paper one head was 0.9 BLEU worse than
eight, and 32 heads 0.4. Expect the same order: a test loss of 1.47, 1.38, 1.32, 1.30 and 1.34 with 1, 2, 4, 8 and 16
heads, each best at 1e-2: results/num_heads.md.
"""

from ml_collections import ConfigDict

from experiments.ablations.configs import base


def get_config() -> ConfigDict:
    """Build the base config."""
    config = base.get_config()
    config.name = "num_heads"
    return config


def get_ablation(ablation):
    """Build arms with one to sixteen heads of dimension 64 to 4."""
    return ablation(
        question="How many heads should share the width?",
        arms={str(heads): {"model.heads": heads} for heads in (1, 2, 4, 8, 16)},
        reference="4",
        tuning_grid={"optimizer.learning_rate": (3e-3, 1e-2, 3e-2)},
        smallest_effect_of_interest=0.05,
    )
