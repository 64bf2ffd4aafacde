r"""Show, Attend and Read (Li et al. 2019) on synthetic strings: attention over rows and columns, or over columns alone.

    python -m launch.train --config=experiments/scene_text/configs/show_attend_read.py --workdir=runs/curved_text
    python -m launch.train --config=experiments/scene_text/configs/show_attend_read.py:columns \
        --workdir=runs/curved_text_columns
    python -m launch.train --config=experiments/scene_text/configs/show_attend_read.py:plain \
        --workdir=runs/curved_text_plain

Half of the strings are along a straight line, the others along an arc or a wave with glyphs above one another. The
first takes nine minutes on one core, the second seven, the third eight. Expect 0.89 of the curved strings right, and
0.72 with columns alone, the means of three seeds; `:plain`, over rows and columns without neighbors, has 0.89:
results/curved_text.md. Straight ones are not measured since their test set was separated from training. `python -m
launch.generate --workdir=runs/curved_text --text='AK4'` renders that string along a curve, prints what the model reads
and maps its attention; `--text='straight AK4'` renders it along a straight line.
"""

from typing import Literal

from ml_collections import ConfigDict


def get_config(attention_input: Literal["neighbors", "columns", "plain"] = "neighbors") -> ConfigDict:
    """Build the config: batches of 32 new strings; three stages with a residual block each make a grid of 14 x 14."""
    config = ConfigDict(
        {
            "name": f"curved_text_{attention_input}",
            "seed": 1,
            "steps": 3000,
            "maps_every": 100,
            "task": {"name": "experiments.scene_text.task"},
            "model": {
                "family": "experiments.scene_text.model",
                "image_encoder": {"channels": (16, 32, 64), "strides": (2, 2, 1), "blocks_per_stage": 1},
                "width": 64,
                "layers": 1,
            },
            "optimizer": {
                "learning_rate": 1.5e-3,
                "schedule": "cosine",
                "warmup_steps": 100,
                "final_lr_fraction": 0.01,
                "beta2": 0.999,
                "clip_norm": 2.0,
            },
            "topology": "cpu:1",
        }
    )
    if attention_input != "neighbors":
        config.model.attention_input = attention_input
    return config
