r"""Weak scaling: GPT-3 XL on 4 to 256 chips of TPU v5p, eight rows of 2,048 tokens per chip.

    python -m launch.compile --config=experiments/pods/configs/weak_scaling.py:v5p:8x8x4
    python -m launch.train --config=experiments/pods/configs/weak_scaling.py:v5p:8x8x4 --workdir=runs/weak_256 \
        --config.task.dataset=FOLDER

The argument is the pod. From 128 chips on, the batch is larger than the paper's million tokens. The expected table is
in results/pods.md, from the roofline for a TPU; nothing has run on a pod.
"""

from typing import Literal

from ml_collections import ConfigDict

from experiments.pods.configs import gpt3_xl

ROWS_A_CHIP = 8
CHIPS = {
    "v5p:2x2x1": 4,
    "v5p:2x2x2": 8,
    "v5p:2x2x4": 16,
    "v5p:2x4x4": 32,
    "v5p:4x4x4": 64,
    "v5p:4x4x8": 128,
    "v5p:8x8x4": 256,
}


def get_config(
    pod: Literal[
        "v5p:2x2x1", "v5p:2x2x2", "v5p:2x2x4", "v5p:2x4x4", "v5p:4x4x4", "v5p:4x4x8", "v5p:8x8x4"
    ] = "v5p:2x2x1",
) -> ConfigDict:
    """Build the config: GPT-3 XL with a batch that grows with the chips of `pod`."""
    config = gpt3_xl.get_config()
    chips = CHIPS[pod]
    config.name = f"weak_scaling_{chips}"
    config.topology = pod
    config.task.batch_size = ROWS_A_CHIP * chips
    config.steps = gpt3_xl.TOKENS // (config.task.context_length * config.task.batch_size)
    config.num_microbatches = 1
    return config
