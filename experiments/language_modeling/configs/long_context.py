r"""Train a decoder of 1.3 billion parameters on contexts of 32,768 tokens, on eight H100 GPUs of one host.

    python -m launch.train --config=experiments/language_modeling/configs/long_context.py --workdir=runs/long \
        --config.task.dataset=FOLDER
    python -m launch.compile --config=experiments/language_modeling/configs/long_context.py \
        --compiler_python=$HOME/cuda/bin/python

FOLDER holds your text in .txt, .jsonl or .parquet files, on a sample of which a byte-level BPE is trained; it is
tokenized once, into token shards. Each GPU reads one row of 32,768 tokens, in which documents see only themselves, by
cuDNN's flash attention. Parameters and moments are divided over the GPUs, and every layer is computed again in the
backward pass. The shapes are those of Llama, as which the model exports. The compiled program's memory is in the record
of experiments/pods; nothing has run on these GPUs.
"""

from ml_collections import ConfigDict

from experiments.language_modeling.configs import gpt


def get_config() -> ConfigDict:
    """Build the config: one row of 32,768 tokens for each GPU."""
    config = gpt.get_config()
    config.name = "long_context"
    config.steps = 20_000
    config.task.update({"dataset": "text", "shards_dir": "shards", "context_length": 32_768, "batch_size": 8})
    config.head_statistics_every = 0
    config.model = ConfigDict(
        {
            "family": "decoder",
            "vocab_size": 50_304,
            "layers": 24,
            "width": 2048,
            "heads": 16,
            "kv_heads": 4,
            "feed_forward": 5632,
            "activation": "swiglu",
            "norm": "rms",
            "biases": "none",
            "tie_embeddings": False,
            "positions": "rotary_halves",
            "rotary_base": 500_000.0,
            "max_length": 32_768,
            "remat": "full",
        }
    )
    config.optimizer.update({"learning_rate": 3e-4, "warmup_steps": 500})
    config.topology = "h100:8"
    config.sharding = ConfigDict({"data": 1, "fsdp": 8, "rules": "fsdp"})
    return config
