r"""Soft, local and hard attention in a recurrent encoder-decoder.

    python -m launch.ablate --config=experiments/translation/configs/recurrent_local_attention_ablation.py \
        --workdir=runs/extents --num_workers=2

40 runs of 20 seconds: less than 10 minutes on two cores. One run alone:

    python -m launch.train --config=experiments/translation/configs/recurrent_local_attention_ablation.py \
        --workdir=runs/one

Soft attention to all words; windows of nine words around the step's index or a predicted position (local-m and local-p,
Luong et al. 2015, section 3.2); one sampled word, with the straight-through gradient or REINFORCE (Xu et al. 2015).
After so few steps expect all restrictions to be worse than soft attention: local-m by 0.02 nats a token, REINFORCE by
0.8. See results/recurrent_extents.md.
"""

from ml_collections import ConfigDict

from experiments.ablations.configs import base


def get_config() -> ConfigDict:
    """Build the recurrent base config."""
    config = base.recurrent_config()
    config.name = "recurrent_local_attention_ablation"
    return config


def get_ablation(ablation):
    """Build four restricted attentions with full attention as the reference, and eight seeds."""
    return ablation(
        question="What does a recurrent decoder lose by reading less than all words?",
        arms={
            "soft": {},
            "local_m": {"model.attention_span": "monotonic", "model.half_width": 4},
            "local_p": {"model.attention_span": "predictive", "model.half_width": 4},
            "straight_through": {"model.normalizer": "straight_through"},
            "hard": {"model.normalizer": "hard", "model.soft_attention_probability": 0.5},
        },
        reference="soft",
        reported_metric="test/cross_entropy",
        seeds=base.SEEDS,
        smallest_effect_of_interest=0.05,
        plotted_metrics=("validation/accuracy",),
    )
