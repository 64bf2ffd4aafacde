r"""XLNet in miniature: permutation language modeling of plain text, fine-tuned on GLUE (Yang et al. 2019).

    python -m launch.train --config=experiments/glue/configs/xlnet.py --workdir=runs/xlnet
    python -m launch.train --config=experiments/glue/configs/xlnet.py:SST-2 --workdir=runs/xlnet_sst --data_dir=GLUE
    python -m launch.train --config=experiments/glue/configs/xlnet.py:CoLA --workdir=runs/xlnet_cola --data_dir=GLUE
    python -m launch.evaluate --workdir=runs/xlnet_cola --split=development
    python -m launch.maps --workdir=runs/xlnet_cola

The text, GLUE and the tokenizer are those of experiments/glue/configs/bert.py, whose run runs/bert must be there. The
blocks, steps and batches are as large as BERT's. By its first 100 steps, pre-training takes 45 minutes on one core;
fine-tuning takes four. Expect a perplexity of 40 of the predicted tokens, and no gain from it: 78.6 on SST-2 without
and 78.3 with it, results/xlnet.md.
"""

from typing import Literal

from ml_collections import ConfigDict

from experiments.glue.configs import bert, gpt1

MODEL = {
    "family": "xlnet",
    "layers": 4,
    "width": 128,
    "heads": 4,
    "feed_forward": 512,
    "memory_length": 64,
    "scan_unroll": 4,
}


def get_config(part: Literal["permutations", "SST-2", "CoLA"] = "permutations") -> ConfigDict:
    """Build the config: pre-training (permutations), or fine-tuning on a GLUE task."""
    return pretraining() if part == "permutations" else fine_tuning(part)


def pretraining() -> ConfigDict:
    """Build the pre-training config: 16 segments of 64 tokens behind a memory of 64, 8,000 steps."""
    config = bert.pretraining()
    config.name = "xlnet"
    config.task = {
        "name": "permutation_lm",
        "dataset": gpt1.TEXT,
        "tokenizer": "existing",
        "context_length": 64,
        "test_split": "",
    }
    config.model = MODEL
    # Of BERT's run only the tokenizer, which has the special tokens of fine-tuning.
    config.initialize_from = {"run": "runs/bert", "copy_tokenizer": True, "rules": ("* = fresh",)}
    return config


def fine_tuning(dataset: str) -> ConfigDict:
    """Build the fine-tuning config: 1,000 steps of 32 sentences."""
    config = bert.as_encoder(gpt1.fine_tuning(dataset), f"xlnet_{dataset}", {**MODEL, "relative_segments": True})
    config.task.sequence_format = "xlnet"
    # Pre-training has no segments: what attention knows of them begins here, as the head does.
    rules = ("classes/* = fresh", "pooler/* = fresh", "layers/attention/relative/kind* = fresh")
    config.initialize_from = {"run": "runs/xlnet", "copy_tokenizer": True, "rules": rules}
    return config
