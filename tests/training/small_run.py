"""The run by which whole runs are tested: one config, so that its programs are compiled once for all these tests.

What a test changes of it, such as seeds and how often is looked, should leave the programs as they are.
"""

from pathlib import Path
from typing import Any

CONFIG: dict[str, Any] = {
    "name": "small",
    "steps": 8,
    "log_every": 2,
    "eval_every": 4,
    "maps_every": 2,
    "head_statistics_every": 2,
    "checkpoint_every": 4,
    "keep": 2,
    "task": {
        "name": "language_modelling",
        "dataset": str(Path(__file__).resolve().parents[2] / "LICENSE"),
        "tokenizer": "characters",
        "batching": "packed",
        "context": 32,
        "rows": 8,
        "probed": 3,
        "probed_length": 12,
    },
    "model": {
        "family": "decoder",
        "embedding_rows": 128,
        "layers": 1,
        "width": 16,
        "heads": 2,
        "feed_forward": 32,
        "dropout": 0.1,  # so that the keys matter
        "biases": "none",  # that of the keys has no gradient but rounding, which Adam blows up
        "max_length": 36,
    },
    # Of the schedules one that does not depend on the number of steps.
    "optimizer": {"learning_rate": 0.01, "warmup": 4, "clip_norm": 1.0},
    "averages": {"last": {"kind": "mean", "start": 4, "every": 2}, "slow": {"kind": "exponential"}},
}
