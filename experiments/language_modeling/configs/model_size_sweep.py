"""A scaling curve: three sizes of a small GPT, 0.2, 0.8 and 3.2 million parameters, on the same number of tokens.

    python -m launch.sweep --config=experiments/language_modeling/configs/model_size_sweep.py --workdir=runs/sizes
    python -m launch.scaling_laws --workdir=runs/sizes

Three runs of 1.2 million characters of the documentation inside Python, ten minutes on one core in all; with
`--config.task.dataset=tinyshakespeare --data_dir=FOLDER` the same on that text. Expect 1.58, 1.47 and 1.40 nats per
character of the validation text, and an exponent of 0.045, the means of three seeds: results/sizes.md. Blocks have 12 L
E^2 weights: 4 layers of width 64, 128 and 256. One run alone:

    python -m launch.train --config=experiments/language_modeling/configs/model_size_sweep.py --workdir=runs/one
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """Build the smallest size."""
    return ConfigDict(
        {
            "name": "model_size_sweep",
            "seed": 1,
            "steps": 600,
            "eval_every": 150,
            "maps_every": 300,
            "checkpoint_every": 0,
            "keep_checkpoints": 1,
            "task": {
                "name": "language_modeling",
                "tokenizer": "characters",
                "context_length": 64,
                "batch_size": 32,
                "probe_length": 32,
            },
            "model": {
                "family": "decoder",
                "layers": 4,
                "width": 64,
                "heads": 2,
                "feed_forward": 256,
                "positions": "rotary",
                "max_length": 64,
                "scan_unroll": 4,
            },
            "optimizer": {
                "algorithm": "adamw",
                "learning_rate": 4e-3,
                "schedule": "cosine",
                "warmup_steps": 60,
                "weight_decay": 0.1,
                "clip_norm": 1.0,
            },
            "topology": "cpu:1",
        }
    )


def get_sweep(sweep):
    """Build the sizes: twice the width is four times the parameters, at half the learning rate; heads stay 32 wide."""
    return sweep.zip(
        sweep.choice("model.width", [64, 128, 256]),
        sweep.choice("model.heads", [2, 4, 8]),
        sweep.choice("model.feed_forward", [256, 512, 1024]),
        sweep.choice("optimizer.learning_rate", [4e-3, 2e-3, 1e-3]),
    )
