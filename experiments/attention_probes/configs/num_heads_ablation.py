r"""Two heads copy from two offsets at once, where one head of the same width cannot.

    python -m launch.ablate --config=experiments/attention_probes/configs/num_heads_ablation.py \
        --workdir=runs/two_places --num_workers=2

15 runs of half a minute: six minutes on one core. One run alone:

    python -m launch.train --config=experiments/attention_probes/configs/num_heads_ablation.py --workdir=runs/one

With two colors and two shapes, the color is that of the item before the question mark, the shape that of the fourth
before it, and a text is right if all its four answers are. One layer, with the feed-forward network parallel to
attention and norms without biases: the output is a linear map of what the heads have read, and T5's position biases do
not depend on the items. However long it trains, one head then gets at most 87 of 100 answers and 59 of 100 texts right:
see the proof at `experiments.attention_probes.symbol_corpora.TwoOffsetCopy`. (With four colors and shapes, where no
such bound is proved, it had 72 of 100 answers after 1,000 steps.) With the network after attention (the arm "one head,
then a network") the mixture of two items can be separated. Expect all test texts right with two heads and with one head
and a network after it, and 39 of 100 with one head: results/two_places.md.
"""

from ml_collections import ConfigDict

from experiments.attention_probes.configs import single_probe


def get_config() -> ConfigDict:
    """Build the config: two heads in one layer whose output is linear in what they read."""
    config = single_probe.get_config()
    config.name = "num_heads_ablation"
    config.task.dataset = "two_offset_copy/num_kinds=2"
    config.steps = 1000
    config.maps_every = 0
    config.checkpoint_every = 0
    config.keep_checkpoints = 1
    # At a third of it two heads take more than twice as many steps.
    config.optimizer.learning_rate = 0.01
    config.model.update(
        {
            "layers": 1,
            "heads": 2,
            "positions": "t5",
            "norm": "rms",
            "norm_placement": "parallel",
            "biases": "none",
            "scan_unroll": 1,
        }
    )
    return config


def get_ablation(ablation):
    """Build arms with one and two heads of the same total width, and five seeds."""
    return ablation(
        question="Can one head read two places at once?",
        arms={
            "two heads": {"model.heads": 2},
            "one head": {"model.heads": 1},
            "one head, then a network": {"model.heads": 1, "model.norm_placement": "pre"},
        },
        reference="two heads",
        selection_metric="validation/text_accuracy",
        reported_metric="test/text_accuracy",
        direction="maximize",
        smallest_effect_of_interest=0.05,
        plotted_metrics=("validation/accuracy", "validation/near_item_accuracy", "validation/far_item_accuracy"),
    )
