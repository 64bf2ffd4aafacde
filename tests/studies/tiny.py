"""The smallest study that trains for real, and runs that only look as if they had been trained."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer.studies.ablations.ablation import Ablation, build_ablation

BASE: dict[str, Any] = {
    "name": "tiny",
    "seed": 1,
    "steps": 4,
    "num_microbatches": 1,
    "log_every": 2,
    "eval_every": 2,
    "maps_every": 2,
    "checkpoint_every": 0,
    "task": {
        "name": "translation",
        "dataset": "phrases/train=64,validation=16,test=16",
        "vocab_size": 200,
        "bucket_lengths": (48,),
        "tokens_per_batch": 8 * 48,
        "label_smoothing": 0.1,
        "num_decoded_examples": 2,
        "num_probe_examples": 2,
        "num_beams": 1,
    },
    "model": {
        "family": "encoder_decoder",
        "vocab_size": 200,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "width": 8,
        "heads": 2,
        "feed_forward": 16,
        "dropout": 0.0,
        "norm_placement": "pre",
        "max_length": 48,
    },
    "optimizer": {"learning_rate": 1e-3, "warmup_steps": 2},
}
PLAIN: dict[str, Any] = {
    "question": "Does the place of the norm matter?",
    "arms": {"post": {"model.norm_placement": "post"}, "pre": {}},
    "reference": "post",
    "reported_metric": "validation/cross_entropy",
    "seeds": (1, 2),
}


def ablation(**changes: Any) -> Ablation:
    """The tiny study, with other fields."""
    return build_ablation(**{**PLAIN, **changes})


def base(**changes: Any) -> dict[str, Any]:
    """The tiny config; `task`, `model` and `optimizer` are changed key by key."""
    changed = {
        key: {**BASE[key], **value} if isinstance(value, Mapping) and key in BASE else value
        for key, value in changes.items()
    }
    return {**BASE, **changed}


def write_run(directory: Path, records: Sequence[Mapping[str, Any]], commit: str = "abc") -> Path:
    """A run directory with these metrics and where they came from."""
    directory.mkdir(parents=True)
    (directory / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    start = {
        "devices": {"platform": "cpu", "kind": "cpu", "count": 1},
        "cpus": 2,
        "platform": "Linux",
        "commit": commit,
        "python": "3.13",
        "packages": {"jax": "0.12.0"},
    }
    (directory / "environment.json").write_text(json.dumps([start]))
    return directory
