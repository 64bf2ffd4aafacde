r"""The placement of the norm around a sub-layer: five placements, each at the best of three learning rates.

    python -m launch.ablate --config=experiments/ablations/configs/norm_placement.py \
        --workdir=runs/norm_placement --num_workers=2

75 runs of half a minute (five arms x five seeds x three learning rates), then four minutes for the gradients at
initialization: under 30 minutes on two cores. One run alone:

    python -m launch.train --config=experiments/ablations/configs/norm_placement.py --workdir=runs/one

Expect parallel, pre and sandwich to be best, at 1e-2 (test loss 1.29, 1.32, 1.40), then post at 3e-3 (1.66), and
deepnorm, which starts with small values, last (2.06); at 3e-2 post ends at 3.83: results/norm_placement.md. Expect the
gradients at initialization of Xiong et al. 2020: in a decoder with cross-attention post-norm's gradient grows toward
the output (last over first layer about 8 at 6+6 layers) and pre-norm's falls (about 0.7); in a decoder alone the
gradient of post-norm's last layer is equally large at every depth, and pre-norm's shrinks with depth, about as L^-0.5.
For other learning rates and depths see pre_norm_vs_post_norm.py, norm_placement_by_learning_rate.py and
norm_placement_without_warmup.py in this folder.

The arm "deepnorm" combines placement and initialization, as its authors define it.
"""

from ml_collections import ConfigDict

from experiments.ablations.configs import base

ARMS = {
    "post": {"model.norm_placement": "post"},
    "pre": {"model.norm_placement": "pre"},
    "sandwich": {"model.norm_placement": "sandwich"},
    "deepnorm": {"model.norm_placement": "deepnorm", "model.initialization": "deepnorm"},
    "parallel": {"model.norm_placement": "parallel"},
}


def get_config() -> ConfigDict:
    """Build the base config with twice as many evaluations, so that the steps to a loss are known well."""
    config = base.get_config()
    config.name = "norm_placement"
    config.eval_every = 50
    return config


def get_ablation(ablation):
    """Build five arms with post-norm as the reference, and gradients at initialization of three kinds of stack."""
    return ablation(
        question="Which placement of the norm learns best in a shallow Transformer, each at its own learning rate?",
        arms=ARMS,
        reference="post",
        tuning_grid={"optimizer.learning_rate": (3e-3, 1e-2, 3e-2)},
        target=2.0,
        learned_threshold=4.5,
        smallest_effect_of_interest=0.05,
        plotted_metrics=("train/gradient_norm",),
        initial_gradients={
            "encoder-decoder's decoder": {
                "depths": (2, 6, 12),
                "depth_keys": ("model.encoder_layers", "model.decoder_layers"),
            },
            "encoder alone": base.initial_gradient_stack("encoder"),
            "decoder alone": base.initial_gradient_stack("decoder"),
        },
    )
