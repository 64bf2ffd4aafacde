r"""Score functions of a recurrent decoder's attention: dot products, additive scores, cosine, and location.

    python -m launch.ablate --config=experiments/translation/configs/recurrent_score_ablation.py \
        --workdir=runs/alignment --num_workers=2

64 runs of twenty seconds: about a quarter of an hour on two cores. One run alone:

    python -m launch.train --config=experiments/translation/configs/recurrent_score_ablation.py --workdir=runs/one

After so few steps, expect cosine and the scaled dot product to be better than the additive score by 0.03 to 0.04 nats
per token, and unscaled products to be far worse: results/recurrent_scores.md.
"""

from ml_collections import ConfigDict

from experiments.ablations.configs import base
from experiments.ablations.configs.score_functions import KINDS


def get_config() -> ConfigDict:
    """Build the recurrent base config."""
    config = base.recurrent_config()
    config.name = "recurrent_score_ablation"
    return config


def get_ablation(ablation):
    """Build seven score functions with the additive one as the reference, and eight seeds."""
    return ablation(
        question="Which score aligns a recurrent decoder best?",
        arms={
            kind: {"model.score": kind, **({"model.max_length": 24} if kind == "location" else {})} for kind in KINDS
        },
        reference="additive",
        reported_metric="test/cross_entropy",
        seeds=base.SEEDS,
        smallest_effect_of_interest=0.05,
        plotted_metrics=("validation/accuracy",),
    )
