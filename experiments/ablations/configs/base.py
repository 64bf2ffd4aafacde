"""The base of the ablations: a small encoder-decoder on the built-in phrases, half a minute a run.

    python -m launch.train --config=experiments/ablations/configs/base.py --workdir=runs/base

Takes about half a minute on two cores. Each ablation in this folder starts from this config, or from
`reversal_config()`, and lists only its differences.
"""

from ml_collections import ConfigDict

# Seeds with which a sign-flip test can see p < 0.05 even after the correction for several arms.
SEEDS = (1, 2, 3, 4, 5, 6, 7, 8)


def get_config() -> ConfigDict:
    """Build the base config: 2+2 layers of width 64, 400 steps of 768 tokens, one padded length."""
    return ConfigDict(
        {
            "name": "base",
            "seed": 1,
            "steps": 400,
            "log_every": 20,
            "eval_every": 100,
            "maps_every": 50,
            "checkpoint_every": 0,
            "keep_checkpoints": 1,
            "task": {
                "name": "translation",
                "dataset": "phrases/train=6000,validation=100,test=250",
                "vocab_size": 800,
                "bucket_lengths": (24,),
                "tokens_per_batch": 768,
                "num_beams": 1,
                "num_decoded_examples": 16,
                "num_probe_examples": 4,
            },
            "model": {
                "family": "encoder_decoder",
                "encoder_layers": 2,
                "decoder_layers": 2,
                "width": 64,
                "heads": 4,
                "feed_forward": 128,
                "dropout": 0.0,
                "norm_placement": "pre",
                "max_length": 24,
            },
            "optimizer": {
                "learning_rate": 1e-2,
                "schedule": "linear",
                "warmup_steps": 50,
                "clip_norm": 1.0,
            },
            "maps": {"max_megabytes": 20.0, "max_full_rows": 4, "top_k": 4},
            "topology": "cpu:1",
        }
    )


def reversal_config() -> ConfigDict:
    """Build the config of sequence reversal: 12 of 16 symbols, 500 steps, constant learning rate, 6+6 layers."""
    config = get_config()
    config.name = "reversal"
    config.steps = 500
    config.log_every = 25
    config.eval_every = 250
    config.maps_every = 250
    config.task.dataset = "reversal/length=12,num_symbols=16,validation=128,test=256"
    config.task.bucket_lengths = (13,)
    config.task.tokens_per_batch = 64 * 13
    config.task.label_smoothing = 0.0
    config.model.encoder_layers = 6
    config.model.decoder_layers = 6
    config.model.feed_forward = 256
    config.optimizer.learning_rate = 3e-3
    config.optimizer.schedule = "constant"
    config.optimizer.warmup_steps = 0
    config.optimizer.clip_norm = 0.0
    return config


def recurrent_config() -> ConfigDict:
    """Build the config of Bahdanau's recurrent encoder-decoder of width 64 on the base's phrases, 600 steps."""
    config = get_config()
    config.name = "recurrent"
    config.steps = 600
    config.model = ConfigDict(
        {
            "family": "recurrent_encoder_decoder",
            "width": 64,
            "embedding_width": 64,
            "key_value_projection": "split",
            "head_dim": 64,
        }
    )
    config.optimizer.schedule = "cosine"
    return config


def initial_gradient_stack(family: str) -> dict:
    """Return a decoder or encoder of width 64, whose gradients at initialization are measured."""
    task = {
        "name": "language_modeling" if family == "decoder" else "masked_lm",
        "tokenizer": "characters",
        "context_length": 32,
        "num_probe_examples": 1,
        "probe_length": 16,
    }
    model = {
        "family": family,
        "layers": 6,
        "width": 64,
        "heads": 4,
        "feed_forward": 256,
        "activation": "relu",
        "norm_placement": "pre",
        "initialization": "xavier",
        "embedding_scale": "sqrt_width",
        "embedding_norm": False,
        "positions": "sinusoidal",
        "max_length": 32,
        "dropout": 0.0,
        "attention_dropout": 0.0,
    }
    return {
        "depths": (6, 12, 24),
        "depth_keys": ("model.layers",),
        "overrides": {"task": task, "model": model},
    }
