r"""Mixtures of 16 experts, of which each character uses 2, beside a dense network of equal operations.

    python -m launch.train --config=experiments/language_modeling/configs/mixture_of_experts.py \
        --workdir=runs/experts --data_dir=DIRECTORY

Takes four minutes on a core, longer on one that is shared. Expect 1.74 nats a character over the whole validation text,
where shakespeare.py, the same model with dense networks, comes to 1.80; and a variation of the experts' importance that
is below a fifth of that with `--config.model.experts.importance_loss=0 --config.model.experts.load_loss=0`
(results/experts.md).
"""

from ml_collections import ConfigDict

from experiments.language_modeling.configs import shakespeare


def get_config() -> ConfigDict:
    """The small GPT of shakespeare.py, whose networks of 512 hidden units become 2 chosen ones of 248 and a router.

    4 E (2 x 248) + 4 E 16 = 4 E 512 operations a character and block, E the width.
    """
    config = shakespeare.get_config()
    config.name = "mixture_of_experts"
    config.model.feed_forward = 248
    config.model.experts = {"count": 16}
    return config
