"""The copy task of the Neural Turing Machine: trained on 1 to 20 vectors, it copies 120 (Graves et al. 2014).

    python -m launch.train --config=experiments/neural_turing_machine/configs/copy.py --workdir=runs/turing_copy

Takes two minutes on one core of two. By step 350 to 600 the heads move along the slots as they write and again as they
read, and the loss has fallen from 0.69 to below 0.1 nats per bit; at the end fewer than 1 % of the bits are wrong at 50
vectors and fewer than 2 % at 120: results/turing_copy.md.

`python -m launch.maps --workdir=runs/turing_copy` shows this; `python -m launch.generate` of the run copies
`--text='10110011 00110101'`.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """Build the config: 3,000 steps of 16 sequences; 128 slots of 20, one read head and one write head."""
    return ConfigDict(
        {
            "name": "turing_copy",
            "seed": 1,
            "steps": 3000,
            "maps_every": 250,
            "task": {"name": "experiments.neural_turing_machine.task", "bucket_lengths": (17, 29, 41)},
            "model": {"family": "experiments.neural_turing_machine.ntm"},
            "optimizer": {
                "learning_rate": 1e-3,
                "schedule": "cosine",
                "warmup_steps": 0,
                "beta2": 0.999,
                "epsilon": 1e-8,
                "clip_norm": 1.0,
            },
            "topology": "cpu:1",
        }
    )
