r"""Style by prompt: a text goes on as it began, in the hand of one of two authors.

    python -m launch.train --config=experiments/in_context_learning/configs/style_continuation.py \
        --workdir=runs/two_authors

Needs no data. Less than a minute on one core. The authors are chains of letters, so that the author of what is sampled
behind a prompt can be computed. Expect 0.97 of the continuations to be of their prompt's author (`follows`), as all of
the authors' own are (`authors_follow`): results/two_authors.md.

    python -m launch.generate --workdir=runs/two_authors --text='lumo vanu, ' --temperature=1 --max_new_tokens=40
"""

from ml_collections import ConfigDict

from experiments.in_context_learning.configs import word_translation


def get_config() -> ConfigDict:
    """400 batches of 32 texts of 96 characters, 48 of which are prompts at the test."""
    config = word_translation.get_config()
    config.name = "style_continuation"
    config.steps = 400
    config.eval_every = 200
    config.task = {"name": "experiments.in_context_learning.task", "problem": "style", "num_eval_examples": 256}
    config.model.update({"layers": 2, "width": 32, "heads": 2, "feed_forward": 64, "max_length": 96, "scan_unroll": 2})
    return config
