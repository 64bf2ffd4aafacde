"""Transformer-XL in miniature: characters of the documentation inside Python, read in segments with a memory.

    python -m launch.train --config=experiments/language/segments.py --workdir=runs/segments

Every segment of 32 characters stands behind a memory of 128, which each of 3 layers keeps. Takes TIME on one core.
Expect FIGURE (`loss` and `loss_without_memory` of the evaluation `recurrence`: the same model, each segment read as
if it were the first).
"""

from ml_collections import ConfigDict

from experiments.language import permutations


def get_config() -> ConfigDict:
    """The sizes of permutations.py, from left to right; 3,000 steps of 32 rows."""
    config = permutations.get_config()
    config.name = "segments"
    config.steps = 3000
    config.task.update({"name": "segment_language_modelling", "context": 32, "prompts": ("The ",)})
    config.model.update({"family": "transformer_xl", "memory": 128})
    return config
