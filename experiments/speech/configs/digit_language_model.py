r"""A language model of digits in words, whose score a listener's hypotheses can get as well.

    python -m launch.train --config=experiments/speech/configs/digit_language_model.py --workdir=runs/digit_words
    python -m launch.evaluate --workdir=runs/speech --split=test --num_beams=4 --language_model=runs/digit_words \
        --language_model_weight=0.3

A Transformer decoder over characters, for about a minute on one core. Every digit is as likely, so that nothing is
known beyond spelling: its loss can come down to (ln 10 + ln 3 / 3) / 5 = 0.53 nats a character. Expect 0.59, and no
fewer errors by it: results/speech.md.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """Windows of 64 characters."""
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
                "context": 64,
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
            "pod": "cpu:1",
        }
    )
