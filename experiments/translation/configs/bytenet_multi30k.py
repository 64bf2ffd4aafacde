r"""Multi30k English-German by a small ByteNet: dilated convolutions without attention or recurrence.

    python -m launch.train --config=experiments/translation/configs/bytenet_multi30k.py --data_dir=DIR \
        --workdir=runs/bytenet

Data, vocabulary and batches are those of multi30k.py: the paper's characters would be four times as many positions, too
slow for a CPU. Half as many steps, half an hour on one idle core. Expect 27.05 BLEU on test_2016_flickr with seed 1,
worse than every system with attention: results/convolutional_multi30k.md.
"""

from ml_collections import ConfigDict

from experiments.translation.configs import convs2s_multi30k


def get_config() -> ConfigDict:
    """Build the config: two sets of five blocks on each side."""
    config = convs2s_multi30k.get_config()
    config.name = "bytenet_multi30k"
    config.steps = 1800
    config.model = ConfigDict(
        {
            "family": "bytenet",
            "width": 128,
            "encoder_sets": 2,
            "decoder_sets": 2,
            "dropout": 0.2,
        }
    )
    config.optimizer.learning_rate = 2e-3
    return config
