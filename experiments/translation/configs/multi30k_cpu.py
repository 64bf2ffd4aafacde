r"""Multi30k English-German by Transformer-Tiny in half an hour on two CPU cores.

    python -m launch.train --config=experiments/translation/configs/multi30k_cpu.py --data_dir=DIR \
        --workdir=runs/multi30k_cpu

The model of multi30k.py with pre-norm, a BPE of 4,000, smaller batches, and a learning rate that decays to zero in half
an hour. Expect 34.7 BLEU on test_2016_flickr (lower-cased, tokenized, beam 5); the goal is 33: results/multi30k_cpu.md.
"""

from ml_collections import ConfigDict

from experiments.translation.configs import multi30k


def get_config() -> ConfigDict:
    """Build the published recipe with the changes that make it fit half an hour."""
    config = multi30k.get_config()
    config.name = "multi30k_cpu"
    config.steps = 3600
    config.num_microbatches = 1
    config.eval_every = 600
    config.maps_every = 600
    config.checkpoint_every = 600
    config.task.vocab_size = 4000
    config.task.tokens_per_batch = 2048
    config.task.eval_parameters = "raw"
    config.optimizer.learning_rate = 2e-3
    config.optimizer.schedule = "linear"
    config.optimizer.warmup_steps = 300
    del config.parameter_averages
    config.topology = "cpu:1"
    config.model.norm_placement = "pre"
    return config
