"""The run that is attacked: of every kind of work a little, within seconds."""

from pathlib import Path

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """A decoder of a few thousand parameters on the text of the licence."""
    return ConfigDict(
        {
            "name": "attacked",
            "steps": 40,
            "log_every": 5,
            "eval_every": 20,
            "maps_every": 20,
            "head_statistics_every": 10,
            "checkpoint_every": 20,
            "task": {
                "name": "language_modeling",
                "dataset": str(Path(__file__).resolve().parents[2] / "LICENSE"),
                "tokenizer": "characters",
                "batching": "packed",
                "context_length": 32,
                "batch_size": 8,
                "num_probe_examples": 3,
                "probe_length": 12,
            },
            "model": {
                "family": "decoder",
                "vocab_size": 128,
                "layers": 1,
                "width": 16,
                "heads": 2,
                "feed_forward": 32,
                "dropout": 0.1,
                "biases": "none",
                "max_length": 36,
            },
            "optimizer": {"learning_rate": 0.01, "warmup_steps": 4, "clip_norm": 1.0},
            "parameter_averages": {"last": {"kind": "mean", "start": 4, "every": 2}},
        }
    )
