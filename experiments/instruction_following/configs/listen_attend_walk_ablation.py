r"""Listen, Attend and Walk without its aligner, its word level or the encoder's second direction.

    python -m launch.ablate --config=experiments/instruction_following/configs/listen_attend_walk_ablation.py \
        --workdir=runs/walks --num_workers=2
    python -m launch.ablate \
        --config=experiments/instruction_following/configs/listen_attend_walk_ablation.py:long \
        --workdir=runs/walks_long \
        --num_workers=2

15 runs of about three minutes on one core, each for short instructions of one to three clauses and, with `:long`, for
one to six clauses: 40 minutes on one core, and 75 on a shared one. Mei, Bansal and Walter (2016) remove the same parts
of a model that succeeds on 69.98 % of the single sentences of SAIL. Expect a success rate of 0.91 on short
instructions, with differences of at most one point between the arms, and on long ones 0.86 with an aligner, 0.77 to
0.79 without one and 0.84 with one direction; the word level changes nothing: results/walk.md. One run alone:

    python -m launch.train --config=experiments/instruction_following/configs/listen_attend_walk_ablation.py \
        --workdir=runs/one
"""

from typing import Literal

from ml_collections import ConfigDict

from experiments.instruction_following.configs import listen_attend_walk


def get_config(instructions: Literal["short", "long"] = "short") -> ConfigDict:
    """Build the config, with short instructions of one to three clauses or long ones of one to six."""
    config = listen_attend_walk.get_config()
    config.name = "walk"
    config.maps_every = 0
    config.checkpoint_every = 0
    config.keep_checkpoints = 1
    config.task.num_eval_examples = 2000
    if instructions == "long":
        config.name = "walk_long"
        config.steps = 2500
        config.task.max_clauses = 6
        config.task.max_actions = 24
        config.task.num_eval_examples = 1000
    return config


def get_ablation(ablation):
    """Build the full model and one without each of its parts, with three seeds."""
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
        selection_metric="validation/success",
        reported_metric="test/success",
        direction="maximize",
        seeds=(1, 2, 3),
        smallest_effect_of_interest=0.02,
        plotted_metrics=(
            "validation/loss",
            "test/position_accuracy",
            "test/success/1",
            "test/success/2",
            "test/success/3",
        ),
    )
