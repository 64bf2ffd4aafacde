r"""A character language model of digits, with which a speech recognizer's hypotheses can be rescored.

    python -m launch.train --config=experiments/speech/configs/digit_language_model.py --workdir=runs/digit_words
    python -m launch.evaluate --workdir=runs/speech --split=test --num_beams=4 --language_model=runs/digit_words \
        --language_model_weight=0.3

A Transformer decoder over characters, trained for about a minute on one core. Digits are uniform and independent, so
that the least loss is (ln 10 + ln 3 / 3) / 5 = 0.53 nats per character. Expect 0.59 to 0.60: results/speech.md.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """Build the config: windows of 64 characters."""
    return ConfigDict(
        {
            "name": "digit_language_model",
            "seed": 1,
            "steps": 400,
            "eval_every": 100,
            "maps_every": 100,
            "checkpoint_every": 200,
            "task": {
                "name": "language_modeling",
                "dataset": "digit_words",
                "tokenizer": "characters",
                "context_length": 64,
                "batch_size": 32,
                "prompts": ("three ",),
                "max_new_tokens": 32,
            },
            "model": {
                "family": "decoder",
                "layers": 2,
                "width": 64,
                "heads": 2,
                "feed_forward": 128,
                "max_length": 128,
            },
            "optimizer": {"learning_rate": 3e-3, "schedule": "cosine", "warmup_steps": 50, "final_lr_fraction": 0.01},
            "topology": "cpu:1",
        }
    )
