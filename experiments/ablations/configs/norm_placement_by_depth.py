r"""Pre-norm against post-norm at 1+1, 2+2 and 6+6 layers.

    python -m launch.ablate --config=experiments/ablations/configs/norm_placement_by_depth.py \
        --workdir=runs/norm_depth --num_workers=2

60 runs (two arms x three depths x two learning rates x five seeds) of a half to one and a half minutes: about 30
minutes on two cores. One run alone:

    python -m launch.train --config=experiments/ablations/configs/norm_placement_by_depth.py --workdir=runs/one

Expect the gap to grow with depth. At one layer on each side it depends on the learning rate: with a seed outside the
study post-norm is better at 3e-3 (validation loss 1.78 against 1.84) and worse at 1e-2 (1.53 against 1.40), so that
pre-norm is better if each has its own best rate. With twice the steps and 200 warm-up steps the two are closer: 1.18
against 1.20 at 5e-3, 1.17 against 1.14 at 1e-2.
"""

from ml_collections import ConfigDict

from experiments.ablations.configs import base


def get_config() -> ConfigDict:
    """Build the base config; each task of the study sets the depth."""
    config = base.get_config()
    config.name = "norm_placement_by_depth"
    return config


def _deep(layers: int) -> dict[str, int]:
    return {"model.encoder_layers": layers, "model.decoder_layers": layers}


def get_ablation(ablation):
    """Build the two arms; each depth is a task."""
    return ablation(
        question="Does the better of pre- and post-norm depend on the depth?",
        arms={
            "post": {"model.norm_placement": "post"},
            "pre": {"model.norm_placement": "pre"},
        },
        reference="post",
        tuning_grid={"optimizer.learning_rate": (3e-3, 1e-2)},
        tasks={"1+1": _deep(1), "2+2": _deep(2), "6+6": _deep(6)},
        learned_threshold=4.5,
        smallest_effect_of_interest=0.05,
    )
