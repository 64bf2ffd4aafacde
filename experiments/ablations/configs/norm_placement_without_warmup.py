r"""Whether pre-norm and post-norm learn at all with a large learning rate from the first step, at 6+6 layers.

    python -m launch.ablate --config=experiments/ablations/configs/norm_placement_without_warmup.py \
        --workdir=runs/norm_reversal --num_workers=2

Six runs of one to three minutes on one core: under 10 minutes on two. One run alone:

    python -m launch.train --config=experiments/ablations/configs/norm_placement_without_warmup.py --workdir=runs/one

The task is to reverse sequences of twelve out of sixteen symbols; 500 steps of Adam at 3e-3 without warm-up, clipping
or label smoothing. With each of three seeds, expect post-norm never to learn (a test loss near log 16 = 2.77, 8 to 13 %
of the tokens right) and pre-norm to learn (a validation loss under 0.1 on the way, which such a large rate may lose
again). `make slow` checks that.
"""

from ml_collections import ConfigDict

from experiments.ablations.configs import base


def get_config() -> ConfigDict:
    """Build the config: reversal at 6+6 layers with a constant learning rate of 3e-3."""
    config = base.reversal_config()
    config.name = "norm_placement_without_warmup"
    return config


def get_ablation(ablation):
    """Build two arms with three seeds and no tuning, since the learning rate is the question."""
    return ablation(
        question="Do pre- and post-norm learn at a learning rate of 3e-3 without warm-up?",
        arms={
            "post": {"model.norm_placement": "post"},
            "pre": {"model.norm_placement": "pre"},
        },
        reference="post",
        seeds=(1, 2, 3),
        target=0.1,
        # Who says every symbol equally often has log 16 = 2.77 a symbol; with the end, which is known, 2.56 a token.
        learned_threshold=2.3,
        plotted_metrics=("validation/accuracy", "train/gradient_norm"),
    )
