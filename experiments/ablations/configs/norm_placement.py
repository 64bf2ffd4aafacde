r"""Where the norm stands around a sub-layer: five placements, each at the best of three learning rates.

    python -m launch.ablate --config=experiments/ablations/configs/norm_placement.py \
        --workdir=runs/norm_placement --num_workers=2

75 runs of half a minute (five arms x five seeds x three learning rates), then four minutes for the gradients at
initialization: under 30 minutes on two cores. One run alone:

    python -m launch.train --config=experiments/ablations/configs/norm_placement.py --workdir=runs/one

Expect parallel, pre and sandwich ahead at 1e-2 (test loss 1.29, 1.32, 1.40), post behind at 3e-3 (1.66) and deepnorm,
which begins with small values, last (2.06); at 3e-2 post hardly learns: results/norm_placement.md. In the figure of the
gradients at initialization expect Xiong et al. 2020: in a decoder that reads an encoder post-norm's gradient grows
toward the output, last over first about 8 at 6+6 layers, and pre-norm's falls, about 0.7; in a stack alone post-norm's
last layer is as large at every depth and pre-norm's shrinks with the depth, about as L^-0.5. Without warm-up, and at
other depths: norm_placement_by_learning_rate.py, norm_placement_without_warmup.py and norm_placement_by_depth.py in the
same folder.

The arm "deepnorm" is placement and initialization together, as its authors define it.
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
    """The base, evaluated twice as often, so that the step at which a loss is reached is known well."""
    config = base.get_config()
    config.name = "norm_placement"
    config.eval_every = 50
    return config


def get_ablation(ablation):
    """All five against post-norm, with gradients at initialization for three kinds of stack."""
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
