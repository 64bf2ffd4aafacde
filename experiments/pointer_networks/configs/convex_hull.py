r"""A pointer network that finds convex hulls (Vinyals et al. 2015, section 4.2), of 5 to 10 points, and its baselines.

    python -m launch.train --config=experiments/pointer_networks/configs/convex_hull.py --workdir=runs/pointer_hull
    python -m launch.train --config=experiments/pointer_networks/configs/convex_hull.py:fixed_vocabulary \
        --workdir=runs/hull_fixed_vocabulary

The pointer network takes twenty minutes on one core, half an hour on a busy machine. The points are read from left to
right. Expect 0.97 of the hulls of 5 points right, 0.93 of those of 10 and 0.83 of those of 15, a size outside of
training, and more than 0.999 of the area of each: results/pointer_hull.md. `python -m launch.generate
--workdir=runs/pointer_hull --text='0.1,0.2 0.5,0.9 0.7,0.3 0.4,0.4'` prints the corners.

`:fixed_vocabulary` and `:fixed_vocabulary_with_attention` predict indices of a vocabulary of 10 points (sections 2.1
and 2.2). They train on half as many batches, in 15 and 25 minutes: expect 0.90 and 0.92 of the hulls of 5 points right,
and 0.68 and 0.71 of those of 10: results/hull_fixed_vocabulary.md.
"""

from typing import Literal

from ml_collections import ConfigDict


def get_config(
    output: Literal["pointer", "fixed_vocabulary", "fixed_vocabulary_with_attention"] = "pointer",
) -> ConfigDict:
    """Build the config: 10,000 new batches of 128; two bidirectional LSTMs encode, one LSTM of width 256 points."""
    config = ConfigDict(
        {
            "name": "pointer_hull" if output == "pointer" else f"pointer_hull_{output}",
            "seed": 1,
            "steps": 10_000,
            "log_every": 250,
            "eval_every": 1000,
            "checkpoint_every": 1000,
            "task": {
                "name": "experiments.pointer_networks.task",
                "point_order": "left_to_right",
                "eval_sizes": (5, 10, 15, 20),
            },
            "model": {
                "family": "experiments.pointer_networks.model",
                "encoder": {"width": 128, "layers": 2, "direction": "bidirectional"},
                "decoder_input": "encoded",
            },
            "optimizer": {
                "learning_rate": 2e-3,
                "schedule": "cosine",
                "warmup_steps": 200,
                "final_lr_fraction": 0.01,
                "beta2": 0.999,
                "clip_norm": 2.0,
            },
            "topology": "cpu:1",
        }
    )
    if output != "pointer":
        config.steps = 5_000
        config.model.output = output
        config.model.decoder_input = "index"
        config.task.eval_sizes = (5, 10)  # no more: the vocabulary has the indices of 10 points
    return config
