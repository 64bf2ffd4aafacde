r"""A help desk: "my screen is blank" is answered with words that the question does not contain.

    python -m launch.train --config=experiments/dialogue/configs/help_desk.py --workdir=runs/help_desk
    python -m launch.train --config=experiments/dialogue/configs/help_desk.py:recurrent \
        --workdir=runs/help_desk_recurrent

The encoder-decoder Transformer, and Bahdanau's recurrent encoder-decoder. Each takes a minute on one core. Expect all
test answers right with the first, and 0.94 with the second: results/help_desk.md. The evaluation reports separately
pairs of device and symptom that occur in training (`known_pair`) and new ones (`new_pair`), which need composition.

    python -m launch.generate --workdir=runs/help_desk --text='my screen is blank' --num_beams=4
    python -m launch.generate --workdir=runs/help_desk --text='my screen is blank' --temperature=0.7 --seed=1
"""

from typing import Literal

from ml_collections import ConfigDict


def get_config(family: Literal["encoder_decoder", "recurrent"] = "encoder_decoder") -> ConfigDict:
    """Build the config: every word is one token, and answers are decoded greedily."""
    config = ConfigDict(
        {
            "name": f"help_desk_{family}",
            "seed": 1,
            "steps": 400,
            "eval_every": 100,
            "maps_every": 25,
            "checkpoint_every": 100,
            "task": {
                "name": "translation",
                "dataset": "help_desk",
                "vocab_size": 1000,
                "bucket_lengths": (20,),
                "tokens_per_batch": 64 * 20,
                "label_smoothing": 0.0,
                "num_beams": 1,
            },
            "optimizer": {
                "learning_rate": 3e-3,
                "schedule": "cosine",
                "warmup_steps": 100,
                "final_lr_fraction": 0.01,
                "clip_norm": 1.0,
            },
            "topology": "cpu:1",
        }
    )
    if family == "recurrent":
        config.model = ConfigDict(
            {"family": "recurrent_encoder_decoder", "width": 96, "embedding_width": 64, "dropout": 0.1}
        )
    else:
        config.model = ConfigDict(
            {
                "family": "encoder_decoder",
                "encoder_layers": 2,
                "decoder_layers": 2,
                "width": 64,
                "heads": 4,
                "feed_forward": 128,
                "dropout": 0.1,
                "norm_placement": "pre",
                "max_length": 24,
            }
        )
    return config
