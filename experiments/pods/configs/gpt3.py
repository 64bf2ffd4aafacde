r"""GPT-3, 175 billion parameters (Brown et al. 2020, table 2.1), on 1,024 chips of TPU v5p.

    python -m launch.compile --config=experiments/pods/configs/gpt3.py
    python -m launch.train --config=experiments/pods/configs/gpt3.py --workdir=runs/gpt3 --config.task.dataset=FOLDER

FOLDER holds your text in .txt, .jsonl or .parquet files, on a sample of which a byte-level BPE of GPT-2's size is
trained; `python -m launch.tokenize` with the same config makes its token shards beforehand. Batches of 3.1 million
tokens (the paper's 3.2), the learning rate and the schedule are the paper's (table 2.1, appendix B), counted in steps.
Parameters, moments and sums are float32, products bfloat16; the paper mentions half precision without details. The
expected figures are those of results/pods.md, from the roofline for a TPU; nothing has run on a pod.
"""

from ml_collections import ConfigDict

from experiments.pods.configs import gpt3_xl


def get_config() -> ConfigDict:
    """Build the config: the published batch; layers over eight chips, parameters and rows over 128 such groups."""
    config = gpt3_xl.get_config()
    config.name = "gpt3"
    config.model.size = "gpt3-175b"
    # The next multiple of the eight parts of the vocabulary, and of the 128 lanes of a TPU.
    config.model.vocab_size = 50_304
    config.model.remat = "full"
    config.task.batch_size = 1536
    config.steps = gpt3_xl.TOKENS // (config.task.context_length * config.task.batch_size)
    # A warm-up of 375 million tokens.
    config.optimizer.update({"learning_rate": 0.6e-4, "warmup_steps": 119})
    config.num_microbatches = 1
    config.topology = "v5p:8x8x16"
    config.sharding.update({"tensor": 8, "rules": "fsdp+tp"})
    return config
