r"""English number words retrieve the same number in German: a contrastive dual encoder against a bag of words.

    python -m launch.train --config=experiments/text_retrieval/configs/number_words.py --workdir=runs/retrieval
    python -m launch.train --config=experiments/text_retrieval/configs/number_words.py:bag_of_words --workdir=runs/bag
    python -m launch.generate --workdir=runs/retrieval \
        --text='four hundred and ninety thousand nine hundred and ninety-four'

Every number comes with its twin, whose English words are the same in another order. `:bag_of_words` takes the mean of
the vectors of a text's tokens, which cannot tell twins apart. The runs take one and a half minutes and 20 seconds on
one core. Expect a test accuracy of 0.995 and 0.5, in pools of 1,000: results/number_words.md.
"""

from typing import Literal

from ml_collections import ConfigDict


def get_config(encoder: Literal["transformer", "bag_of_words"] = "transformer") -> ConfigDict:
    """Build the config: a Transformer encoder of two layers of width 64, or the mean of token vectors."""
    config = ConfigDict(
        {
            "name": f"number_words_{encoder}",
            "seed": 1,
            "steps": 500,
            "eval_every": 100,
            "maps_every": 100,
            "task": {"name": "experiments.text_retrieval.task", "max_tokens": 16},
            "model": {"family": "experiments.text_retrieval.model"},
            "optimizer": {"learning_rate": 2e-3, "schedule": "cosine", "warmup_steps": 50, "clip_norm": 1.0},
            "topology": "cpu:1",
        }
    )
    if encoder == "bag_of_words":
        config.model.layers, config.model.positions = 0, "none"
    return config
