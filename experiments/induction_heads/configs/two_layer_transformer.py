r"""The onset of induction: two layers of two heads learn to copy what followed the same symbol before.

    python -m launch.train --config=experiments/induction_heads/configs/two_layer_transformer.py \
        --workdir=runs/induction

Takes half a minute on two cores. For the first third of a run little happens; then, within about 75 steps, heads of
layer 0 attend to the previous symbol, heads of layer 1 to the symbol after the last occurrence of their own (the
induction score on random tokens passes 0.5), and the loss falls from 3.9 to 2 nats, as Olsson et al. 2022 describe:
results/induction.md. `python -m launch.maps --workdir=runs/induction` shows it.
"""

from ml_collections import ConfigDict

LENGTH = 64


def get_config() -> ConfigDict:
    """Build the config: 1,000 steps of 32 repeated random segments; width 64, rotary positions."""
    return ConfigDict(
        {
            "name": "two_layer_transformer",
            "seed": 1,
            "steps": 1000,
            "log_every": 25,
            "eval_every": 50,
            "maps_every": 25,
            "task": {
                "name": "language_modeling",
                "dataset": f"repeated/num_symbols=64,min_segment_length=12,max_segment_length=32,length={LENGTH}",
                "tokenizer": "characters",
                "batching": "packed",
                "context_length": LENGTH,
                "batch_size": 32,
                "num_probe_examples": 2,
            },
            "model": {
                "family": "decoder",
                "layers": 2,
                "width": 64,
                "heads": 2,
                "feed_forward": 128,
                "activation": "gelu",
                "positions": "rotary",
                "max_length": LENGTH,
                "scan_unroll": 2,
            },
            "optimizer": {
                "algorithm": "adamw",
                "learning_rate": 3e-3,
                "schedule": "cosine",
                "warmup_steps": 100,
                "final_lr_fraction": 0.1,
                "beta2": 0.99,
                "weight_decay": 0.01,
                "clip_norm": 1.0,
            },
            "topology": "cpu:1",
        }
    )
