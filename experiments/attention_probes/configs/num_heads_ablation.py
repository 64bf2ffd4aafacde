r"""Two heads copy from two places at once, where one head of the same width cannot.

    python -m launch.ablate --config=experiments/attention_probes/configs/num_heads_ablation.py \
        --workdir=runs/two_places --num_workers=2

15 runs of half a minute: six minutes on one core. One run alone:

    python -m launch.train --config=experiments/attention_probes/configs/num_heads_ablation.py --workdir=runs/one

Two colors and two shapes: the color is that of the item before the question mark, the shape that of the fourth before
it, and a text is right if all its four answers are. One layer, whose feed-forward network stands beside attention and
not behind it, and norms without biases: nothing but a linear map scores the answers from what the heads have read, and
T5's positions weigh places alike whatever stands there. However long it trains, one head then gets at most 87 of 100
answers and 59 of 100 texts right: `experiments.attention_probes.symbol_corpora.TwoOffsetCopy` has the proof. (Of four
colors and shapes, where no such bound is proved, it had 72 of 100 answers after 1,000 steps.) With the network behind
attention (the arm "one head, then a network") the same mixture of two items can be taken apart. Expect all test texts
right by two heads and by one head with a network behind it, and 39 of 100 by one head: results/two_places.md.
"""

from ml_collections import ConfigDict

from experiments.attention_probes.configs import single_probe


def get_config() -> ConfigDict:
    """Two heads in one layer that is linear in what they read."""
    config = single_probe.get_config("two_offset_copy/num_kinds=2")
    config.name = "num_heads_ablation"
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
    """One and two heads of the same width, five seeds each."""
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
