r"""The factor 1 / sqrt(D) of dot-product attention, on and off, at head dimensions 16 and 64 (Vaswani et al. 2017).

    python -m launch.ablate --config=experiments/ablations/configs/dot_product_scale.py \
        --workdir=runs/scale --num_workers=2

60 runs of half a minute (two arms x two depths x three learning rates x five seeds): about 20 minutes on two cores. One
run alone:

    python -m launch.train --config=experiments/ablations/configs/dot_product_scale.py --workdir=runs/one

Section 3.2.1 of the paper. Each arm is compared at the best of three learning rates, since queries and keys can learn a
scale. Expect the factor to help at both head dimensions, and more at 64, where unscaled logits are eight times as
large: a test loss of 1.32 against 1.98 at 16, and 1.47 against 2.42 at 64 (results/dot_product_scale.md).
"""

from ml_collections import ConfigDict

from experiments.ablations.configs import base


def get_config() -> ConfigDict:
    """Build the base config."""
    config = base.get_config()
    config.name = "dot_product_scale"
    return config


def get_ablation(ablation):
    """Build two arms; the tasks are four heads of dimension 16 and one of dimension 64."""
    return ablation(
        question="What does dividing the scores by sqrt(D) do?",
        arms={"scaled": {"model.score": "scaled_dot"}, "not scaled": {"model.score": "dot"}},
        reference="scaled",
        tuning_grid={"optimizer.learning_rate": (3e-3, 1e-2, 3e-2)},
        tasks={"depth 16": {"model.heads": 4}, "depth 64": {"model.heads": 1}},
        learned_threshold=4.5,
        smallest_effect_of_interest=0.05,
    )
