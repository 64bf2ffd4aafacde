r"""GPT-3 XL, 1.3 billion parameters (Brown et al. 2020, table 2.1), on sixteen chips of TPU v5e.

    python -m launch.compile --config=experiments/pods/configs/gpt3_xl.py
    python -m launch.train --config=experiments/pods/configs/gpt3_xl.py --workdir=runs/gpt3_xl \
        --config.task.dataset=FOLDER

FOLDER holds your text in .txt, .jsonl or .parquet files, on a sample of which a byte-level BPE of GPT-2's size is
trained; `python -m launch.tokenize` with the same config makes its token shards beforehand. Batches of a million
tokens, the learning rate and the schedule are the paper's (table 2.1, appendix B), counted in steps. Parameters,
moments and sums are float32, products bfloat16; the paper mentions half precision without details. The expected figures
are those of results/pods.md, from the roofline for a TPU; nothing has run on a pod.
"""

from ml_collections import ConfigDict

from experiments.pods.configs import gpt2

TOKENS = 300_000_000_000


def get_config() -> ConfigDict:
    """Build the config: the published batch, with parameters and moments sharded over all chips."""
    config = gpt2.get_config()
    config.name = "gpt3_xl"
    config.model.size = "gpt3-1.3b"
    config.task.context_length, config.task.batch_size = 2048, 512
    config.steps = TOKENS // (config.task.context_length * config.task.batch_size)
    # A warm-up of 375 million tokens.
    config.optimizer.update({"learning_rate": 2e-4, "warmup_steps": 358})
    config.num_microbatches = 8
    # Of the maps alone: statistics of the training batch would double what is compiled.
    config.head_statistics_every = 0
    config.topology = "v5e:4x4"
    config.sharding = ConfigDict({"data": 1, "fsdp": -1, "rules": "fsdp"})
    return config
