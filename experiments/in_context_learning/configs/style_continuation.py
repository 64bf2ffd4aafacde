r"""Style continuation: continue a text in the style of its author, one of two.

    python -m launch.train --config=experiments/in_context_learning/configs/style_continuation.py \
        --workdir=runs/two_authors

Needs no data. Takes less than a minute on one CPU core. The authors are Markov chains of letters, so the most probable
author of a sampled continuation can be computed. Expect 0.98 of the continuations to be of their prompt's author
(`style_accuracy`); of the authors' own texts all are (`style_accuracy_of_authors`): results/two_authors.md.

    python -m launch.generate --workdir=runs/two_authors --text='lumo vanu, ' --temperature=1 --max_new_tokens=40
"""

from ml_collections import ConfigDict

from experiments.in_context_learning.configs import word_translation


def get_config() -> ConfigDict:
    """Build the config: 400 batches of 32 texts of 96 characters, the first 48 of which are the prompt."""
    config = word_translation.get_config()
    config.name = "style_continuation"
    config.steps = 400
    config.eval_every = 200
    config.task = {"name": "experiments.in_context_learning.task", "problem": "style", "num_eval_examples": 256}
    config.model.update({"layers": 2, "width": 32, "heads": 2, "feed_forward": 64, "max_length": 96, "scan_unroll": 2})
    return config
