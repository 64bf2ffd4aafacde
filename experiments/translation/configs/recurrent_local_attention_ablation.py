r"""Soft, local and hard attention of a recurrent decoder.

    python -m launch.ablate --config=experiments/translation/configs/recurrent_local_attention_ablation.py \
        --workdir=runs/extents --num_workers=2

40 runs of twenty seconds: under ten minutes on two cores. One run alone:

    python -m launch.train --config=experiments/translation/configs/recurrent_local_attention_ablation.py \
        --workdir=runs/one

Soft attention over all words; windows of nine around the place that the step's number or a prediction says (Luong et
al. 2015, section 3.2); one word drawn, with the straight-through gradient or by REINFORCE (Xu et al. 2015). Expect
every way to read less to be worse after so few steps, the window that moves with the steps by 0.02 nats a token,
REINFORCE by 0.8: results/recurrent_extents.md.
"""

from ml_collections import ConfigDict

from experiments.ablations.configs import base


def get_config() -> ConfigDict:
    """The recurrent base."""
    config = base.recurrent()
    config.name = "recurrent_local_attention_ablation"
    return config


def get_ablation(ablation):
    """Four ways to read less against reading all, eight seeds."""
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
        reported="test/cross_entropy",
        seeds=base.EIGHT,
        notable=0.05,
        followed=("validation/accuracy",),
    )
