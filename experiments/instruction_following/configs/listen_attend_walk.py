"""Listen, Attend and Walk (Mei, Bansal and Walter 2016) in synthetic mazes: "turn left . walk to the lamp ."

    python -m launch.train --config=experiments/instruction_following/configs/listen_attend_walk.py --workdir=runs/walk

Takes about four minutes on one CPU core. Expected success rate in held-out mazes: 0.91 (results/walk.md). Clauses that
name neither a floor nor an object are learned early; success keeps rising while words are matched with observations.
`python -m launch.generate --workdir=runs/walk --text='turn left . walk to the lamp .'` walks in a maze that `--seed`
samples, prints the actions, and draws the way next to the attention map. listen_attend_walk_ablation.py in the same
folder removes the aligner, its word level and the encoder's second direction.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """Build the config: 32 new instructions of one to three clauses a step in 200 mazes of 5 x 5 crossings."""
    return ConfigDict(
        {
            "name": "listen_attend_walk",
            "seed": 1,
            "steps": 5000,
            "eval_every": 1000,
            "maps_every": 1000,
            "checkpoint_every": 1000,
            "task": {"name": "experiments.instruction_following.task", "maze_size": 5, "max_actions": 12},
            "model": {"family": "experiments.instruction_following.model", "width": 64},
            "optimizer": {
                "learning_rate": 4e-3,
                "schedule": "cosine",
                "warmup_steps": 100,
                "final_lr_fraction": 0.01,
                "beta2": 0.999,
                "clip_norm": 2.0,
            },
            "topology": "cpu:1",
        }
    )
