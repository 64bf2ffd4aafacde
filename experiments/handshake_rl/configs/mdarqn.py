"""A robot that learns when to shake hands: attention over regions by an LSTM's state, with Q-learning (MDARQN).

    python -m launch.train --config=experiments/handshake_rl/configs/mdarqn.py --workdir=runs/approaching_person
    python -m launch.train --config=experiments/handshake_rl/configs/mdarqn.py:mean --workdir=runs/approaching_mean

The second reads the mean of the regions instead; `:all` reads every region side by side (not yet measured). Takes under
ten minutes on one core. Expect 0.98 of the worlds to end in a handshake and 0.47 of the attention on the person, who is
in one of 64 regions, 0.45 of the worlds for the mean: results/approaching_person.md. Whoever remembers what it saw of
the person succeeds in 0.99, chance in 0.04.
"""

from ml_collections import ConfigDict


def get_config(reading: str = "") -> ConfigDict:
    """12 new episodes a step, 24 of the last 4,096 learned from; a target network that follows slowly."""
    model = {"family": "experiments.handshake_rl.model"}
    return ConfigDict(
        {
            "name": "_".join(("approaching_person", *([reading] if reading else []))),
            "seed": 1,
            "steps": 4000,
            "eval_every": 400,
            "maps_every": 400,
            "task": {"name": "experiments.handshake_rl.task", "worlds": 12, "explore": 800},
            "model": {**model, "reading": reading} if reading else model,
            "averages": {"target": {"kind": "exponential", "decay": 0.98}},
            "optimizer": {
                "learning_rate": 2e-3,
                "schedule": "cosine",
                "warmup_steps": 100,
                "final_lr_fraction": 0.1,
                "beta2": 0.999,
                "clip_norm": 5.0,
            },
            "pod": "cpu:1",
        }
    )


def get_sweep(sweep):
    """The three readings of the regions."""
    return sweep.choice("model.reading", ["attention", "mean", "all"])
