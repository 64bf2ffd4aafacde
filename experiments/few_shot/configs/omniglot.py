"""Omniglot from one drawing: SNAIL of reduced width is shown five characters that it has not met, and asked for one.

    python -m launch.train --config=experiments/few_shot/configs/omniglot.py --data_dir=DIR --workdir=runs/omniglot

DIR holds Omniglot's archives, images_background*.zip and, if it is there, images_evaluation.zip. 60 characters of all
alphabets test, turned by quarters too, as in the paper and those whom it compares with; nothing of them is trained on.
`:5x5`, `:20x1` and `:20x5` are five drawings of each, and twenty ways; `:alphabets` holds out alphabets whole, which is
harder: without an archive of evaluation the last two by name test. `:paper` is the network of the paper at its full
width with one to five drawings and 423 characters that test, for a GPU and both archives (99.07 there, with one).

About thirty minutes on one core. Expect 0.94 of the test right: results/omniglot.md. Little is learned until step
8,000. Characters that are mirrored and turned train as new ones: the archives small1 and small2 have 162 to train on,
an eighth of the paper's. The other settings are not yet measured.
"""

from typing import Literal

from ml_collections import ConfigDict

TURNED_TOO: dict[str, object] = {"dataset": "omniglot_characters", "held_out_turned": "rotations"}
SETTINGS: dict[str, dict[str, object]] = {
    "5x1": TURNED_TOO,
    "5x5": {**TURNED_TOO, "shots": (5,)},
    "20x1": {**TURNED_TOO, "ways": 20},
    "20x5": {**TURNED_TOO, "ways": 20, "shots": (5,)},
    "alphabets": {"dataset": "omniglot"},
    "paper": {
        **TURNED_TOO,
        "dataset": "omniglot_characters/validation=20,test=423",
        "shots": (1, 2, 3, 4, 5),
    },
}
REDUCED = {"channels": (32,) * 4, "keys": (32, 64, 64), "values": (32, 32, 64), "filters": (64, 64)}


def get_config(setting: Literal["5x1", "5x5", "20x1", "20x5", "alphabets", "paper"] = "5x1") -> ConfigDict:
    """40,000 batches of 16 episodes of five ways and one shot, in images of 20 pixels a side."""
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
                "turned": "reflections",
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
        config.task.side = 20
        config.model.update(REDUCED)
        config.pod = "cpu:1"
    return config
