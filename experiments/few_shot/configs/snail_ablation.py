r"""SNAIL without its convolutions or without its attention, on Omniglot with five ways and one shot.

    python -m launch.ablate --config=experiments/few_shot/configs/snail_ablation.py --workdir=runs/snail \
        --data_dir=DIR --num_workers=2

DIR holds Omniglot's archives.

9 runs (three arms, three seeds) of a quarter of an hour on one core: an hour and a quarter on two. Expect a test
accuracy of 0.95 with both parts, the same without convolutions, and 0.49 without attention: results/omniglot.md. One
run alone:

    python -m launch.train --config=experiments/few_shot/configs/snail_ablation.py --workdir=runs/one --data_dir=DIR
"""

from ml_collections import ConfigDict

from experiments.few_shot.configs import omniglot


def get_config() -> ConfigDict:
    """Build the base config: half of the steps of omniglot.py."""
    config = omniglot.get_config()
    config.name = "snail"
    config.steps = 20_000
    config.eval_every = 5000
    config.maps_every = 0
    return config


def get_ablation(ablation):
    """Build three arms with three seeds."""
    return ablation(
        question="What do convolutions and attention each do for learning from one drawing?",
        arms={
            "both": {},
            "without convolutions": {"model.enabled_blocks": "attention"},
            "without attention": {"model.enabled_blocks": "convolutions"},
        },
        reference="both",
        selection_metric="validation/accuracy_1_shot",
        reported_metric="test/accuracy_1_shot",
        direction="maximize",
        seeds=(1, 2, 3),
        smallest_effect_of_interest=0.01,
        plotted_metrics=("validation/loss_1_shot",),
    )
