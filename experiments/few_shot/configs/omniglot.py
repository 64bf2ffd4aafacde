"""One-shot classification on Omniglot with a SNAIL of reduced width: five ways, one shot.

    python -m launch.train --config=experiments/few_shot/configs/omniglot.py --data_dir=DIR --workdir=runs/omniglot

DIR holds Omniglot's archives: images_background*.zip and, optionally, images_evaluation.zip. 60 characters of all
alphabets are the test set, with their rotations, as in the paper.

`:5x5`, `:20x1` and `:20x5` are other numbers of ways and shots. `:alphabets` holds out whole alphabets, which is
harder; without images_evaluation.zip the last two by name are the test set. `:paper` is the paper's network at full
width with one to five shots and 423 test characters; it needs a GPU and both archives (the paper reports 99.07 with one
shot).

Takes about 30 minutes on one CPU core. Expected test accuracy: 0.94 (results/omniglot.md). Little is learned until step
8,000. Rotated and mirrored characters train as new classes: the archives small1 and small2 have 162 training
characters, an eighth of the paper's. The other settings are not yet measured.
"""

from typing import Literal

from ml_collections import ConfigDict

ROTATED_TOO: dict[str, object] = {"dataset": "omniglot_characters", "eval_rotation_augmentation": "rotations"}
SETTINGS: dict[str, dict[str, object]] = {
    "5x1": ROTATED_TOO,
    "5x5": {**ROTATED_TOO, "shots": (5,)},
    "20x1": {**ROTATED_TOO, "ways": 20},
    "20x5": {**ROTATED_TOO, "ways": 20, "shots": (5,)},
    "alphabets": {"dataset": "omniglot"},
    "paper": {
        **ROTATED_TOO,
        "dataset": "omniglot_characters/validation=20,test=423",
        "shots": (1, 2, 3, 4, 5),
    },
}
REDUCED = {"channels": (32,) * 4, "key_sizes": (32, 64, 64), "value_sizes": (32, 32, 64), "filters": (64, 64)}


def get_config(setting: Literal["5x1", "5x5", "20x1", "20x5", "alphabets", "paper"] = "5x1") -> ConfigDict:
    """Build the config: 40,000 batches of 16 episodes, images of 20 x 20 pixels (except `:paper`)."""
    config = ConfigDict(
        {
            "name": f"omniglot_{setting}",
            "seed": 1,
            "steps": 40_000,
            "eval_every": 2000,
            "maps_every": 10_000,
            "checkpoint_every": 5000,
            "task": {
                "name": "experiments.few_shot.task",
                "rotation_augmentation": "reflections",
                "batch_size": 16,
                **SETTINGS[setting],
            },
            "model": {"family": "snail"},
            "optimizer": {
                "algorithm": "adamw",
                "learning_rate": 1e-3,
                "schedule": "cosine",
                "warmup_steps": 100,
                "final_lr_fraction": 0.02,
                "weight_decay": 1e-4,
                "clip_norm": 1.0,
            },
        }
    )
    if setting != "paper":
        config.task.image_size = 20
        config.model.update(REDUCED)
        config.topology = "cpu:1"
    return config
