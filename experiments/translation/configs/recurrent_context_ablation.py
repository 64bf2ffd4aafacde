r"""How many encoder states a recurrent decoder attends to at a step, by source length.

    python -m launch.ablate --config=experiments/translation/configs/recurrent_context_ablation.py \
        --workdir=runs/states --num_workers=2

25 runs of about a minute: half an hour with one worker on one core. One run alone:

    python -m launch.train --config=experiments/translation/configs/recurrent_context_ablation.py --workdir=runs/one

One vector for all steps (the encoder's last state); windows of 3, 5 and 9 states around the step's index (Luong et al.
2015, section 3.2, local-m); all states. The page plots BLEU and exact match of sources of up to 5 words, 6 and 7, 8 and
9, and more. Expect 89.6 BLEU with all states, 88.4, 80.6 and 75.1 with nine, five and three, and 58.8 with one vector,
which loses most on the longest sources: results/recurrent_states.md.
"""

from ml_collections import ConfigDict

from experiments.ablations.configs import base
from experiments.translation.configs.cross_attention_ablation import LENGTHS


def get_config() -> ConfigDict:
    """Build the recurrent base config, with all test sentences translated and scored by length."""
    config = base.recurrent_config()
    config.name = "recurrent_context_ablation"
    config.task.num_decoded_examples = 200
    config.task.length_bounds = (5, 7, 9)
    return config


def get_ablation(ablation):
    """Build arms with one vector, three windows and all states."""
    windows = {
        f"probes_{2 * half_width + 1}": {"model.attention_span": "monotonic", "model.half_width": half_width}
        for half_width in (1, 2, 4)
    }
    return ablation(
        question="How many of the encoder's states must a recurrent decoder probe, and does length matter?",
        arms={"all": {}, **windows, "last": {"model.context_vector": "last"}},
        reference="all",
        reported_metric="test/bleu",
        selection_metric="validation/bleu",
        direction="maximize",
        smallest_effect_of_interest=2.0,
        plotted_metrics=tuple(f"test/{metric}/{length}" for metric in ("bleu", "exact_match") for length in LENGTHS),
    )
