"""Multi30k English-German by Transformer-Tiny, as Wu et al. 2021 train it: 41.02 BLEU on test_2016_flickr.

    python -m launch.train --config=experiments/translation/multi30k.py --data_dir=DIR --workdir=runs/multi30k

DIR holds the files of task 1 (raw/ and tok/). 8,000 updates of 2 x 4,096 tokens are a job for one GPU; on two CPU
cores take multi30k_cpu.py, the same model on a schedule of under an hour. The figure is BLEU on lower-cased, tokenised
text after BPE removal, beam 5; it does not compare with sacreBLEU on raw text. Other directions, and raw text:
--config.task.dataset=multi30k/raw/fr-en (with --config.task.bleu_tokenizer=13a).
"""

from ml_collections import ConfigDict

from experiments import data_parallel


def get_config() -> ConfigDict:
    """The published recipe: 4 + 4 layers, width 128, dropout 0.3, a joint BPE of 10,000."""
    return ConfigDict(
        {
            "name": "multi30k",
            "seed": 1,
            "steps": 8000,
            "accumulate": 2,
            "log_every": 50,
            "eval_every": 500,
            "maps_every": 1000,
            "checkpoint_every": 500,
            "keep": 2,
            "task": {
                "name": "translation",
                "dataset": "multi30k/tokenised/en-de",
                "data_dir": None,
                "languages": (),
                "vocabulary": 10_000,
                "lengths": (12, 16, 20, 26, 34, 64),
                "tokens_per_batch": 8192,
                "label_smoothing": 0.1,
                "validation": "validation",
                "test": "test_2016_flickr",
                "beams": 5,
                "length_penalty": 1.0,
                "bleu_tokenizer": "none",
                "bleu_lowercase": False,
                "shown": 100,
                "probed": 8,
                "evaluated_parameters": "last",
            },
            "model": {
                "family": "encoder_decoder",
                "encoder_layers": 4,
                "decoder_layers": 4,
                "width": 128,
                "heads": 4,
                "feed_forward": 256,
                "dropout": 0.3,
                "norm_placement": "post",
                "positions": "sinusoidal",
                "longest": 128,
                "score": "scaled_dot",
                "biases": "all",
                "unroll": 4,
                "remat": "none",
            },
            "optimizer": {
                "algorithm": "adam",
                "learning_rate": 5e-3,
                "schedule": "inverse_square_root",
                "warmup": 2000,
                "final": 0.0,
                "beta1": 0.9,
                "beta2": 0.98,
                "epsilon": 1e-9,
                "weight_decay": 0.0,
                "clip": 0.0,
            },
            # The last ten epochs, of about 60 updates each.
            "averages": {"last": {"kind": "mean", "start": 7400, "every": 60}},
            "precision": {"parameters": "float32", "compute": "float32"},
            "maps": {"megabytes": 500.0, "rows": 8, "top": 8},
            "pod": "v5e:1x1",
            "sharding": data_parallel(),
        }
    )
