r"""Which decoder state queries the attention, and whether its context is fed back (input feeding).

    python -m launch.ablate --config=experiments/translation/configs/recurrent_attention_query_ablation.py \
        --workdir=runs/order --num_workers=2

24 runs of 20 seconds: about five minutes on two cores. One run alone:

    python -m launch.train --config=experiments/translation/configs/recurrent_attention_query_ablation.py \
        --workdir=runs/one

The query is the state before the word (Bahdanau et al. 2015), the state after it (Luong et al. 2015), or the latter
with input feeding. After so few steps expect the state after the word to be better by 0.03 nats a token, and input
feeding to be worse by as much. See results/recurrent_order.md.
"""

from ml_collections import ConfigDict

from experiments.ablations.configs import base


def get_config() -> ConfigDict:
    """Build the recurrent base config."""
    config = base.recurrent_config()
    config.name = "recurrent_attention_query_ablation"
    return config


def get_ablation(ablation):
    """Build the three queries with Bahdanau's as the reference, and eight seeds."""
    return ablation(
        question="Which state should ask a recurrent decoder's attention?",
        arms={order: {"model.attention_query": order} for order in ("previous", "current", "input_feeding")},
        reference="previous",
        reported_metric="test/cross_entropy",
        seeds=base.SEEDS,
        smallest_effect_of_interest=0.05,
        plotted_metrics=("validation/accuracy",),
    )
