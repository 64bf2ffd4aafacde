"""Multi30k English-German by Transformer-Tiny, as Wu et al. 2021 train it: 41.02 BLEU on test_2016_flickr.

    python -m launch.train --config=experiments/translation/configs/multi30k.py --data_dir=DIR --workdir=runs/multi30k

DIR holds the files of task 1 (raw/ and tok/). 8,000 updates of 2 x 4,096 tokens are meant for one GPU; on two CPU cores
use multi30k_cpu.py, the same model with a schedule of under an hour. The figure is BLEU on lower-cased, tokenized text
after BPE removal, beam 5; it is not comparable with sacreBLEU on raw text. For other directions, and raw text:
--config.task.dataset=multi30k/raw/fr-en (with --config.task.bleu_tokenizer=13a).
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """Build the published recipe: 4 + 4 layers, width 128, dropout 0.3, a joint BPE of 10,000."""
    return ConfigDict(
        {
            "name": "multi30k",
            "seed": 1,
            "steps": 8000,
            "num_microbatches": 2,
            "maps_every": 1000,
            "task": {
                "name": "translation",
                "dataset": "multi30k/tokenized/en-de",
                "vocab_size": 10_000,
                "bucket_lengths": (12, 16, 20, 26, 34, 64),
                "tokens_per_batch": 8192,
                "test_split": "test_2016_flickr",
                "num_beams": 5,
                "length_penalty": 1.0,
                "bleu_tokenizer": "none",
                "num_decoded_examples": 100,
                "eval_parameters": "last",
            },
            "model": {
                "family": "encoder_decoder",
                "encoder_layers": 4,
                "decoder_layers": 4,
                "width": 128,
                "heads": 4,
                "feed_forward": 256,
                "dropout": 0.3,
                "max_length": 128,
                "biases": "all",
                "scan_unroll": 4,
            },
            "optimizer": {
                "learning_rate": 5e-3,
                "warmup_steps": 2000,
            },
            # The last ten epochs, of about 60 updates each.
            "parameter_averages": {"last": {"kind": "mean", "start": 7400, "every": 60}},
            "topology": "v5e:1x1",
        }
    )
