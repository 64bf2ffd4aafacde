r"""GPT-2 small (Radford et al. 2019) on four chips of TPU v5e.

    python -m launch.compile --config=experiments/pods/configs/gpt2.py
    python -m launch.train --config=experiments/pods/configs/gpt2.py --workdir=runs/gpt2 --config.task.dataset=FOLDER

FOLDER holds the user's text in .txt files; a byte-level BPE of GPT-2's size is trained on it. Updates of 512 rows of
1,024 tokens, as the paper's; parameters, moments and sums in float32, products in bfloat16. The figures to expect are
those of results/pods.md: of the roofline, for a TPU; no pod has run it here.
"""

from ml_collections import ConfigDict

from experiments.language_modeling.configs import gpt


def get_config() -> ConfigDict:
    """The published batch in microbatches that fit a chip of 16 GB, every parameter whole on every chip."""
    config = gpt.get_config()
    config.name = "gpt2_pod"
    config.task.dataset = "text"
    config.num_microbatches = 4
    config.pod = "v5e:2x2"
    return config
