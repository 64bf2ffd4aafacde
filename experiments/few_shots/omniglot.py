"""Omniglot from one drawing: SNAIL of reduced width is shown five characters of unseen alphabets, and asked for one.

    python -m launch.train --config=experiments/few_shots/omniglot.py --data_dir=DIR --workdir=runs/omniglot

DIR holds Omniglot's archives, images_background*.zip and, if they are there, images_evaluation.zip; without these two
alphabets of the background test. `:5x5`, `:20x1` and `:20x5` are five drawings of each, and twenty ways;
`:paper` is the network of the paper at its full width with one to five drawings, for a GPU (99.07 there, with one).
About twenty minutes on one core. Expect an accuracy_1 of the test alphabets of at least 0.93: not yet measured; a trial
at half of the rate had 0.61 of the validation's at step 1,200, and little more than chance until step 300. Characters
that are mirrored and turned train as new ones: the archives small1 and small2 have 157 to train on, an eighth of the
paper's.
"""

from ml_collections import ConfigDict

SETTINGS = {"5x1": (5, (1,)), "5x5": (5, (5,)), "20x1": (20, (1,)), "20x5": (20, (5,)), "paper": (5, (1, 2, 3, 4, 5))}
REDUCED = {"channels": (32,) * 4, "keys": (32, 64, 64), "values": (32, 32, 64), "filters": (64, 64)}


def get_config(setting: str = "5x1") -> ConfigDict:
    """8,000 batches of 32 episodes of five ways and one shot, in pictures of 20 pixels a side."""
    ways, shots = SETTINGS[setting]
    config = ConfigDict(
        {
            "name": f"omniglot_{setting}",
            "seed": 1,
            "steps": 8000,
            "checkpoint_every": 1000,
            "task": {"name": "few_shots", "dataset": "omniglot", "turned": "reflections"},
            "model": {"family": "snail"},
            "optimizer": {
                "algorithm": "adamw",
                "learning_rate": 2e-3,
                "schedule": "cosine",
                "warmup": 100,
                "final": 0.02,
                "weight_decay": 1e-4,
                "clip_norm": 1.0,
            },
        }
    )
    if setting != "5x1":
        config.task.update({"ways": ways, "shots": shots})
    if setting != "paper":
        config.task.side = 20
        config.model.update(REDUCED)
        config.pod = "cpu:1"
    return config
