r"""Mixtures of 16 experts, of which each character uses 2, compared with a dense network of equal FLOPs.

    python -m launch.train --config=experiments/language_modeling/configs/mixture_of_experts.py \
        --workdir=runs/experts --data_dir=DIRECTORY

Takes four minutes on a core, longer on a shared one. Expect 1.74 nats per character over the whole validation text,
where shakespeare.py, the same model with dense networks, reaches 1.80; and a variation of the experts' importance below
a fifth of that with `--config.model.experts.importance_loss=0 --config.model.experts.load_loss=0` (results/experts.md).
"""

from ml_collections import ConfigDict

from experiments.language_modeling.configs import shakespeare


def get_config() -> ConfigDict:
    """Build the config: shakespeare.py with 2 selected experts of 248 and a router instead of networks of 512.

    4 E (2 x 248) + 4 E 16 = 4 E 512 FLOPs a character and block, E the width.
    """
    config = shakespeare.get_config()
    config.name = "mixture_of_experts"
    config.model.feed_forward = 248
    config.model.experts = {"count": 16}
    return config
