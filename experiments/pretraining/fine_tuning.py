"""Fine-tuning a small GPT of the documentation inside Python to symbols that repeat: by LoRA, whole, or from nothing.

    python -m launch.train --config=experiments/pretraining/fine_tuning.py --workdir=runs/documentation
    python -m launch.train --config=experiments/pretraining/fine_tuning.py:lora --workdir=runs/lora
    python -m launch.train --config=experiments/pretraining/fine_tuning.py:layers --workdir=runs/layers
    python -m launch.train --config=experiments/pretraining/fine_tuning.py:scratch --workdir=runs/scratch

Needs no data. The last three begin with what the first has learned (but for `:scratch`, which begins with nothing), and
train on text of another kind, of which little can be known but that symbols repeat. `:lora` trains matrices of rank 8
beside frozen ones, `:layers` all parameters, the lower layers more slowly. Figures: not yet measured.
"""

from ml_collections import ConfigDict

CONTEXT = 64


def get_config(part: str = "documentation") -> ConfigDict:
    """4 layers of width 64 over bytes; `part`: documentation, lora, layers or scratch."""
    config = ConfigDict(
        {
            "name": part,
            "seed": 1,
            "steps": 1000,
            "log_every": 50,
            "eval_every": 250,
            "maps_every": 0,
            "checkpoint_every": 0,
            "task": {
                "name": "language_modelling",
                "tokenizer": "bytes",
                "batching": "packed",
                "context": CONTEXT,
                "rows": 16,
                "probed": 2,
            },
            "model": {
                "family": "decoder",
                "layers": 4,
                "width": 64,
                "heads": 4,
                "feed_forward": 256,
                "activation": "gelu",
                "positions": "rotary",
                "max_length": CONTEXT,
                "unroll": 4,
            },
            "optimizer": {
                "algorithm": "adamw",
                "learning_rate": 3e-3,
                "schedule": "cosine",
                "warmup": 100,
                "final": 0.1,
                "beta2": 0.99,
                "weight_decay": 0.01,
                "clip_norm": 1.0,
            },
            "pod": "cpu:1",
        }
    )
    if part != "documentation":
        further(config, part)
    return config


def further(config: ConfigDict, part: str) -> None:
    """What the others differ in from the first run: their text and steps, what they begin with, what they train."""
    config.steps = 300
    config.eval_every = 50
    config.task.dataset = f"repeated/symbols=32,shortest=8,longest=16,length={CONTEXT}"
    config.task.prompts = ()
    if part != "scratch":
        config.initialise_from = ConfigDict({"run": "runs/documentation"})
    if part == "lora":
        config.model.lora = {"rank": 8, "where": ("query", "key", "value", "output", "feed_forward")}
        config.optimizer.trains = ("*/lora/*",)
        config.initialise_from.rules = ("*/lora/* = fresh",)
    elif part == "layers":
        config.optimizer.layer_decay = 0.7
