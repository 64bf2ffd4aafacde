"""String edits learned in context: examples of an edit of words, then a word to edit.

    python -m launch.train --config=experiments/in_context_learning/configs/string_edits.py --workdir=runs/rule_edits

Needs no data. Takes about 10 minutes on one CPU core. Edits are capitalize, shout, reverse, swap, delete, double and
rotate, alone or two in sequence; some pairs of edits and some words are held out. Expected accuracy after 0, 1 and 8
examples, by seed: 0.04 to 0.07, 0.72 to 0.80 and 0.89 to 0.98 on held-out words; 0.00 to 0.01, 0.18 to 0.28 and 0.16 to
0.30 on held-out pairs of edits: results/rule_edits.md.

    python -m launch.generate --workdir=runs/rule_edits --text='abcd => dcba ; fade => edaf ; bead =>'
"""

from ml_collections import ConfigDict

from experiments.in_context_learning.configs import word_translation


def get_config() -> ConfigDict:
    """Build the config: 4,000 batches of 32 episodes of nine pairs; words of three or four of eight letters."""
    config = word_translation.get_config()
    config.name = "string_edits"
    config.steps = 4000
    config.task = {
        "name": "experiments.in_context_learning.task",
        "problem": "string_edits",
        "alphabet_size": 8,
        "max_word_length": 4,
    }
    config.model.max_length = 108
    return config
