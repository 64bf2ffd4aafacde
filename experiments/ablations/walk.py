"""What the aligner, its word level and the encoder's second direction are worth to one who follows instructions.

    python -m launch.ablate --config=experiments/ablations/walk.py --workdir=runs/walks --workers=2

15 runs of about four minutes each: half an hour by two workers. Mei, Bansal and Walter (2016) take away the same
parts, of a model that succeeds in 69.98 % of the single sentences of SAIL. The figures to expect are not yet measured.
One run alone:

    python -m launch.train --config=experiments/ablations/walk.py --workdir=runs/one
"""

from ml_collections import ConfigDict

from experiments.instructions import walk


def get_config() -> ConfigDict:
    """The walk."""
    config = walk.get_config()
    config.name = "walk"
    config.maps_every = 0
    config.checkpoint_every = 0
    config.keep = 1
    config.task.examples = 2000
    return config


def get_ablation(ablation):
    """The full model, and without each of its parts, three seeds."""
    return ablation(
        question="What do the aligner, its word level and the second direction do for one who follows instructions?",
        arms={
            "full": {},
            "no word level": {"model.aligner": "high_level"},
            "no aligner, mean": {"model.aligner": "mean"},
            "no aligner, last": {"model.aligner": "last"},
            "one direction": {"model.direction": "forward"},
        },
        reference="full",
        chosen_by="validation/success",
        reported="test/success",
        better="higher",
        seeds=(1, 2, 3),
        notable=0.02,
        followed=("validation/loss", "test/position", *(f"test/success/{count}" for count in (1, 2, 3))),
    )
