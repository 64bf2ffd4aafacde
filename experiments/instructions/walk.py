"""Listen, Attend and Walk (Mei, Bansal and Walter 2016) in mazes made here: "turn left . walk to the lamp ."

    python -m launch.train --config=experiments/instructions/walk.py --workdir=runs/walk

Takes about a quarter of an hour on one core. Expect, in mazes that were not trained in: not yet measured.
`python -m launch.generate --workdir=runs/walk --text='turn left . walk to the lamp .'` walks in a maze that `--seed`
draws, says the actions, and draws the way beside the map of the words. What the aligner, its word level and the
encoder's second direction are worth: experiments/ablations/walk.py.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """Fresh instructions of one to three clauses at every step, 64 in 200 mazes of 6 x 6 crossings."""
    return ConfigDict(
        {
            "name": "walk",
            "seed": 1,
            "steps": 5000,
            "maps_every": 250,
            "checkpoint_every": 1000,
            "task": {"name": "walking", "rows": 64},
            "model": {"family": "walker"},
            "optimizer": {
                "learning_rate": 3e-3,
                "schedule": "cosine",
                "warmup": 100,
                "final": 0.01,
                "beta2": 0.999,
                "clip_norm": 2.0,
            },
            "pod": "cpu:1",
        }
    )
