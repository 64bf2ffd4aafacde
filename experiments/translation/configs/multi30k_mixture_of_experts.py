r"""Multi30k English-German by Transformer-Tiny with mixtures of 16 experts, of which each word piece uses 2.

    python -m launch.train --config=experiments/translation/configs/multi30k_mixture_of_experts.py --data_dir=DIR \
        --workdir=runs/multi30k_experts

The FLOPs of a pair are those of multi30k_cpu.py, the same model with dense networks; the parameters are twice as many.
Takes an hour on one core. Expect 34.0 BLEU, where the dense model reaches 34.7: results/convolutional_multi30k.md.
"""

from ml_collections import ConfigDict

from experiments.translation.configs import multi30k_cpu


def get_config() -> ConfigDict:
    """Build Transformer-Tiny with 2 selected experts of 120 and a router instead of networks of 256.

    4 E (2 x 120) + 4 E 16 = 4 E 256 FLOPs a position and block, E the width.
    """
    config = multi30k_cpu.get_config()
    config.name = "multi30k_experts"
    config.model.feed_forward = 120
    config.model.experts = ConfigDict({"count": 16})
    return config
