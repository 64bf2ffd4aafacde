"""Show, Attend and Tell (Xu et al. 2015) on drawn scenes: "red circle top left , blue star bottom right".

    python -m launch.train --config=experiments/captioning/configs/show_attend_tell.py --workdir=runs/captions
    python -m launch.train --config=experiments/captioning/configs/show_attend_tell.py:hard --workdir=runs/captions_hard
    python -m launch.train --config=experiments/captioning/configs/show_attend_tell.py:none --workdir=runs/captions_none

Soft attention, hard attention by REINFORCE, and the mean of the picture in its place. Each takes two to six minutes on
one core. Expect 0.999 of the captions right by soft attention and 0.95 of it within the cell that a noun names; 0.98 to
0.999 right by hard attention and 0.82 to 1.00 of it within that cell, by the seed; 0.11 right without any:
results/captions.md. `python -m launch.generate --workdir=runs/captions --text='red circle top left, blue star bottom
right'` paints that scene, says what it sees and maps where it looked.
"""

from ml_collections import ConfigDict


def get_config(looking: str = "soft") -> ConfigDict:
    """Fresh batches of 32 scenes; three convolutions make a grid of 6 x 6 annotations."""
    config = ConfigDict(
        {
            "name": f"captions_{looking}",
            "seed": 1,
            "steps": 1500,
            "eval_every": 300,
            "maps_every": 50,
            "checkpoint_every": 300,
            "task": {"name": "experiments.captioning.task", "batch_size": 32},
            "model": {
                "family": "experiments.captioning.model",
                "encoder": {"channels": (16, 32, 64)},
                "width": 96,
                "embedding": 48,
            },
            "optimizer": {
                "learning_rate": 3e-3,
                "schedule": "cosine",
                "warmup_steps": 100,
                "final_lr_fraction": 0.01,
                "beta2": 0.999,
                "clip_norm": 2.0,
            },
            "pod": "cpu:1",
        }
    )
    if looking == "soft":
        config.model.doubly_stochastic = 0.0005
    else:
        config.model.looking = looking
    if looking == "hard":
        config.model.soft_share = 0.5
        config.task.reinforce_weight = 0.2
    return config
