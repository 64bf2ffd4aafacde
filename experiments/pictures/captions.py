"""Show, Attend and Tell (Xu et al. 2015) on drawn scenes: "red circle top left , blue star bottom right".

    python -m launch.train --config=experiments/pictures/captions.py --workdir=runs/captions
    python -m launch.train --config=experiments/pictures/captions.py:hard --workdir=runs/captions_hard
    python -m launch.train --config=experiments/pictures/captions.py:none --workdir=runs/captions_none

Soft attention, hard attention by REINFORCE, and the mean of the picture in its place. Takes about fifteen minutes on one
core. Not yet measured.
`python -m launch.generate --workdir=runs/captions --text='red circle top left, blue star bottom right'` paints that
scene, says what it sees and maps where it looked.
"""

from ml_collections import ConfigDict


def get_config(looking: str = "soft") -> ConfigDict:
    """Fresh batches of 64 scenes; three convolutions make a grid of 6 x 6 annotations."""
    config = ConfigDict(
        {
            "name": f"captions_{looking}",
            "seed": 1,
            "steps": 4000,
            "log_every": 100,
            "eval_every": 500,
            "checkpoint_every": 500,
            "task": {"name": "captions"},
            "model": {
                "family": "captioner",
                "encoder": {"channels": (16, 32, 64)},
                "width": 128,
                "embedding": 64,
            },
            "optimizer": {
                "learning_rate": 2e-3,
                "schedule": "cosine",
                "warmup": 200,
                "final": 0.01,
                "beta2": 0.999,
                "clip_norm": 2.0,
            },
            "pod": "cpu:1",
        }
    )
    if looking == "soft":
        config.model.doubly_stochastic = 0.01
    else:
        config.model.looking = looking
    if looking == "hard":
        config.model.soft_share = 0.5
    return config
