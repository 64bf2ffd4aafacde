"""Transformer-XL in miniature: characters of the documentation inside Python, read in segments with a memory.

    python -m launch.train --config=experiments/language/segments.py --workdir=runs/segments

Every segment of 32 characters stands behind a memory of 128, which each of 2 layers keeps. Takes about seven minutes on
one core. What to expect is not yet measured; the first 1,200 steps alone, `--config.steps=1200`, come to 1.73 nats a
character of the validation text with the memory and 1.88 without it (`loss` and `loss_without_memory` of the evaluation
`recurrence`: the same model, each segment read as if it were the first).
"""

from ml_collections import ConfigDict

from experiments.language import permutations


def get_config() -> ConfigDict:
    """The sizes of permutations.py, from left to right; 4,000 steps."""
    config = permutations.get_config()
    config.name = "segments"
    config.task.update({"name": "segment_language_modelling", "context": 32, "prompts": ("The ",)})
    config.model.update({"family": "transformer_xl", "memory": 128})
    return config
