"""Questions about pictures of one coloured shape (easy-VQA, Zhou 2019), by two glimpses.

python -m launch.train --config=experiments/pictures/easy_vqa.py --workdir=runs/easy_vqa --data_dir=DIR

DIR holds easy-VQA's data.zip. Needs Pillow, the extra `pictures`. Planned for half an hour on one core, not yet
measured; the words alone answer 0.67 of the test questions right.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """Four by four places; 64 questions a batch, between four and five epochs."""
    return ConfigDict(
        {
            "name": "easy_vqa",
            "seed": 1,
            "steps": 2400,
            "log_every": 100,
            "eval_every": 800,
            "maps_every": 200,
            "task": {"name": "questions", "dataset": "easy_vqa", "rows": 64},
            "model": {
                "family": "stacked_glimpses",
                "encoder": {"width": 64},
                "picture": {"channels": (8, 16, 32, 64), "strides": (2, 2, 2, 2)},
            },
            "optimizer": {"learning_rate": 2e-3, "schedule": "cosine", "warmup": 100, "clip_norm": 1.0},
            "pod": "cpu:1",
        }
    )
