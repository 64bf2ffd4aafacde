r"""Multi30k English-German by ConvS2S: gated convolutions, and an attention in every layer of the decoder.

    python -m launch.train --config=experiments/translation/configs/convs2s_multi30k.py --data_dir=DIR \
        --workdir=runs/convs2s

The data, vocabulary, batches and steps of experiments/translation/configs/recurrent_multi30k.py, with nine tenths of
its FLOPs. Takes half an hour on one idle core. Expect 38.1 BLEU: results/convolutional_multi30k.md.
"""

from ml_collections import ConfigDict

from experiments.translation.configs import multi30k_cpu


def get_config() -> ConfigDict:
    """Build the config: four layers of kernel 3 on each side, as wide as a CPU has time for."""
    config = multi30k_cpu.get_config()
    config.name = "convolutional_multi30k"
    config.model = ConfigDict(
        {
            "family": "convs2s",
            "embedding_width": 192,
            "width": 192,
            "encoder_layers": 4,
            "decoder_layers": 4,
            "dropout": 0.2,
        }
    )
    config.task.length_bounds = (10, 13, 15)
    config.optimizer.learning_rate = 4e-3
    config.optimizer.clip_norm = 1.0
    return config
