"""One-shot classification of synthetic characters, five ways: random curved strokes.

    python -m launch.train --config=experiments/few_shot/configs/synthetic_characters.py --workdir=runs/characters

Needs no data. Takes about 15 minutes on one CPU core. No test character is a rotation or reflection of one of the 200
training characters; chance is 0.2. Expected accuracy_1_shot: above 0.9, not yet measured.
"""

from ml_collections import ConfigDict

from experiments.few_shot.configs import omniglot


def get_config() -> ConfigDict:
    """Build the config: 20,000 batches of 16 episodes."""
    config = omniglot.get_config()
    config.name = "synthetic_characters"
    config.steps = 20_000
    del config.task["dataset"], config.task["eval_rotation_augmentation"]
    return config
