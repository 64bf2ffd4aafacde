r"""Gopher, 280 billion parameters (Rae et al. 2021, table 1), on 1,024 chips of TPU v5p.

    python -m launch.compile --config=experiments/pods/configs/gopher.py
    python -m launch.train --config=experiments/pods/configs/gopher.py --workdir=runs/gopher \
        --config.task.dataset=FOLDER

FOLDER holds your text in .txt, .jsonl or .parquet files; a byte-level BPE of Gopher's size, 32,000, replaces its
SentencePiece. The batch of three million tokens (which the paper later doubles), the learning rate, warm-up and
clipping are the paper's (section 3); Adam's second decay rate, which it does not print, is GPT-3's. The paper keeps
parameters in bfloat16 and rounds them stochastically; here parameters, moments and sums are float32, products bfloat16.
The expected figures are those of results/pods.md, from the roofline for a TPU; nothing has run on a pod.
"""

from ml_collections import ConfigDict

from experiments.pods.configs import gpt3


def get_config() -> ConfigDict:
    """Build the config: the published batch; layers over eight chips, parameters and rows over 128 such groups."""
    config = gpt3.get_config()
    config.name = "gopher"
    config.model.size = "gopher-280b"
    config.model.vocab_size = 32_000
    config.task.vocab_size = 32_000
    config.num_microbatches = 2
    config.optimizer.update(
        {"algorithm": "adam", "learning_rate": 4e-5, "warmup_steps": 1500, "final_lr_fraction": 0.1}
    )
    config.optimizer.update({"weight_decay": 0.0, "clip_norm": 0.25})
    return config
