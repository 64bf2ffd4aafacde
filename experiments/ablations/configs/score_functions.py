r"""Attention score functions: dot products, additive scores, cosine, and location.

    python -m launch.ablate --config=experiments/ablations/configs/score_functions.py \
        --workdir=runs/scores --num_workers=2

120 runs of half a minute to a minute and a half (eight arms x three learning rates x five seeds): about an hour on two
cores. One run alone:

    python -m launch.train --config=experiments/ablations/configs/score_functions.py --workdir=runs/one

Expect the products without the factor 1 / sqrt(D), `dot` and `general`, to be worst (a test loss of 1.98 and 2.09),
behind `location` (1.47), which does not read the keys, and the others to be close to `scaled_dot` (1.24 to 1.41 against
1.32): results/score_functions.md.
"""

from ml_collections import ConfigDict

from experiments.ablations.configs import base

KINDS = ("scaled_dot", "dot", "general", "additive", "concat", "mlp", "cosine", "location")


def get_config() -> ConfigDict:
    """Build the base config."""
    config = base.get_config()
    config.name = "score_functions"
    return config


def get_ablation(ablation):
    """Build eight score functions with the scaled dot product as the reference."""
    return ablation(
        question="Which score function learns these phrases best?",
        arms={kind: {"model.score": kind} for kind in KINDS},
        reference="scaled_dot",
        tuning_grid={"optimizer.learning_rate": (3e-3, 1e-2, 3e-2)},
        smallest_effect_of_interest=0.05,
    )
