r"""GPT-2 small (Radford et al. 2019) on four chips of TPU v5e.

    python -m launch.compile --config=experiments/pods/configs/gpt2.py
    python -m launch.train --config=experiments/pods/configs/gpt2.py --workdir=runs/gpt2 --config.task.dataset=FOLDER

FOLDER holds your text in .txt, .jsonl or .parquet files, on a sample of which a byte-level BPE of GPT-2's size is
trained. The text is tokenized once, into token shards in the folder `shards`, at the first start, or beforehand by
`python -m launch.tokenize` with the same config. Batches have 512 rows of 1,024 tokens, as in the paper; parameters,
moments and sums are float32, products bfloat16. The expected figures are those of results/pods.md, from the roofline
for a TPU; nothing has run on a pod.
"""

from ml_collections import ConfigDict

from experiments.language_modeling.configs import gpt


def get_config() -> ConfigDict:
    """Build the config: the published batch in microbatches that fit a chip of 16 GB, with replicated parameters."""
    config = gpt.get_config()
    config.name = "gpt2_pod"
    config.task.dataset = "text"
    config.task.shards_dir = "shards"
    config.num_microbatches = 4
    config.topology = "v5e:2x2"
    return config
