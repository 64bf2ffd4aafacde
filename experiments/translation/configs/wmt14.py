r"""WMT 2014 English-German by Transformer base and big (Vaswani et al. 2017, table 3).

    python -m launch.train --config=experiments/translation/configs/wmt14.py:base --data_dir=DIR \
        --workdir=runs/wmt14_base
    python -m launch.train --config=experiments/translation/configs/wmt14.py:big --data_dir=DIR --workdir=runs/wmt14_big

DIR is a TFDS folder with wmt14_translate/de-en prepared (--file_format=array_record). The paper trained base for 12
hours and big for 3.5 days on 8 P100 GPUs: 25.8 and 26.4 BLEU on newstest2013, 27.3 and 28.4 on newstest2014. Those are
tokenized BLEU with German compounds split; this config reports sacreBLEU (13a), which is lower. Not yet run.
"""

from typing import Literal

from ml_collections import ConfigDict


def get_config(size: Literal["base", "big"] = "base") -> ConfigDict:
    """Build the paper's recipe; `size` is "base" or "big"."""
    width, feed_forward, heads, dropout, steps, minute, averaged = {
        "base": (512, 2048, 8, 0.1, 100_000, 150, 5),
        "big": (1024, 4096, 16, 0.3, 300_000, 60, 20),
    }[size]
    warmup, checkpoint_every = 4000, 10 * minute
    return ConfigDict(
        {
            "name": f"wmt14_{size}",
            "seed": 1,
            "steps": steps,
            "log_every": 100,
            "eval_every": 5000,
            "maps_every": 5000,
            "checkpoint_every": 5000,
            "keep_checkpoints": 3,
            "task": {
                "name": "translation",
                "dataset": "wmt14_translate/de-en",
                "languages": ("en", "de"),
                "vocab_size": 37_000,
                "bucket_lengths": (24, 40, 64, 128, 256),
                # About 25,000 source and 25,000 target tokens a batch (section 5.1), a little padding included.
                "tokens_per_batch": 28_672,
                "eval_parameters": "last",
            },
            "model": {
                "family": "encoder_decoder",
                "width": width,
                "heads": heads,
                "feed_forward": feed_forward,
                "dropout": dropout,
                "max_length": 512,
            },
            "optimizer": {
                # Equation 3 peaks at (width x warm-up)^-0.5.
                "learning_rate": (width * warmup) ** -0.5,
                "warmup_steps": warmup,
            },
            # The last 5 (base) or 20 (big) checkpoints, written every ten minutes at the paper's speed.
            "parameter_averages": {
                "last": {
                    "kind": "mean",
                    "start": steps - averaged * checkpoint_every,
                    "every": checkpoint_every,
                }
            },
            "precision": {"compute": "bfloat16"},
            "topology": "v5e:4x4",
        }
    )
