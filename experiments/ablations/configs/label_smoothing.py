r"""Label smoothing: none, 0.1 and 0.2 (Vaswani et al. 2017, section 5.4 and table 3, rows D).

    python -m launch.ablate --config=experiments/ablations/configs/label_smoothing.py --workdir=runs/smoothing \
        --num_workers=2

45 runs of half a minute (three arms x three learning rates x five seeds): about 12 minutes on two cores. One run alone:

    python -m launch.train --config=experiments/ablations/configs/label_smoothing.py --workdir=runs/one

The verdict is on BLEU, because the arms minimize different losses; cross-entropy without smoothing is plotted as well.
Smoothing makes a model less confident, which raises cross-entropy; in the paper it gained 0.5 BLEU. Expect to see no
difference (79.4, 80.2 and 78.3 BLEU, each best at 1e-2), and cross-entropies of 0.22, 0.35 and 0.52:
results/label_smoothing.md.
"""

from ml_collections import ConfigDict

from experiments.ablations.configs import base


def get_config() -> ConfigDict:
    """Build the base config."""
    config = base.get_config()
    config.name = "label_smoothing"
    return config


def get_ablation(ablation):
    """Build arms with three amounts; they are not compared by the loss, which each defines differently."""
    return ablation(
        question="Does label smoothing translate better?",
        arms={str(amount): {"task.label_smoothing": amount} for amount in (0.0, 0.1, 0.2)},
        reference="0.1",
        tuning_grid={"optimizer.learning_rate": (3e-3, 1e-2, 3e-2)},
        selection_metric="validation/accuracy",
        reported_metric="test/bleu",
        direction="maximize",
        smallest_effect_of_interest=2.0,
        plotted_metrics=("validation/cross_entropy",),
    )
