"""Listen, Attend and Walk (Mei, Bansal and Walter 2016) in mazes made here: "turn left . walk to the lamp ."

    python -m launch.train --config=experiments/instruction_following/configs/listen_attend_walk.py --workdir=runs/walk

Takes about four minutes on one core. Expect 0.91 of the walks in mazes that were not trained in to end as they should:
results/walk.md. What names no floor and no object is followed early; `success` goes on rising while words are matched
with what is seen. `python -m launch.generate --workdir=runs/walk --text='turn left . walk to the lamp .'` walks in a
maze that `--seed` draws, says the actions, and draws the way beside the map of the words. What the aligner, its word
level and the encoder's second direction are worth: listen_attend_walk_ablation.py in the same folder.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """Fresh instructions of one to three clauses at every step, 32 in 200 mazes of 5 x 5 crossings."""
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
            "pod": "cpu:1",
        }
    )
