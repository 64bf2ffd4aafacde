"""Programming by prompt: what is done to words is said by examples alone, and then to be done to another word.

    python -m launch.train --config=experiments/in_context_learning/configs/string_edits.py --workdir=runs/rule_edits

Needs no data. About ten minutes on one core. Capitalize, shout, reverse, swap, delete, double and rotate, one of them
or two, one after the other; some pairs of edits, and some words, training never has. Expect 0.06, 0.80 and 0.98 of the
test words right behind 0, 1 and 8 examples, and 0.00, 0.33 and 0.47 of those by unseen pairs of edits:
results/rule_edits.md.

    python -m launch.generate --workdir=runs/rule_edits --text='abcd => dcba ; fade => edaf ; bead =>'
"""

from ml_collections import ConfigDict

from experiments.in_context_learning.configs import word_translation


def get_config() -> ConfigDict:
    """4,000 batches of 32 episodes of nine pairs; words of three and four of eight letters; 3 layers, width 96."""
    config = word_translation.get_config()
    config.name = "string_edits"
    config.steps = 4000
    config.task = {"name": "experiments.in_context_learning.task", "problem": "edits", "symbols": 8, "longest": 4}
    config.model.max_length = 108
    return config
